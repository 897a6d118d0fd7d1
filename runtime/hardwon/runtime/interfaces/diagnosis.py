"""Diagnosis: what a step did, judged by rules in a fixed order, most specific first.

Success or failure from a closed list, progress in [0, 1], stagnation, and loops (Steve-Evolving,
arXiv:2603.13131, equations 1 to 3 of its second version). Deterministic; no model is asked.
"""

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from hardwon.memory import Diagnosis, Failure, State, Step
from hardwon.memory.guardrails.outage import tells_of_outage

from .types import Info
from .working_memory import WorkingMemory, place

PROGRESS_WEIGHTS = (0.4, 0.4, 0.2)
"""Of the change in what is shown, of the change in facts, of the reward."""
STAGNANT_BELOW = 0.10
WINDOW = 4
"""Steps over which a failure rate is taken."""
FAILURE_RATE = 0.5
"""Failures in the window that call for a replan."""
LOOP_WINDOW = 12
LOOP_REPEATS = 3
LOOP_PERIOD = 4
NOTHING_NEW = 8
"""Steps without a new situation that count as a loop."""
_UNMET = re.compile(
    r"\b(?:closed|locked|already|first|needs?|require[sd]?|missing|without|don't have|do not have|not carrying|full)\b",
    re.IGNORECASE,
)


def diagnose(
    pre: State, action: str, post: State, reward: float, info: Info, history: Sequence[Step], working: WorkingMemory
) -> Diagnosis:
    """Judge one step; `history` and `working` are of the episode before it."""
    failure, evidence = _failure(pre, post, reward, info, working)
    progress = _progress(pre, post, reward)
    return Diagnosis(
        success=failure is Failure.NONE,
        failure=failure,
        progress=progress,
        stagnant=failure is not Failure.NONE and progress < STAGNANT_BELOW,
        loop=in_loop([*((step.pre.signature, step.action) for step in history), (pre.signature, action)]),
        diff=difference(pre, post),
        evidence=evidence,
    )


def _failure(pre: State, post: State, reward: float, info: Info, working: WorkingMemory) -> tuple[Failure, str]:
    if info.get("success"):
        return Failure.NONE, ""
    if info.get("lost"):
        return Failure.TASK_LOST, post.feedback
    if info.get("invalid"):
        unmet = speaks_of_unmet(info["invalid"])
        return (Failure.PRECONDITION if unmet else Failure.INVALID_ACTION), info["invalid"]
    if info.get("error"):
        outage = info.get("unavailable") or tells_of_outage(info["error"])
        return (Failure.UNAVAILABLE if outage else Failure.TOOL_ERROR), info["error"]
    if reward < 0:
        return Failure.PENALTY, post.feedback
    if place(pre) == place(post) and working.heard(post.feedback):
        return (Failure.PRECONDITION if speaks_of_unmet(post.feedback) else Failure.NO_EFFECT), post.feedback
    return Failure.NONE, ""


def speaks_of_unmet(told: str) -> bool:
    """Whether an answer says that something else must be so first: closed, locked, missing, needed."""
    return _UNMET.search(told) is not None


def _progress(pre: State, post: State, reward: float) -> float:
    """p = sum_i w_i x_i / (1 + x_i) over changed sentences, changed facts; plus w_3 for a reward."""
    shown = len(_sentences(pre) ^ _sentences(post)) if pre.observation != post.observation else 0
    facts = sum(pre.facts.get(name) != post.facts.get(name) for name in {*pre.facts, *post.facts})
    of_shown, of_facts, of_reward = PROGRESS_WEIGHTS
    return of_shown * shown / (1 + shown) + of_facts * facts / (1 + facts) + of_reward * min(1.0, max(0.0, reward))


def _sentences(state: State) -> frozenset[str]:
    return frozenset(state.observation.split(". "))


def difference(pre: State, post: State) -> dict[str, Any]:
    """The fields that changed, with their new values, but for the texts that are kept with both states anyway.

    `replace(pre, **difference(pre, post))` equals `post` in all but `observation` and `notes`.
    """
    names = [field.name for field in fields(State) if field.name not in ("observation", "notes")]
    return {name: getattr(post, name) for name in names if getattr(pre, name) != getattr(post, name)}


def in_loop(taken: Sequence[tuple[str, str]]) -> bool:
    """Whether the last (situation, action) pairs go in circles.

    One pair LOOP_REPEATS times in the last LOOP_WINDOW, a cycle of up to LOOP_PERIOD pairs gone
    through LOOP_REPEATS times, or NOTHING_NEW steps without a situation not seen before.
    """
    recent = list(taken[-LOOP_WINDOW:])
    if recent.count(recent[-1]) >= LOOP_REPEATS:
        return True
    for period in range(2, LOOP_PERIOD + 1):
        span = period * LOOP_REPEATS
        if len(recent) >= span and all(
            a == b for a, b in zip(recent[-span:-period], recent[-span + period :], strict=True)
        ):
            return True
    situations = [situation for situation, _ in taken]
    return len(situations) > NOTHING_NEW and set(situations[-NOTHING_NEW:]) <= set(situations[:-NOTHING_NEW])


def why_replan(steps: Sequence[Step]) -> str | None:
    """Why the plan must not simply go on, or None. Asks once per trigger: the step before had none."""
    reason = _trouble(steps)
    return reason if reason and not _trouble(steps[:-1]) else None


def _trouble(steps: Sequence[Step]) -> str | None:
    if not steps:
        return None
    last = steps[-1].diagnosis
    if last.loop:
        return "the last steps go in circles"
    if last.stagnant:
        return f"no progress: {last.evidence or last.failure.value}"
    window = steps[-WINDOW:]
    failed = sum(not step.diagnosis.success for step in window)
    if len(window) == WINDOW and failed >= FAILURE_RATE * WINDOW:
        return f"{failed} of the last {WINDOW} steps failed"
    return None
