"""The library's SQLite file: connections, locking, transactions and error messages.

The file uses WAL with synchronous=FULL, so a transaction is on disk when it returns. Several processes may write; each
waits for its turn. This module does not know the stored tables. `freshness` knows whether a callback must run before
the next read (see `upkeep.write_buffer`). If the file cannot be written then, reads use an in-memory copy in which the
callback has run.
"""

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hardwon.memory.errors import (
    HardwonError,
    LibraryReadOnly,
    LibraryUnwritable,
    NewerSchema,
    NotALibrary,
)
from hardwon.memory.privacy.deadlines import seconds_left
from hardwon.memory.privacy.private_files import FILE_MODE, OwnLock
from hardwon.memory.sqlite_errors import INVALID_TEXT, TRANSLATED, translate_error

from .checksums import mend_text, raw_text
from .freshness import Freshness
from .migrations import APPLICATION_ID, SCHEMA_VERSION, migrate
from .open_files import OPEN_FILES
from .schema_check import check_schema, harden

BUSY_TIMEOUT_S = 60.0
"""Seconds for which a writer waits for another writer before it gives up."""
HELD_S = 5.0
"""Seconds that opening waits for a program that keeps even readers out, which a writer does not."""
COPIED = 8 * 2**20
"""Largest size in bytes of a file of which a read makes a copy in memory while another process holds the lock."""
SHRINK_S = 20.0
"""Seconds for which erasing waits for readers of an old version of the file."""
SHORT_LOG, LONG_LOG = 1000, 4000
"""Pages in the write-ahead log before a checkpoint copies them into the file.

Overwriting a short log makes a commit a third cheaper than growing a long one. With a long log, a page that several
large transactions change is copied only once."""
CACHE_KIB = 65_536
"""Page cache of a connection in KiB, enough for the rows of 25,000 steps."""
MAPPED = 2**31 - 2**16
"""Largest size in bytes of a memory-mapped file. Larger files do not benefit."""
_PARENT_CONNECTIONS: list[sqlite3.Connection] = []
"""Connections that a forked process inherited. They are kept, because closing one would affect the parent's files."""
MAKING_S = 3.0
"""Seconds for which a new file may stay empty while another process creates the library."""
_MAGIC = b"SQLite format 3\x00"

logger = logging.getLogger("hardwon.memory")


class Store:
    """A connection that the threads of one process share, with transactions across several processes."""

    def __init__(self, path: str | Path, *, read_only: bool = False) -> None:
        """Open the library at `path`, creating it unless `read_only` is set."""
        self.path = str(path)
        self.read_only = read_only
        self._owner = os.getpid()
        self._lock = OwnLock(self.path)
        self._depth = 0
        self._file: sqlite3.Connection | None = None
        self.freshness = Freshness(self.path, self._lock, self.translate, self.snapshot)
        """Versions of the file that this process has read."""
        self._new = self.path != ":memory:" and not Path(self.path).exists()
        if self.path != ":memory:":
            check_library_file(Path(self.path), read_only)
        with self._translate_errors(min(HELD_S, _find_wait())):
            self.connection = self._connect()
            self._key = OPEN_FILES.add(self.path)
            try:
                self._prepare()
                # After connecting, because SQLite creates a new file only then.
                self.freshness.start(self.connection)
                if seconds_left() is not None:  # only opening ends at the deadline
                    self.connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000:.0f}")
            except BaseException:
                self._end_connection()
                raise

    def _connect(self) -> sqlite3.Connection:
        if not self.read_only:
            return _connect(self.path)
        uri = Path(self.path).absolute().as_uri()
        connection = _connect(f"{uri}?mode=ro", uri=True)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master")
        except sqlite3.OperationalError:
            connection.close()
            if Path(f"{self.path}-wal").exists():
                raise
            # In WAL mode even readers create a -shm file. In a read-only folder that fails, but then nobody else can
            # write either, so the file can be opened as immutable.
            connection = _connect(f"{uri}?immutable=1", uri=True)
        return connection

    def _prepare(self) -> None:
        # In one transaction: another process that creates or migrates the library commits all of it together.
        self.connection.execute("BEGIN")
        tables = self.connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
        self.connection.execute(f"PRAGMA busy_timeout = {_find_wait() * 1000:.0f}")  # nobody keeps readers out
        if self._new:  # the file exists now; SQLite creates the log with the same permissions
            Path(self.path).chmod(FILE_MODE)
        (application,) = self.connection.execute("PRAGMA application_id").fetchone()
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        if tables and application != APPLICATION_ID:
            raise NotALibrary(f"{self.path} is a SQLite database, but not a hardwon library. Give another path.")
        if version > SCHEMA_VERSION:
            raise NewerSchema(
                f"{self.path} has schema {version}, but this version of hardwon supports up to {SCHEMA_VERSION}. "
                "Update your clone of hardwon, then run: pip install ."
            )
        if tables:
            check_schema(self.connection, version, self.path)
        self.connection.execute("COMMIT")
        harden(self.connection)
        _tune_reads(self.connection)
        if self.read_only:
            if not tables:  # the creating process has not committed the tables yet, or was stopped before
                raise NotALibrary(
                    f"{self.path} is an empty library: a process creates it now, or was stopped while it did. "
                    "Try again; if it stays empty, delete the file."
                )
            if version < SCHEMA_VERSION:
                raise LibraryReadOnly(
                    f"{self.path} is of an older hardwon (schema {version}, not {SCHEMA_VERSION}). Update it once: "
                    f"hardwon memory stats {self.path} --migrate"
                )
            return
        _enable_wal(self.connection)
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute(f"PRAGMA wal_autocheckpoint = {SHORT_LOG}")
        if version < SCHEMA_VERSION:
            with self.transaction():
                migrate(self.connection)

    @property
    def writing(self) -> bool:
        """Return whether a transaction is active."""
        return self._depth > 0

    @property
    def nested(self) -> bool:
        """Return whether the active transaction is nested in another one."""
        return self._depth > 1

    @contextmanager
    def transaction(self, durable: bool = True, wait_s: float = BUSY_TIMEOUT_S) -> Iterator[sqlite3.Connection]:
        """Commit everything inside together, or nothing. Transactions may be nested."""
        if self.read_only:
            raise LibraryReadOnly(f"{self.path} is open for reading only. Open it with read_only=False to write.")
        with self._lock:
            if self._depth:
                self._depth += 1
                try:
                    yield self.connection
                finally:
                    self._depth -= 1
                return
            if self._file is not None:
                raise LibraryUnwritable(
                    f"{self.path} is being read from a copy, because a write failed. Retry, or reopen it."
                )
            self.freshness.check_same_file()
            run = self.connection.execute
            wait_s = min(wait_s, _find_wait())
            try:
                if wait_s != BUSY_TIMEOUT_S:
                    run(f"PRAGMA busy_timeout = {wait_s * 1000:.0f}")
                # In WAL mode, NORMAL skips the fsync of a commit but keeps the order of commits.
                if not durable:
                    run("PRAGMA synchronous = NORMAL")
                    run(f"PRAGMA wal_autocheckpoint = {LONG_LOG}")
                # Take the write lock now: a read transaction that upgrades later fails if another process wrote.
                run("BEGIN IMMEDIATE")
                self._depth += 1
                try:
                    # Under the write lock, so that no cache brings back what another process just forgot.
                    self.freshness.heed()
                    yield self.connection
                    run("COMMIT")
                    self.freshness.note_commit()
                except BaseException:
                    if self.connection.in_transaction:  # a full disk ends the transaction by itself
                        run("ROLLBACK")
                    raise
                finally:
                    self._depth -= 1
            except TRANSLATED as error:
                # Not `_translate_errors`: a context manager would double the time of a short transaction.
                raise self.translate(error, wait_s) from error
            finally:
                if wait_s != BUSY_TIMEOUT_S:
                    run(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000:.0f}")
                if not durable:
                    run("PRAGMA synchronous = FULL")
                    run(f"PRAGMA wal_autocheckpoint = {SHORT_LOG}")

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read everything inside from one state of the database. May be nested, also inside a transaction."""
        with self._lock, self._translate_errors():
            if self.connection.in_transaction:
                yield
                return
            if self.freshness.waiting is not None:
                self.freshness.waiting()
            # Only after `waiting`, which writes: that needs a transaction of its own, and SQLite does not nest them.
            self.connection.execute("BEGIN")
            try:
                yield
            finally:
                # After an error too: nothing was written, and an open read would keep the log from being truncated.
                self.connection.execute("COMMIT")

    def rows(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        with self._lock:
            if self.freshness.waiting is not None:
                self.freshness.waiting()
            try:
                return self.connection.execute(sql, parameters).fetchall()
            except sqlite3.OperationalError as error:
                if not str(error).startswith(INVALID_TEXT):
                    raise self.translate(error) from error
                return self._read_damaged(sql, parameters)
            except TRANSLATED as error:
                # Not `_translate_errors`: a context manager would double the time of a short query.
                raise self.translate(error) from error

    def _read_damaged(self, sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Read rows of which one contains invalid UTF-8, so that a damaged row does not hide the others."""
        logger.warning(
            "%s was damaged after it was written. To list the damaged rows, run: hardwon memory verify", self.path
        )
        with raw_text(self.connection, mend_text):
            return self.connection.execute(sql, parameters).fetchall()

    def to_copy(self, change: Callable[[], None]) -> None:
        """Switch reads to an in-memory copy of the file to which `change` is applied."""
        with self._lock, self._translate_errors():
            self.to_file()
            self.freshness.copied_at = self.freshness.data_version()
            copy, read_only = _connect(":memory:"), self.read_only
            self.connection.backup(copy)
            # `change` calls `transaction`, which refuses a read-only store and one whose `_file` is set.
            file, self.connection, self.read_only = self.connection, copy, False
            self.freshness.connection = copy
            try:
                change()
            finally:
                self._file, self.read_only = file, read_only
                self.freshness.has_switched = True

    def to_file(self) -> None:
        """Switch back from the in-memory copy to the file."""
        with self._lock:
            if self._file is not None:
                self.connection.close()
                self.connection, self._file = self._file, None
                self.freshness.connection = self.connection
                self.freshness.has_switched = True

    def is_small(self) -> bool:
        """Return whether a copy of the file in memory costs little."""
        return measure_size(self.connection) <= COPIED

    @property
    def copied(self) -> bool:
        """Return whether reads use an in-memory copy."""
        return self._file is not None

    @contextmanager
    def at_once(self) -> Iterator[bool]:
        """Try to lock the connection without waiting; yield whether it is locked."""
        is_held = self._lock.acquire(blocking=False)
        try:
            yield is_held
        finally:
            if is_held:
                self._lock.release()

    def copy_to(self, path: str | Path) -> None:
        """Write a compact copy of the file, of one moment, to a new file. Free pages are not copied."""
        with self._lock, self._translate_errors():
            self.connection.execute("VACUUM INTO ?", (str(path),))

    @contextmanager
    def replacing(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection for `sqlite3.Connection.backup`, which replaces the whole content in one transaction.

        Other processes may have the file open: they see the old content until it is replaced.
        """
        if self.read_only:
            raise LibraryReadOnly(f"{self.path} is open for reading only. Open it with read_only=False to write.")
        with self._lock, self._translate_errors():
            self.freshness.check_same_file()
            yield self.connection
            self.freshness.accept()
            self.freshness.heed()

    def shrink(self, *, rewrite: bool = True) -> None:
        """Truncate the log, and by default rewrite the file without deleted content."""
        with self._lock, self._translate_errors():
            if rewrite:
                self.connection.execute("VACUUM")
            until = time.monotonic() + SHRINK_S
            # A blocked checkpoint raises no error: the first column is 1 while another connection needs the log.
            while self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                if time.monotonic() > until:
                    raise LibraryUnwritable(
                        f"{self.path} has been read by another process for {SHRINK_S:.0f} s. Stop it, then try again."
                    )
                time.sleep(0.05)
            self.freshness.accept()

    def close(self) -> None:
        """Close the file. Closing twice has no effect, and neither does closing in a forked process."""
        if os.getpid() != self._owner:
            _PARENT_CONNECTIONS.append(self.connection)
            return
        with self._lock:
            self.to_file()
            self._end_connection()

    def _end_connection(self) -> None:
        self.connection.close()
        OPEN_FILES.discard(self._key)
        self._key = None

    @contextmanager
    def _translate_errors(self, busy_s: float = BUSY_TIMEOUT_S) -> Iterator[None]:
        """Convert SQLite's errors to library errors that name the file and the next step."""
        try:
            yield
        except TRANSLATED as error:
            raise self.translate(error, busy_s) from error

    def translate(self, error: BaseException, busy_s: float = BUSY_TIMEOUT_S) -> HardwonError:
        """Return the library error for an error of SQLite; it names the file and the next step."""
        return translate_error(error, self.path, read_only=self.read_only, busy_s=busy_s)


def _tune_reads(connection: sqlite3.Connection) -> None:
    """Cache the pages of a small file and memory-map a large one.

    The cache cannot hold a large file, so every query would copy most of its pages again.
    """
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    if CACHE_KIB * 1024 < measure_size(connection) <= MAPPED:
        connection.execute(f"PRAGMA mmap_size = {MAPPED}")


def measure_size(connection: sqlite3.Connection) -> int:
    """Return the size of a file in bytes."""
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    return int(pages * size)


def _connect(path: str, *, uri: bool = False) -> sqlite3.Connection:
    # No implicit BEGIN (isolation_level), as `transaction` issues its own. Threads are serialized by its lock.
    wait_s = min(HELD_S, _find_wait())
    return sqlite3.connect(path, timeout=wait_s, isolation_level=None, check_same_thread=False, uri=uri)


def _find_wait() -> float:
    """Return the seconds for which another writer may be waited for now."""
    left = seconds_left()
    return BUSY_TIMEOUT_S if left is None else min(BUSY_TIMEOUT_S, left)


def _enable_wal(connection: sqlite3.Connection) -> None:
    """Switch the file to WAL mode.

    If several processes open a new file at once, SQLite ignores the timeout and fails with BUSY for all but one.
    So retry until the timeout.
    """
    until = time.monotonic() + _find_wait()
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > until:
                raise
            time.sleep(0.005)


def _read_head(path: Path) -> bytes:
    """Return the first bytes of a file, without ending the locks of a connection of this process."""
    if path in OPEN_FILES:  # it is a library; see `open_files`
        return _MAGIC
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC))
    except OSError as error:
        raise LibraryUnwritable(f"{path} cannot be read: {error.strerror}. Check its permissions.") from error


def check_library_file(path: Path, read_only: bool) -> None:
    """Raise an error unless a path is a library, or a place where one can be created."""
    if path.parts[:1] in (("postgresql:",), ("postgres:",)):  # a Path of an address has lost its slashes
        raise NotALibrary(
            "the address of a database stands where a library file is needed. Give a file, or use a command that takes "
            "an address; see docs/fleet.md."
        )
    if path.is_dir():
        raise NotALibrary(f"{path} is a folder. Give the path of a library file, such as {path / 'experience.db'}.")
    if not path.exists():
        if read_only:
            raise make_missing_error(path)
        if not path.absolute().parent.is_dir():
            raise LibraryUnwritable(f"the folder {path.absolute().parent} does not exist. Create it first.")
        return
    head = _read_head(path)
    if not read_only and not os.access(path, os.W_OK):
        raise LibraryUnwritable(f"{path} is not writable. Change its permissions, or open it with read_only=True.")
    if not head:
        _wait_for_creator(path)
    elif head != _MAGIC:
        raise NotALibrary(
            f"{path} is not a hardwon library (not even a SQLite database). Give another path; if it was one, restore "
            f"a copy or run: hardwon memory export {path} FILE"
        )


def make_missing_error(path: Path, words: str = "there is no library at") -> NotALibrary:
    """Return an error for a library that is not there, with the ways to one."""
    return NotALibrary(
        f"{words} {path}. Correct the path, or record there: with your agent (ExperienceLibrary.open), `hardwon proxy` "
        "or `hardwon hook install`, or from its logs with `hardwon memory import`."
    )


def _wait_for_creator(path: Path) -> None:
    """Wait while another process creates the library.

    SQLite creates an empty file and writes its first page a moment later. A file that stays empty was truncated or
    created by something else. Starting a new library in it would hide the loss of the old one.
    """
    while not path.stat().st_size:
        if time.time() - path.stat().st_mtime > MAKING_S:
            raise NotALibrary(
                f"{path} is empty, so it is not a library. Restore a copy, or delete the file to start over."
            )
        time.sleep(0.02)
