"""Text files that are empty, cut, in another encoding or too deep: every command reads them, or names the file."""

import codecs

import pytest
from typer.testing import CliRunner

from hardwon.apps import importers
from hardwon.apps.cli.app import app
from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.errors import HardwonError

CONTENTS = {
    "empty": b"",
    "byte order mark": codecs.BOM_UTF8,
    "zero byte": b"a\0b: 1\n",
    "zero bytes": bytes(50),
    "latin-1": b"title = 'caf\xe9'\n",
    "UTF-16 without a mark": "{}".encode("utf-16-le"),
    "cut UTF-16": codecs.BOM_UTF16_LE + b"{",
    "half a pair": codecs.BOM_UTF16_BE + b"\xd8\x00",
    "cut UTF-8": b'{"a": "caf\xc3',
    "one long line": b"x" * 1_000_000,
    "deep": b"[" * 100_000,
    "lone surrogate": b'{"task": "\\ud800"}',
    "controls": b"\x1b[2J: \x07\r\n",
    "digits": b"9" * 5_000,
    "date": b"2026-99-99",
    "alias": b"a: &a [*a]\n",
    "number": b"5",
    "null": b"null",
    "list": b"[1]\r\n",
}


def list_commands(file, library):
    """Return the commands that read a file; each gets a copy of it where it looks for one."""
    folder = file.with_name("checkout")
    for copy in (folder / "insight-a.md", folder / ".hardwon.json", file.with_name(".claude") / "settings.json"):
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(file.read_bytes())
    return [
        ["memory", "import", library, file],
        ["memory", "commit", library, folder],
        ["memory", "stats", file],
        ["train", file, "--print-config"],
        ["scaffold", library, "--strategies", file, "--name", "a"],
        ["hook", "install", "claude-code", "--project", "--library", library],
        ["hook", "uninstall", "claude-code", "--project"],
    ]


@pytest.mark.parametrize("name", CONTENTS)
def test_every_importer_reads_a_file_or_names_it(tmp_path, name):
    file = tmp_path / "odd"
    file.write_bytes(CONTENTS[name])
    for form in importers.FORMATS:
        try:
            importers.read(file, form)
        except HardwonError as error:
            assert str(file) in str(error), form  # noqa: PT017, both outcomes are right


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_is_read_or_named(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    file, library = tmp_path / "odd", tmp_path / "e.db"
    file.write_bytes(CONTENTS[name])
    with ExperienceLibrary.open(library) as opened:
        opened.add(Item("insight", "A kettle stands beside the stove"))
    runner = CliRunner()
    for command in list_commands(file, library):
        result = runner.invoke(app, [str(word) for word in command])
        assert result.exception is None or isinstance(result.exception, SystemExit), command
        assert result.exit_code == 0 or "error" in result.output.lower(), command
