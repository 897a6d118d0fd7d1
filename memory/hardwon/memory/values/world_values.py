"""Values of actions per world: what past steps of one environment and kind of task say about an action.

A library of a single world has one table of values, which is used as it is. Where there are several, the steps are
filed a second time, under keys that begin with their world, so that no game's returns reach another's.
"""

from collections.abc import Sequence

from hardwon.memory.records import Estimate
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.worlds import SELECT, Worlds, read_worlds

from .value_table import ValueTable

_MARK = "\x1f"


def in_world(world: int, key: str) -> str:
    """Return a key as it is filed for one world."""
    return f"{world}{_MARK}{key}"


class WorldMap:
    """The worlds of a namespace, and which episode belongs to which."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store = store
        self._namespace = namespace
        self._episodes: dict[str, int] = {}
        self._last = ""
        self._read = False
        self.worlds = Worlds()

    def read(self) -> bool:
        """Read the worlds; return whether worlds were united, so that what was filed per world must be filed anew."""
        before = self.worlds.aliases
        self.worlds = read_worlds(self._store.rows(SELECT, (self._namespace,)))
        self._read = False
        return self.worlds.aliases != before

    def of(self, trajectory_id: str) -> int | None:
        """Return the world of an episode; None of one that was excluded."""
        if not self._read:
            self._read = True
            rows = self._store.rows(
                "SELECT trajectory_id, world FROM episode_worlds WHERE namespace = ?", (self._namespace,)
            )
            self._episodes = dict(rows)
        number = self._episodes.get(trajectory_id)
        return None if number is None else self.worlds.standing_for(number)


def estimate_in(values: ValueTable, world: int, keys: Sequence[str], context: str = "") -> Estimate:
    """Return the estimate of an action from the steps of one world."""
    found = values.estimate([in_world(world, key) for key in keys], context)
    key = found.key.partition(_MARK)[2]
    return Estimate(found.value, found.n, key, found.tried, found.steps, found.context)
