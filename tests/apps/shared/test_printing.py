"""Tables of measurements are printed whole."""

import pytest

from hardwon.apps.shared.common import print_figures, table

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
