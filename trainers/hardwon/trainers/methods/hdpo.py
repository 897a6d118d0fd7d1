"""HDPO (Act Wisely, arXiv:2604.08545)."""

from collections.abc import Sequence

from hardwon.trainers.algorithms.advantages import Advantages, Trace, group_siblings, standardize
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add(
    "estimator",
    "HDPO (Act Wisely)",
    "arXiv:2604.08545",
    evidence="C",
    whole=True,
    reading="T counts turns; one surrogate of the sum, which equals the sum of two surrogates at a ratio of 1",
)
def hdpo(traces: Sequence[Trace], *, weight: float = 0.15, format: float = 0.1) -> Advantages:
    """Compute A = z(R) + weight z(1 / (T + 1) among the right) (HDPO, arXiv:2604.08545).

    R is (1 - format) right + format readable.

    T is the number of turns after the first one, so the shortest success is T = 0. The second term is 0 for wrong
    traces, and if fewer than two are right: it teaches few turns only among successes.

    Args:
        traces: Traces of any number of groups.
        weight: Weight of the efficiency term.
        format: Share of the reward for answers that were all actions.
    """
    advantages: Advantages = {}
    for group in group_siblings(traces):
        rewards = [(1 - format) * trace.outcome + format * all(turn.action for turn in trace.turns) for trace in group]
        right = [trace for trace in group if trace.outcome > 0]
        efficiency = standardize([1 / max(1, len(trace.turns)) for trace in right])
        bonus = {trace.id: value for trace, value in zip(right, efficiency, strict=True)}
        for trace, own in zip(group, standardize(rewards), strict=True):
            advantages[trace.id] = [own + weight * bonus.get(trace.id, 0.0)] * len(trace.turns)
    return advantages
