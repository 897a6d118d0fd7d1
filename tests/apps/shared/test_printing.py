"""Tables of measurements are printed whole, and control characters are shown, not obeyed."""

import json
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from hardwon.apps.cli.run import print_result
from hardwon.apps.shared.common import out, print_figures, say_json, show_controls, table, tell
from hardwon.apps.shared.lists import render_rows

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


@pytest.mark.parametrize("columns", [120, 80, 60, 40])
def test_no_word_of_a_result_or_a_list_is_cut(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    figures = {"success_rate": 0.5, "ci95": [0.25, 0.75], "mean_score": 0.5, "steps": 33.25, "blocked": 0.0}
    arm = {**figures, "task_lost": 0.25, "harm_rate": 0.0, "cpu_s": 1203.4, "excluded": 0}
    kept = {"environment": "textworld", "game": "cookingworld", "eval": {"fold": "dev", "seeds": [100, 149]}}
    result = {
        **kept,
        "seeds": [0, 1, 2],
        "episodes": 100,
        "curve": None,
        "libraries": [],
        "arms": {"demonstrations": arm},
    }
    print_result(result, Path("runs/x"))
    out().print(render_rows("id", "status", rows=[("skill-0123456789ab", "active")], says=["carefully unlocked " * 4]))
    out().print(table("path", "size", rows=[("x" * 150, "y")]))
    printed = capsys.readouterr().out
    words = [
        "success",
        "range",
        "blocked",
        "demonstrations",
        "50.0%",
        "1203",
        "carefully",
        "unlocked",
        "skill-0123456789ab",
        "active",
    ]
    assert [word for word in words if word not in printed] == []
    assert "…" not in printed
    assert "harm:" not in printed
    print_result({**result, "arms": {"empty": arm, "step": arm}}, Path("runs/x"))
    assert "empty: has no library; step: asks before every action\nharm: " in capsys.readouterr().out
