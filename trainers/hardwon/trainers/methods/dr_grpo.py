"""Dr. GRPO (arXiv:2503.20783)."""

from collections.abc import Sequence

from hardwon.trainers.algorithms.advantages import Advantages, Trace, center, compare_outcomes
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add(
    "estimator",
    "Dr. GRPO",
    "arXiv:2503.20783",
    evidence="C",
    settings={"roles.policy.learner.denominator": "constant", "roles.policy.learner.constant": 32},
)
def dr_grpo(traces: Sequence[Trace]) -> Advantages:
    """Compute A = R - mean over the group, without division by the std (Liu et al. 2025, arXiv:2503.20783)."""
    return compare_outcomes(traces, center)
