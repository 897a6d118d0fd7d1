"""Losses: pure functions on flat streams of tokens; no padding, no batch shape, no settings read.

Every function takes log-probabilities as vectors of one length N and returns a sum over the tokens
of `mask`, divided by a `denominator` that the caller counts over the whole update, never over a
micro-batch. So any cut into micro-batches, any padding (mask 0) and any packing give the same
gradient. Sequences are told apart by `sequence` ids where a ratio is of a whole sequence.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["ppo", "gspo", "cispo"]
MAX_LOG_RATIO = 20.0
"""Log-ratios are cut here before exp, so that one token cannot make the loss infinite."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A scalar to differentiate, and what to log of it."""

    value: Tensor
    metrics: dict[str, float] = field(default_factory=dict)


def policy_loss(
    new: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    denominator: float,
    kind: Kind = "ppo",
    low: float = 0.2,
    high: float = 0.28,
    dual: float | None = None,
    sequence: Tensor | None = None,
    rollout: Tensor | None = None,
    cap: float = 2.0,
) -> Loss:
    """The surrogate of a policy gradient over tokens.

    new, old: log-probabilities now (with gradient) and before the update, (N,). advantages: (N,).
    mask: 1 for tokens that are trained on, (N,). rollout: log-probabilities of the engine that
    sampled, where it is another program; then tokens weigh min(exp(old - rollout), cap), truncated
    importance sampling by token (never the product over a sequence), and the effective sample size
    is reported.

        ppo    -min(r A, clip(r, 1 - low, 1 + high) A), and for A < 0 at most dual |A| (arXiv:1912.09729)
        gspo   the same with one ratio a sequence, exp(mean log-ratio) (arXiv:2507.18071)
        cispo  -sg(clip(r, 1 - low, 1 + high)) A log p (arXiv:2506.13585)
    """
    mask = mask.to(new.dtype)
    new, old = (torch.where(mask > 0, values, torch.zeros_like(values)) for values in (new, old))  # may be -inf there
    log_ratio = (new - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if kind == "gspo":
        log_ratio = _average_by_sequence(new, log_ratio, mask, sequence)
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1.0 - low, 1.0 + high)
    if kind == "cispo":
        objective = bounded.detach() * advantages * new
    else:
        objective = torch.minimum(ratio * advantages, bounded * advantages)
        if dual is not None:
            objective = torch.where(advantages < 0, torch.maximum(objective, dual * advantages), objective)
    weight, sampled = _weigh_mismatch(old, rollout, mask, cap)
    value = -(objective * weight * mask).sum() / denominator
    with torch.no_grad():
        outside = ((ratio != bounded) & (mask > 0)).to(new.dtype).sum() / mask.sum().clamp(min=1)
        return Loss(
            value, {"clip_fraction": float(outside), "ratio_max": float(ratio.max() if len(ratio) else 1), **sampled}
        )


def _average_by_sequence(new: Tensor, log_ratio: Tensor, mask: Tensor, sequence: Tensor | None) -> Tensor:
    """The mean log-ratio of each token's sequence as value, with the gradient of the token's own."""
    if sequence is None:
        raise ValueError("gspo needs `sequence`: which sequence each token belongs to.")
    count = int(sequence.max()) + 1 if len(sequence) else 0
    sums = torch.zeros(count, dtype=new.dtype, device=new.device).index_add(0, sequence, log_ratio.detach() * mask)
    sizes = torch.zeros(count, dtype=new.dtype, device=new.device).index_add(0, sequence, mask)
    return (sums / sizes.clamp(min=1))[sequence] + new - new.detach()


def _weigh_mismatch(
    old: Tensor, rollout: Tensor | None, mask: Tensor, cap: float
) -> tuple[Tensor | float, dict[str, float]]:
    """Weights for tokens sampled by another program, and how many samples they are worth."""
    if rollout is None:
        return 1.0, {}
    with torch.no_grad():
        kept = torch.where(mask > 0, old - rollout, torch.zeros_like(old))
        weight = kept.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=cap)
        used = weight * mask
        share = used.sum() ** 2 / (used.square().sum() * mask.sum()).clamp(min=1e-12)
        return weight, {"ess": float(share), "mismatch_k1": float(-(kept * mask).sum() / mask.sum().clamp(min=1))}


def kl(
    new: Tensor, reference: Tensor, mask: Tensor, *, denominator: float, kind: Literal["k1", "k2", "k3"] = "k3"
) -> Tensor:
    """KL(new || reference) by samples of new, per token: Schulman's three estimators, with d = new - reference.

    k1 = d        k2 = d^2 / 2        k3 = exp(-d) - 1 + d
    """
    d = torch.where(mask > 0, new - reference, torch.zeros_like(new)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    value = {"k1": d, "k2": d.square() / 2, "k3": (-d).exp() - 1 + d}[kind]
    return (value * mask).sum() / denominator


def entropy(logits: Tensor) -> Tensor:
    """Entropy of each row of logits in nats, (N, V) -> (N,); entries of -inf are not possible and count nothing."""
    log_p = torch.log_softmax(logits, dim=-1)
    return -(log_p.exp() * log_p.masked_fill(log_p.isinf(), 0.0)).sum(-1)


def masked_mean(values: Tensor, mask: Tensor, denominator: float) -> Tensor:
    """Sum over the mask by a denominator given: the mean when it counts the whole update's tokens."""
    return (values * mask).sum() / denominator
