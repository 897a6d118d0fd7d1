"""Budgets: how many steps an episode may take (More with less, arXiv:2510.16786)."""

from typing import Any

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.runtime import Agent, Context
from hardwon.runtime.llm import prompts
from hardwon.runtime.loop.budgets import LearnedBudget, StepLimit, as_budget, compute_percentile

from .rows import fake_library

NOW = State("now", task="do it")


def successes(*lengths: int, task="do it", trust="trusted", success=True) -> Any:
    rows = [
        {"id": f"{task} {at}", "success": success, "trust": trust, "n_steps": n, "task": task}
        for at, n in enumerate(lengths)
    ]
    return fake_library(rows)


def steps(n, **last):
    made = [Step(NOW, "go", NOW, Diagnosis(True, progress=0.5), t=t) for t in range(n)]
    if last:
        made[-1] = Step(NOW, "go", NOW, Diagnosis(True, **last), t=n - 1)
    return made


def test_the_nearest_rank_percentile():
    """Worked example: successes of 4, 6, 8 and 20 turns: the 75th percentile is 8."""
    assert compute_percentile([20, 4, 8, 6], 75) == 8
    assert compute_percentile([5], 75) == 5


def test_progress_at_the_limit_extends_it_once():
    """Worked example: limit 8 and an extension of 4: with progress the end is 12, in a loop it is 8."""
    budget = LearnedBudget(successes(4, 6, 8, 8, 20), percentile=75, extension=0.5)
    assert budget.limit(steps(3), NOW) == 8
    assert budget.limit(steps(8), NOW) == 12
    assert budget.limit(steps(12), NOW) == 12
    assert budget.limit(steps(8, progress=0.5, loop=True), NOW) == 8


@pytest.mark.parametrize(("reward", "limit"), [(1.0, 12), (0.0, 8)])
def test_a_reward_extends_the_limit_as_progress_does(reward, limit):
    rewarded = [Step(NOW, "go", NOW, Diagnosis(True), reward, t) for t in range(8)]
    assert LearnedBudget(successes(*[8] * 5)).limit(rewarded, NOW) == limit


@pytest.mark.parametrize(
    "library",
    [successes(), successes(4, 4), successes(4, 4, 4, 4, 4, success=False), successes(*[4] * 9, trust="other")],
)
def test_without_enough_trusted_successes_the_largest_number_holds(library):
    """Degenerate case; failures end at the limit, so counting them would raise it for ever."""
    assert LearnedBudget(library, most=30).limit([], NOW) == 30


def test_the_order_of_episodes_does_not_matter():
    lengths = (3, 9, 4, 7, 5, 6)
    found = {LearnedBudget(successes(*order)).limit([], NOW) for order in (lengths, sorted(lengths), lengths[::-1])}
    assert len(found) == 1


def test_successes_of_the_task_itself_come_first():
    library = successes(*[4] * 5)
    more = successes(*[40] * 9, task="another")
    both = fake_library(library.episodes.find() + more.episodes.find())
    assert LearnedBudget(both).limit([], NOW) == 4
    assert LearnedBudget(both, most=99).limit([], State("now", task="a third")) == 40


def test_no_episode_is_longer_than_the_largest_number():
    assert LearnedBudget(successes(*[40] * 5), most=50).limit(steps(40), NOW) == 50


def test_the_prompt_tells_what_is_left_and_a_fixed_limit_leaves_it_as_it_was():
    plain = prompts.turn_prompt(Context(NOW))
    assert "budget" not in plain
    assert StepLimit(9).describe(steps(2), NOW) == ""
    told = LearnedBudget(successes(*[8] * 5)).describe(steps(2), NOW)
    assert "2 steps used, 6 left" in prompts.turn_prompt(Context(NOW, budget=told))
    assert prompts.turn_prompt(Context(NOW, budget="")) == plain


def test_an_agent_stops_where_successes_had_ended(workshop):
    with ExperienceLibrary.open(":memory:") as library:
        for seed in range(5):
            done = tuple(Step(NOW, "rest", NOW, Diagnosis(True), t=t) for t in range(4))
            library.record(Trajectory("make iron", done, True, 1.0, seed=seed))
        agent = Agent("random", library, workshop(), learn=False, max_steps=LearnedBudget(library, most=30))
        trajectory = agent.run().trajectory
    assert len(trajectory.steps) in (4, 6)
    assert trajectory.ending == "step_limit"


def test_numbers_out_of_range_are_errors():
    for wrong in ({"most": 0}, {"percentile": 0}, {"percentile": 101}, {"extension": -1}):
        with pytest.raises(ConfigError):
            LearnedBudget(successes(), **wrong)
    with pytest.raises(ConfigError, match="max_steps is 0"):
        as_budget(0)
