"""Action values per world: estimates from past steps of one environment and kind of task.

A library with a single world uses its one value table. With several worlds, steps are filed a second time under keys
prefixed with their world, so returns of one game do not affect another.
"""

from collections.abc import Sequence

from hardwon.memory.records import Estimate
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.worlds import SELECT, Worlds, read_worlds

from .value_table import ValueTable

_MARK = "\x1f"
"""Separates the world from the key."""


def prefix_with_world(world: int, key: str) -> str:
    """Return a key with the prefix of a world."""
    return f"{world}{_MARK}{key}"


_PLACED = "SELECT trajectory_id, world FROM episode_worlds"


class WorldMap:
    """The worlds of a namespace and the world of each episode."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store = store
        self._namespace = namespace
        self._episodes: dict[str, int] | None = None
        """By episode, its world as recorded; None until it is needed."""
        self._sizes: dict[int, int] = {}
        self.worlds = Worlds()

    def read(self) -> bool:
        """Read the worlds, and return whether some were merged, which makes all data per world stale."""
        before = self.worlds.aliases
        self.worlds = read_worlds(self._store.rows(SELECT, (self._namespace,)))
        sizes = {world.id: world.episodes for world in self.worlds.standing}
        # Worlds grow and merge. If one shrank or vanished otherwise, the episodes were placed again.
        if self.worlds.aliases != before or any(sizes.get(number, 0) < size for number, size in self._sizes.items()):
            self._episodes = None
        self._sizes = sizes
        return self.worlds.aliases != before

    def of(self, trajectory_id: str) -> int | None:
        """Return the world of an episode, or None if the episode was excluded."""
        if self._episodes is None:
            self._episodes = dict(self._store.rows(f"{_PLACED} WHERE namespace = ?", (self._namespace,)))
        if trajectory_id not in self._episodes:  # recorded since then
            self._episodes.update(
                self._store.rows(
                    f"{_PLACED} WHERE namespace = ? AND trajectory_id = ?", (self._namespace, trajectory_id)
                )
            )
        number = self._episodes.get(trajectory_id)
        return None if number is None else self.worlds.standing_for(number)


def estimate_in_world(values: ValueTable, world: int, keys: Sequence[str], context: str = "") -> Estimate:
    """Estimate the value of an action from the steps of one world."""
    return values.estimate(keys, context, prefix=prefix_with_world(world, ""))
