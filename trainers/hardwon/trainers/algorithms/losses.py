"""Policy losses: pure functions on flat vectors of tokens, without padding or settings.

Every function takes log-probabilities of shape (N,). It returns the sum over the tokens in `mask`,
divided by a `denominator` that the caller computes over the whole update, not over a micro-batch. The
gradient therefore does not depend on micro-batches, padding (mask 0) or packing. Losses with one ratio
per sequence take `sequence`, the sequence id of each token.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

LossKind = Literal["ppo", "gspo", "cispo", "aepo"]
MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to this before exp, so one token cannot make the loss infinite."""
MAX_IMPORTANCE = 2.0
"""Largest importance weight of a token that another program, or older weights, sampled."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A scalar to differentiate, and metrics to log."""

    value: Tensor
    metrics: dict[str, float] = field(default_factory=dict)


def policy_loss(
    new: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    denominator: float,
    kind: LossKind = "ppo",
    low: float = 0.2,
    high: float = 0.28,
    sequence: Tensor | None = None,
    grouped: bool = False,
    rollout: Tensor | None = None,
    max_mismatch: float | None = None,
    unclipped: Tensor | None = None,
) -> Loss:
    """Compute the policy-gradient surrogate over tokens.

        ppo    -min(r A, clip(r, 1 - low, 1 + high) A)
        gspo   the same with one ratio per sequence, exp(mean log-ratio) (arXiv:2507.18071)
        cispo  -sg(clip(r, 1 - low, 1 + high)) A log p (arXiv:2506.13585)
        aepo   ppo, but where it clips (A > 0) the gradient of (1 + high) A r / sg(r) stays (arXiv:2510.14545)

    Args:
        new: Log-probabilities under the current policy, with gradient, (N,).
        old: Log-probabilities before the update, (N,).
        advantages: Advantage of each token, (N,).
        mask: 1 for tokens to train on, else 0, (N,).
        denominator: Divisor of the sum, counted over the whole update.
        kind: Which surrogate to use.
        low: Lower clip range.
        high: Upper clip range.
        sequence: Id of each token's unit with one ratio, a sequence or a turn, (N,). Required for `gspo`.
        grouped: Take one ratio per unit with any kind, as `gspo` does.
        rollout: Log-probabilities of another program that sampled, (N,); the weight is min(exp(old - rollout), 2).
        max_mismatch: Largest geometric mean of exp(old - rollout) over a unit whose tokens count; None for no bound.
        unclipped: Tokens whose objective is r A, whatever the kind, (N,); None for no such token.

    Returns:
        The loss with its clip fraction and largest ratio, and the effective sample size if there are weights.

    Raises:
        ValueError: `kind` is `gspo` and `sequence` is missing.
    """
    mask = mask.to(new.dtype)
    # masked log-probs may be -inf, and -inf * 0 is nan
    new, old = (torch.where(mask > 0, values, torch.zeros_like(values)) for values in (new, old))
    log_ratio = (new - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if kind == "gspo" or grouped:
        log_ratio = _average_by_sequence(new, log_ratio, mask, sequence)
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1.0 - low, 1.0 + high)
    objective = _compute_objective(kind, new, ratio, bounded, advantages, unclipped)
    weight, sampled = _weigh_mismatch(old, rollout, mask, sequence, max_mismatch)
    value = -(objective * weight * mask).sum() / denominator
    return Loss(value, {**_measure_clipping(ratio, bounded, mask), **sampled})


def _compute_objective(
    kind: LossKind,
    new: Tensor,
    ratio: Tensor,
    bounded: Tensor,
    advantages: Tensor,
    unclipped: Tensor | None,
) -> Tensor:
    """Return the objective of each token; see `policy_loss`."""
    if kind == "cispo":
        # the clipped ratio is a constant weight, so unlike in ppo a clipped token keeps its gradient
        objective = bounded.detach() * advantages * new
    else:
        objective = torch.minimum(ratio * advantages, bounded * advantages)
    if kind == "aepo":
        # 1 + new - new.detach() is 1 in value: a clipped token keeps the gradient of its log-probability
        kept = bounded * advantages * (1.0 + new - new.detach())
        objective = torch.where((advantages > 0) & (ratio > bounded), kept, objective)
    return objective if unclipped is None else torch.where(unclipped, ratio * advantages, objective)


def _measure_clipping(ratio: Tensor, bounded: Tensor, mask: Tensor) -> dict[str, float]:
    """Return the share of trained tokens whose ratio was clipped, and the largest ratio."""
    with torch.no_grad():
        outside = ((ratio != bounded) & (mask > 0)).to(mask.dtype).sum() / mask.sum().clamp(min=1)
        return {"clip_fraction": float(outside), "ratio_max": float(ratio.max() if len(ratio) else 1)}


def _average_by_sequence(new: Tensor, log_ratio: Tensor, mask: Tensor, sequence: Tensor | None) -> Tensor:
    """Return each token's mean log-ratio over its sequence, with the gradient of the token's own log-ratio."""
    if sequence is None:
        raise ValueError("one ratio per unit needs `sequence`, the id of the sequence or turn of each token.")
    count = int(sequence.max()) + 1 if len(sequence) else 0
    sums = torch.zeros(count, dtype=new.dtype, device=new.device).index_add(0, sequence, log_ratio.detach() * mask)
    sizes = torch.zeros(count, dtype=new.dtype, device=new.device).index_add(0, sequence, mask)
    # new - new.detach() is 0 in value: it only adds the token's own gradient
    return (sums / sizes.clamp(min=1))[sequence] + new - new.detach()


def find_near_units(old: Tensor, rollout: Tensor, mask: Tensor, unit: Tensor | None, most: float) -> Tensor:
    """Return 1 for the tokens of units near the policy that sampled, and 0 for those of the others.

    Args:
        old: Log-probabilities of the trainer before the update, (N,).
        rollout: Log-probabilities of sampling, (N,).
        mask: Weight of each token, (N,).
        unit: Id of the sequence or turn of each token, (N,).
        most: Largest geometric mean of exp(old - rollout) over the tokens of a unit.
    """
    with torch.no_grad():
        difference = torch.where(mask > 0, old - rollout, torch.zeros_like(old))
        return (_average_by_sequence(difference, difference, mask, unit) <= math.log(most)).to(mask.dtype)


def _weigh_mismatch(
    old: Tensor,
    rollout: Tensor | None,
    mask: Tensor,
    sequence: Tensor | None,
    max_mismatch: float | None,
) -> tuple[Tensor | float, dict[str, float]]:
    """Return importance weights for tokens that another program sampled, 0 in units that are too far, and figures."""
    if rollout is None:
        return 1.0, {}
    with torch.no_grad():
        kept = torch.where(mask > 0, old - rollout, torch.zeros_like(old))
        weight = kept.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=MAX_IMPORTANCE)
        used = weight * mask
        share = used.sum() ** 2 / (used.square().sum() * mask.sum()).clamp(min=1e-12)
        trained = mask.sum().clamp(min=1)
        figures = {"ess": float(share), "mismatch_k1": float(-(kept * mask).sum() / trained)}
        if max_mismatch is not None:
            within = find_near_units(old, rollout, mask, sequence, max_mismatch)
            weight, figures["left_out"] = weight * within, float(1 - (within * mask).sum() / trained)
        return weight, figures


def kl(new: Tensor, reference: Tensor, mask: Tensor, *, denominator: float) -> Tensor:
    """Estimate KL(new || reference) per token from samples of `new`: Schulman's k3 = exp(-d) - 1 + d of d = new - ref.

    Args:
        new: Log-probabilities under the current policy, (N,).
        reference: Log-probabilities under the reference, (N,).
        mask: Weight of each token, (N,). Tokens with 0 are ignored.
        denominator: Divisor of the sum.

    Returns:
        The weighted sum of the estimates in nats, divided by `denominator`.
    """
    d = torch.where(mask > 0, new - reference, torch.zeros_like(new)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (((-d).exp() - 1 + d) * mask).sum() / denominator


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each row of logits in nats, (N, V) -> (N,). Logits of -inf mark impossible tokens."""
    log_p = torch.log_softmax(logits, dim=-1)
    # 0 instead of -inf, because 0 * -inf is nan; exp(-inf) is still 0
    return -(log_p.exp() * log_p.masked_fill(log_p.isinf(), 0.0)).sum(-1)


def masked_mean(values: Tensor, mask: Tensor, denominator: float) -> Tensor:
    """Return the masked sum divided by `denominator`: the mean if it counts the tokens of the whole update."""
    return (values * mask).sum() / denominator
