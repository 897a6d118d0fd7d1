"""A library that writes to a log and reads from a replica on this host, which holds the writes of this process."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from uuid import uuid4

from hardwon.memory.errors import LibraryBusy, LibraryReadOnly, LibraryUnreachable
from hardwon.memory.library import ExperienceLibrary
from hardwon.memory.privacy.deadlines import Interruptible, deadline, seconds_left
from hardwon.memory.retrieval.cache import NamespaceCache
from hardwon.memory.retrieval.embedders import Embedder
from hardwon.memory.storage.clock import fix_time
from hardwon.memory.storage.database import Store

from .entries import pack
from .follower import Follower
from .log import Log
from .outbox import Outbox


def make_keys() -> Iterator[str]:
    """Return keys of entries that are written once."""
    return (uuid4().hex for _ in itertools.count())


class ReplicatedLibrary(ExperienceLibrary):
    """The methods of a shared library that read the replica and let others hear of a write."""

    def __init__(
        self, store: Store, embedder: Embedder, namespace: str, log: Log, follower: Follower, outbox: Outbox | None
    ) -> None:
        super().__init__(store, embedder, namespace)
        self._log, self._follower, self._outbox = log, follower, outbox
        self._counting, self._syncs = threading.Lock(), Interruptible(log.name)
        self._written = self._applied = 0
        """Number of writes of this handle, and how many of them its replica surely holds."""
        self._keys = make_keys()
        """Keys of the next entries; those of a write that may be repeated follow from its own key."""
        self._reply: tuple[str, str] | None = None
        """Hash of the request and answer of the write that is being carried out."""

    @property
    def path(self) -> str:
        """Return the address of the database, without the password."""
        return self._log.name

    @property
    def replica(self) -> str:
        """Return the path of the replica's file on this host."""
        return self._store.path

    @property
    def position(self) -> int:
        """Return the position in the log up to which the replica is filled."""
        return self._follower.position

    @property
    def staleness_s(self) -> float:
        """Return the seconds since the replica last held everything that was in the log."""
        return self._follower.staleness_s

    def sync(self) -> int:
        """Apply everything that is in the log now, and return the position."""
        written = self._written  # before: another thread may write meanwhile
        position = self._follower.catch_up()
        self._applied = max(self._applied, written)
        return position

    @property
    def _is_behind(self) -> bool:
        """Return whether the log has writes of this handle that its replica may lack."""
        return self._applied < self._written

    def _next_key(self) -> str:
        """Return the key of the next entry, after a write that chooses its own keys."""
        with self._lock:
            return next(self._keys)

    def _append_once(self, kind: str, values: Any) -> int:
        """Append an entry, and repeat it if the connection was lost; return its id."""
        rows = [(uuid4().hex, pack(values))]
        try:
            return self._log.append(kind, rows)[0]
        except LibraryUnreachable:
            return self._log.append(kind, rows)[0]  # the same key: it is not written twice

    def _note_write(self) -> None:
        """Let the next read apply what was appended, and the others hear of it."""
        with self._counting:
            self._written += 1
        self._freshness.discard()
        self._follower.wake()

    def _check_writable(self) -> None:
        if self.read_only:
            raise LibraryReadOnly(f"{self.path} is open for reading only. Open it with read_only=False to write.")

    def _use_server_clock(self, timespec: str = "seconds") -> AbstractContextManager[None]:
        """Let the body compute with the time of the server: the clock of this host may be wrong."""
        at = self._log.read_clock(timespec)
        return nullcontext() if at is None else fix_time(at)

    def _filed(self) -> Store:
        self._apply_own()
        return super()._filed()

    def _caught_up(self) -> NamespaceCache:
        self._apply_own()
        return super()._caught_up()

    def _apply_own(self) -> None:
        """Apply the writes of this handle. Without an answer in time, reads continue with what the replica holds."""
        # Inside a transaction the file is locked, and everything was applied before it began.
        if self._is_behind and not self._store.writing:
            left = seconds_left()
            try:
                with nullcontext() if left is None else deadline(left / 2):  # the other half is for the read
                    self._syncs.call(self.sync)
            except (LibraryUnreachable, LibraryBusy):
                return
