"""Posterior-GRPO (arXiv:2508.05170)."""

from collections.abc import Sequence
from dataclasses import replace

from hardwon.trainers.algorithms.advantages import Trace
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.shapers import is_readable, read_score


@PARTS.add(
    "shaper",
    "Posterior-GRPO",
    "arXiv:2508.05170",
    evidence="N",
    needs=("quality",),
    reading="formula from a reimplementation; f is whether every answer was an action",
    example={"roles.policy.sources.score.judge": "examples.methods.judge:RuleJudge"},
)
def posterior(siblings: Sequence[Trace], *, format: float = 1.0) -> list[Trace]:
    """Set R = format f + o + o q, with the outcome o and the quality q of the reasoning (arXiv:2508.05170).

    The quality of failures does nothing. Where all failed and f is equal, nothing is taught.
    """
    return [
        replace(
            trace,
            outcome=format * is_readable(trace) + trace.outcome + trace.outcome * read_score(trace, "quality"),
        )
        for trace in siblings
    ]
