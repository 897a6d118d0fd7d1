"""Estimators by preferences between actions in the same situation, with a margin.

    L = -log sigmoid(z - margin),  z = beta [(log pi - log ref)(chosen) - (log pi - log ref)(rejected)]

The reference is the policy that sampled, so z is 0 at the update, and every turn of a chosen action has the weight
beta sigmoid(margin), every turn of a rejected one the negative. This is the exact gradient for one update a batch; use
`loss: {kind: imitation}` and `learner: {denominator: constant, constant: 1}`.
"""

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from statistics import fmean

from hardwon.trainers.algorithms.advantages import Advantages, Trace, group_siblings

Place = tuple[str, int]
"""A turn: id of the trace and number."""


PlacePair = tuple[Sequence[Place], Sequence[Place], tuple[float, float]]
"""The turns of the better and of the worse action of a situation, and the worth of both."""


Select = Callable[[Sequence[Trace]], Iterable[PlacePair]]
"""Returns the pairs of a group."""


Margin = Callable[[float, float], float]
"""Returns the margin of a pair from the worth of the better and of the worse action."""


def compute_pair_force(margin: float) -> float:
    """Return -dL/dz at z = 0: sigmoid(margin), which is 1/2 for DPO."""
    return 1 / (1 + math.exp(-max(-700.0, min(700.0, margin))))


def average_outcomes(group: Sequence[Trace]) -> dict[tuple[str, int], float]:
    """Return for every turn the mean outcome of the siblings that took its action in its situation."""
    outcomes: dict[tuple[str, str], dict[str, float]] = {}
    for trace in group:
        for turn in trace.turns:
            # by trace id: a trace that does so twice counts once
            outcomes.setdefault((turn.anchor, turn.action), {})[trace.id] = trace.outcome
    return {
        (trace.id, t): fmean(outcomes[turn.anchor, turn.action].values())
        for trace in group
        for t, turn in enumerate(trace.turns)
    }


def weigh_pairs(traces: Sequence[Trace], beta: float, select: Select, measure_margin: Margin) -> Advantages:
    """Return the weight of every turn from the pairs of each group, normalized by group."""
    weights: Advantages = {trace.id: [0.0] * len(trace.turns) for trace in traces}
    for group in group_siblings(traces):
        pairs = list(select(group))
        for better, worse, gap in pairs:
            # the learner divides by the number of traces, so the weights are multiplied by it
            force = beta * compute_pair_force(measure_margin(*gap)) * len(group) / len(pairs)
            for turns, sign in ((better, 1.0), (worse, -1.0)):
                for name, t in turns:
                    weights[name][t] += sign * force / len(turns)
    return weights


def list_situations(
    group: Sequence[Trace], values: Mapping[Place, float], among: Container[str] | None = None
) -> list[dict[str, list[Place]]]:
    """Return the turns that have a value, by action, for each situation or for some of them."""
    situations: dict[str, dict[str, list[Place]]] = {}
    for trace in group:
        for t, turn in enumerate(trace.turns):
            if (trace.id, t) in values and (among is None or turn.anchor in among):
                situations.setdefault(turn.anchor, {}).setdefault(turn.action, []).append((trace.id, t))
    return list(situations.values())


def list_pairs(group: Sequence[Trace], values: Mapping[Place, float]) -> Iterator[PlacePair]:
    """Yield all pairs of actions in one situation whose values differ."""
    for actions in list_situations(group, values):
        worth = {action: fmean(values[place] for place in places) for action, places in actions.items()}
        for better, worse in permutations(sorted(actions), 2):
            takers = {name for name, _ in (*actions[better], *actions[worse])}
            if worth[better] > worth[worse] and len(takers) > 1:
                yield actions[better], actions[worse], (worth[better], worth[worse])
