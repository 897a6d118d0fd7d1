"""SPAE (arXiv:2601.03823)."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from hardwon.trainers.algorithms.advantages import (
    Advantages,
    Trace,
    center,
    compare_outcomes,
    group_siblings,
    standardize,
)
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add(
    "estimator",
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
