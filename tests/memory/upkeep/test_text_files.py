"""Files with byte order marks."""

import codecs

import pytest

from hardwon.memory.errors import ConfigError
from hardwon.memory.upkeep.text_files import read_text

TEXT = "Ada's Grüße\n漢字 🙂\n"
ENCODINGS = {
    "utf-8": b"", "utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE, "utf-32-le": codecs.BOM_UTF32_LE
}  # fmt: skip


@pytest.mark.parametrize("encoding", [*ENCODINGS, "utf-8-sig"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_byte_order_mark_tells_the_encoding(tmp_path, encoding, newline):
    path = tmp_path / "file"
    path.write_bytes(ENCODINGS.get(encoding, b"") + TEXT.replace("\n", newline).encode(encoding))
    assert read_text(path) == TEXT


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_named(tmp_path, encoding):
    path = tmp_path / "file.yaml"
    path.write_bytes("a: 1".encode(encoding))
    with pytest.raises(ConfigError, match=r"file\.yaml.*UTF-16 without a byte order mark.*UTF-8"):
        read_text(path)


def test_an_empty_file_is_empty(tmp_path):
    (tmp_path / "file").touch()
    assert read_text(tmp_path / "file") == ""
