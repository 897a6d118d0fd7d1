"""GRPO (arXiv:2402.03300)."""

from collections.abc import Sequence

from hardwon.trainers.algorithms.advantages import Advantages, Trace, compare_outcomes, standardize
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add("estimator", "GRPO", "arXiv:2402.03300", evidence="C")
def grpo(traces: Sequence[Trace]) -> Advantages:
    """Compute A = (R - mean) / std over the group (Shao et al. 2024, arXiv:2402.03300, section 4.1.2).

    A trajectory without siblings gets 0. In verl it keeps its raw reward.
    """
    return compare_outcomes(traces, standardize)
