"""Lite PPO (tricks or traps, arXiv:2508.08221)."""

from collections.abc import Sequence
from statistics import stdev

from hardwon.trainers.algorithms.advantages import EPSILON, Advantages, Trace, center, group_siblings
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add(
    "estimator",
    "Lite PPO (tricks or traps)",
    "arXiv:2508.08221",
    evidence="N",
    whole=True,
    reading="the batch is that of the update",
)
def lite(traces: Sequence[Trace]) -> Advantages:
    """Compute A = (R - group mean) / sd of the rewards of the batch (arXiv:2508.08221).

    Use it with the loss kind ppo and `denominator: tokens`. At a standard deviation of 0, all advantages are 0. Do not
    divide where rewards are concentrated: `dr-grpo` does not.
    """
    groups = group_siblings(traces)
    rewards = [trace.outcome for group in groups for trace in group]
    spread = stdev(rewards) if len(rewards) > 1 else 0.0
    advantages: Advantages = {}
    for group in groups:
        for trace, value in zip(group, center([trace.outcome for trace in group]), strict=True):
            advantages[trace.id] = [value / (spread + EPSILON) if spread else 0.0] * len(trace.turns)
    return advantages
