"""Rule-based diagnosis of a step: success or a failure cause, progress in [0, 1], stagnation, and loops.

The rules apply in a fixed order, most specific first, and call no model. They follow Steve-Evolving
(arXiv:2603.13131v2, equations 1 to 3).
"""

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from hardwon.memory import Diagnosis, Failure, State, Step
from hardwon.memory.guardrails.outage import tells_of_outage

from .tuning import TUNING
from .types import Info
from .working_memory import WorkingMemory, place

PROGRESS_WEIGHTS = (0.4, 0.4, 0.2)
"""Weights of changed sentences, of changed facts, and of the reward."""
_UNMET = re.compile(
    r"\b(?:closed|locked|already|first|needs?|require[sd]?|missing|without|don't have|do not have|not carrying|full)\b",
    re.IGNORECASE,
)


def diagnose(
    pre: State, action: str, post: State, reward: float, info: Info, history: Sequence[Step], working: WorkingMemory
) -> Diagnosis:
    """Return the diagnosis of one step."""
    failure, evidence = _failure(pre, post, reward, info, working)
    progress = _progress(pre, post, reward)
    return Diagnosis(
        success=failure is Failure.NONE,
        failure=failure,
        progress=progress,
        stagnant=failure is not Failure.NONE and progress < TUNING.stagnant_below,
        loop=in_loop([*((step.pre.signature, step.action) for step in history), (pre.signature, action)]),
        diff=difference(pre, post),
        evidence=evidence,
    )


def _failure(pre: State, post: State, reward: float, info: Info, working: WorkingMemory) -> tuple[Failure, str]:
    # The order matters: an explicit report of the environment outranks what the states suggest.
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
    # Feedback that was never given before may be information, which is not a failure.
    if place(pre) == place(post) and working.heard(post.feedback):
        return (Failure.PRECONDITION if speaks_of_unmet(post.feedback) else Failure.NO_EFFECT), post.feedback
    return Failure.NONE, ""


def speaks_of_unmet(message: str) -> bool:
    """Return whether a message reports an unmet precondition, such as closed, locked, missing or needed."""
    return _UNMET.search(message) is not None


def _progress(pre: State, post: State, reward: float) -> float:
    """Return p = sum_i w_i x_i / (1 + x_i) over changed sentences and changed facts, plus w_3 times the reward."""
    sentences = len(_sentences(pre) ^ _sentences(post)) if pre.observation != post.observation else 0
    facts = sum(pre.facts.get(name) != post.facts.get(name) for name in {*pre.facts, *post.facts})
    sentence_weight, fact_weight, reward_weight = PROGRESS_WEIGHTS
    changes = sentence_weight * sentences / (1 + sentences) + fact_weight * facts / (1 + facts)
    return changes + reward_weight * min(1.0, max(0.0, reward))


def _sentences(state: State) -> frozenset[str]:
    return frozenset(state.observation.split(". "))


def difference(pre: State, post: State) -> dict[str, Any]:
    """Return the fields that changed, with their new values, except `observation` and `notes`.

    These two are stored with both states anyway. `replace(pre, **difference(pre, post))` equals `post` in all other
    fields.
    """
    names = [field.name for field in fields(State) if field.name not in ("observation", "notes")]
    return {name: getattr(post, name) for name in names if getattr(pre, name) != getattr(post, name)}


def in_loop(pairs: Sequence[tuple[str, str]]) -> bool:
    """Return whether the last (situation, action) pairs form a loop.

    A loop is one pair `loop_repeats` times within `loop_window` steps, as in a cycle of up to four pairs, or `no_news`
    steps without a new situation.
    """
    recent = list(pairs[-TUNING.loop_window :])
    if recent.count(recent[-1]) >= TUNING.loop_repeats:
        return True
    situations = [situation for situation, _ in pairs]
    return len(situations) > TUNING.no_news and set(situations[-TUNING.no_news :]) <= set(situations[: -TUNING.no_news])


def why_replan(steps: Sequence[Step]) -> str | None:
    """Return the reason to change course, or None. Trouble that lasts is reported once, at its first step."""
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
    window = steps[-TUNING.failure_window :]
    failed = sum(not step.diagnosis.success for step in window)
    if len(window) == TUNING.failure_window and failed >= TUNING.replan_failure_rate * TUNING.failure_window:
        return f"{failed} of the last {TUNING.failure_window} steps failed"
    return None
