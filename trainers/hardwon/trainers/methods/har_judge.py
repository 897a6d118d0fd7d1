"""HAR (judge's share, arXiv:2511.09127)."""

from collections.abc import Sequence
from dataclasses import replace

from hardwon.trainers.algorithms.advantages import Trace
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add(
    "shaper",
    "HAR (judge's share)",
    "arXiv:2511.09127",
    evidence="C N",
    needs=("lookback",),
    name="lookback",
    method="har-judge",
    reading="added to the outcome; the thought is what the policy says before an action",
    unseen="the weight of the judge's share: 0.2, so that no failure is worth more than a success",
    settings={
        "roles.policy.settings.speech": "predicted",
        "roles.policy.settings.speech_tokens": 8,
        "tasks.compose.reflected": {},
    },
    example={
        "environment.params": "numLocations=6, includeDoors=0, numDistractorItems=0",
        "environment.max_steps": 5,
        "tasks.compose.reflected.rounds": 10,
        "arms.control": 3,
        "roles.policy.sources.lookback.judge": "examples.methods.judge:RuleJudge",
        "roles.policy.shape.lookback.weight": 0.2,
        "run.groups": 8,
    },
)
def reward_lookback(siblings: Sequence[Trace], *, weight: float = 0.2) -> list[Trace]:
    """Set R' = R + weight h, with h the share of thoughts that use what earlier turns showed (HAR, arXiv:2511.09127).

    A trace without a judged thought is unchanged. Equal shares in a group change nothing of a centered comparison.

    Args:
        siblings: Traces of one group.
        weight: Weight of the share.
    """
    return [replace(trace, outcome=trace.outcome + weight * trace.scores.get("lookback", 0.0)) for trace in siblings]
