"""Compute 95 % intervals of means and other statistics by resampling, the same in every run."""

import random
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

RESAMPLES = 2000


def bootstrap(values: Sequence[Any], compute: Callable[[Sequence[Any]], float] = fmean) -> tuple[float, float]:
    """Return the interval of a statistic over independent values, such as pairs of outcomes in one world."""
    chance = random.Random(0)
    drawn = sorted(compute(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES) - 1]


def bootstrap_groups(values: Any, groups: Any) -> list[float] | None:
    """Return the interval of the mean, resampling whole groups, because the values of a group are alike.

    Args:
        values: array of n values.
        groups: array of n group ids.

    Returns:
        Lower and upper bound, or None without values.
    """
    import numpy as np  # no start of a command waits for it

    if not len(values):
        return None
    _, place = np.unique(groups, return_inverse=True)
    # Draw groups, not values: sums and sizes suffice for the mean of each resample.
    sums, sizes = np.bincount(place, values), np.bincount(place)
    samples = np.random.default_rng(0).integers(len(sizes), size=(RESAMPLES, len(sizes)))
    means = sums[samples].sum(axis=1) / sizes[samples].sum(axis=1)
    return [round(float(bound), 3) for bound in np.percentile(means, (2.5, 97.5))]
