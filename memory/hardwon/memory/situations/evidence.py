"""Evidence: what each step of an episode says of its call, seen with the steps that follow it.

A failure speaks against its call, but for two kinds. An outage says nothing. A call that works later
in the same episode was worth making the first time: tests are run before there is anything to pass
them. Only its repetition, with nothing done in between, was of no use.

Repetitions are also counted by themselves, for each form of call: of most tools a call that failed fails
again until something else is done, and a guardrail may say so for calls that were never made before. Of a
tool that answers after some waiting this is not true, and its counts show it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hardwon.memory.records import Failure

from .actions import parse_action, pattern_of
from .keys import GUARD_MARK

_GOOD = frozenset({Failure.NONE, Failure.STEP_LIMIT})
_NEVER_RAN = frozenset({Failure.BLOCKED, Failure.UNAVAILABLE, Failure.POLICY_ERROR})
"""Failures that say nothing about whether the same call would fail again."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one step says of its call."""

    bad: bool
    """It speaks against the call."""
    lost: bool
    """It lost the task."""
    counts: bool
    """Whether it says anything; an outage does not."""
    episode: int
    """A number that the steps of one episode share."""
    again: bool | None = None
    """Whether it repeated a failed call in vain, with nothing done in between; None when it repeated none."""


def evidence_of(steps: Sequence[tuple[str, str]], episode: int) -> list[Evidence]:
    """Return what every step of an episode says; `steps` are its actions and failures, in order."""
    works: set[str] = set()
    later: list[bool] = []
    waited: list[bool] = []
    next_good = ""
    for action, failure in reversed(steps):
        later.append(action in works)
        waited.append(action == next_good)
        if failure in _GOOD:
            works.add(action)
            next_good = action
    later.reverse()
    waited.reverse()
    found = []
    failed: set[str] = set()
    """Calls that failed and after which nothing else was done."""
    ran: set[str] = set()
    """Those of them that ran and met no outage."""
    for (action, failure), recovers, waiting in zip(steps, later, waited, strict=True):
        good, lost = failure in _GOOD, failure == Failure.TASK_LOST
        counts = failure != Failure.UNAVAILABLE
        bad = counts and not good and (lost or not recovers or action in failed)
        again = not good and not waiting if action in ran and failure not in _NEVER_RAN else None
        found.append(Evidence(bad, lost, counts, episode, again))
        if good:
            failed.clear()
            ran.clear()
        else:
            failed.add(action)
            if failure not in _NEVER_RAN:
                ran.add(action)
    return found


def call_key(pattern: str) -> str:
    """Return the key under which all uses of a call are counted, whatever the situation."""
    return pattern if pattern == parse_action(pattern).template else f"{GUARD_MARK}{pattern}"


def call_keys(action: str) -> list[str]:
    """Return the keys that count this call as such: with its arguments, and with the first left open."""
    patterns = (pattern_of(action, keep_first=True), pattern_of(action))
    return [key for key in map(call_key, dict.fromkeys(patterns)) if key.startswith(GUARD_MARK)]


def again_key(form: str) -> str:
    """Return the key that counts repetitions of failed calls of this form, with nothing done in between."""
    return f"{GUARD_MARK}{form} @ again failed"


ANY_AGAIN = again_key("*")
"""The key that counts the repetitions of failed calls of all forms."""
