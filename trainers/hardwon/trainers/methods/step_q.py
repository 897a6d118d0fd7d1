"""Step-level Q models (training, arXiv:2409.09345)."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from hardwon.trainers.algorithms.advantages import Advantages, Trace
from hardwon.trainers.algorithms.catalog import PARTS

from .blocks.pairs import PlacePair, average_outcomes, list_situations, weigh_pairs


@PARTS.add(
    "estimator",
    "Step-level Q models (training)",
    "arXiv:2409.09345",
    evidence="C",
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
    """

    def select(group: Sequence[Trace]) -> Iterator[PlacePair]:
        best = max(group, key=lambda trace: (trace.outcome, trace.id))
        situations = {turn.anchor for turn in best.turns}
        worth = average_outcomes(group)
        for actions in list_situations(group, worth, situations):
            tried = {name: places for name, places in actions.items() if len({t for t, _ in places}) >= visits}
            means = {action: fmean(worth[place] for place in places) for action, places in sorted(tried.items())}
            if len(means) > 1:
                better, worse = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
                if means[better] - means[worse] >= gap and means[better] > means[worse]:
                    yield tried[better], tried[worse], (means[better], means[worse])

    return weigh_pairs(traces, beta, select, lambda better, worse: 0.0)
