"""CPL (Step-APO, arXiv:2409.08642)."""

from collections.abc import Sequence

from hardwon.trainers.algorithms.advantages import Advantages, Trace
from hardwon.trainers.algorithms.catalog import PARTS

from .blocks.pairs import average_outcomes, list_pairs, weigh_pairs


@PARTS.add(
    "estimator",
    "CPL (Step-APO)",
    "arXiv:2409.08642",
    evidence="A P",
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
    """
    return weigh_pairs(traces, beta, lambda group: list_pairs(group, average_outcomes(group)), lambda a, b: a - b)
