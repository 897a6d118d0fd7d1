"""SPA-RL (arXiv:2505.20732)."""

from collections.abc import Sequence
from statistics import fmean

from hardwon.trainers.algorithms.advantages import Trace
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.shapers import set_rewards


@PARTS.add(
    "shaper",
    "SPA-RL",
    "arXiv:2505.20732",
    evidence="C",
    needs=("contribution",),
    reading="grounding is centered in the group, because a mean over siblings does not absorb it as PPO's critic does",
    example={"roles.policy.credit.name": "gigpo"},
)
def redistribute(siblings: Sequence[Trace], *, grounding: float = 0.5) -> list[Trace]:
    """Set r_t = c_t + (R - sum c) / T + grounding (valid_t - share of valid turns in the group).

    c_t is the contribution of the turn by a progress estimator (SPA-RL, arXiv:2505.20732). The released data step
    overwrites it by a leave-one-out baseline of the outcome; the paper does not. Where all turns are valid, grounding
    pays nothing, whatever the lengths. Use an estimator that reads rewards, such as `gigpo`.
    """
    valid = [turn.valid for trace in siblings for turn in trace.turns]
    share = fmean(valid) if valid else 0.0
    shaped = []
    for trace in siblings:
        contributions = [value or 0.0 for value in trace.read_signal("contribution")]
        rest = (trace.outcome - sum(contributions)) / max(1, len(trace.turns))
        rewards = [
            c + rest + grounding * (turn.valid - share) for c, turn in zip(contributions, trace.turns, strict=True)
        ]
        shaped.append(set_rewards(trace, rewards))
    return shaped
