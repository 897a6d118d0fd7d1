"""Tables of measurements are printed whole, and control characters are shown, not obeyed."""

import json

import pytest
from rich.table import Table
from rich.text import Text

from hardwon.apps.shared.common import out, print_figures, say_json, show_controls, table, tell

COLUMNS = [f"failing_calls_of_arm_{number}" for number in range(6)]


@pytest.mark.parametrize("columns", ["", "60"])
def test_no_cell_of_a_measurement_is_cut(capsys, monkeypatch, columns):
    """Also in a file, where nobody can make the window wider."""
    monkeypatch.setenv("COLUMNS", columns) if columns else monkeypatch.delenv("COLUMNS", raising=False)
    print_figures(table("what", *COLUMNS, rows=[("a text of several words", *range(6))], numbers=COLUMNS))
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2
    assert printed[0].split() == ["what", *COLUMNS]
    assert printed[1].split() == ["a", "text", "of", "several", "words", *map(str, range(6))]


ESCAPE = "a\x1b]52;c;cHdu\x07\x1b[2J\x9b1A\u202eb"
SHOWN = r"a\x1b]52;c;cHdu\x07\x1b[2J\x9b1A\u202eb"
CONTROLS = ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\u202e")


def as_row(text):
    """Return a table of the command line with a text in it."""
    return table("what", rows=[(text,)])


def as_cell(text):
    """Return a table with a text in a cell."""
    grid = Table()
    grid.add_column(overflow="fold")
    grid.add_row(Text(text))
    return grid


@pytest.mark.parametrize("wrap", [str, Text, as_row, as_cell])
@pytest.mark.parametrize("terminal", ["", "1"])
def test_escapes_in_a_text_are_shown(capsys, monkeypatch, wrap, terminal):
    """Text of a library comes from models and tools; a terminal would obey it."""
    monkeypatch.setenv("FORCE_COLOR", terminal) if terminal else monkeypatch.delenv("FORCE_COLOR", raising=False)
    out().print(wrap(ESCAPE))
    printed = capsys.readouterr().out
    line = "".join(printed.replace("│", "").split())  # a narrow cell wraps
    assert SHOWN.replace(r"\x07", "") in line.replace(r"\x07", "")  # Rich removes the bell from a Text
    assert not any(part in printed for part in CONTROLS)


def test_escapes_on_stderr_and_in_json_are_shown(capsys):
    tell(ESCAPE)
    say_json({"text": ESCAPE, "name": "José"})
    printed = capsys.readouterr()
    assert printed.err == f"{SHOWN}\n"
    assert not any(part in printed.out for part in CONTROLS)
    assert json.loads(printed.out) == {"text": ESCAPE, "name": "José"}


def test_lines_and_letters_are_printed_as_they_are():
    assert show_controls("José\t1\r\n\u00a02\n😀") == "José\t1\n\u00a02\n😀"
