"""How well the verdicts of a judge about single turns agree with the outcomes."""

from collections.abc import Sequence
from statistics import fmean

from hardwon.trainers.algorithms.advantages import Trace

RIGHT = 0.5
"""A verdict above this says that the turn is right."""


def compare_verdicts(traces: Sequence[Trace]) -> dict[str, float]:
    """Return how well a judge's verdicts agree with the outcomes.

    Returns:
        `clean_wins`, the share of successes without a wrong turn, and `marked_losses`, the share of failures with one.
        A judge that is no better than the policy is near chance in both.
    """
    wins: list[bool] = []
    losses: list[bool] = []
    for trace in traces:
        verdicts = [v for v in trace.signals.get("steps", ()) if v is not None]
        if verdicts:
            is_clean = all(v > RIGHT for v in verdicts)
            (wins if trace.outcome > 0 else losses).append(is_clean)
    rates = {}
    if wins:
        rates["clean_wins"] = fmean(wins)
    if losses:
        rates["marked_losses"] = 1 - fmean(losses)
    return rates
