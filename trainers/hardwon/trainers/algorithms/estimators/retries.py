"""Estimators for episodes that were tried again, see `algorithms.composers.retries`."""

from collections.abc import Sequence
from typing import Literal

from hardwon.trainers.algorithms.advantages import ESTIMATORS, Advantages, Trace


@ESTIMATORS.add(
    "RISE (targets)",
    "arXiv:2407.18219",
    evidence="C",
    name="rise",
    method="rise",
    reading="the target is the policy's own better attempt; a stronger model as the source of targets is not built",
    settings={"tasks.compose.retry": {}, "roles.policy.loss.kind": "imitation"},
    example={
        "environment.params": "numLocations=6, includeDoors=0, numDistractorItems=0",
        "environment.max_steps": 5,
        "tasks.compose.retry.attempts": 3,
    },
)
def rise(traces: Sequence[Trace], *, criterion: Literal["all", "better", "best", "success"] = "better") -> Advantages:
    """Weight the attempts that are targets by their outcome, and all others by 0 (RISE, arXiv:2407.18219).

    Use it with the composer `retry` and the loss kind imitation. An attempt with the same actions as an earlier target
    of its task instance is left out.

    Args:
        traces: Traces of any number of groups.
        criterion: Which attempts are targets: all, those better than the attempt before, the best of each episode, or
            those that succeeded.

    Returns:
        One weight per turn, by trace id.
    """
    by_id = {trace.id: trace for trace in traces}
    chains: dict[str, list[Trace]] = {}
    for trace in by_id.values():
        chains.setdefault(_find_first(trace, by_id), []).append(trace)
    best = {max(chain, key=lambda attempt: attempt.outcome).id for chain in chains.values()}
    seen: set[object] = set()
    weights: Advantages = {}
    for trace in by_id.values():
        before = by_id.get(trace.parent)
        chosen = {
            "all": True,
            "better": before is not None and trace.outcome > before.outcome,
            "best": trace.id in best,
            "success": trace.outcome > 0,
        }[criterion]
        key = trace.group, trace.arm, tuple(turn.action for turn in trace.turns)
        weights[trace.id] = [trace.outcome if chosen and key not in seen else 0.0] * len(trace.turns)
        seen |= {key} if chosen else set()
    return weights


def _find_first(trace: Trace, by_id: dict[str, Trace]) -> str:
    """Return the id of the first attempt that a trace goes back to."""
    seen = {trace.id}
    while trace.parent in by_id and trace.parent not in seen:
        seen.add(trace.parent)
        trace = by_id[trace.parent]
    return trace.id
