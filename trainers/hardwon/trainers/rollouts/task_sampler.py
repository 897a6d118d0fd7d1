"""The draw: worlds in a random order, each once before any twice."""

import random
from collections.abc import Sequence

from .explore import Task


class Drawn:
    """Worlds in their order; what was drawn is one number."""

    def __init__(self, worlds: Sequence[Task], seed: int) -> None:
        self._worlds, self._seed = sorted(worlds), seed
        self.count = 0
        """Drawn so far, those that were passed over included."""

    def draw(self, number: int, without: Sequence[Task] = ()) -> list[Task]:
        """So many different worlds, or as many as there are, none of them in `without`."""
        taken, found = {*without}, list[Task]()
        while len(found) < number and len(taken) < len(self._worlds):
            world = self._next()
            if world not in taken:
                found.append(world)
                taken.add(world)
        return found

    def ahead(self, number: int) -> list[Task]:
        """The worlds that so many draws from here come upon, were none passed over; nothing is drawn."""
        return [self._at(self.count + n) for n in range(number)]

    def _next(self) -> Task:
        self.count += 1
        return self._at(self.count - 1)

    def _at(self, count: int) -> Task:
        epoch, at = divmod(count, len(self._worlds))
        return random.Random(f"{self._seed}:{epoch}").sample(self._worlds, len(self._worlds))[at]
