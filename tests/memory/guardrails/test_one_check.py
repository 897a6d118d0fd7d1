"""The work of one check: the action is parsed once, and each part of the attempt is computed once."""

import sys

import pytest

from hardwon.memory import Diagnosis, Failure, State, Step, Trajectory
from hardwon.memory.situations import actions, keys

TASK = "find the coin"
REFUSED = ("open chest", "put lamp in chest", "open chest with lamp")
OTHERS = ("look at lamp", "open door", "open(path=chest)")
MOST_CALLS = 270
"""Calls of functions in one refusal by three guardrails; it took 283 before actions were parsed once."""


def state(number):
    """A locked chest in one of seven rooms, with a note on the chest."""
    text = f"You are in room {number % 7}. A locked chest stands here. There is a lamp {number % 5}."
    return State(text, notes=("The chest must not be opened while locked.",), task=TASK)


@pytest.fixture
def learned(library):
    """A library with guardrails on `around`, `mark` and context ranges, learned from 30 episodes."""
    for number in range(30):
        here = state(number)
        steps = [
            Step(here, action, here, Diagnosis(False, Failure.PENALTY), 0.0, t, library.episodes.keys(here, action))
            for t, action in enumerate(REFUSED)
        ]
        library.record(Trajectory(TASK, tuple(steps), False, seed=number))
        library.evolve()
    assert len(library.items.find(["guardrail"])) > 5
    return library


@pytest.fixture
def parsed(monkeypatch):
    """The texts that are parsed, whichever module of the memory asks."""
    texts = []

    def parse(text):
        texts.append(text)
        return original(text)

    original = actions.parse_action
    for name, module in list(sys.modules.items()):
        if name.startswith("hardwon.memory") and getattr(module, "parse_action", None) is original:
            monkeypatch.setattr(module, "parse_action", parse)
    assert actions.parse_action is keys.parse_action is parse
    return texts


def test_a_check_parses_its_action_once(learned, parsed):
    """In a state that is new, with guardrails that match and guardrails that do not."""
    learned.check(state(0), "wait")  # reads what was recorded, which parses other actions
    # capitals, because patterns are parsed as well: none has the text of the action
    for number, action in enumerate(map(str.title, [*REFUSED, *OTHERS])):
        for again in (False, True):
            parsed.clear()
            verdict = learned.check(state(50 + number), action, again=again)
            assert verdict.allowed is (action.lower() not in REFUSED), action
            assert parsed.count(action) == 1, action


def test_a_check_makes_no_more_calls_than_before(learned):
    """Counted, not timed; a call that is known and one in a state that is new cost the same functions."""
    here, calls = state(4), 0
    learned.check(here, REFUSED[0])

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        verdict = learned.check(here, REFUSED[0])
    finally:
        sys.setprofile(None)
    assert len(verdict.items) == 3
    assert calls <= MOST_CALLS
