"""ExpRL (outcome): the paper has no identifier."""

from collections.abc import Sequence
from dataclasses import replace

from hardwon.trainers.algorithms.advantages import Trace
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add(
    "shaper",
    "ExpRL (outcome)",
    "ExpRL: verification against a hidden reference",
    evidence="N C",
    needs=("score",),
    name="exprl",
    method="exprl-outcome",
    settings={"roles.policy.loss.high": 0.28},
    example={"roles.policy.sources.score.judge": "examples.methods.judge:RuleJudge"},
)
def score_by_judge(siblings: Sequence[Trace]) -> list[Trace]:
    """Set the outcome to the judge's score of the whole trace, in [0, 1]; it sees a hidden reference (ExpRL).

    A trace whose score was unreadable keeps its outcome.
    """
    shaped = []
    for trace in siblings:
        score = trace.read_signal("score")[-1] if trace.turns else None
        shaped.append(trace if score is None else replace(trace, outcome=score))
    return shaped
