"""Evidence: what each step of an episode says of its call, seen with the steps that follow it.

A failure speaks against its call, but for two kinds. An outage says nothing. A call that works later
in the same episode was worth making the first time: tests are run before there is anything to pass
them. Only its repetition, with nothing done in between, was of no use.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .actions import parse_action, pattern_of
from .records import Failure
from .situation import GUARD_MARK

_GOOD = frozenset({Failure.NONE, Failure.STEP_LIMIT})


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


def evidence_of(steps: Sequence[tuple[str, str]], episode: int) -> list[Evidence]:
    """Return what every step of an episode says; `steps` are its actions and failures, in order."""
    works: set[str] = set()
    later: list[bool] = []
    for action, failure in reversed(steps):
        later.append(action in works)
        if failure in _GOOD:
            works.add(action)
    later.reverse()
    found = []
    failed: set[str] = set()
    """Calls that failed and after which nothing else was done."""
    for (action, failure), recovers in zip(steps, later, strict=True):
        good, lost = failure in _GOOD, failure == Failure.TASK_LOST
        counts = failure != Failure.UNAVAILABLE
        bad = counts and not good and (lost or not recovers or action in failed)
        found.append(Evidence(bad, lost, counts, episode))
        if good:
            failed.clear()
        else:
            failed.add(action)
    return found


def call_key(pattern: str) -> str:
    """Return the key under which all uses of a call are counted, whatever the situation."""
    return pattern if pattern == parse_action(pattern).template else f"{GUARD_MARK}{pattern}"


def call_keys(action: str) -> list[str]:
    """Return the keys that count this call as such: with its arguments, and with the first left open."""
    patterns = (pattern_of(action, keep_first=True), pattern_of(action))
    return [key for key in map(call_key, dict.fromkeys(patterns)) if key.startswith(GUARD_MARK)]
