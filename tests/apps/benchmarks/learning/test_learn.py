"""The plans of `hardwon bench learn`, and its three regimes: other seeds, other parameters, another game."""

from dataclasses import replace

import pytest

from benchmarks.learning import learn as bench
from hardwon.memory.errors import UnknownName


def test_regimes_test_the_learned_libraries_and_learn_nothing_more(tmp_path):
    """Every regime plays the test seeds of the first one, beside an empty library."""
    regimes = list(bench.build_regimes(["coin", "twc"], 3, tmp_path))
    plans = {label: plan for label, plan, _, _ in regimes}
    assert [episodes for *_, episodes in regimes] == [
        bench.CASES[name].episodes for name in ("coin", "coin", "twc", "twc")
    ]
    assert list(plans) == [
        "coin, other parameters", "twc, library of coin", "twc, other parameters", "coin, library of twc"
    ]  # fmt: skip
    for label, plan in plans.items():
        learner = label.rpartition(" ")[2] if "library of" in label else label.partition(",")[0]
        assert plan.library == str(tmp_path / learner / "library.db")
        assert (plan.episodes, plan.checkpoints) == (0, (0,))
        assert plan.arms == ("empty", "step")
        assert plan.eval_seeds == tuple(range(100, 150))
    assert plans["coin, other parameters"].params == bench.CASES["coin"].other != bench.CASES["coin"].params
    foreign = plans["twc, library of coin"]
    assert (foreign.game, foreign.params) == ("twc", bench.CASES["twc"].params)


def test_regimes_that_do_not_exist_are_left_out(tmp_path):
    """One case has no other game, and BabyAI has no parameters."""
    assert [label for label, *_ in bench.build_regimes(["coin"], 1, tmp_path)] == ["coin, other parameters"]
    assert list(bench.build_regimes(["gotolocal"], 1, tmp_path)) == []


def test_a_policy_plays_every_test_of_a_case_and_every_regime(tmp_path):
    """The other settings are those of the default policy, so the two can be compared seed by seed."""
    for name, case in bench.CASES.items():
        default = list(bench.build_plans(name, case, 3, tmp_path))
        plans = list(bench.build_plans(name, case, 3, tmp_path, "lookahead"))
        assert [plan.policy for plan, _ in default] == ["episodic"] * len(case.tests)
        assert [plan.arms for plan, _ in default] == [case.arms] * len(case.tests)
        arms = tuple(arm for arm in case.arms if arm != "task")
        assert plans == [(replace(plan, policy="lookahead", arms=arms), folder) for plan, folder in default]
    regimes = bench.build_regimes(["coin", "twc"], 3, tmp_path, "lookahead")
    assert [plan.policy for _, plan, *_ in regimes] == ["lookahead"] * 4


def test_the_command_plays_the_policy_that_was_given(tmp_path, monkeypatch):
    plans = []

    def note(name, plan, folder, episodes):
        plans.append(plan)
        return []

    monkeypatch.setattr(bench, "run_plan", note)
    given = {"cases": "coin,twc", "seeds": 1, "out": tmp_path, "write": None, "as_json": True}
    bench.learn(**given, policy="lookahead", regimes=True)
    assert [plan.policy for plan in plans] == ["lookahead"] * 7
    with pytest.raises(UnknownName, match="outlok"):
        bench.learn(**given, policy="outlok", regimes=False)


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
    for label, plan, folder, episodes in bench.build_regimes(list(small), 1, tmp_path):
        rows += bench.run_plan(label, plan, folder, episodes)
    table = bench.format_table(rows)
    assert len(table) == 2 + 6
    from hardwon.memory import ExperienceLibrary

    for name in small:
        with ExperienceLibrary.open(tmp_path / name / "library.db") as library:
            assert library.episodes.count() == 1
