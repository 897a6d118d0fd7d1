"""The policy `auto`: episodes are played with the strategy that did best in tests of the agent's own."""

from typing import Literal

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.runtime import Agent
from hardwon.runtime.interfaces.types import Decision
from hardwon.runtime.strategies.automatic import AutomaticGuide, rate_strategy
from hardwon.runtime.strategies.guide import StrategyChoice, StrategyTrial
from hardwon.runtime.strategies.strategy import Strategy
from hardwon.runtime.strategies.tuning import TUNING

OWN, OWN_TWIN, OTHER = Strategy(name="own"), Strategy(name="twin"), Strategy(name="other", policy="random")
NOW = State("now", task="bake")


@pytest.fixture
def library():
    with ExperienceLibrary.open(":memory:") as opened:
        yield opened


def remember(library, strategy, successes, n, *, test=True, environment="workshop", score=None):
    step = Step(NOW, "wait", NOW, Diagnosis(True))
    for at in range(n):
        won = at < successes
        meta = {"strategy": strategy, "environment": environment, **({"test": True} if test else {})}
        library.record(Trajectory("bake", (step,), won, float(won) if score is None else score, meta=meta))


def make_trials(name, outcomes, *, test):
    return [StrategyTrial(name, "bake", float(won), 0, "workshop", float(won), test) for won in outcomes]


class Watching:
    """A policy that notes whether it may explore."""

    name = "watching"
    reads: Literal["values", "text"] = "values"

    def __init__(self):
        self.learning = []

    def decide(self, context):
        self.learning.append(context.learning)
        return Decision(context.actions[0])

    async def adecide(self, context):
        return self.decide(context)


def test_tests_count_four_times_as_much_as_exploring():
    """Worked example: 3 of 4 tests and 1 of 4 other episodes: (3 + 1/4 + 1/2) / (4 + 1 + 1)."""
    trials = make_trials("own", [1, 1, 1, 0], test=True) + make_trials("own", [1, 0, 0, 0], test=False)
    assert rate_strategy(trials, "own") == pytest.approx(3.75 / 6)
    assert rate_strategy(trials, "other") == 0.5  # degenerate: no episode


def test_old_tests_do_not_count():
    """What a strategy achieved with a smaller library says little."""
    recent = make_trials("own", [1] * TUNING.counted_tests, test=True)
    assert rate_strategy(make_trials("own", [0] * 30, test=True) + recent, "own") == rate_strategy(recent, "own")


def test_a_frozen_agent_uses_the_strategy_with_the_best_tests(library):
    guide = AutomaticGuide([OWN, OTHER])
    assert guide.choose("bake", library, "workshop") == StrategyChoice("own")  # no records
    remember(library, "own", 5, 10)
    remember(library, "other", 9, 10)
    assert guide.choose("bake", library, "workshop") == StrategyChoice("other")
    assert guide.choose("bake", library, "house") == StrategyChoice("own")  # tests of another environment say nothing
    remember(library, "own", 40, 40, test=False)  # exploring that went well counts less than the tests
    assert guide.choose("bake", library, "workshop") == StrategyChoice("other")


def test_a_stranger_and_a_thousand_episodes_of_another_game_do_not_move_the_choice(library):
    remember(library, "own", 3, 5)
    remember(library, "other", 1, 5)
    remember(library, "other", 1000, 1000, environment="another game")
    step = Step(NOW, "wait", NOW, Diagnosis(True))
    meta = {"strategy": "other", "environment": "workshop", "test": True}
    for _ in range(50):
        library.record(Trajectory("bake", (step,), True, 1.0, meta=meta, trust="untrusted"))
    assert AutomaticGuide([OWN, OTHER]).choose("bake", library, "workshop") == StrategyChoice("own")


def test_before_the_first_success_the_score_decides(library):
    remember(library, "own", 0, 5, score=0.1)
    remember(library, "other", 0, 5, score=0.4)
    assert AutomaticGuide([OWN, OTHER]).choose("bake", library, "workshop") == StrategyChoice("other")


def test_one_of_four_episodes_tests_the_strategy_with_the_fewest_tests(library):
    guide = AutomaticGuide([OWN, OTHER])
    choices = []
    for _ in range(4 * TUNING.test_every):
        choices.append(choice := guide.choose("bake", library, "workshop", learns=True))
        remember(library, choice.strategy, 1, 1, test=choice.is_test)
    tests = [choice.strategy for choice in choices if choice.is_test]
    assert tests == ["own", "other", "own", "other"]
    assert {choice.strategy for choice in choices if not choice.is_test} == {"own", "other"}


@pytest.mark.parametrize("at_once", [3, 4])
def test_episodes_that_run_at_once_keep_the_share_of_tests(library, at_once):
    guide = AutomaticGuide([OWN, OTHER])
    tests = []
    for _ in range(15):
        choices = [guide.choose("bake", library, "workshop", learns=True) for _ in range(at_once)]
        for choice in choices:
            remember(library, choice.strategy, 1, 1, test=choice.is_test)
        tests += [choice.strategy for choice in choices if choice.is_test]
    assert len(tests) == pytest.approx(15 * at_once / TUNING.test_every, abs=at_once)
    assert {*tests} == {"own", "other"}


def test_what_explores_better_explores_more_and_early_failures_are_forgotten(library):
    guide = AutomaticGuide([OWN, OTHER])
    remember(
        library, "other", TUNING.window, TUNING.window
    )  # tests, so that none is due, and they say nothing about exploring
    remember(library, "other", 0, TUNING.window // 2, test=False)
    remember(library, "own", TUNING.window // 2, TUNING.window // 2, test=False)
    assert guide.choose("bake", library, "workshop", learns=True) == StrategyChoice("own")
    remember(library, "own", TUNING.window, TUNING.window, test=False)  # nothing is known about the other one now
    assert guide.choose("bake", library, "workshop", learns=True) == StrategyChoice("other")


def test_the_policy_does_not_explore_in_a_test_and_the_episode_is_recorded(library, workshop):
    policy = Watching()
    agent = Agent(policy, library, workshop(goal="wood"), strategies=AutomaticGuide([OWN, OWN_TWIN]), max_steps=2)
    flags = []
    for seed in range(TUNING.test_every):
        policy.learning.clear()
        agent.run(seed=seed)
        flags.append({*policy.learning})
    assert flags == [{True}] * (TUNING.test_every - 1) + [{False}]
    assert [bool(row["meta"].get("test")) for row in library.episodes.find()] == [True] + [False] * (
        TUNING.test_every - 1
    )
    agent.close()


def test_nothing_is_withheld_in_a_test(library, workshop):
    agent = Agent("episodic", library, workshop(), strategies=AutomaticGuide([OWN, OTHER]))
    assert all(not nodes.settings.tries and nodes.settings.learn for nodes in agent._nodes.tests.values())  # type: ignore[union-attr]
    assert all(nodes.settings.tries for nodes in agent._nodes.variants.values())  # type: ignore[union-attr]
    agent.close()


def test_an_interrupted_test_goes_on_as_a_test(library, workshop):
    from langgraph.checkpoint.memory import InMemorySaver

    remember(library, "own", 0, TUNING.test_every - 1, test=False)
    policy = Watching()
    agent = Agent(
        policy,
        library,
        workshop(),
        strategies=AutomaticGuide([OWN, OWN_TWIN]),
        checkpointer=InMemorySaver(),
        max_steps=3,
    )
    for event in agent.stream(seed=1, thread_id="t"):
        if event.stage == "act":
            break
    assert agent.resume("t").trajectory.meta["test"]
    assert {*policy.learning} == {False}
    agent.close()


def test_auto_learns_with_both_strategies_and_solves_the_task(library, workshop):
    agent = Agent("auto", library, workshop(goal="table"), max_steps=12)
    for seed in range(24):
        agent.run(seed=seed)
    metas = [row["meta"] for row in library.episodes.find()]
    assert {meta["strategy"] for meta in metas} == {"episodic", "lookahead"}
    assert {meta["policy"] for meta in metas if meta.get("test")} == {"episodic", "lookahead"}
    assert Agent("auto", library, workshop(goal="table"), learn=False, max_steps=12).run(seed=99).success
    agent.close()


@pytest.mark.parametrize("settings", [{"level": "task"}, {"arm": "control"}])
def test_without_recall_at_every_step_nothing_looks_ahead(library, workshop, settings):
    agent = Agent("auto", library, workshop(), **settings)
    assert [*agent._nodes.variants] == ["episodic"]  # type: ignore[union-attr]
    assert agent._nodes.variants["episodic"].settings.level == settings.get("level", "step")  # type: ignore[union-attr]


def test_the_planner_that_the_agent_was_given_is_kept(library, workshop):
    from hardwon.runtime.planning.plans import SkillPlanner

    given, own = (Agent("auto", library, workshop(), planner=name)._nodes.variants for name in ("skills", None))  # type: ignore[union-attr]
    assert type(given["episodic"].planner) is SkillPlanner
    assert type(own["episodic"].planner).__name__ == "DemonstrationPlanner"


def test_auto_is_the_policy_of_an_agent_alone(library, workshop):
    """A strategy, a team or a ranker cannot name it: it chooses among strategies itself."""
    from hardwon.memory.errors import ConfigError, UnknownName

    with pytest.raises(UnknownName, match="auto"):
        Agent("ranked:auto", library, workshop())
    with pytest.raises(ConfigError, match="team"):
        Agent("auto", library, workshop()).joined(None, lambda world: world)  # type: ignore[arg-type]
