"""HGPO (arXiv:2602.22817)."""

from collections.abc import Sequence

from hardwon.trainers.algorithms.advantages import Advantages, Trace, standardize
from hardwon.trainers.algorithms.catalog import PARTS

from .gigpo import compare_at_anchors
from .grpo import grpo


@PARTS.add(
    "estimator",
    "HGPO",
    "arXiv:2602.22817",
    evidence="C",
    example={"roles.policy.credit.settings.history": 2, "roles.policy.credit.settings.episode": 1.0},
)
def hgpo(
    traces: Sequence[Trace],
    *,
    discount: float = 0.95,
    history: int = 2,
    alpha: float = 1.0,
    episode: float = 0.0,
) -> Advantages:
    """Compute A = sum_k w_k A_k over contexts of k = 0..history anchors, w_k ~ (k + 1)^alpha (arXiv:2602.22817).

    Weights are normalized over all levels, as in the paper. The released code normalizes over the levels
    that are not 0 and starts at level 2. A turn that is alone at a level gets 0 from it.

    Args:
        traces: Traces of any number of groups.
        discount: Discount of the step returns.
        history: Longest context, in earlier anchors.
        alpha: Exponent of the level weights; 0 weights all levels equally.
        episode: Weight of the comparison of outcomes, without which a batch that shares no state teaches nothing.
    """
    weights = [(k + 1) ** alpha for k in range(history + 1)]
    total: Advantages = {trace.id: [0.0] * len(trace.turns) for trace in traces}
    for k, weight in enumerate(weights):
        level = compare_at_anchors(traces, discount, standardize, lambda trace, t, k=k: _build_context(trace, t, k))  # type: ignore[misc]
        for name, values in level.items():
            total[name] = [a + weight / sum(weights) * b for a, b in zip(total[name], values, strict=True)]
    if episode:
        for name, values in grpo(traces).items():
            total[name] = [a + episode * b for a, b in zip(total[name], values, strict=True)]
    return total


def _build_context(trace: Trace, t: int, k: int) -> tuple[str, ...] | tuple[str, int]:
    """Return the anchor of turn t with the k anchors before it."""
    if t < k:
        return trace.id, t  # too little history for this level: a unique key, so the turn is compared with none
    return tuple(turn.anchor for turn in trace.turns[t - k : t + 1])
