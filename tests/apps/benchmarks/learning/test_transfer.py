import json

import pytest

from benchmarks.harness.intervals import compute_paired_interval
from benchmarks.learning.transfer import EMPTY, Transfer, compare, format_table, run
from hardwon.memory.errors import ConfigError, UnknownName

PLAN = Transfer(games=("mapreader", "coin"), episodes=2, fold="dev", tests=(0, 1), seeds=(0,))


def row(library, game, success, agent_seed=0, seed=0):
    """One test episode."""
    figures = {"success": success, "score": float(success), "steps": 10, "loops": 0, "blocked": 0}
    return {"library": library, "game": game, "agent_seed": agent_seed, "seed": seed, **figures}


def test_a_cell_that_is_worse_than_empty_is_marked():
    """By more than the interval of the paired difference, and not otherwise."""
    plan = Transfer(games=("mapreader", "coin"), episodes=1, fold="dev", tests=tuple(range(20)), seeds=(0, 1))
    rows = [
        row(
            source,
            game,
            {("coin", "mapreader"): False, (EMPTY, "coin"): one % 2 == 0}.get((source, game), True),
            s,
            one,
        )
        for source, game, s in plan.cells()
        for one in plan.tests
    ]
    figures = {(one["library"], one["game"]): one for one in compare(plan, rows)}
    assert figures["coin", "mapreader"]["worse"]
    assert figures["coin", "mapreader"]["difference"] == -1.0
    assert [key for key, one in figures.items() if one["worse"]] == [("coin", "mapreader")]
    assert figures["coin", "coin"]["difference"] == 0.5
    lines = format_table(plan, list(figures.values()))
    assert lines[0] == "| library of | mapreader | coin |"
    assert lines[-1] == "| coin | **0.0 (-20.0 to -20.0)** | 20.0 (+6.9 to +13.1) |"


def test_the_interval_is_of_paired_differences():
    """By hand: differences 1, 0, 0, -1 have mean 0 and variance 2/3."""
    low, high = compute_paired_interval([1, 0, 0, -1])
    assert -low == high == pytest.approx(1.96 * (2 / 3 / 4) ** 0.5)


def test_a_run_goes_on_where_it_stopped(tmp_path, monkeypatch):
    """A cell that was cut is played again, the others are not; the same seeds give the same rows."""
    rows = run(PLAN, tmp_path)
    assert len(rows) == len(PLAN.cells()) * 2
    kept = tmp_path / "episodes.jsonl"
    lines = kept.read_text().splitlines(keepends=True)
    kept.write_text("".join(lines[:-1]) + lines[-1][:20])
    played = []
    from benchmarks.learning import transfer

    test = transfer._test

    def count(*task):
        played.append(task[2])
        return test(*task)

    monkeypatch.setattr(transfer, "_test", count)
    again = run(PLAN, tmp_path)
    assert len(played) == 1
    key = lambda one: json.dumps(one, sort_keys=True)  # noqa: E731
    assert sorted(again, key=key) == sorted(rows, key=key)
    with pytest.raises(ConfigError, match="another setup"):
        run(Transfer(games=PLAN.games, episodes=3, fold="dev", tests=(0, 1), seeds=(0,)), tmp_path)


def test_what_cannot_be_paired_is_refused():
    """A game that does not exist, one game alone, a file without the marks."""
    with pytest.raises(UnknownName):
        Transfer(games=("mapreader", "chess"), episodes=1, fold="dev", tests=(0,), seeds=(0,))
    with pytest.raises(ConfigError, match="at least two"):
        Transfer(games=("mapreader",), episodes=1, fold="dev", tests=(0,), seeds=(0,))


def test_the_table_is_printed_and_written(hardwon, tmp_path):
    """Into the marked part of a file, which is checked before anything is run."""
    page = tmp_path / "page.md"
    page.write_text("before\n")
    options = ["--games", "mapreader,coin", "--episodes", "1", "--tests", "0-0", "--seeds", "0-0", "--jobs", "1"]
    command = ["bench", "transfer", *options, "--out", str(tmp_path / "out"), "--write", str(page)]
    assert "has no line" in hardwon(*command, expect=2).stderr
    page.write_text("before\n<!-- bench transfer: begin -->\n<!-- bench transfer: end -->\nafter\n")
    printed = hardwon(*command).stdout
    assert printed.strip() in page.read_text()
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("\nafter\n")
