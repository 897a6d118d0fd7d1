"""Advantages of two levels: the outcome of an episode, and a signal of its turns."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Literal

from hardwon.trainers.algorithms.advantages import (
    EPSILON,
    Advantages,
    Scale,
    Trace,
    center,
    compare_outcomes,
    group_siblings,
    standardize,
)
from hardwon.trainers.algorithms.signals import Values

Per = Literal["turn", "trace"]
"""What counts once in the mean of a signal: a turn, so that long traces weigh more, or a trace."""


SCALES: Mapping[Scale, Callable[[list[float]], list[float]]] = {
    "z": standardize,
    "c": center,
    "loo": lambda values: [x * len(values) / max(1, len(values) - 1) for x in center(values)],
    "raw": lambda values: list(values),
}


def combine_levels(
    traces: Sequence[Trace],
    signal: str | Mapping[str, Sequence[float | None]],
    *,
    weight: float,
    episode: Scale = "z",
    step: Scale = "z",
    per: Per = "turn",
) -> Advantages:
    """Compute A[i, t] = E_i + weight N(s)[i, t].

    Args:
        traces: Traces of any number of groups.
        signal: Name of the signal s, or its values by trace id. A turn with None gets a step term of 0.
        weight: Weight of the step term.
        episode: How outcomes are compared.
        step: How the values of the signal are compared, over all turns of the siblings that have one.
        per: What counts once in the mean of the signal.
    """
    advantages = compare_outcomes(traces, SCALES[episode])
    for group in group_siblings(traces):
        values = {trace.id: _read(trace, signal) for trace in group}
        scaled = scale_turns(values, step, per)
        for trace in group:
            advantages[trace.id] = [
                own + weight * at for own, at in zip(advantages[trace.id], scaled[trace.id], strict=True)
            ]
    return advantages


def scale_turns(values: Mapping[str, Sequence[float | None]], scale: Scale, per: Per = "turn") -> Advantages:
    """Compare the values of all turns of one group, by trace id. None, a lone trace and a lone value become 0.

    Args:
        values: Values per turn by trace id.
        scale: How they are compared.
        per: turn weighs all values alike. trace takes the mean of the traces' means, and the deviations from it.
    """
    figures = {name: [value for value in own if value is not None] for name, own in values.items()}
    flat = [value for own in figures.values() for value in own]
    if len(values) < 2 or len(flat) < 2:
        return {name: [0.0] * len(own) for name, own in values.items()}
    if per == "trace" and scale in ("z", "c"):
        mean = fmean(fmean(own) for own in figures.values() if own)
        spread = stdev(flat, mean) + EPSILON if scale == "z" else 1.0
        scaled = iter([(value - mean) / spread for value in flat])
    else:
        scaled = iter(SCALES[scale](flat))
    return {name: [0.0 if value is None else next(scaled) for value in own] for name, own in values.items()}


def _read(trace: Trace, signal: str | Mapping[str, Sequence[float | None]]) -> Values:
    return trace.read_signal(signal) if isinstance(signal, str) else tuple(signal[trace.id])
