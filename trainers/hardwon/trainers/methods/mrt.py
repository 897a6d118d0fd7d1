"""MRT (arXiv:2503.07572)."""

from collections.abc import Sequence

from hardwon.trainers.algorithms.advantages import Advantages, Trace
from hardwon.trainers.algorithms.catalog import PARTS

from .blocks.levels import Per, combine_levels


@PARTS.add(
    "estimator",
    "MRT",
    "arXiv:2503.07572",
    evidence="N",
    needs=("progress",),
    unseen="alpha: 0.5",
    settings={"roles.policy.sources.progress.of": "diagnosis"},
    example={"roles.policy.credit.settings.alpha": 0.5},
)
def mrt(traces: Sequence[Trace], *, alpha: float = 0.5, per: Per = "turn") -> Advantages:
    """Compute A = c(R) + alpha c(r) with the progress r_t = J(after turn t) - J(before it) (MRT, arXiv:2503.07572).

    J is the expected success of stopping now. With constant J the advantage is that of `dr-grpo`; a constant added to
    J changes nothing. A J that only rises pays noise.
    """
    return combine_levels(traces, "progress", weight=alpha, episode="c", step="c", per=per)
