"""Rulings on single calls; whole runs are in `integrations/test_middleware_guardrails.py`."""

import pytest

from hardwon.memory import Diagnosis, Failure, Item, State, Step, Verdict
from hardwon.runtime.loop.enforcement import is_repetition, limit, rule
from hardwon.runtime.loop.tuning import TUNING

RED = State("You are in the red room.")
FINE = Diagnosis(True)
BROKEN = Diagnosis(False, Failure.TOOL_ERROR)
DOWN = Diagnosis(False, Failure.UNAVAILABLE)


def test_without_a_mode_every_call_is_allowed(library):
    library.add(Item("guardrail", "no", condition={"text": "red"}, forbids="wait", confidence=0.9))
    assert not rule(library, "block", RED, "wait", (), learn=False).runs
    free = rule(library, None, RED, "wait", (), learn=False)
    assert (free.runs, free.verdict.allowed, free.warned) == (True, True, False)


@pytest.mark.parametrize(
    ("taken", "repeats"),
    [
        ([("call", BROKEN)], True),
        ([("call", BROKEN), ("other", FINE)], False),
        ([("call", BROKEN), ("other", BROKEN)], True),
        ([("call", FINE)], False),
        ([("call", DOWN)], False),
        ([("other", BROKEN)], False),
    ],
)
def test_a_call_is_repeated_if_it_failed_and_nothing_has_succeeded_since(taken, repeats):
    """An outage is no failure of the call."""
    assert is_repetition([Step(RED, action, RED, diagnosis) for action, diagnosis in taken], "call") is repeats


def test_a_deleted_guardrail_ends_no_run(library):
    """Another process may delete it between the verdict and the ruling."""
    ruling = limit(library, Verdict(False, "gone", "no", items=("gone",)), TUNING.max_refusals)
    assert (ruling.runs, ruling.over) == (True, False)
