"""One namespace of an open library file: its connection, its write buffer, and everything derived from its rows.

The parts of a library share one `LibraryFile`. It decides when buffered episodes are filed, when derived state is read
again, and what is rolled back after an error; the parts hold no state of their own.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from sqlite3 import Connection
from typing import Self, TypeVar

from hardwon.memory.errors import LibraryBusy, LibraryError
from hardwon.memory.grading.grades import Grade
from hardwon.memory.grading.regrading import Regrading
from hardwon.memory.guardrails.probation import Probation
from hardwon.memory.learning.consolidation import Consolidator
from hardwon.memory.learning.guardrail_index import GuardrailIndex
from hardwon.memory.privacy.deadlines import deadline
from hardwon.memory.privacy.private_files import OwnLock
from hardwon.memory.privacy.redaction import redact, redact_state
from hardwon.memory.records import State, Trajectory
from hardwon.memory.retrieval.cache import NamespaceCache
from hardwon.memory.retrieval.embedders import Embedder
from hardwon.memory.retrieval.search import Search
from hardwon.memory.situations.familiarity import has_keys, with_keys
from hardwon.memory.storage.cache_files import SAVE_AFTER
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.freshness import Version
from hardwon.memory.upkeep import forgetting, integrity
from hardwon.memory.upkeep.forgetting.replacement import EpisodeVersion, replace_episodes
from hardwon.memory.upkeep.rekeying import rekey
from hardwon.memory.upkeep.setup import agree_on_embedder, namespace_number
from hardwon.memory.upkeep.write_buffer import BRIEF_S, DISCOUNT, WriteBuffer
from hardwon.memory.validation import check_episodes

T = TypeVar("T")

_UNCOMMITTED: Version = (-1, -1)
"""Version of what was read in a transaction that may be rolled back. It differs from that of every file."""


class LibraryFile:
    """One namespace of a library file. All methods are safe to call from several threads."""

    def __init__(self, store: Store, embedder: Embedder, namespace: str) -> None:
        self.store = store
        self.embedder = embedder
        self.lock = OwnLock(store.path)
        self.namespace = namespace
        self.number = find_number(store, namespace, BRIEF_S)
        self.derived = NamespaceCache(store, self.number)
        self.search = Search(store, self.number, embedder)
        self.distiller = Consolidator(store, self.number)
        self.guardrails = GuardrailIndex()
        self.probation = Probation(store, self.number)
        self.inbox = WriteBuffer(store, self.number, self._read_words)
        self.inbox.on_filed = self._count_filed
        self.freshness = store.freshness
        self.freshness.on_forgotten = self.reset
        self.freshness.on_switched = self._drop_all
        self.steps_written = 0
        self._has_old_words = True
        self.unreadable: set[str] = set()
        """Episodes at which an extractor failed in this process."""
        self.is_closed = False
        self.on_close: Callable[[], object] = lambda: None
        """Called before the file is closed, unless it is open for reading only."""

    @classmethod
    def open(cls, path: str | Path, embedder: str | Embedder | None, namespace: str, read_only: bool) -> Self:
        """Open a file, create it if it does not exist, and finish interrupted maintenance."""
        store = Store(path, read_only=read_only)
        try:
            # before the object exists: its caches would read rows that are about to change
            integrity.rebuild_tiers(store)
            rekey(store)
            forgetting.finish(store)
            return cls(store, agree_on_embedder(store, embedder), namespace)
        except BaseException:
            store.close()
            raise

    @property
    def path(self) -> str:
        """Return the path of the library's file."""
        return self.store.path

    @property
    def read_only(self) -> bool:
        """Return whether the library refuses writes."""
        return self.store.read_only

    def record(self, trajectories: Iterable[Trajectory]) -> list[str]:
        """Write episodes in one transaction, and return their ids; they are durable then."""
        with self.lock:
            episodes = check_episodes(trajectories)
            version = self.freshness.read_at
            try:
                return self.inbox.put(episodes)
            except BaseException:
                self._roll_back(version)
                raise

    def add_keys(self, episodes: list[Trajectory]) -> list[Trajectory]:
        """Return the episodes with keys on every step; those that `record` gets have keys when they are filed."""
        if all(map(has_keys, episodes)):
            return episodes
        derived = self.caught_up()

        def keys(state: State, action: str, counts: str) -> tuple[str, ...]:
            return derived.keys(redact_state(state), redact(action), counts)

        return [with_keys(episode, keys) for episode in episodes]

    def _read_words(self) -> NamespaceCache:
        """Return the derived state with the words of the episodes that are filed, for the keys of those that follow."""
        if self._has_old_words:
            self._read_changes()
            self.freshness.read_at = _UNCOMMITTED
        return self.derived

    def _count_filed(self, episodes: Sequence[Trajectory]) -> None:
        """Pass newly filed episodes to the distiller and count their steps."""
        self._has_old_words = True
        self.distiller.keep(episodes)
        self.steps_written += sum([len(stored.steps) for stored in episodes])

    def replace(self, versions: Sequence[EpisodeVersion]) -> None:
        """Write new versions of episodes in a transaction."""
        try:
            with self.transaction() as connection:
                replace_episodes(self.store, connection, self.inbox, versions)
        finally:
            self.freshness.discard()  # even if it fails halfway, the next read must look again

    def write_grade(self, grade: Grade, episode: Trajectory) -> Grade:
        """Write a grade in a transaction."""
        try:
            with self.transaction() as connection:
                return Regrading(self.store, connection, self.number, DISCOUNT).apply(grade, episode)
        finally:
            self.freshness.discard()  # even if it fails halfway, the next read must look again

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a transaction in which everything recorded earlier is filed first. An error rolls back memory, too."""
        with self.lock:
            version = self.freshness.read_at
            try:
                # leave the in-memory copy first: the store refuses transactions while reads use one
                self.inbox.on_file()
                with self.store.transaction() as connection:
                    self.inbox.file()
                    yield connection
            except BaseException:
                self._roll_back(version)
                raise

    def _roll_back(self, version: Version | None) -> None:
        """Discard the in-memory state that a failed transaction produced since `version`."""
        self.inbox.rollback()
        self.guardrails.clear()  # numbers of changes that were rolled back are given again
        if self.freshness.read_at != version:  # derived state contains rows that were rolled back
            self.discard()

    def filed(self) -> Store:
        """Return the store after filing all recorded episodes, of this and of other processes."""
        with self.lock:
            self.freshness.file_waiting(self.inbox.file)
            return self.store

    def look_up(self, read: Callable[[Store], T]) -> T:
        """Return what `read` finds by a name in the store. It raises UnknownName if there is none."""
        return read(self.filed())

    def reset(self) -> None:
        """Reset all in-memory state after this or another process deleted rows with `forget`."""
        self.number = find_number(self.store, self.namespace, 0.0)
        self.inbox.reset(self.number)
        self.probation = Probation(self.store, self.number)
        self.distiller = Consolidator(self.store, self.number)
        self.discard()

    def discard(self) -> None:
        """Discard derived state, so that it is read again from the file."""
        self.derived = NamespaceCache(self.store, self.number)
        self._has_old_words = True
        self.search = Search(self.store, self.number, self.embedder)
        self.guardrails.clear()
        self.freshness.discard()

    def _drop_all(self) -> None:
        """Discard derived state and the distiller's counts."""
        self.distiller.forget()
        self.discard()

    def caught_up(self) -> NamespaceCache:
        """Return the derived state, updated with everything written since the last call."""
        self.freshness.catch_up(self.inbox.file, self._read_changes)
        return self.derived

    def _read_changes(self) -> None:
        """Update the derived state with everything written since the last call."""
        self._has_old_words = False
        if "item" in self.derived.catch_up():
            self.search.forget("items")

    def close(self) -> None:
        """Close the file, and save derived state beside it if that makes the next opening faster.

        Closing twice is allowed. A forked process saves nothing, because the library belongs to its parent.
        """
        # checked before the lock is taken, because it raises in a forked process
        if not self.lock.is_mine():
            self.store.close()
            return
        with self.lock:
            if not self.is_closed:
                self.is_closed = True
                with suppress(LibraryError):  # the cache files only save time, so closing never fails for them
                    if not self.read_only:
                        with deadline(BRIEF_S):
                            self.on_close()
                        self.inbox.file()
                    if self.steps_written >= SAVE_AFTER:
                        self.caught_up().statistics.read()
                    self.derived.statistics.save()
                    self.search.save()
        self.store.close()


def find_number(store: Store, namespace: str, wait_s: float) -> int:
    """Return the number of a namespace.

    A new one is created, unless another process holds the lock for so long. Then the number is 0, under which nothing
    is stored, and the next write creates it.
    """
    try:
        return namespace_number(store, namespace, wait_s=wait_s)
    except LibraryBusy:
        store.freshness.distrust()
        return 0
