"""Demystifying agentic reasoning (overlong, arXiv:2510.11701)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.advantages import Trace
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add(
    "shaper",
    "Demystifying agentic reasoning (overlong)",
    "arXiv:2510.11701",
    evidence="C",
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
