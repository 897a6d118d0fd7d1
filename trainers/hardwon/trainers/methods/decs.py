"""DECS (arXiv:2509.25827)."""

from collections.abc import Sequence
from statistics import fmean

from hardwon.trainers.algorithms.advantages import Advantages, Trace, group_siblings
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add(
    "estimator",
    "DECS",
    "arXiv:2509.25827",
    evidence="C",
    whole=True,
    needs=("redundant",),
    reading="positions are turns; a turn is redundant if cleaning drops it (a circle or a refused step)",
)
def decs(traces: Sequence[Trace], *, beta: float = 0.1, longest: int = 0) -> Advantages:
    """Compute the decoupled reward of every turn, centered by position in the group (DECS, arXiv:2509.25827).

    In a right trace, a needed turn earns R + beta and a redundant one R + beta (1 - length / longest). In a wrong trace
    every turn earns R. Redundant turns of wrong traces do nothing.

    Args:
        traces: Traces of any number of groups.
        beta: Weight of the length term.
        longest: Length at which a redundant turn earns only R; 0 takes the longest trace of the group.
    """
    advantages: Advantages = {}
    for group in group_siblings(traces):
        most = longest or max(1, *(len(trace.turns) for trace in group))
        rewards = {trace.id: _reward_turns(trace, beta, most) for trace in group}
        for name, own in rewards.items():
            columns = [[other[t] for other in rewards.values() if t < len(other)] for t in range(len(own))]
            advantages[name] = [
                value - fmean(column) if len(column) > 1 else 0.0 for value, column in zip(own, columns, strict=True)
            ]
    return advantages


def _reward_turns(trace: Trace, beta: float, longest: int) -> list[float]:
    """Return the reward of every turn of a trace."""
    redundant, length = trace.read_signal("redundant"), len(trace.turns)
    if trace.outcome <= 0:
        return [trace.outcome] * length
    short = 1 - min(1.0, length / longest)
    return [trace.outcome + beta * (short if flag else 1.0) for flag in redundant]
