"""Preferences between traces as token weights: the gradient of a Bradley-Terry loss by the imitation loss.

With the margin z = beta (s+ - s-), where s is the sum of log pi - log rho over the tokens of a trace, the gradient of
the mean of -w log sigmoid(z) over P pairs gives every token of the better trace the weight +beta w sigmoid(-z) / P, and
every token of the worse one the negative. These weights, as advantages of the loss kind `imitation`, have exactly that
gradient as long as the policy did not move, so they are valid for one update (epochs = minibatches = 1).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hardwon.trainers.algorithms.advantages import Trace, group_siblings


@dataclass(frozen=True, slots=True)
class Pair:
    """Two traces of one group, of which the first is better."""

    better: str
    worse: str
    weight: float = 1.0


def pair_by_outcome(traces: Sequence[Trace]) -> list[Pair]:
    """Return all pairs of a success and a failure of one group. Where all have equal outcomes, there is none."""
    return [
        Pair(better.id, worse.id)
        for group in group_siblings(traces)
        for better in group
        for worse in group
        if better.outcome > worse.outcome
    ]


def pair_by_quality(traces: Sequence[Trace], quality: Mapping[str, float]) -> list[Pair]:
    """Return the pairs of StepORLM (arXiv:2509.22558).

    With different outcomes, the right one wins with weight 1. With the same outcome, the larger share of right steps
    wins with the difference as weight; equal shares make no pair.
    """
    pairs = pair_by_outcome(traces)
    for group in group_siblings(traces):
        for better in group:
            for worse in group:
                if better.outcome == worse.outcome and {better.id, worse.id} <= {*quality}:
                    difference = quality[better.id] - quality[worse.id]
                    if difference > 0:
                        pairs.append(Pair(better.id, worse.id, difference))
    return pairs


def weigh_tokens(pairs: Sequence[Pair], sums: Mapping[str, float], *, beta: float) -> dict[str, float]:
    """Return the weight of every token of a trace, by trace id; see the module's docstring."""
    weights: dict[str, float] = {}
    for pair in pairs:
        force = beta * pair.weight * _sigmoid(-beta * (sums[pair.better] - sums[pair.worse])) / len(pairs)
        weights[pair.better] = weights.get(pair.better, 0.0) + force
        weights[pair.worse] = weights.get(pair.worse, 0.0) - force
    return weights


def measure_pairs(pairs: Sequence[Pair], sums: Mapping[str, float], *, beta: float) -> tuple[float, float]:
    """Return the mean weighted loss -w log sigmoid(z), and the share of pairs that are ordered right."""
    if not pairs:
        return 0.0, 0.0
    margins = [beta * (sums[pair.better] - sums[pair.worse]) for pair in pairs]
    losses = [-pair.weight * math.log(_sigmoid(z)) for pair, z in zip(pairs, margins, strict=True)]
    return sum(losses) / len(pairs), sum(z > 0 for z in margins) / len(pairs)


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-max(-700.0, min(700.0, value))))


def sum_by_trace(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the sums of values by trace id."""
    sums: dict[str, float] = {}
    for name, value in values:
        sums[name] = sums.get(name, 0.0) + value
    return sums
