"""Shapers: pure functions that change the outcome or the rewards of sibling traces before credit is assigned.

    traces = shape(traces, [("density", {"k": 2})])

A shaper sees the traces of one group, role and arm, and returns them in the same order with the same ids. It changes
`Trace.outcome` or `Turn.reward` and nothing else.
"""

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

from hardwon.trainers.algorithms.advantages import Trace, group_siblings
from hardwon.trainers.algorithms.catalog import PARTS


def shape(
    traces: Sequence[Trace],
    steps: Iterable[tuple[str, Mapping[str, Any]]],
    shares: MutableMapping[str, float] | None = None,
) -> list[Trace]:
    """Return the traces after the named shapers, in order.

    Args:
        traces: Traces of any number of groups.
        steps: Names of shapers with their settings.
        shares: Receives the share of traces that each shaper changed, by name.

    Raises:
        UnknownName: There is no shaper of that name.
    """
    for name, settings in steps:
        shaper = PARTS.get("shaper", name)
        shaped = {trace.id: trace for group in group_siblings(traces) for trace in shaper(group, **settings)}
        if shares is not None:
            shares[name] = sum(shaped[trace.id] != trace for trace in traces) / max(1, len(traces))
        traces = [shaped[trace.id] for trace in traces]
    return list(traces)


def set_rewards(trace: Trace, rewards: Sequence[float]) -> Trace:
    """Return the trace with these rewards of its turns."""
    turns = tuple(replace(turn, reward=reward) for turn, reward in zip(trace.turns, rewards, strict=True))
    return replace(trace, turns=turns)


def is_readable(trace: Trace) -> bool:
    """Return whether every answer of a trace was an action."""
    return all(turn.action for turn in trace.turns)


def read_score(trace: Trace, name: str) -> float:
    """Return a value of the whole trace that a source gave.

    Raises:
        UnfedSignal: No source gave it.
    """
    if name not in trace.scores:
        trace.read_signal(name)  # raises, and names the sources to configure
    return trace.scores[name]
