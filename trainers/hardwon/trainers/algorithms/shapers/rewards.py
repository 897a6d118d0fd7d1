"""Shapers of the rewards of single turns, and of the price of length."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.advantages import Trace

from .base import SHAPERS, set_rewards


@SHAPERS.add(
    "Practitioner's guide (density)",
    "arXiv:2510.01132",
    evidence="C A",
    method="density",
    example={"roles.policy.credit.name": "reinforce", "roles.policy.shape.density.k": 2},
)
def density(siblings: Sequence[Trace], *, k: int = 1) -> list[Trace]:
    """Pay the rewards of k turns at the last of them, and the rest at the end (arXiv:2510.01132).

    Args:
        siblings: Traces of one group.
        k: Turns between two payments; 0 pays everything at the end, 1 changes nothing. The sum stays.
    """
    if k < 0:
        raise ConfigError(f"density k is {k}; use a number of turns, or 0 to pay everything at the end.")
    return [set_rewards(trace, _collect(trace, k)) for trace in siblings]


def _collect(trace: Trace, k: int) -> list[float]:
    """Return the rewards of a trace with those of k turns paid together."""
    last, rewards, owed = len(trace.turns) - 1, [], 0.0
    for t, turn in enumerate(trace.turns):
        owed += turn.reward
        is_paid = t == last or (k > 0 and (t + 1) % k == 0)
        rewards.append(owed if is_paid else 0.0)
        owed = 0.0 if is_paid else owed
    return rewards


@SHAPERS.add(
    "PROVE (graduated validity)",
    "arXiv:2606.03892",
    evidence="A",
    name="rungs",
    needs=("calls",),
    reading="no code and no formula was found: the rungs are the abstract's, equally spaced; the price of a call "
    "beyond the shortest success is multiplied by the share of siblings that succeed (own)",
    example={
        "roles.policy.credit.name": "gigpo",
        "environment.name": "bfcl",
        "environment.game": "base",
        "environment.params": "choices=8",
        "environment.max_steps": 12,
        "tasks.train.seeds": "0-19",
        "tasks.eval.seeds": "0-9",
        "explore.worlds.seeds": "0-9",
        "explore.steps": 12,
        "explore.tries": 2,
        "model.tiny.context": 4096,
        "arms.control": 4,
        "warmstart": None,
        "eval.copies": 1,
        "run.groups": 2,
    },
)
def rungs(siblings: Sequence[Trace], *, weight: float = 0.2, price: float = 0.05) -> list[Trace]:
    """Add weight (rung / 4 - 1) to the reward of each call, and take a price for needless calls (arXiv:2606.03892).

    A call that runs gets 0, and one on each lower rung a quarter of the weight less, so no number of calls earns
    anything. Each call of a success beyond the number of the shortest success costs price x p, where p is the share of
    siblings that succeed: nothing while none does. Use an estimator that reads rewards, such as `gigpo`.

    Worked example: of three siblings two succeed, with 2 and with 4 calls that run. p is 2/3, so the last two calls of
    the longer one get -2/3 price each.

    Args:
        siblings: Traces of one group.
        weight: What a turn without a call costs.
        price: What a needless call costs if all siblings succeed.
    """
    solved = [trace for trace in siblings if trace.outcome >= 1]
    fewest = min((len(trace.turns) for trace in solved), default=0)
    due = price * len(solved) / max(1, len(siblings))
    shaped = []
    for trace in siblings:
        grades = trace.read_signal("calls")
        rewards = [
            turn.reward
            + (0.0 if grade is None else weight * (grade / 4 - 1))
            - (due if trace.outcome >= 1 and t >= fewest else 0.0)
            for t, (turn, grade) in enumerate(zip(trace.turns, grades, strict=True))
        ]
        shaped.append(set_rewards(trace, rewards))
    return shaped


@SHAPERS.add(
    "Demystifying agentic reasoning (overlong)",
    "arXiv:2510.11701",
    evidence="C",
    method="overlong",
    settings={"roles.policy.loss.kind": "ppo", "roles.policy.loss.low": 0.2, "roles.policy.loss.high": 0.28},
    example={"roles.policy.shape.overlong.limit": 8, "roles.policy.shape.overlong.buffer": 3},
)
def overlong(
    siblings: Sequence[Trace],
    *,
    limit: int,
    buffer: int = 5,
    factor: float = 1.0,
    unit: Literal["turns", "tokens"] = "turns",
) -> list[Trace]:
    """Add factor x p to the outcome: p is 0 up to limit - buffer, then (limit - buffer - n) / buffer, -1 beyond limit.

    This is the price of length in arXiv:2510.11701.

    Args:
        siblings: Traces of one group.
        limit: Length beyond which the whole penalty is due.
        buffer: Length over which it rises; 0 is a step at the limit.
        factor: Weight of the penalty.
        unit: What a length counts: turns, or sampled tokens.
    """
    if limit < 1 or not 0 <= buffer <= limit:
        raise ConfigError(f"overlong limit is {limit} and buffer {buffer}; use 1 <= limit and 0 <= buffer <= limit.")
    return [
        replace(trace, outcome=trace.outcome + factor * _price(_measure_length(trace, unit), limit, buffer))
        for trace in siblings
    ]


def _price(length: int, limit: int, buffer: int) -> float:
    """Return the penalty of a length, from -1 to 0."""
    if length > limit:
        return -1.0
    return min(0.0, (limit - buffer - length) / buffer) if buffer else 0.0


def _measure_length(trace: Trace, unit: Literal["turns", "tokens"]) -> int:
    return len(trace.turns) if unit == "turns" else sum(turn.tokens for turn in trace.turns)


@SHAPERS.add(
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


@SHAPERS.add(
    "RePro",
    "RePro: rectifying process rewards by retrospection",
    evidence="N",
    needs=("retrospection",),
    unseen="beta (0.5), and the form of the align term, which is off (gamma 0)",
    example={"roles.policy.credit.name": "gigpo", "roles.policy.shape.retrospection.beta": 0.5},
)
def retrospection(siblings: Sequence[Trace], *, beta: float = 0.5) -> list[Trace]:
    """Add beta (p_t - p_{t-1}) to the reward of turn t, with the progress p that the policy itself says afterward.

    p is 0 before the first turn, and a success ends at 1 (RePro). A trace whose answer was unreadable keeps the
    environment's rewards. A constant added to every p, the first included, changes nothing.
    """
    shaped = []
    for trace in siblings:
        progress = trace.read_signal("retrospection")
        rewards = [turn.reward for turn in trace.turns]
        if not any(value is None for value in progress):
            before = [0.0, *(value or 0.0 for value in progress)]
            rewards = [reward + beta * (before[t + 1] - before[t]) for t, reward in enumerate(rewards)]
        shaped.append(set_rewards(trace, rewards))
    return shaped
