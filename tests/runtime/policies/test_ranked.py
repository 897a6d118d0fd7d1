"""The value table ranks what another policy proposes (step-level Q models, arXiv:2409.09345)."""

import asyncio
from typing import Literal

import pytest

from hardwon.memory import Diagnosis, Estimate, ExperienceLibrary, Recollection, State, Step, Trajectory
from hardwon.memory.errors import ConfigError, PolicyFailure
from hardwon.runtime import Agent, ChatPolicy, Context, Decision
from hardwon.runtime.agent import as_policy
from hardwon.runtime.interfaces.usage import ModelUsage
from hardwon.runtime.policies.ranked import RankedPolicy, merge_samples


class Saying:
    """A policy that says these actions in turn."""

    name = "saying"
    reads: Literal["values", "text"] = "text"

    def __init__(self, *actions):
        self.actions, self.calls = actions, 0

    def decide(self, context):
        action = self.actions[self.calls % len(self.actions)]
        self.calls += 1
        if action == "fail":
            raise PolicyFailure("no answer")
        return Decision(action, usage=ModelUsage(calls=1))

    async def adecide(self, context):
        return self.decide(context)


def consider(**estimates):
    known = {action: Estimate(value, n) for action, (value, n) in estimates.items()}
    return Context(State("now"), ("a", "b", "c"), Recollection(estimates=known))


def test_the_proposal_that_paid_most_is_taken():
    """Worked example: a 0.2 (n 5), b 0.6 (n 5): b. With one step behind b: a."""
    assert RankedPolicy(Saying("a", "b"), n=2).decide(consider(a=(0.2, 5), b=(0.6, 5))).action == "b"
    assert RankedPolicy(Saying("b", "a"), n=2).decide(consider(a=(0.2, 5), b=(0.6, 1))).action == "a"


def test_without_an_estimate_there_is_one_call_and_the_same_decision():
    """Degenerate case: byte for byte the decision of the inner policy."""
    inner = Saying("a", "b")
    decision = RankedPolicy(inner).decide(consider(a=(0.9, 2)))
    assert decision == Decision("a", usage=ModelUsage(calls=1))
    assert inner.calls == 1


def test_what_nobody_proposed_is_not_taken():
    """The library ranks; it does not choose alone."""
    decision = RankedPolicy(Saying("a"), n=3).decide(consider(a=(0.0, 5), c=(1.0, 50)))
    assert decision.action == "a"
    assert decision.usage.calls == 3  # equal answers are merged, their cost is not


@pytest.mark.parametrize("rescale", [lambda x: 10 * x, lambda x: x - 5, lambda x: x**3])
def test_a_monotone_rescaling_of_all_estimates_chooses_the_same(rescale):
    values = {"a": 0.3, "b": 0.7, "c": 0.5}
    context = consider(**{action: (rescale(value), 5) for action, value in values.items()})
    assert RankedPolicy(Saying("a", "b", "c"), n=3).decide(context).action == "b"


def test_equal_actions_are_merged_and_the_prior_is_their_share():
    merged = merge_samples([Decision("a"), Decision("b"), Decision("a"), Decision("a")])
    assert [(decision.action, decision.why.extra["prior"]) for decision in merged] == [("a", 0.75), ("b", 0.25)]


def test_a_failed_sample_does_not_fail_the_step():
    assert RankedPolicy(Saying("a", "fail", "b"), n=3).decide(consider(b=(1.0, 5))).action == "b"
    with pytest.raises(PolicyFailure):
        RankedPolicy(Saying("fail"), n=2).decide(consider(b=(1.0, 5)))


def test_an_awaited_call_that_fails_leaves_the_others():
    """Only if all of them fail the step does."""
    sure = consider(a=(0.2, 5))
    assert asyncio.run(RankedPolicy(Saying("fail", "a"), n=2).adecide(sure)).action == "a"
    with pytest.raises(PolicyFailure, match="no answer"):
        asyncio.run(RankedPolicy(Saying("fail"), n=2).adecide(sure))


def test_lookahead_is_read_if_the_inner_policy_reads_them():
    inner = Saying("a")
    assert not RankedPolicy(inner).looks_ahead
    inner.looks_ahead = True  # type: ignore[attr-defined]
    assert RankedPolicy(inner).looks_ahead


def test_awaiting_chooses_the_same():
    context = consider(a=(0.2, 5), b=(0.6, 5))
    assert asyncio.run(RankedPolicy(Saying("a", "b"), n=2).adecide(context)).action == "b"


def test_a_number_of_samples_below_one_is_an_error():
    with pytest.raises(ConfigError, match="n is 0"):
        RankedPolicy(Saying("a"), n=0)


class Cabin:
    """A coin to take, and a fire to light for nothing."""

    name = "cabin"

    def reset(self, task="", seed=0):
        return State("A coin. A fireplace.", task="find the coin")

    def admissible(self, state):
        return ["take coin", "light fire"]

    def step(self, action):
        won = action == "take coin"
        return State("A room.", task="find the coin"), float(won), True, {"success": won}

    def clone(self):
        return Cabin()

    def close(self):
        pass


def test_a_chat_policy_gains_from_the_value_table(scripted):
    """The model prefers the fire; what earlier episodes returned decides between its answers."""
    with ExperienceLibrary.open(":memory:") as library:
        for n in range(6):
            action = Cabin().admissible(None)[n % 2]
            state, reward, _, info = Cabin().step(action)
            offered = tuple(Cabin().admissible(None))
            step = Step(Cabin().reset(), action, state, Diagnosis(True), reward, admissible=offered)
            library.record(Trajectory("find the coin", (step,), info["success"], reward, seed=n))
        model = scripted("light fire", "take coin", "light fire")
        agent = Agent(RankedPolicy(ChatPolicy(model), n=3), library, Cabin(), learn=False)
        trajectory = agent.run().trajectory
        agent.close()
    assert trajectory.success
    why = trajectory.steps[0].why
    assert why.extra["proposals"] == ["light fire", "take coin"]
    assert (why.count or 0) >= 3
    assert why.similar


def test_a_name_gives_a_ranked_policy():
    policy = as_policy("ranked:episodic")
    assert policy.name == "ranked episodic"
    assert policy.reads == "values"
