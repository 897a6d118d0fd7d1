"""SPARK (selective, global): the paper has no identifier."""

from collections.abc import Sequence
from typing import Literal

from hardwon.trainers.algorithms.advantages import Advantages, Trace, group_siblings
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.judging.verdicts import RIGHT

from .blocks.levels import combine_levels
from .grpo import grpo


@PARTS.add(
    "estimator",
    "SPARK (selective, global)",
    "SPARK: step-level process rewards by a generative verifier",
    evidence="N",
    needs=("steps",),
    reading="the step term of `global` is the label itself, 1 or 0; a tie of votes is wrong (both own)",
    settings={"roles.policy.sources.steps.rule": "majority"},
    example={
        "roles.policy.sources.steps.judge": "examples.methods.judge:RuleJudge",
        "roles.policy.sources.steps.votes": 1,
    },
)
def spark(traces: Sequence[Trace], *, mode: Literal["selective", "global"] = "selective") -> Advantages:
    """Compute the selective or the global advantage of SPARK.

    selective keeps A = z(y) on turns whose label agrees with its sign (A >= 0 and right, A < 0 and wrong) and is 0
    elsewhere; it was the best in the method's own comparison. global is 0.8 z(y) + 0.2 step. The outcome y is the
    verdict: add the shaper `spark` where the world has no outcome of its own.
    """
    if mode == "global":
        combined = combine_levels(traces, "steps", weight=0.2, step="raw")
        outcome = grpo(traces)
        return {name: [c - 0.2 * a for c, a in zip(own, outcome[name], strict=True)] for name, own in combined.items()}
    advantages = grpo(traces)
    for group in group_siblings(traces):
        for trace in group:
            verdicts = trace.read_signal("steps")
            advantages[trace.id] = [
                a if v is not None and (a >= 0) == (v > RIGHT) else 0.0
                for a, v in zip(advantages[trace.id], verdicts, strict=True)
            ]
    return advantages
