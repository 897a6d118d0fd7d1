"""Outlook tables that follow the episodes of one world of a library."""

from collections import deque
from collections.abc import Sequence

from hardwon.memory.situations.outlook_keys import OutlookKeys
from hardwon.memory.storage.cache_files import Arrays, Sidecar
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import read_steps

from .outlook import EpisodeRows, Forms, OutlookTable, Rows, fit
from .outlook_episodes import EpisodeReader
from .saved_outlooks import LAYOUT, Progress, pack, unpack, unpack_episodes

EPISODES = 300
"""Number of episodes that count, the newest ones."""
REFIT = 0.05
"""Share of new episodes after which the tables are fitted again."""
RENEW = 1.5
"""Growth of the number of episodes after which all keys are computed again, with the structural words of then."""
SAVE_AFTER = 25
"""New episodes after which the cache file is written at once. Reading an episode takes about 15 ms."""
_NEW = (
    "SELECT one.rowid, one.id FROM trajectories AS one JOIN episode_worlds AS placed "
    "ON placed.namespace = one.namespace AND trajectory_id = one.id "
    # The unary plus makes SQLite scan the few new rows by rowid instead of the index of the namespace.
    "WHERE +one.namespace = ? AND one.rowid > ? AND success IS NOT NULL AND trust = 'trusted' AND world IN ({marks}) "
    "ORDER BY one.rowid DESC LIMIT ?"
)


class OutlookBook:
    """The outlook tables of one world, updated from new episodes."""

    def __init__(self, store: Store, namespace: int, worlds: Sequence[int], sidecar: Sidecar) -> None:
        """Create an unread book."""
        self._store = store
        self._sidecar = sidecar
        self._name = f"outlooks-{min(worlds)}-values"
        self._identity = f"{LAYOUT} worlds {sorted(worlds)}"
        self._packed: Arrays | None = None
        """The cache file that was read, while its episodes are not unpacked."""
        self._saved = 0
        """Number of episodes in the cache file."""
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
        """Return the tables, fitted to all episodes so far or almost all."""
        if not self.unread and self._table is not None:
            return self._table
        self.unread = False
        if self._table is None:
            self._load()
        new = self._find_new()
        if new:
            self._unpack_episodes()
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
            self._unpack_episodes()
            self._table, self._fitted = fit(self._rows, self._forms, self._keys, self._episodes), self._read
        if self._read - self._saved >= SAVE_AFTER:
            self.save()
        return self._table

    def save(self) -> None:
        """Write the tables to their cache file if that is behind."""
        is_due = self._read - self._saved >= max(1.0, REFIT * self._read)
        if self._table is None or self._packed is not None or not is_due or not self._sidecar.writable:
            return
        progress = Progress(self._read, self._fitted, self._renewed)
        arrays = pack(self._table, self._episodes, progress)
        if self._sidecar.save(self._name, self._identity, self._last, self._read, arrays):
            self._saved = self._read

    def _load(self) -> None:
        """Take the tables from their cache file, if there is a current one."""
        saved = self._sidecar.load(self._name, self._identity)
        if saved is None:
            return
        self._table, progress = unpack(saved.arrays)
        self._packed = saved.arrays
        self._rows, self._forms, self._keys = self._table.rows, self._table.forms, self._table.keys
        self._last, self._saved = saved.last, saved.count
        self._read, self._fitted, self._renewed = progress.read, progress.fitted, progress.renewed

    def _unpack_episodes(self) -> None:
        """Take the episodes from the cache file that was read."""
        if self._packed is not None:
            self._episodes, self._packed = unpack_episodes(self._packed, EPISODES), None

    def _find_new(self) -> list[tuple[int, str]]:
        """Return the rows and ids of the newest episodes that have not been read, oldest first."""
        query = _NEW.format(marks=",".join("?" * len(self._worlds)))
        rows = self._store.rows(query, (self._namespace, self._last, *self._worlds, EPISODES))
        return [(int(rowid), str(episode)) for rowid, episode in reversed(rows)]
