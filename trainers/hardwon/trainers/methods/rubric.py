"""LongTraceRL (arXiv:2605.31584)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from hardwon.trainers.algorithms.advantages import Trace
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.shapers import read_score


@PARTS.add(
    "shaper",
    "LongTraceRL",
    "arXiv:2605.31584",
    evidence="C",
    needs=("entities",),
    reading="the largest share is taken over successes, so the text of a failure changes nobody's reward (own)",
)
def rubric(siblings: Sequence[Trace], *, eta: float = 0.3, maximum: Literal["wins", "all"] = "wins") -> list[Trace]:
    """Set R = (1 - eta) o + eta r / r_max where o > 0 (LongTraceRL, arXiv:2605.31584).

    r is the share of the task's entities that occur in what the trace said. Without entities, R = o.

    Args:
        siblings: Traces of one group.
        eta: Weight of the rubric.
        maximum: Traces whose largest share is r_max: those that succeeded, or all as in the authors' code.
    """
    shares = {trace.id: read_score(trace, "entities") for trace in siblings}
    counted = [shares[trace.id] for trace in siblings if maximum == "all" or trace.outcome > 0]
    most = max(counted, default=0.0)
    return [
        replace(trace, outcome=(1 - eta) * trace.outcome + eta * shares[trace.id] / most)
        if trace.outcome > 0 and most > 0
        else trace
        for trace in siblings
    ]
