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

from hardwon.trainers.algorithms.advantages import ESTIMATORS, Advantages, Trace, group_siblings

Place = tuple[str, int]
"""A turn: id of the trace and number."""
_Pair = tuple[Sequence[Place], Sequence[Place], tuple[float, float]]
"""The turns of the better and of the worse action of a situation, and the worth of both."""
Select = Callable[[Sequence[Trace]], Iterable[_Pair]]
"""Returns the pairs of a group."""
Margin = Callable[[float, float], float]
"""Returns the margin of a pair from the worth of the better and of the worse action."""


def compute_pair_loss(z: float, margin: float) -> float:
    """Return -log sigmoid(z - margin). A margin of 0 gives DPO.

    Worked example (row 24): values 0.5 of a state and 0.9 and 0.3 of its two children give the advantages 0.4 and -0.2
    and the margin 0.6; with z = 0 the loss is 1.037.
    """
    return math.log1p(math.exp(-max(-700.0, min(700.0, z - margin))))


def compute_pair_force(margin: float) -> float:
    """Return -dL/dz at z = 0: sigmoid(margin), which is 1/2 for DPO."""
    return 1 / (1 + math.exp(-max(-700.0, min(700.0, margin))))


@ESTIMATORS.add(
    "CPL (Step-APO)",
    "arXiv:2409.08642",
    evidence="A P",
    name="step-apo",
    reading="values are the mean outcomes of the siblings in a situation in place of a tree search with a value model, "
    "and a step is an action",
    unseen="the form of the margin: A(chosen) - A(rejected)",
    settings={
        "roles.policy.learner.denominator": "constant",
        "roles.policy.learner.constant": 1,
        "roles.policy.loss.kind": "imitation",
    },
)
def step_apo(traces: Sequence[Trace], *, beta: float = 0.1) -> Advantages:
    """Compute weights of -log sigmoid(z - (A(a) - A(b))) over pairs of actions in a situation (CPL, arXiv:2409.08642).

    A(s, a) = V(s') - V(s) is the estimate of the advantage. V(s) is the mean outcome of the siblings that were in s,
    and V(s') that of those that took a there, so the margin is V(s'_a) - V(s'_b). Equal values make no pair.

    Args:
        traces: Traces of any number of groups.
        beta: Scale of the log-ratios.

    Returns:
        One weight per turn, by trace id.
    """
    return _weigh_pairs(traces, beta, lambda group: _list_pairs(group, _mean_outcomes(group)), lambda a, b: a - b)


@ESTIMATORS.add(
    "Step-level Q models (training)",
    "arXiv:2409.09345",
    evidence="C",
    name="step-q",
    reading="siblings of a situation in place of a search tree; at least two visits of both actions and a gap of 0.1 "
    "(own), because the order of single visits is noise",
    settings={
        "model.adapter": 8,
        "roles.policy.learner.denominator": "constant",
        "roles.policy.learner.constant": 1,
        "roles.policy.loss.kind": "imitation",
    },
)
def step_q(traces: Sequence[Trace], *, beta: float = 0.1, visits: int = 2, gap: float = 0.1) -> Advantages:
    """Compute weights of plain DPO over the best and the worst action along the best trace (arXiv:2409.09345).

    In every situation of the group's best trace, the action with the highest mean outcome is preferred to the one with
    the lowest. The trained policy ranks the proposals of another one: Q(s, a) = beta (log pi(a | s) - log ref(a | s)).

    Args:
        traces: Traces of any number of groups.
        beta: Scale of the log-ratios.
        visits: Number of siblings that must have taken an action in a situation.
        gap: Least difference of the mean outcomes of a pair.

    Returns:
        One weight per turn, by trace id.
    """

    def select(group: Sequence[Trace]) -> Iterator[_Pair]:
        best = max(group, key=lambda trace: (trace.outcome, trace.id))
        situations = {turn.anchor for turn in best.turns}
        worth = _mean_outcomes(group)
        for actions in _list_situations(group, worth, situations):
            tried = {name: places for name, places in actions.items() if len({t for t, _ in places}) >= visits}
            means = {action: fmean(worth[place] for place in places) for action, places in sorted(tried.items())}
            if len(means) > 1:
                better, worse = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
                if means[better] - means[worse] >= gap and means[better] > means[worse]:
                    yield tried[better], tried[worse], (means[better], means[worse])

    return _weigh_pairs(traces, beta, select, lambda better, worse: 0.0)


@ESTIMATORS.add(
    "LearNAT (step preferences)",
    "arXiv:2502.04327",
    evidence="C",
    name="learnat",
    needs=("part",),
    reading="a verified part is the share of the reference's actions, in place of nodes of a syntax tree; siblings are "
    "the group's turns in one situation, in place of a search tree",
    settings={
        "roles.policy.learner.denominator": "constant",
        "roles.policy.learner.constant": 1,
        "roles.policy.loss.kind": "imitation",
    },
)
def learnat(traces: Sequence[Trace], *, beta: float = 0.1, alpha: float = 1.0) -> Advantages:
    """Compute weights of -log sigmoid(z - alpha log(r_w - r_l)) over pairs of actions (LearNAT, arXiv:2502.04327).

    r is the part of a reference that is verified after the action. Equal parts make no pair: their logarithm is -inf.

    Args:
        traces: Traces of any number of groups.
        beta: Scale of the log-ratios.
        alpha: Weight of the margin.

    Returns:
        One weight per turn, by trace id.
    """
    parts = {trace.id: trace.read_signal("part") for trace in traces}

    def select(group: Sequence[Trace]) -> Iterator[_Pair]:
        verified = {
            (trace.id, t): part for trace in group for t, part in enumerate(parts[trace.id]) if part is not None
        }
        return _list_pairs(group, verified)

    return _weigh_pairs(traces, beta, select, lambda better, worse: alpha * math.log(better - worse))


def _mean_outcomes(group: Sequence[Trace]) -> dict[tuple[str, int], float]:
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


def _weigh_pairs(traces: Sequence[Trace], beta: float, select: Select, measure_margin: Margin) -> Advantages:
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


def _list_situations(
    group: Sequence[Trace], values: Mapping[Place, float], among: Container[str] | None = None
) -> list[dict[str, list[Place]]]:
    """Return the turns that have a value, by action, for each situation or for some of them."""
    situations: dict[str, dict[str, list[Place]]] = {}
    for trace in group:
        for t, turn in enumerate(trace.turns):
            if (trace.id, t) in values and (among is None or turn.anchor in among):
                situations.setdefault(turn.anchor, {}).setdefault(turn.action, []).append((trace.id, t))
    return list(situations.values())


def _list_pairs(group: Sequence[Trace], values: Mapping[Place, float]) -> Iterator[_Pair]:
    """Yield all pairs of actions in one situation whose values differ."""
    for actions in _list_situations(group, values):
        worth = {action: fmean(values[place] for place in places) for action, places in actions.items()}
        for better, worse in permutations(sorted(actions), 2):
            takers = {name for name, _ in (*actions[better], *actions[worse])}
            if worth[better] > worth[worse] and len(takers) > 1:
                yield actions[better], actions[worse], (worth[better], worth[worse])
