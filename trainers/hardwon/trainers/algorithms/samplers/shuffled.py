"""Sampling of task instances in random order, each once per epoch."""

import random
from collections.abc import Sequence

Task = tuple[str, int]
"""Split and seed of a task instance."""


class Drawn:
    """A shuffled sequence of task instances; its position is one number."""

    def __init__(self, worlds: Sequence[Task], seed: int) -> None:
        self._worlds, self._seed = sorted(worlds), seed
        self.count = 0
        """Positions drawn so far, including skipped ones."""

    def draw(self, number: int, without: Sequence[Task] = ()) -> list[Task]:
        """Return up to `number` distinct task instances that are not in `without`."""
        excluded, drawn = {*without}, list[Task]()
        while len(drawn) < number and len(excluded) < len(self._worlds):
            world = self._next()
            if world not in excluded:
                drawn.append(world)
                excluded.add(world)
        return drawn

    def _next(self) -> Task:
        """Draw the next task instance."""
        self.count += 1
        return self._at(self.count - 1)

    def _at(self, count: int) -> Task:
        # Reshuffled by seed and epoch: the count alone restores the position of a resumed run.
        """Return the task instance at a position."""
        epoch, at = divmod(count, len(self._worlds))
        return random.Random(f"{self._seed}:{epoch}").sample(self._worlds, len(self._worlds))[at]
