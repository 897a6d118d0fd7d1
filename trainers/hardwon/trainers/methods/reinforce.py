"""REINFORCE (Williams 1992)."""

from collections.abc import Sequence
from statistics import fmean

from hardwon.trainers.algorithms.advantages import Advantages, Trace, group_siblings
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add(
    "estimator",
    "REINFORCE",
    "Williams 1992",
    evidence="P",
    example={"roles.policy.credit.settings.discount": 0.95},
)
def reinforce(traces: Sequence[Trace], *, discount: float = 1.0) -> Advantages:
    """Compute A_t = G_t - mean over the group of G_0 (Williams 1992, with a group baseline)."""
    advantages: Advantages = {}
    for group in group_siblings(traces):
        returns = {trace.id: trace.returns(discount) for trace in group}
        baseline = fmean(values[0] if values else 0.0 for values in returns.values())
        for trace_id, values in returns.items():
            advantages[trace_id] = [value - baseline if len(group) > 1 else 0.0 for value in values]
    return advantages
