"""RLOO (arXiv:2402.14740)."""

from collections.abc import Sequence

from hardwon.trainers.algorithms.advantages import Advantages, Trace, center, compare_outcomes
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add("estimator", "RLOO", "arXiv:2402.14740", evidence="C")
def rloo(traces: Sequence[Trace]) -> Advantages:
    """Compute A = R - mean of the other traces = n / (n - 1) (R - mean).

    Ahmadian et al. 2024, arXiv:2402.14740.
    """
    # max: a trace without siblings would divide by 0; its centered value is 0 already
    return compare_outcomes(traces, lambda values: [x * len(values) / max(1, len(values) - 1) for x in center(values)])
