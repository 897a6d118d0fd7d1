"""Read text files of a person: UTF-8, or UTF-16 and UTF-32 with a byte order mark, as PowerShell's `>` writes them."""

import codecs
import io
from pathlib import Path
from typing import TextIO

from hardwon.memory.errors import ConfigError

_MARKS = (
    # UTF-32 first: its little-endian mark begins with that of UTF-16.
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip


def find_encoding(head: bytes, name: object) -> str:
    """Return the encoding of a file, judged by its byte order mark."""
    encoding = next((encoding for mark, encoding in _MARKS if head.startswith(mark)), "")
    if not encoding and b"\0" in head:
        raise ConfigError(
            f"{name} is not UTF-8: it looks compressed, or like UTF-16 without a byte order mark. Save it as UTF-8."
        )
    return encoding or "utf-8"


def open_text(path: str | Path, *, newline: str | None = None) -> TextIO:
    """Open a text file."""
    file = Path(path).open("rb")  # noqa: SIM115, the caller closes it
    try:
        encoding = find_encoding(file.peek(4)[:4], path)
    except BaseException:
        file.close()
        raise
    return io.TextIOWrapper(file, encoding=encoding, newline=newline)


def read_text(path: str | Path) -> str:
    """Return the text of a file."""
    with open_text(path) as file:
        return file.read()
