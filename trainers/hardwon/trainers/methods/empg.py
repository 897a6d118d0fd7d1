"""EMPG (arXiv:2509.09265)."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal

from hardwon.trainers.algorithms.advantages import Advantages, Trace, group_siblings
from hardwon.trainers.algorithms.catalog import PARTS

from .grpo import grpo


@PARTS.add(
    "estimator",
    "EMPG",
    "arXiv:2509.09265",
    evidence="C",
    needs=("entropy",),
    reading="entropies are those of the choices among the allowed tokens, not -log p of what was sampled",
    example={"roles.policy.credit.settings.zeta": 0.05},
)
def empg(
    traces: Sequence[Trace],
    *,
    k: float = 1.0,
    future: float = 1.0,
    zeta: float = 0.05,
    per: Literal["batch", "group"] = "batch",
) -> Advantages:
    """Compute A_t = A g(H_t) + zeta f(H_{t+1}), minus its mean over the batch (EMPG, arXiv:2509.09265).

    g(H) = exp(-k H) / mean exp(-k H) and f(H) = exp(-future H), with the entropy H min-max normalized over the batch.
    Confident turns get more weight, and turns that lead to confident ones get a bonus. With equal entropies, every
    turn but the last gets zeta more, which is a small pay for length and the paper's own. A turn without an entropy
    keeps A, and no bonus is paid for it.

    Args:
        traces: Traces of any number of groups.
        k: Sharpness of the entropy weight g.
        future: Sharpness of the bonus f.
        zeta: Weight of the bonus.
        per: What the entropies and the last mean are normalized over. The paper's batch mixes arms and groups.
    """
    base = grpo(traces)
    groups = group_siblings(traces)
    batches = groups if per == "group" else [[trace for group in groups for trace in group]]
    shaped: Advantages = {}
    for batch in batches:
        shaped.update(_weigh_by_entropy(batch, base, k, future, zeta))
    return shaped


def _weigh_by_entropy(
    batch: Sequence[Trace], base: Mapping[str, Sequence[float]], k: float, future: float, zeta: float
) -> Advantages:
    """Return the shaped advantages of the traces over which entropies are normalized."""
    entropies = {trace.id: trace.read_signal("entropy") for trace in batch}
    figures = [h for own in entropies.values() for h in own if h is not None]
    if not figures:
        return {trace.id: list(base[trace.id]) for trace in batch}
    low, span = min(figures), (max(figures) - min(figures)) or 1.0  # equal entropies all become 0
    scaled = {name: [None if h is None else (h - low) / span for h in own] for name, own in entropies.items()}
    confidence = fmean(math.exp(-k * h) for own in scaled.values() for h in own if h is not None)
    shaped: Advantages = {}
    for name, hs in scaled.items():
        weights = [1.0 if h is None else math.exp(-k * h) / confidence for h in hs]
        ahead = [0.0 if h is None else zeta * math.exp(-future * h) for h in hs[1:]] + [0.0]
        shaped[name] = [a * g + f for a, g, f in zip(base[name], weights, ahead, strict=False)]
    mean = fmean(a for own in shaped.values() for a in own)
    return {name: [a - mean for a in own] for name, own in shaped.items()}
