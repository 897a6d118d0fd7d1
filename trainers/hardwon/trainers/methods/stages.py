"""PRS (arXiv:2512.07478)."""

from collections.abc import Sequence
from dataclasses import replace

from hardwon.trainers.algorithms.advantages import Trace
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.shapers import is_readable


@PARTS.add(
    "shaper",
    "PRS",
    "arXiv:2512.07478",
    evidence="N",
    reading="quality is the outcome, or the score of a judge if a source gives one",
    unseen="the weights of the stages (format 0.2) and the form of the length-aware BLEU (left out)",
    example={"roles.policy.shape.stages.format": 0.2},
)
def stages(siblings: Sequence[Trace], *, format: float = 0.2) -> list[Trace]:
    """Set R = 0 if any answer was no action, else format + (1 - format) q (PRS, arXiv:2512.07478).

    q is the score of a judge if a source gives one, and otherwise the outcome.
    """
    return [
        replace(
            trace,
            outcome=format + (1 - format) * trace.scores.get("score", trace.outcome) if is_readable(trace) else 0.0,
        )
        for trace in siblings
    ]
