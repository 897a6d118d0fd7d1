"""Gains of refinements: how much better a closer description of a step predicts its return than the one before it.

Each time that a step is filed under a refinement that has steps of earlier episodes, the return is predicted from the
description before it, and from the refinement by

    p_k = (n m + k p) / (n + k)

where m is its mean over n episodes, p the prediction before it, and k one of `PRIORS`. The gain of k is the squared
error of p less that of p_k. Gains are kept by kind of refinement and by form of action, in cells as all statistics, so
new ones count more than old ones. The prior with the largest mean gain is used, if that exceeds `DOUBTS` standard
errors.

This is prequential validation (Dawid 1984): each step is predicted before it is read, from other episodes. A
description that tells nothing, such as the number of a drawer, does not count, however often it occurs. One that
decides counts after its first step, such as the task on which the worth of an action depends.
"""

from collections.abc import Callable
from functools import lru_cache
from math import sqrt

from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.refinements import split_refinement

from .cells import MEMORY, Cell

PRIORS = (0.25, 1.0, 4.0, 16.0)
"""Numbers of episodes that the prediction before a refinement counts as."""
DOUBTS = 2.0
"""Standard errors that the mean gain of a refinement must exceed."""
LEAST_PREDICTIONS = 6
"""Predictions without which a refinement does not count."""


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
        self._names: dict[str, list[tuple[str, float]]] = {}

    def find_prior(self, key: str, prefix: str = "") -> float | None:
        """Return the prior with which a refinement counts; None if it does not."""
        group = prefix + _name_group(key)
        if group not in self._priors:
            self._priors[group] = self._select_prior(group)
        return self._priors[group]

    def _select_prior(self, group: str) -> float | None:
        most, chosen = 0.0, None
        for name, prior in self._name_cells(group):
            cell = self._find(name)
            if cell is None or cell.n < LEAST_PREDICTIONS or cell.mean <= most:
                continue
            if cell.mean > DOUBTS * sqrt(cell.variance / min(cell.n, MEMORY)):
                most, chosen = cell.mean, prior
        return chosen

    def predict(self, key: str, cell: Cell, expected: float, prefix: str = "") -> float:
        """Return the prediction of a refinement, given the one before it, as far as it counts."""
        prior = self.find_prior(key, prefix)
        return expected if prior is None else shrink(cell, expected, prior)

    def add(self, key: str, cell: Cell, expected: float, value: float, prefix: str = "") -> None:
        """Add the gains of predicting a return, given the cell of the refinement before the step is filed."""
        group = prefix + _name_group(key)
        before = (value - expected) ** 2
        for name, prior in self._name_cells(group):
            gains = self._find(name) or self._create(name)
            gains.update(before - (value - shrink(cell, expected, prior)) ** 2)
        self._priors.pop(group, None)

    def _name_cells(self, group: str) -> list[tuple[str, float]]:
        """Return the keys of the cells with the gains of a group, each with its prior."""
        if group not in self._names:
            self._names[group] = [(f"~{group} {prior:g}", prior) for prior in PRIORS]
        return self._names[group]


def shrink(cell: Cell, expected: float, prior: float) -> float:
    """Return the mean of a cell, moved towards an expectation that counts as a number of episodes."""
    return (cell.episodes * cell.mean + prior * expected) / (cell.episodes + prior)
