"""SALT (arXiv:2510.20022)."""

from collections.abc import Sequence
from statistics import fmean

from hardwon.trainers.algorithms.advantages import Advantages, Trace, group_siblings
from hardwon.trainers.algorithms.catalog import PARTS

from .grpo import grpo


@PARTS.add("estimator", "SALT", "arXiv:2510.20022", evidence="P")
def salt(traces: Sequence[Trace], *, history: int = 0) -> Advantages:
    """Average the GRPO advantage over all sibling trajectories that share an edge (arXiv:2510.20022).

    The group's trajectories form a graph. An edge consists of an anchor, the action, the next anchor, and
    `history` earlier anchors. An edge that only one trajectory took keeps its own advantage.
    """
    own = grpo(traces)
    advantages: Advantages = {}
    for group in group_siblings(traces):
        shared: dict[object, dict[str, float]] = {}
        for trace in group:
            for t in range(len(trace.turns)):
                # by trace id, so a trajectory that takes an edge twice counts once in its mean
                shared.setdefault(_build_edge(trace, t, history), {})[trace.id] = own[trace.id][t]
        for trace in group:
            edges = (shared[_build_edge(trace, t, history)] for t in range(len(trace.turns)))
            advantages[trace.id] = [fmean(edge.values()) for edge in edges]
    return advantages


def _build_edge(trace: Trace, t: int, history: int) -> tuple[object, ...]:
    # the last edge leads to the outcome, so trajectories that ended differently never share it
    after = trace.turns[t + 1].anchor if t + 1 < len(trace.turns) else f"end {trace.outcome}"
    return (*(turn.anchor for turn in trace.turns[max(0, t - history) : t + 1]), trace.turns[t].action, after)
