"""Freshness: the versions of a library file that this process has read, and whether they are stale.

Five events make it stale: a write of another connection (SQLite's `data_version`), a write of this one
(`total_changes`), episodes that wait in the write buffer, a switch between the file and its in-memory copy, and a
change of recorded experience by `forget` or `grade` in any process. The store and the write buffer report these
events. The store asks before every read whether episodes wait, and the library asks whether it must catch up.
"""

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from hardwon.memory.errors import HardwonError, LibraryMissing
from hardwon.memory.privacy.private_files import OwnLock
from hardwon.memory.sqlite_errors import make_damaged_error

from .schema_check import check_schema

GRADES = "grades"
"""Row of the table `meta` with the number of grades, which only grows."""
Version = tuple[int, int]
"""SQLite's `data_version` and the number of rows that this connection changed: equal versions have equal content."""
CHECKPOINT_S = 2.0
"""Seconds after a commit of another process in which it may still copy its log into the file."""
_TAIL = (
    "SELECT (SELECT seq || ' ' || at FROM changes ORDER BY seq DESC LIMIT 1), "
    "(SELECT id || ' ' || at FROM inbox ORDER BY id DESC LIMIT 1), "
    "(SELECT rowid || ' ' || recorded_at FROM trajectories ORDER BY rowid DESC LIMIT 1)"
)


class Freshness:
    """Knows what one process has read from a library file, and whether that is still valid."""

    connection: sqlite3.Connection
    """The connection that is read: to the file, or to a copy in memory."""
    _file: sqlite3.Connection

    def __init__(
        self,
        path: str,
        lock: OwnLock,
        translate: Callable[[sqlite3.Error], HardwonError],
        snapshot: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Create the record of a store that is being opened; `start` completes it."""
        self._path, self._lock, self._translate, self._snapshot = path, lock, translate, snapshot
        self._inode: tuple[int, int] | None = None
        self._size = self._written_at = 0
        self._id = ""
        self._seen = (0, 0.0)
        self._tail: tuple[object, ...] | None = None
        self._generation: int | None = None
        self._schema: int | None = None
        self._filed_at: int | None = None
        self.read_at: Version | None = None
        """Version up to which the caches of this process are read; None if they must be read from the beginning."""
        self.waiting: Callable[[], None] | None = None
        """Callback that files the waiting episodes before the next read; None if there is none, or filing has begun."""
        self.copied_at: int | None = None
        """Version of the file when the copy in memory was made."""
        self.has_switched = False
        """Whether reads moved between the file and its copy since the last catch-up."""
        self.is_behind = False
        """Whether episodes wait that could not be filed, because another process held the lock."""
        self.on_forgotten: Callable[[], None] = _do_nothing
        """Callback for the first access after any process has forgotten experience or graded an episode."""
        self.on_switched: Callable[[], None] = _do_nothing
        """Callback before the next catch-up after reads moved between the file and its copy."""

    def start(self, connection: sqlite3.Connection) -> None:
        """Remember the file as it is when its store has opened it."""
        self._file = self.connection = connection
        self._generation = self.generation()
        self._schema = self._read_schema_version()
        self._seen = self._read_data_version(), 0.0
        if self._path != ":memory:":
            stat = Path(self._path).stat()
            self._inode = stat.st_dev, stat.st_ino
            self.accept()

    # -- versions ---------------------------------------------------------------------------------

    def data_version(self) -> int:
        """Return a number that changes when another connection writes to the file."""
        with self._lock:
            self.check_same_file()
            try:
                # not `_read_data_version`: this runs before every read
                version = int(self._file.execute("PRAGMA data_version").fetchone()[0])
            except sqlite3.Error as error:
                raise self._translate(error) from error
            if version != self._seen[0]:
                self._seen = version, time.time()
            return version

    def _read_data_version(self) -> int:
        # Asks the file even while a copy is read: only the file shows what other processes write.
        return int(self._file.execute("PRAGMA data_version").fetchone()[0])

    def version(self) -> Version:
        """Return the version of the library, whichever process wrote it last."""
        # `data_version` ignores writes of this connection, and `total_changes` counts only those.
        return self.data_version(), self.connection.total_changes

    def check_same_file(self) -> None:
        """Check that the path still refers to the file that was opened, and whole; otherwise writes would be lost."""
        if self._inode is None:
            return
        try:
            # not Path.stat, which costs twice as much: this runs before every read
            stat = os.stat(self._path)  # noqa: PTH116
        except OSError:
            stat = None
        if stat is None or (stat.st_dev, stat.st_ino) != self._inode:
            change = "was removed" if stat is None else "was replaced by another file"
            raise LibraryMissing(
                f"{self._path} {change} while the library was open. Restore the file, or reopen the library."
            )
        if stat.st_mtime_ns != self._written_at or stat.st_size < self._size:
            try:
                self._check_content(stat)
            except sqlite3.Error as error:
                self._file.execute("PRAGMA shrink_memory")  # or it would still be wrong when the file is right again
                raise self._translate(error) from error

    def note_commit(self) -> None:
        """Note that this process may have written to the file."""
        if self._inode is not None:
            stat = os.stat(self._path)  # noqa: PTH116
            self._size, self._written_at = stat.st_size, stat.st_mtime_ns

    def accept(self) -> None:
        """Remember the file as it is now."""
        if self._inode is not None:
            stat = Path(self._path).stat()
            self._size, self._written_at, self._tail = stat.st_size, stat.st_mtime_ns, None
            self._id = self._read_id()

    def _check_content(self, stat: os.stat_result) -> None:
        """Check a file that became shorter, or that neither this process nor a commit of another one wrote.

        SQLite would read from its cache, and write to what is there.
        """
        version, noticed_at = self._seen
        # a backup that keeps its time is older than what was there
        is_log = self._written_at < stat.st_mtime_ns < (noticed_at + CHECKPOINT_S) * 1e9
        is_commit = is_log or self._read_data_version() != version
        is_shorter, run = stat.st_size < self._size, self._file.execute
        if is_shorter or not is_commit:
            # what SQLite has in memory, before it reads the pages anew; kept until the file is right again
            self._tail = self._tail or self._read_tail()
            (mapped,) = run("PRAGMA mmap_size").fetchone() or (0,)
            run("PRAGMA mmap_size = 0")  # to read a mapped page that is no longer there would end the process
            run("PRAGMA shrink_memory")
            (finding,) = run("PRAGMA quick_check(1)").fetchone()
            # what it says of the pages comes first; a value that may not be there does not show that any are lost
            is_whole = not finding.startswith("***") and run("SELECT 1 FROM sqlite_master").fetchone()
            run(f"PRAGMA mmap_size = {mapped}")
            is_same = is_commit or (self._read_tail() == self._tail and self._id in ("", self._read_id()))
            is_same = is_same or self._read_data_version() != version  # another process committed meanwhile
            if not is_whole or not is_same:
                change = "cut" if is_shorter and not is_whole else "overwritten"
                raise make_damaged_error(self._path, f"was {change} while the library was open")
        self.accept()

    def _read_id(self) -> str:
        """Return the unique id of the library; empty if it has none yet."""
        row = self._file.execute("SELECT value FROM meta WHERE name = 'id'").fetchone()
        return str(row[0]) if row else ""

    def _read_tail(self) -> tuple[object, ...]:
        """Return the newest rows of tables that grow."""
        return tuple(self._file.execute(_TAIL).fetchone())

    @property
    def changes(self) -> int:
        """Return the generation that was noticed last, which is current after a catch-up."""
        return self._generation or 0

    def generation(self) -> int:
        """Return a number that grows when an episode is graded, or experience is forgotten or its bytes are erased."""
        query = (
            "SELECT coalesce(sum(1 + erased), 0) + coalesce((SELECT CAST(value AS INTEGER) FROM meta "
            f"WHERE name = '{GRADES}'), 0) FROM receipts"
        )
        return int(self.connection.execute(query).fetchone()[0])

    def _read_schema_version(self) -> int:
        """Return a number that changes with the schema, also when this process changes it."""
        return int(self.connection.execute("PRAGMA schema_version").fetchone()[0])

    # -- what was read ----------------------------------------------------------------------------

    def catch_up(self, file: Callable[[], None], read: Callable[[], None]) -> None:
        """Read what was written since the last call, if anything was."""
        version = self.version()
        if version == self.read_at and not self.is_behind:
            return
        self.heed()
        file()
        if self.has_switched:  # ids of the file and of its copy may differ: nothing read before can be trusted
            self.has_switched = False
            self.on_switched()
        # Filing writes rows through this connection: count them, or the next call would catch up again.
        version = version[0], self.connection.total_changes
        # One snapshot, so that items, words and values belong to the same moment.
        with self._snapshot():
            read()
        self.read_at = version  # taken before the read: rows written meanwhile are read by the next call

    def file_waiting(self, file: Callable[[], None]) -> None:
        """Call `file` if episodes of this or another process may wait in the write buffer."""
        version = self.data_version()
        # The version shows only commits of other connections; `waiting` is set for episodes of this one.
        if self._filed_at != version or self.waiting is not None or self.is_behind:
            self.heed()
            file()
            self._filed_at = version

    def discard(self) -> None:
        """Treat everything read so far as stale."""
        self.read_at = self._filed_at = None

    # -- events -----------------------------------------------------------------------------------

    def distrust(self) -> None:
        """Have `on_forgotten` called by the next write, or the next read of what another process wrote."""
        self._generation = -1

    def is_copy_stale(self) -> bool:
        """Return whether another process wrote to the file since it was copied."""
        return self.connection is not self._file and self.data_version() != self.copied_at

    def heed(self) -> None:
        """Call `on_forgotten` if recorded experience was changed since the last call, so that caches are dropped."""
        if self._generation is None:  # the schema is still being created
            return
        if (schema := self._read_schema_version()) != self._schema:
            (version,) = self.connection.execute("PRAGMA user_version").fetchone()
            check_schema(self.connection, version, self._path)
            self._schema = schema
        generation = self.generation()
        if generation != self._generation:
            self._generation = generation
            self.on_forgotten()


def _do_nothing() -> None:
    """Do nothing, in place of a callback."""
