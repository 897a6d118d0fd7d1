"""Evidence of each step about its call, in view of the steps that follow it.

A failure counts against its call, with two exceptions. An outage does not count. A call that works later in the same
episode was worth making the first time, such as running tests before the code exists; only repeating it with nothing
done in between was useless. A call that the environment rejected is excused only by a success in equal facts. It did
not run, so nothing was learned from it, and what works in front of a door says nothing about the same call in front of
a wall.

Such repetitions are also counted separately, for each form of call. With most tools, a failed call fails again until
something else is done, and a guardrail can state this for new calls, too. With a tool that succeeds after some
waiting it is not true, and the counts show it.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from hardwon.memory.records import Failure

from .actions import parse_action, pattern_of, single_arguments
from .keys import GUARD_MARK, SIGHT

_AROUND = " @ around "
_GOOD = frozenset({Failure.NONE, Failure.STEP_LIMIT})
_REJECTED = frozenset({Failure.INVALID_ACTION, Failure.PRECONDITION})
"""Failures of calls that the environment rejected in this situation."""
_NEVER_RAN = frozenset({Failure.BLOCKED, Failure.UNAVAILABLE, Failure.POLICY_ERROR})
"""Failures that do not show whether the same call would fail again."""


class Evidence(NamedTuple):
    """Evidence of one step about its call."""

    bad: bool
    """Whether the step counts against the call."""
    lost: bool
    """Whether the step lost the task."""
    counts: bool
    """Whether the step counts at all; an outage does not."""
    episode: int
    """Number that the steps of one episode share."""
    ends: bool = False
    """Whether it is the last step of the episode, and counts."""
    again: bool | None = None
    """Whether the step repeated a failed call without success and with nothing done in between; None if it repeated
    no failed call."""


def evidence_of(
    steps: Sequence[tuple[str, str]], episode: int, facts: Sequence[tuple[str, ...]] | None = None
) -> list[Evidence]:
    """Return the evidence of every step of an episode."""
    evidence: list[Evidence] = []
    failed: set[str] = set()
    """Calls that failed, with no successful call since."""
    ran: set[str] = set()
    """The failed calls that were executed and met no outage."""
    for (action, failure), (recovers, waiting) in zip(
        steps, _look_ahead(steps, facts or [()] * len(steps)), strict=True
    ):
        good, lost = failure in _GOOD, failure == Failure.TASK_LOST
        counts = failure != Failure.UNAVAILABLE
        bad = counts and not good and (lost or not recovers or action in failed)
        again = not good and not waiting if action in ran and failure not in _NEVER_RAN else None
        evidence.append(Evidence(bad, lost, counts, episode, counts and len(evidence) + 1 == len(steps), again))
        if good:
            failed.clear()
            ran.clear()
        else:
            failed.add(action)
            if failure not in _NEVER_RAN:
                ran.add(action)
    return evidence


def _look_ahead(steps: Sequence[tuple[str, str]], facts: Sequence[tuple[str, ...]]) -> list[tuple[bool, bool]]:
    """Return for each step whether its call works later, and whether it is the next call that works.

    In the second case, the call waited for the tool.
    """
    works: set[str] = set()
    works_in: set[tuple[str, tuple[str, ...]]] = set()
    next_good = ""
    ahead = []
    for (action, failure), situation in zip(reversed(steps), reversed(facts), strict=True):
        recovers = (action, situation) in works_in if failure in _REJECTED else action in works
        ahead.append((recovers, action == next_good))
        if failure in _GOOD:
            works.add(action)
            works_in.add((action, situation))
            next_good = action
    return ahead[::-1]


def call_key(pattern: str) -> str:
    """Return the key under which all uses of a call are counted, in any situation."""
    return pattern if pattern == parse_action(pattern).template else f"{GUARD_MARK}{pattern}"


@lru_cache(maxsize=8192)
def call_keys(action: str) -> tuple[str, ...]:
    """Return the keys that count this call: with its arguments, without the first, and with each named one alone."""
    patterns = (pattern_of(action, keep_first=True), pattern_of(action), *single_arguments(action))
    return tuple(key for key in map(call_key, dict.fromkeys(patterns)) if key.startswith(GUARD_MARK))


def facts_of(keys: Iterable[str], action: str) -> tuple[str, ...]:
    """Return the facts of a step, such as `front wall`, read from its keys; empty if its state has no such facts."""
    for key in keys:
        # the search for the words comes first, because it alone rules out most keys
        if _AROUND in key and key.startswith(GUARD_MARK):
            return split_facts(key.partition(_AROUND)[2], action)
    return ()


def split_facts(context: str, action: str) -> tuple[str, ...]:
    """Return the facts in the context of an action or a pattern, which follow the words around its arguments."""
    # the added "; " makes the split yield a rest also for a context without facts
    rest = f"{context}; ".split("; ", len(parse_action(action).slots))[-1]
    return tuple(part for part in rest.split("; ") if part and not part.startswith(SIGHT))


def fact_key(pattern: str, fact: str) -> str:
    """Return the key under which all uses of a call are counted whose state has a fact."""
    return f"{GUARD_MARK}{pattern} @ given {fact}"


def fact_keys(action: str, facts: Collection[str]) -> list[str]:
    """Return the keys that count this call in the states that share one of these facts."""
    if not facts:
        return []
    patterns = dict.fromkeys((parse_action(action).template, pattern_of(action)))
    return [fact_key(pattern, fact) for pattern in patterns for fact in facts]


def again_key(form: str) -> str:
    """Return the key that counts repetitions of failed calls of this form, with nothing done in between."""
    return f"{GUARD_MARK}{form} @ again failed"


ANY_AGAIN = again_key("*")
"""Key that counts repetitions of failed calls of all forms."""
