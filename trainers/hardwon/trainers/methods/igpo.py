"""IGPO (arXiv:2510.14967)."""

from collections.abc import Sequence
from itertools import pairwise

from hardwon.trainers.algorithms.advantages import Advantages, Trace, group_siblings, standardize
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add(
    "estimator",
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
