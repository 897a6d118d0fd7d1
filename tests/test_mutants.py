"""Whether the tests notice when the code does something else; see `mutants`."""

import os
import tomllib
from pathlib import Path

import pytest
from tests import mutants

COUNT, SEED = int(os.environ.get("MUTANTS", "120")), int(os.environ.get("SEED", "0"))


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_nineteen_of_twenty_mutants_are_killed():
    """A sample of the changes of an operator in memory and runtime; set MUTANTS to try more, SEED for others."""
    pytest.importorskip("cosmic_ray", reason="make test-mutants installs cosmic-ray")
    scores = mutants.run(Path("runs/mutants"), count=COUNT, seed=SEED, jobs=2)
    mutants.show(scores)
    assert scores[""].rate >= 0.95, "\n".join(map(str, scores[""].survivors))


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_nine_of_ten_mutants_of_the_trainers_are_killed():
    """A sample of the changes of an operator in the algorithms and roles."""
    pytest.importorskip("cosmic_ray", reason="make test-mutants installs cosmic-ray")
    scores = mutants.run(Path("runs/mutants"), count=COUNT // 2, seed=SEED, jobs=2, portions=["trainers"])
    mutants.show(scores)
    assert scores[""].rate >= 0.9, "\n".join(map(str, scores[""].survivors))


def test_a_score_leaves_out_what_is_equivalent_and_has_an_interval():
    one, other = (mutants.Mutant("a.py", "core/AddNot", number, 1) for number in range(2))
    known = mutants.Score(8, (one, other), (mutants.Mutant("a.py", "core/AddNot", 2, 3),))
    assert (known.tried, known.rate) == (10, 0.8)
    assert str(known) == "killed 8 of 10: 80.0% (95 % interval 49.0% to 94.3%), 1 equivalent left out"


def test_every_equivalent_mutant_says_why_and_is_still_there():
    """An entry of a line that was changed since is stale."""
    listed = tomllib.loads(mutants.EQUIVALENT.read_text(encoding="utf-8"))["equivalent"]
    sources = {str(path.relative_to(mutants.ROOT)): path.read_text(encoding="utf-8") for path in portions()}
    for entry in listed:
        assert entry["why"]
        assert entry.keys() & {"module", "line"}
        texts = [sources[entry["module"]]] if "module" in entry else sources.values()
        lines = {line.strip() for text in texts for line in text.splitlines()}
        assert entry.get("line") is None or entry["line"] in lines, entry


def portions():
    return (path for name in mutants.FOLDERS for path in (mutants.ROOT / name).rglob("*.py"))


def test_statements_are_without_the_bodies_of_compound_ones(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("if (a and\n    b):\n    c = (1 +\n         2)\n")
    assert mutants.statements(path) == [range(1, 3), range(3, 5)]
    assert mutants.is_star("def f(a, *, b): return a * b", 9)
    assert not mutants.is_star("def f(a, *, b): return a * b", 25)
    assert mutants.changes_nothing("core/ReplaceTrueWithFalse", "zip(a, b, strict=True)", 17)
    assert not mutants.changes_nothing("core/ReplaceTrueWithFalse", "sort(a, reverse=True)", 16)


def test_a_sample_keeps_its_mutants_when_others_are_added():
    """Two runs of different sizes share their mutants, so that results can be compared."""
    all_mutants = [mutants.Mutant(f"{name}.py", "core/AddNot", number, 1) for name in "abcd" for number in range(10)]
    few, many = mutants.sample(all_mutants, 5, 0), mutants.sample(all_mutants, 20, 0)
    assert set(few) < set(many)
    assert set(mutants.sample([one for one in all_mutants if one.module != "a.py"], 5, 0)) >= {
        one for one in few if one.module != "a.py"
    }
    assert set(mutants.sample(all_mutants, 5, 1)) != set(few)
