"""Practitioner's guide (density, arXiv:2510.01132)."""

from collections.abc import Sequence

from hardwon.trainers.algorithms.advantages import Trace
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.shapers import set_rewards


@PARTS.add(
    "shaper",
    "Practitioner's guide (density)",
    "arXiv:2510.01132",
    evidence="C A",
    example={"roles.policy.credit.name": "reinforce", "roles.policy.shape.density.k": 2},
)
def density(siblings: Sequence[Trace], *, k: int = 1) -> list[Trace]:
    """Pay the rewards of k turns at the last of them, and the rest at the end (arXiv:2510.01132).

    Args:
        siblings: Traces of one group.
        k: Turns between two payments; 0 pays everything at the end, 1 changes nothing. The sum stays.
    """
    return [set_rewards(trace, _collect(trace, k)) for trace in siblings]


def _collect(trace: Trace, k: int) -> list[float]:
    """Return the rewards of a trace with those of k turns paid together."""
    last, rewards, owed = len(trace.turns) - 1, [], 0.0
    for t, turn in enumerate(trace.turns):
        owed += turn.reward
        is_paid = t == last or (k > 0 and (t + 1) % k == 0)
        rewards.append(owed if is_paid else 0.0)
        owed = 0.0 if is_paid else owed
    return rewards
