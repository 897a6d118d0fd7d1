"""The file of a shared library: a log in PostgreSQL that it writes to, and a replica on this host that it reads.

What a library file does to itself is an entry of the log here, which every replica applies. Items change through the
log, too: a change is computed on the replica, at the end of the log, while other processes wait; then it is undone
there, appended, and applied in its place like any other entry. The replica holds the writes of this process before the
next read.
"""

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from sqlite3 import Connection
from typing import Any, TypeVar
from uuid import uuid4

from hardwon.memory.errors import KeyTaken, LeaseLost, LibraryBusy, LibraryReadOnly, LibraryUnreachable, UnknownName
from hardwon.memory.grading.grades import Grade
from hardwon.memory.grading.regrading import Regrading, pack_grade, unpack_grade
from hardwon.memory.parts.file import LibraryFile
from hardwon.memory.privacy.deadlines import Interruptible, deadline, seconds_left
from hardwon.memory.records import Trajectory
from hardwon.memory.retrieval.cache import NamespaceCache
from hardwon.memory.retrieval.embedders import Embedder
from hardwon.memory.storage.clock import fix_time, now
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import dumps
from hardwon.memory.upkeep import jsonl, queries
from hardwon.memory.upkeep.forgetting.replacement import EpisodeVersion
from hardwon.memory.upkeep.write_buffer import DISCOUNT, redact_and_pack
from hardwon.memory.validation import check_episodes

from .entries import is_same_episode, locate_steps, pack, pack_episode_entry
from .follower import Follower
from .log import Log
from .outbox import Outbox
from .replica import Capture

logger = logging.getLogger("hardwon.memory")

T = TypeVar("T")


class Undo(Exception):
    """Rolls back the transaction in which a change was computed."""


def make_keys() -> Iterator[str]:
    """Return keys of entries that are written once."""
    return (uuid4().hex for _ in itertools.count())


class ReplicaFile(LibraryFile):
    """One namespace of a shared library, as a file on this host that follows the log."""

    def __init__(
        self, store: Store, embedder: Embedder, namespace: str, log: Log, follower: Follower, outbox: Outbox | None
    ) -> None:
        super().__init__(store, embedder, namespace)
        self.log, self.follower, self.outbox = log, follower, outbox
        self._counting, self._syncs = threading.Lock(), Interruptible(log.name)
        self.written = self.applied = 0
        """Number of writes of this handle, and how many of them its replica surely holds."""
        self.entry_keys = make_keys()
        """Keys of the next entries; those of a write that may be repeated follow from its own key."""
        self.reply: tuple[str, str] | None = None
        """Hash of the request and answer of the write that is being carried out."""
        self.term: int | None = None
        """Term of the lease while this process learns items."""

    @property
    def path(self) -> str:
        """Return the address of the database, without the password."""
        return self.log.name

    def sync(self) -> int:
        """Apply everything that is in the log now, and return the position."""
        written = self.written  # before: another thread may write meanwhile
        position = self.follower.catch_up()
        self.applied = max(self.applied, written)
        return position

    @property
    def is_behind(self) -> bool:
        """Return whether the log has writes of this handle that its replica may lack."""
        return self.applied < self.written

    def next_key(self) -> str:
        """Return the key of the next entry, after a write that chooses its own keys."""
        with self.lock:
            return next(self.entry_keys)

    def append_once(self, kind: str, values: Any) -> int:
        """Append an entry, and repeat it if the connection was lost; return its id."""
        rows = [(uuid4().hex, pack(values))]
        try:
            return self.log.append(kind, rows)[0]
        except LibraryUnreachable:
            return self.log.append(kind, rows)[0]  # the same key: it is not written twice

    def note_write(self) -> None:
        """Let the next read apply what was appended, and the others hear of it."""
        with self._counting:
            self.written += 1
        self.freshness.discard()
        self.follower.wake()

    def check_writable(self) -> None:
        """Raise LibraryReadOnly if the library is open for reading only."""
        if self.read_only:
            raise LibraryReadOnly(f"{self.path} is open for reading only. Open it with read_only=False to write.")

    def use_server_clock(self, timespec: str = "seconds") -> AbstractContextManager[None]:
        """Let the body compute with the time of the server: the clock of this host may be wrong."""
        at = self.log.read_clock(timespec)
        return nullcontext() if at is None else fix_time(at)

    def filed(self) -> Store:
        """Return the store of the replica with the writes of this handle."""
        self.apply_own()
        return super().filed()

    def caught_up(self) -> NamespaceCache:
        """Return the derived state with the writes of this handle."""
        self.apply_own()
        return super().caught_up()

    def apply_own(self) -> None:
        """Apply the writes of this handle. Without an answer in time, reads continue with what the replica holds."""
        if self.is_behind:
            self._sync_in_time()

    def look_up(self, read: Callable[[Store], T]) -> T:
        """Return what `read` finds by a name; another host may have given the name a moment ago."""
        try:
            return super().look_up(read)
        except UnknownName:
            self._sync_in_time()
            return super().look_up(read)

    def _sync_in_time(self) -> None:
        """Apply everything that is in the log, if the server answers in time."""
        if self.store.writing:  # the file is locked, and everything was applied before the transaction began
            return
        left = seconds_left()
        with suppress(LibraryUnreachable, LibraryBusy), nullcontext() if left is None else deadline(left / 2):
            self._syncs.call(self.sync)  # the other half of the time is for the read

    def record(self, trajectories: Iterable[Trajectory]) -> list[str]:
        """Record several episodes with one INSERT; a slow network holds up no readers."""
        self.check_writable()
        with self.lock:
            episodes = self.add_keys(check_episodes(trajectories))
            ids, rows = [], dict[str, bytes]()
            for clean, text in map(redact_and_pack, episodes):
                payload = pack_episode_entry(text, lambda steps: locate_steps(self.store, self.number, steps))
                ids.append(ref := clean.id or next(self.entry_keys))
                if rows.setdefault(ref, payload) != payload:
                    raise KeyTaken(
                        f"two episodes have the id {ref!r}. Use different ids, or none to have one assigned."
                    )
        # Outside the lock: a slow network must not hold up those who read.
        if self._append_episodes(list(rows.items())):
            self.note_write()
        return ids

    def _append_episodes(self, rows: list[tuple[str, bytes]]) -> bool:
        """Append episodes to the log; return False if they wait in the outbox instead."""
        if self.outbox is None or not self.outbox.count():  # what waits is sent first, in the order of writing
            try:
                self.log.append("episode", rows, is_same=is_same_episode)
                return True
            except LibraryUnreachable as error:
                if self.outbox is None:
                    raise
                logger.warning("episodes wait in %s: %s", self.outbox.path, error)
        self.outbox.put(rows)
        self.follower.wake()
        return False

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Compute changes of items at the end of the log, and append them, while no other process changes items."""
        if self.store.writing:
            with super().transaction() as connection:
                yield connection
            return
        self.check_writable()
        values = None
        with self.lock, self.appending("items", lambda: values) as term, self.use_server_clock():
            if self.term not in (None, term):
                raise LeaseLost(
                    f"{self.path}: another process took over learning (term {term}, this process had "
                    f"{self.term}). Call evolve again later."
                )
            try:
                with super().transaction() as connection:
                    capture = Capture(self.store, connection, self.number)
                    yield connection
                    values = capture.read(self.reply)
                    raise Undo
            except Undo:
                pass

    @contextmanager
    def appending(self, kind: str, read: Callable[[], Any]) -> Iterator[int]:
        """Compute a change at the end of the log in the body, and append what `read` returns then, unless it is None.

        No other process changes items meanwhile. Yields the term of the lease.
        """
        key, values = self.next_key(), None
        try:
            with self.log.change() as term:
                self.follower.catch_up()
                yield term
                values = read()
                if values is not None:
                    self.log.append(kind, [(key, pack(values))], term=term)
        except LibraryUnreachable:
            # The connection may have been lost after the server committed: ask before reporting a failure.
            if values is None or self.log.find(kind, key) is None:
                raise
        self.note_write()

    def write_grade(self, grade: Grade, episode: Trajectory) -> Grade:
        """Append a grade to the log; every replica computes in its place what it changes."""
        self.check_writable()
        values: Any = None
        with self.appending("grade", lambda: values):
            try:
                with super().transaction() as connection:
                    # Read again at the end of the log: another host may have graded the episode in the meantime.
                    current = queries.trajectory(self.filed(), self.number, episode.id)
                    keys = [step.keys for step in episode.steps] if current.success is None else []
                    grade = replace(grade, previous_success=current.success, previous_score=current.score)
                    values = pack_grade(grade, keys)
                    grade, current = unpack_grade({**values}, lambda ref: current)
                    grade = Regrading(self.store, connection, self.number, DISCOUNT).apply(grade, current)
                    if not grade.is_new:
                        values = None
                    raise Undo
            except Undo:
                pass
        return grade

    def replace(self, versions: Sequence[EpisodeVersion]) -> None:
        """Append later versions of episodes to the log as lines of an export, which every replica applies.

        Without a right to forget, an episode of which a version became part stays beside it.
        """
        self.check_writable()
        steps = sorted({ref for new, _ in versions for step in new.steps for ref in step.why.similar or ()})
        places = locate_steps(self.store, self.number, steps)
        lines = [
            dumps(jsonl.encode_line(replace(new, id=refs[0]), self.log.read_clock() or now(), places))
            for new, refs in versions
        ]
        with self.lock, self.appending("import", lambda: ["trusted", lines]):
            pass
