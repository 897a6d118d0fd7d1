"""Starts in the middle of an episode; whole environments are in `environments/test_branching.py`."""

from typing import Any

import pytest

from hardwon.memory import Diagnosis, Reasons, State, Step
from hardwon.memory.errors import CannotBranch
from hardwon.runtime.guidance.base import Hint
from hardwon.runtime.loop.starts import bring_back, rebuild_hints

FIRST, SECOND, GARDEN = State("You are in room 1."), State("You see door 2."), State("A garden.")


class Rooms:
    """Two rooms; the episode may end in the second one."""

    name = "rooms"

    def __init__(self, is_over=False):
        self.is_over, self.ran = is_over, 0

    def reset(self, task="", seed=0):
        return FIRST

    def step(self, action):
        self.ran += 1
        return SECOND, 0.0, self.is_over, {}


def go(pre, post):
    return Step(pre, "go east", post, Diagnosis(True))


@pytest.mark.parametrize(
    ("is_over", "steps", "why", "ran"),
    [
        (False, [go(GARDEN, SECOND)], "state of step 1, because it showed another state", 0),
        (False, [go(FIRST, GARDEN)], "state of step 1, because it showed another state", 1),
        (False, [go(FIRST, State("You see door 3."))], "state of step 1, because it showed another state", 1),
        (True, [go(FIRST, SECOND), go(SECOND, SECOND)], "state of step 2, because it was over", 1),
        (False, [go(FIRST, SECOND), go(SECOND, FIRST)], "state of step 2, because it showed another state", 2),
    ],
)
def test_a_repetition_stops_where_it_leaves_the_recorded_episode(is_over, steps, why, ran):
    environment: Any = Rooms(is_over)
    with pytest.raises(CannotBranch, match=why):
        bring_back(environment, "", 0, steps)
    assert environment.ran == ran


def test_the_hints_of_an_episode_are_rebuilt_from_its_steps():
    """A step with sources and without a text was shown the last text; one with neither was shown nothing."""
    states = [State(f"You see {thing}.") for thing in ("a door", "a lamp", "a chest", "a well")]
    reasons = [
        Reasons(memory="open it", recalled=("a",), similar=(7,)),
        Reasons(recalled=("b",)),
        Reasons(),
        Reasons(memory="drink"),
    ]
    steps = [Step(state, "wait", state, Diagnosis(True), why=why) for state, why in zip(states, reasons, strict=True)]
    first = Hint("open it", ("a",), (7,))
    assert list(rebuild_hints(steps).values()) == [first, first, None, Hint("drink")]
    assert list(rebuild_hints(steps)) == [state.signature for state in states]
