"""CAPO (arXiv:2508.02298)."""

from collections.abc import Sequence
from statistics import fmean, stdev

from hardwon.trainers.algorithms.advantages import EPSILON, Advantages, Trace, group_siblings
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.judging.verdicts import RIGHT


@PARTS.add(
    "estimator",
    "CAPO",
    "arXiv:2508.02298",
    evidence="N",
    needs=("steps",),
    reading="verdicts of several critiques are combined by the source; the weights 2 and 1 are the notes' best",
    example={
        "roles.policy.sources.steps.judge": "examples.methods.judge:RuleJudge",
        "roles.policy.sources.steps.votes": 1,
    },
)
def capo(traces: Sequence[Trace], *, whole: float = 2.0, process: float = 1.0) -> Advantages:
    """Compute z over all turns of the group of R_t = whole o - process [turn t is wrong] (CAPO, arXiv:2508.02298).

    No return to go is taken. Keep process below whole. Without a wrong turn it is GRPO with turns in the mean. A turn
    without a verdict moves no mean; it counts as right for its own advantage.
    """
    advantages: Advantages = {}
    for group in group_siblings(traces):
        verdicts = {trace.id: trace.read_signal("steps") for trace in group}
        rewards = {
            trace.id: [
                whole * trace.outcome - process * (verdict is not None and verdict <= RIGHT)
                for verdict in verdicts[trace.id]
            ]
            for trace in group
        }
        counted = [
            reward
            for name, own in rewards.items()
            for reward, verdict in zip(own, verdicts[name], strict=True)
            if verdict is not None
        ] or [reward for own in rewards.values() for reward in own]
        mean = fmean(counted) if counted else 0.0
        spread = stdev(counted) + EPSILON if len(counted) > 1 else 1.0
        for name, own in rewards.items():
            advantages[name] = [(reward - mean) / spread if len(group) > 1 else 0.0 for reward in own]
    return advantages
