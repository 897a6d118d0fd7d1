"""RePro: the paper has no identifier."""

from collections.abc import Sequence

from hardwon.trainers.algorithms.advantages import Trace
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.shapers import set_rewards


@PARTS.add(
    "shaper",
    "RePro",
    "RePro: rectifying process rewards by retrospection",
    evidence="N",
    needs=("retrospection",),
    unseen="beta (0.5), and the form of the align term, which is off (gamma 0)",
    example={"roles.policy.credit.name": "gigpo", "roles.policy.shape.retrospection.beta": 0.5},
)
def retrospection(siblings: Sequence[Trace], *, beta: float = 0.5) -> list[Trace]:
    """Add beta (p_t - p_{t-1}) to the reward of turn t, with the progress p that the policy itself says afterward.

    p is 0 before the first turn, and a success ends at 1 (RePro). A trace whose answer was unreadable keeps the
    environment's rewards. A constant added to every p, the first included, changes nothing.
    """
    shaped = []
    for trace in siblings:
        progress = trace.read_signal("retrospection")
        rewards = [turn.reward for turn in trace.turns]
        if not any(value is None for value in progress):
            before = [0.0, *(value or 0.0 for value in progress)]
            rewards = [reward + beta * (before[t + 1] - before[t]) for t, reward in enumerate(rewards)]
        shaped.append(set_rewards(trace, rewards))
    return shaped
