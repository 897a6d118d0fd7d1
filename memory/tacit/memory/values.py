"""What past steps say about an action: running mean returns under nested keys, with backoff.

A derived index: rebuilt from the library's steps at any time, in the order of their ids, so that
the same steps give the same numbers in any process. It knows nothing of where keys come from.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .records import Estimate

MEMORY = 50
"""Steps a mean remembers: older ones fade, so that returns of a weaker policy do not linger."""
PRIOR = 2.0
"""Weight of the next more general key against the steps of this one."""
SAMPLES = 8
"""Step ids kept as evidence for a key."""


@dataclass(slots=True)
class Cell:
    """The steps filed under one key."""

    n: int = 0
    mean: float = 0.0
    bad: int = 0
    steps: list[int] = field(default_factory=list)
    bad_steps: list[int] = field(default_factory=list)

    def add(self, value: float, bad: bool, step_id: int) -> None:
        self.n += 1
        self.mean += (value - self.mean) / min(self.n, MEMORY)
        self.steps.append(step_id)
        del self.steps[:-SAMPLES]
        if bad:
            self.bad += 1
            self.bad_steps.append(step_id)
            del self.bad_steps[:-SAMPLES]


class ValueTable:
    """Mean discounted return and failures of past steps, by key."""

    def __init__(self) -> None:
        self.cells: dict[str, Cell] = {}

    def add(self, keys: Iterable[str], value: float, *, bad: bool, step_id: int) -> None:
        """File one step under all its keys."""
        for key in keys:
            cell = self.cells.get(key)
            if cell is None:
                cell = self.cells[key] = Cell()
            cell.add(value, bad, step_id)

    def estimate(self, keys: Sequence[str]) -> Estimate:
        """The value of an action with these keys, most general first.

        v = 0; for every key: v = (n·m + PRIOR·v) / (n + PRIOR), n capped at MEMORY. An unknown key
        leaves v as it is.
        """
        value, n, known, steps = 0.0, 0, "", ()
        for key in keys:
            cell = self.cells.get(key)
            if cell is not None:
                weight = min(cell.n, MEMORY)
                value = (weight * cell.mean + PRIOR * value) / (weight + PRIOR)
                n, known, steps = cell.n, key, tuple(cell.steps)
        tried = self.cells.get(keys[-1]) if keys else None
        return Estimate(value, n, known, tried.n if tried else 0, steps)
