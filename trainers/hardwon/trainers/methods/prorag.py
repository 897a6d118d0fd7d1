"""ProRAG (arXiv:2601.21912)."""

from collections.abc import Sequence

from hardwon.trainers.algorithms.advantages import Advantages, Trace
from hardwon.trainers.algorithms.catalog import PARTS

from .blocks.levels import combine_levels


@PARTS.add(
    "estimator",
    "ProRAG",
    "arXiv:2601.21912",
    evidence="C",
    needs=("prm",),
    reading="normalized over turns, not tokens; without tree search, pairs at shared anchors train the model (own)",
)
def prorag(traces: Sequence[Trace], *, beta: float = 0.5) -> Advantages:
    """Compute A = z(R) + beta (s - mean) / std with the step scores s of a process reward model (ProRAG, 2601.21912).

    With constant scores it is GRPO; scaling or shifting all scores changes nothing.
    """
    return combine_levels(traces, "prm", weight=beta)
