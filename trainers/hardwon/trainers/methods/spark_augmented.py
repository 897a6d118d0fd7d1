"""SPARK (verdict, augmented): the paper has no identifier."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from hardwon.trainers.algorithms.advantages import Trace
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.shapers import is_readable, read_score


@PARTS.add(
    "shaper",
    "SPARK (verdict, augmented)",
    "SPARK: step-level process rewards by a generative verifier",
    evidence="N",
    needs=("steps", "verdict"),
    name="spark",
    method="spark-augmented",
    settings={"roles.policy.shape.spark.mode": "augmented", "roles.policy.sources.steps.rule": "majority"},
    example={
        "roles.policy.sources.steps.judge": "examples.methods.judge:RuleJudge",
        "roles.policy.sources.steps.votes": 1,
        "roles.policy.sources.verdict.judge": "examples.methods.judge:RuleJudge",
    },
)
def verify(siblings: Sequence[Trace], *, mode: Literal["verdict", "augmented"] = "verdict") -> list[Trace]:
    """Set the outcome to the verdict y, or to 0.4 k / n + 0.6 y with k of n turns right (SPARK).

    Either is 0 if an answer was no action. Use it only where the world has no outcome of its own.
    """
    shaped = []
    for trace in siblings:
        verdict = read_score(trace, "verdict")
        labels = [label for label in trace.read_signal("steps") if label is not None]
        share = sum(label > 0.5 for label in labels) / max(1, len(labels))
        value = verdict if mode == "verdict" else 0.4 * share + 0.6 * verdict
        shaped.append(replace(trace, outcome=value * is_readable(trace)))
    return shaped
