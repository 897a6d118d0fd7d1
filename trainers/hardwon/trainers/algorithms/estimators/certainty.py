"""Estimators by how sure the policy was: entropies of its choices, and probabilities of the true answer."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Literal

from hardwon.trainers.algorithms.advantages import (
    ESTIMATORS,
    Advantages,
    Trace,
    center,
    compare_outcomes,
    group_siblings,
    grpo,
    standardize,
)


@ESTIMATORS.add(
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

    Returns:
        One advantage per turn, by trace id.
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


@ESTIMATORS.add(
    "IGPO",
    "arXiv:2510.14967",
    evidence="C",
    needs=("answer",),
    reading="normalized before discounting, as in the paper; one release of the code did it in the opposite order",
    settings={"roles.policy.sources.answer.of": "route"},
)
def igpo(traces: Sequence[Trace], *, discount: float = 1.0) -> Advantages:
    """Compute returns of information gain: r_t = p(answer | after t) - p(answer | before t) (IGPO, arXiv:2510.14967).

    The last turn's reward is the outcome. Rewards are standardized over the group's turns first and discounted
    afterward. With constant probabilities only the outcomes remain, and a longer success then pays its early turns
    less: look at `signal/answer/still`, the share of gains of 0.
    """
    advantages: Advantages = {}
    for group in group_siblings(traces):
        rewards = {trace.id: _compute_gains(trace) for trace in group}
        figures = [r for values in rewards.values() for r in values if r is not None]
        scaled = iter(standardize(figures) if len(group) > 1 else [0.0] * len(figures))
        for trace_id, values in rewards.items():
            own, following = [0.0 if value is None else next(scaled) for value in values], 0.0
            for t in range(len(own) - 1, -1, -1):
                following = own[t] = own[t] + discount * following
            advantages[trace_id] = own
    return advantages


def _compute_gains(trace: Trace) -> list[float | None]:
    """Return the change of the answer's probability by every turn; the last turn has the outcome instead."""
    probabilities = [trace.scores.get("answer", 0.0), *trace.read_signal("answer")]
    gains = [None if None in (before, after) else after - before for before, after in pairwise(probabilities)]  # type: ignore[operator]
    return [*gains[:-1], trace.outcome] if gains else []


@ESTIMATORS.add(
    "SPAE",
    "arXiv:2601.03823",
    evidence="N C",
    needs=("answer", "confidence"),
    reading="acc is the mean probability of the answer, as in the paper; the code divides exp(sum) by the count",
    settings={"roles.policy.sources.answer.of": "route"},
)
def spae(traces: Sequence[Trace], *, alpha: float = 0.5, xi: float = 0.5, saturated: float = 0.9) -> Advantages:
    """Compute z over the batch of A = c(R) f + xi g (SPAE, arXiv:2601.03823).

    Phi = 1.5 acc conf + 0.5 acc - conf in [-1, 1], from the probability of the true answer (acc) and the confidence of
    a probe (conf) after the turn. f = 1 - alpha (1 - exp(-n)) with n earlier turns whose Phi is above `saturated`, and
    g = exp(minmax dPhi) - its batch mean, with dPhi of the first turn 0. A loss shrinks after saturation as well.

    Args:
        traces: Traces of any number of groups.
        alpha: How much saturation takes from the outcome term.
        xi: Weight of the step term.
        saturated: Phi above which the answer counts as reached.

    Returns:
        One advantage per turn, by trace id.
    """
    outcomes = compare_outcomes(traces, center)
    batch = [trace for group in group_siblings(traces) for trace in group]
    potentials = {trace.id: compute_potentials(trace) for trace in batch}
    bonuses = compute_bonuses(potentials)
    raw = {
        name: [
            a * f + xi * g
            for a, f, g in zip(outcomes[name], compute_gates(potentials[name], alpha, saturated), bonus, strict=True)
        ]
        for name, bonus in bonuses.items()
    }
    flat = iter(standardize([value for own in raw.values() for value in own]))
    return {name: [next(flat) for _ in own] for name, own in raw.items()}


def compute_potentials(trace: Trace) -> list[float | None]:
    """Return Phi after every turn; None where the answer or the confidence is not known."""
    pairs = zip(trace.read_signal("answer"), trace.read_signal("confidence"), strict=True)
    return [None if a is None or c is None else 1.5 * a * c + 0.5 * a - c for a, c in pairs]


def compute_gates(potentials: Sequence[float | None], alpha: float, saturated: float) -> list[float]:
    """Return f of every turn: 1 before the answer is reached, and falling with every turn after it."""
    gates, reached = [], 0
    for potential in potentials:
        gates.append(1 - alpha * (1 - math.exp(-reached)))
        reached += potential is not None and potential > saturated
    return gates


def compute_bonuses(potentials: Mapping[str, Sequence[float | None]]) -> Advantages:
    """Return g of every turn over a batch; 0 where the change of Phi is not known, or equal everywhere."""
    changes: dict[str, list[float | None]] = {
        name: [None if own[0] is None else 0.0] + [None if None in (a, b) else b - a for a, b in pairwise(own)]  # type: ignore[operator]
        for name, own in potentials.items()
        if own
    }
    figures = [change for own in changes.values() for change in own if change is not None]
    if not figures or max(figures) == min(figures):
        return {name: [0.0] * len(own) for name, own in potentials.items()}
    low, span = min(figures), max(figures) - min(figures)
    mean = fmean(math.exp((change - low) / span) for change in figures)
    return {
        name: [0.0 if change is None else math.exp((change - low) / span) - mean for change in changes.get(name, [])]
        for name in potentials
    }
