"""What past steps say about an action: mean returns under keys from general to special.

A derived index: rebuilt from the library's steps at any time, in the order of their ids, so that
the same steps give the same numbers in any process.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .records import Estimate
from .situation import CONTEXT_KEY

MEMORY = 50
"""Steps a mean remembers: older ones fade, so that returns of a weaker policy do not linger."""
GENERALITY = 0.6
"""What a key weighs against the next more special one, at equal evidence."""
SPREAD = 0.02
"""Variance that two imagined steps bring to every key, so that two equal returns prove little."""
SAMPLES = 8
"""Step ids kept as evidence for a key."""


@dataclass(slots=True)
class Cell:
    """The steps filed under one key."""

    n: int = 0
    mean: float = 0.0
    variance: float = 0.0
    precision: float = 0.0
    """Remembered steps over their variance, smoothed by SPREAD: how firmly the mean is known."""
    bad: int = 0
    lost: int = 0
    """Of the bad ones, those that lost the task."""
    bad_action: str = ""
    several_bad: bool = False
    """Whether different actions failed: what one of them did says nothing of the others."""
    steps: list[int] = field(default_factory=list)
    bad_steps: list[int] = field(default_factory=list)

    def add(self, value: float, step_id: int, action: str = "", *, bad: bool = False, lost: bool = False) -> None:
        self.n += 1
        remembered = min(self.n, MEMORY)
        error = value - self.mean
        self.mean += error / remembered
        self.variance += (error * (value - self.mean) - self.variance) / remembered
        self.precision = remembered * (remembered + 2) / (self.variance * remembered + 2 * SPREAD)
        self.steps.append(step_id)
        del self.steps[:-SAMPLES]
        if bad:
            self.bad += 1
            self.lost += lost
            self.several_bad |= self.bad_action not in ("", action)
            self.bad_action = action
            self.bad_steps.append(step_id)
            del self.bad_steps[:-SAMPLES]


class ValueTable:
    """Mean discounted return and failures of past steps, by key."""

    def __init__(self) -> None:
        self.cells: dict[str, Cell] = {}
        self.touched: dict[str, None] = {}
        """Keys that got steps since evolution last looked, in order."""

    def add(
        self,
        keys: Iterable[str],
        value: float,
        step_id: int,
        *,
        action: str = "",
        bad: bool = False,
        lost: bool = False,
    ) -> None:
        """File one step under all its keys."""
        for key in keys:
            cell = self.cells.get(key)
            if cell is None:
                cell = self.cells[key] = Cell()
            cell.add(value, step_id, action, bad=bad, lost=lost)
            self.touched[key] = None

    def estimate(self, keys: Sequence[str], context: str = "") -> Estimate:
        """The value of an action with these keys, most general first.

            v = sum_k w_k m_k / sum_k w_k,   w_k = GENERALITY^(K - k) n_k / variance_k

        A key whose past returns agree speaks louder than one whose returns scatter; a key without
        steps says nothing. No key known: value 0.
        """
        total = weight = 0.0
        special = Cell()
        known = ""
        for key in keys:
            cell = self.cells.get(key)
            if cell is not None:
                total = GENERALITY * total + cell.precision * cell.mean
                weight = GENERALITY * weight + cell.precision
                special, known = cell, key
        familiar = self.cells.get(keys[CONTEXT_KEY]) if len(keys) > CONTEXT_KEY else None
        value = total / weight if weight else 0.0
        return Estimate(value, special.n, known, familiar.n if familiar else 0, tuple(special.steps), context)
