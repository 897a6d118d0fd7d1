"""Outlook tables that follow the episodes of one world of a library."""

from collections import deque
from collections.abc import Sequence

from hardwon.memory.situations.outlook_keys import OutlookKeys
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import read_steps

from .outlook import EpisodeRows, Forms, OutlookTable, Rows, fit
from .outlook_episodes import EpisodeReader

EPISODES = 300
"""Number of episodes that count, the newest ones."""
REFIT = 0.05
"""Share of new episodes after which the tables are fitted again."""
RENEW = 1.5
"""Growth of the number of episodes after which all keys are computed again, with the structural words of then."""
_NEW = (
    "SELECT one.rowid, one.id FROM trajectories AS one JOIN episode_worlds AS placed "
    "ON placed.namespace = one.namespace AND trajectory_id = one.id "
    # The unary plus makes SQLite scan the few new rows by rowid instead of the index of the namespace.
    "WHERE +one.namespace = ? AND one.rowid > ? AND success IS NOT NULL AND world IN ({marks}) "
    "ORDER BY one.rowid DESC LIMIT ?"
)


class OutlookBook:
    """The outlook tables of one world, updated from new episodes."""

    def __init__(self, store: Store, namespace: int, worlds: Sequence[int]) -> None:
        self._store = store
        self._namespace = namespace
        self._worlds = tuple(worlds)
        self._last = 0
        self._begin(frozenset())
        self._table: OutlookTable | None = None
        self._fitted = 0
        self._renewed = 0
        self._read = 0
        self.unread = True
        """Whether there may be episodes that have not been read."""

    def _begin(self, structural: frozenset[str]) -> None:
        """Start without episodes, with these structural words."""
        self._keys = OutlookKeys(structural)
        self._rows, self._forms = Rows(), Forms()
        self._episodes: deque[EpisodeRows] = deque(maxlen=EPISODES)

    def read(self, structural: frozenset[str]) -> OutlookTable:
        """Return the tables, fitted to all episodes so far or almost all.

        Args:
            structural: The words that belong to the structure of the environment now.
        """
        if not self.unread and self._table is not None:
            return self._table
        self.unread = False
        new = self._find_new()
        if new and self._read + len(new) >= RENEW * self._renewed and structural != self._keys.structural:
            self._begin(structural)
            self._last, self._renewed = 0, self._read + len(new)
            self._read = 0
            new = self._find_new()
        for rowid, episode in new:
            steps = read_steps(
                self._store,
                "namespace = ? AND trajectory_id = ? AND witness = 0 ORDER BY t",
                (self._namespace, episode),
            )
            if steps:
                reader = EpisodeReader(self._rows, self._forms, self._keys)
                self._episodes.append(reader.read(steps))
            self._last = rowid
            self._read += 1
        if (
            self._table is None
            or self._read - self._fitted >= max(1.0, REFIT * self._read)
            or self._read < self._fitted
        ):
            self._table, self._fitted = fit(self._rows, self._forms, self._keys, self._episodes), self._read
        return self._table

    def _find_new(self) -> list[tuple[int, str]]:
        """Return the rows and ids of the newest episodes that have not been read, oldest first."""
        query = _NEW.format(marks=",".join("?" * len(self._worlds)))
        rows = self._store.rows(query, (self._namespace, self._last, *self._worlds, EPISODES))
        return [(int(rowid), str(episode)) for rowid, episode in reversed(rows)]
