"""ArenaRL (arXiv:2601.06487)."""

from collections.abc import Sequence
from dataclasses import replace

from hardwon.trainers.algorithms.advantages import Trace
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.shapers import read_score


@PARTS.add(
    "shaper",
    "ArenaRL",
    "arXiv:2601.06487",
    evidence="C",
    needs=("arena",),
    reading="standardized once by the estimator; ties at the end of a round share the mean rank (own)",
    example={"roles.policy.sources.arena.judge": "examples.methods.judge:RuleJudge"},
)
def arena(siblings: Sequence[Trace]) -> list[Trace]:
    """Set the outcome to 1 - rank / (n - 1), the rank in a tournament of siblings (arXiv:2601.06487)."""
    return [replace(trace, outcome=read_score(trace, "arena")) for trace in siblings]
