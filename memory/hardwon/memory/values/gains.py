"""Gains of refinements: how much better a closer description of a step predicts its return than the one before it.

Each time that a step is filed under a refinement that has steps of earlier episodes, the return is predicted from the
description before it, and from the refinement by

    p_k = (n m + k p) / (n + k)

where m is its mean over n episodes, p the prediction before it, and k one of `PRIORS`. The gain of k is the squared
error of p less that of p_k. Gains are kept by kind of refinement and by form of action, in cells as all statistics, so
new ones count more than old ones. The prior with the largest mean gain is used, if that exceeds
`TUNING.refinement_doubts` standard errors.

This is prequential validation (Dawid 1984): each step is predicted before it is read, from other episodes. A
description that tells nothing, such as the number of a drawer, does not count, however often it occurs. One that
decides counts after its first step, such as the task on which the worth of an action depends.

A step does not count if its two predictions differ by much less than the mean gain. An agent that always succeeds would
forget why otherwise: where all returns are equal, no description predicts better than another.
"""

from collections.abc import Callable
from functools import lru_cache
from math import sqrt

from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.refinements import split_refinement

from .cells import Cell
from .tuning import TUNING

PRIORS = (0.25, 1.0, 4.0, 16.0)
"""Numbers of episodes that the prediction before a refinement counts as."""


@lru_cache(maxsize=8192)
def _name_group(key: str) -> str:
    """Return the kind of a refinement with the form of its action, which together have gains of their own."""
    kind, rest = split_refinement(key)
    return f"{kind} {parse_action(rest.partition(' | ')[0]).template}"


class Gains:
    """The gains of the refinements in one table of values."""

    def __init__(self, find: Callable[[str], Cell | None], create: Callable[[str], Cell]) -> None:
        """Keep the gains in cells that `find` returns, and that `create` adds to the table."""
        self._find = find
        self._create = create
        self._priors: dict[str, float | None] = {}
        self._cells: dict[str, list[tuple[float, Cell]]] = {}
        """By group, the cells of all priors, once a step was filed."""

    def find_prior(self, key: str, prefix: str = "") -> float | None:
        """Return the prior with which a refinement counts; None if it does not."""
        group = prefix + _name_group(key)
        try:
            return self._priors[group]
        except KeyError:
            prior = self._priors[group] = self._select_prior(group)
            return prior

    def _select_prior(self, group: str) -> float | None:
        most, chosen = 0.0, None
        for prior in PRIORS:
            gains = self._find(_name_cell(group, prior))
            if gains is None or gains.n < TUNING.min_predictions or gains.mean <= most:
                continue
            if gains.mean > TUNING.refinement_doubts * sqrt(gains.variance / min(gains.n, TUNING.memory)):
                most, chosen = gains.mean, prior
        return chosen

    def learn(self, key: str, cell: Cell, expected: float, value: float, prefix: str = "") -> float:
        """Add the gains of predicting a return, and return the prediction of the refinement.

        `cell` is that of the refinement before the step is filed, and `expected` the prediction before it.
        """
        group = prefix + _name_group(key)
        if (cells := self._cells.get(group)) is None:
            names = {prior: _name_cell(group, prior) for prior in PRIORS}
            cells = [(prior, self._find(name) or self._create(name)) for prior, name in names.items()]
            self._cells[group] = cells
        episodes, error, apart = cell.episodes, (value - expected) ** 2, (cell.mean - expected) ** 2
        total = episodes * cell.mean
        most, chosen, predicted = 0.0, None, expected
        for prior, gains in cells:
            shrunk = (total + prior * expected) / (episodes + prior)
            n = gains.n if gains.n < TUNING.memory else TUNING.memory
            if apart >= TUNING.alike * gains.mean:
                # as in `Cell.add`, of which a gain needs only the mean and the variance
                gains.n += 1
                n = min(gains.n, TUNING.memory)
                gain = error - (value - shrunk) ** 2
                away = gain - gains.mean
                gains.mean += away / n
                gains.variance += (away * (gain - gains.mean) - gains.variance) / n
            mean = gains.mean
            if (
                mean > most
                and n >= TUNING.min_predictions
                and mean > TUNING.refinement_doubts * sqrt(gains.variance / n)
            ):
                most, chosen, predicted = mean, prior, shrunk
        self._priors[group] = chosen
        return predicted


def _name_cell(group: str, prior: float) -> str:
    """Return the key of the cell with the gains of a prior."""
    return f"~{group} {prior:g}"
