"""InfoPO (arXiv:2603.00656)."""

import math
from collections.abc import Sequence
from statistics import stdev

from hardwon.trainers.algorithms.advantages import Advantages, Trace, group_siblings
from hardwon.trainers.algorithms.catalog import PARTS

from .blocks.levels import scale_turns
from .grpo import grpo


@PARTS.add(
    "estimator",
    "InfoPO",
    "arXiv:2603.00656",
    evidence="C",
    needs=("observation",),
    reading="`discount` acts on the information term; 0 agrees with the worked example, the authors name 0.8",
)
def infopo(
    traces: Sequence[Trace], *, beta: float = 0.5, temperature: float = 0.05, discount: float = 0.0
) -> Advantages:
    """Compute A = z(R) + beta g z(I) m (InfoPO, arXiv:2603.00656).

    I_t is how much more probable the next action is with the observation after turn t than with a placeholder, so the
    last turn has none. g = sigmoid(-std(R) / temperature) of the group opens where outcomes say nothing: it is 0.5 for
    equal outcomes, and nearly 0 for others. m = min(1, max(std A_out, 1) / std I) over the batch bounds the term.

    Args:
        traces: Traces of any number of groups.
        beta: Weight of the information term.
        temperature: How soon different outcomes close the gate.
        discount: Share of the next turn's information term that a turn gets as well.
    """
    advantages = grpo(traces)
    informed = {trace.id: trace.read_signal("observation") for group in group_siblings(traces) for trace in group}
    figures = [value for own in informed.values() for value in own if value is not None]
    outcomes = [value for own in advantages.values() for value in own]
    bound = min(1.0, max(_measure_spread(outcomes), 1.0) / (_measure_spread(figures) or 1.0))
    for group in group_siblings(traces):
        scaled = scale_turns({trace.id: informed[trace.id] for trace in group}, "z")
        gate = 1 / (1 + math.exp(min(700.0, _measure_spread([trace.outcome for trace in group]) / temperature)))
        for trace in group:
            following = 0.0
            for t in range(len(trace.turns) - 1, -1, -1):
                following = scaled[trace.id][t] + discount * following
                advantages[trace.id][t] += beta * gate * bound * following
    return advantages


def _measure_spread(values: Sequence[float]) -> float:
    """Return the unbiased standard deviation; 0 for fewer than two values."""
    return stdev(values) if len(values) > 1 else 0.0
