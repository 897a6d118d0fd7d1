"""Role-Agent (prediction): the paper has no identifier."""

from collections.abc import Sequence
from dataclasses import replace

from hardwon.trainers.algorithms.advantages import Trace
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add(
    "shaper",
    "Role-Agent (prediction)",
    "Role-Agent: prediction of observations and a failure curriculum",
    evidence="C N",
    needs=("prediction",),
    reading="R (1 + weight s), the form of the authors' code; their document has R sigmoid(s)",
    name="prediction",
    settings={"roles.policy.settings.speech": "predicted", "roles.policy.settings.speech_tokens": 8},
    example={"roles.policy.shape.prediction.weight": 0.2},
)
def reward_prediction(siblings: Sequence[Trace], *, weight: float = 0.2) -> list[Trace]:
    """Set R' = R (1 + weight s), with s the likeness of predicted and seen observations (Role-Agent).

    A trace without a prediction is unchanged, and so is a failure: R = 0 stays 0.
    """
    return [
        replace(trace, outcome=trace.outcome * (1 + weight * trace.scores.get("prediction", 0.0))) for trace in siblings
    ]
