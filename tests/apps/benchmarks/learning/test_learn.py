"""The plans of `hardwon bench learn`, and its three regimes: other seeds, other parameters, another game."""

from dataclasses import replace

import pytest

from benchmarks.learning import learn as bench


def test_regimes_test_the_learned_libraries_and_learn_nothing_more(tmp_path):
    """Every regime plays the test seeds of the first one, at the last checkpoint, beside an empty library."""
    plans = {label: plan for label, plan, _ in bench.build_regimes(["coin", "twc"], 3, tmp_path)}
    assert list(plans) == [
        "coin, other parameters", "twc, library of coin", "twc, other parameters", "coin, library of twc"
    ]  # fmt: skip
    for label, plan in plans.items():
        learner = label.rpartition(" ")[2] if "library of" in label else label.partition(",")[0]
        case = bench.CASES[learner]
        assert plan.library == str(tmp_path / learner / "library.db")
        assert (plan.episodes, plan.checkpoints) == (case.episodes, (case.episodes,))
        assert plan.arms == ("empty", "step")
        assert plan.eval_seeds == tuple(range(100, 150))
    assert plans["coin, other parameters"].params == bench.CASES["coin"].other != bench.CASES["coin"].params
    foreign = plans["twc, library of coin"]
    assert (foreign.game, foreign.params) == ("twc", bench.CASES["twc"].params)


def test_regimes_that_do_not_exist_are_left_out(tmp_path):
    """One case has no other game, and BabyAI has no parameters."""
    assert [label for label, _, _ in bench.build_regimes(["coin"], 1, tmp_path)] == ["coin, other parameters"]
    assert list(bench.build_regimes(["gotolocal"], 1, tmp_path)) == []


@pytest.mark.slow
def test_three_regimes_are_measured(tmp_path, monkeypatch):
    """From one episode of each game: rows for all three regimes, and nothing more is learned."""
    pytest.importorskip("textworld_express")
    small = {
        name: replace(bench.CASES[name], episodes=1, checkpoints=(1,), max_steps=3, arms=("empty", "step"),
                      tests=(("dev", "100-101"),))
        for name in ("coin", "twc")
    }  # fmt: skip
    monkeypatch.setattr(bench, "CASES", small)
    rows = [row for name in small for row in bench.run_case(name, small[name], 1, tmp_path)]
    for label, plan, folder in bench.build_regimes(list(small), 1, tmp_path):
        rows += bench.run_plan(label, plan, folder)
    table = bench.format_table(rows)
    assert len(table) == 2 + 6
    from hardwon.memory import ExperienceLibrary

    for name in small:
        with ExperienceLibrary.open(tmp_path / name / "library.db") as library:
            assert library.episodes == 1
