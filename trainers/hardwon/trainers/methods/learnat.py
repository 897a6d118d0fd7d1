"""LearNAT (arXiv:2502.04327)."""

import math
from collections.abc import Iterator, Sequence

from hardwon.trainers.algorithms.advantages import Advantages, Trace
from hardwon.trainers.algorithms.catalog import PARTS

from .blocks.pairs import PlacePair, list_pairs, weigh_pairs


@PARTS.add(
    "estimator",
    "LearNAT (step preferences)",
    "arXiv:2502.04327",
    evidence="C",
    needs=("part",),
    reading="a verified part is the share of the reference's actions, in place of nodes of a syntax tree; siblings are "
    "the group's turns in one situation, in place of a search tree",
    settings={
        "roles.policy.learner.denominator": "constant",
        "roles.policy.learner.constant": 1,
        "roles.policy.loss.kind": "imitation",
    },
)
def learnat(traces: Sequence[Trace], *, beta: float = 0.1, alpha: float = 1.0) -> Advantages:
    """Compute weights of -log sigmoid(z - alpha log(r_w - r_l)) over pairs of actions (LearNAT, arXiv:2502.04327).

    r is the part of a reference that is verified after the action. Equal parts make no pair: their logarithm is -inf.

    Args:
        traces: Traces of any number of groups.
        beta: Scale of the log-ratios.
        alpha: Weight of the margin.
    """
    parts = {trace.id: trace.read_signal("part") for trace in traces}

    def select(group: Sequence[Trace]) -> Iterator[PlacePair]:
        verified = {
            (trace.id, t): part for trace in group for t, part in enumerate(parts[trace.id]) if part is not None
        }
        return list_pairs(group, verified)

    return weigh_pairs(traces, beta, select, lambda better, worse: alpha * math.log(better - worse))
