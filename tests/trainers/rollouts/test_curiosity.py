"""Exploration that prefers what it has not tried."""

import random
from collections.abc import Sequence
from contextlib import closing

import pytest
from tests.trainers.corridor import Corridor

from hardwon.memory import State
from hardwon.memory.errors import PolicyFailure
from hardwon.runtime import RandomPolicy
from hardwon.runtime.interfaces.types import Context, Info
from hardwon.trainers.config.schema import ExploreConfig
from hardwon.trainers.rollouts.curiosity import CuriousPolicy
from hardwon.trainers.rollouts.explore import Explorer

HALL, YARD = State("You are in the hall."), State("You are in the yard.")


def taking(policy, counts, state=HALL):
    """Count actions of a state as if they had been taken."""
    for action, times in counts.items():
        policy._counts[state.signature, action] = times
    return policy


def decide(policy, actions, seed=0, state=HALL, forbidden=()):
    context = Context(
        state=state, actions=tuple(actions), rng=random.Random(seed), forbidden=dict.fromkeys(forbidden, "")
    )
    return policy.decide(context).action


def test_the_rarest_action_of_the_state_is_next():
    """Counts 3, 0 and 1: the second action, whatever the seed; the counts of another state do not matter."""
    for seed in range(8):
        policy = taking(CuriousPolicy(), {"east": 3, "west": 0, "wait": 1})
        taking(policy, {"west": 9}, YARD)
        assert decide(policy, ("east", "west", "wait"), seed) == "west"


def test_every_action_is_tried_once_before_any_is_tried_twice():
    policy = CuriousPolicy()
    taken = [decide(policy, "abcd", seed) for seed in range(8)]
    assert sorted(taken[:4]) == sorted(taken[4:]) == [*"abcd"]
    policy.forget()
    assert sorted(decide(policy, "abcd", seed) for seed in range(4)) == [*"abcd"]


def test_where_nothing_was_tried_it_is_random():
    for seed in range(20):
        context = Context(state=HALL, actions=tuple("abcd"), rng=random.Random(seed))
        assert decide(CuriousPolicy(), "abcd", seed) == RandomPolicy().decide(context).action


def test_the_order_of_the_actions_does_not_change_which_are_rare():
    counts = {"east": 2, "west": 1, "wait": 1}
    for actions in (("east", "west", "wait"), ("wait", "west", "east")):
        chosen = {decide(taking(CuriousPolicy(), counts), actions, seed) for seed in range(20)}
        assert chosen == {"west", "wait"}


def test_a_forbidden_action_is_not_counts():
    assert decide(taking(CuriousPolicy(), {"west": 5}), ("east", "west"), forbidden=("east",)) == "west"


def test_without_listed_actions_it_says_what_it_needs():
    with pytest.raises(PolicyFailure, match="needs an environment that lists admissible actions"):
        decide(CuriousPolicy(), ())


class Levers(Corridor):
    """Rooms in a row; one of six levers opens the next, and the others do nothing."""

    def reset(self, task="", seed=0):
        self.at, self.goal = 0, seed
        return self.state()

    def step(self, action):
        self.at += action == f"pull {(self.goal + 5 * self.at) % 6}"
        return self.state(), 0.0, False, Info(success=False)

    def admissible(self, state):
        return [f"pull {lever}" for lever in range(6)]

    def clone(self):
        return Levers()

    def state(self):
        return State(f"You are in the {'abcdefghijklmnopqrstuvwxyzäöü'[self.at] * 3} room.", task="go on")


def visited(policy, worlds: Sequence[int] = range(6)):
    """Return the rooms that an explorer saw in each of some worlds."""
    config = ExploreConfig(policy=policy, steps=20, tries=1)
    with closing(Explorer(Levers(), config)) as explorer:
        return [{s.post.signature for e in explorer.explored(("", seed)) for s in e.steps} for seed in worlds]


def test_it_sees_more_states_than_random_actions_do():
    assert sum(map(len, visited("curious"))) > 1.3 * sum(map(len, visited("random")))


def test_what_was_tried_in_one_instance_does_not_change_another():
    """So exploration is the same in any order of asking, as a resumed run needs it."""
    assert visited("curious", [0, 1, 2]) == visited("curious", [2, 1, 0])[::-1]
