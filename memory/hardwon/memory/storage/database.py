"""The library's truth: one SQLite file, opened, locked and written safely.

WAL, synchronous=FULL: what a transaction wrote is on disk when it returns. Several processes may
write; each waits for its turn. This file knows connections and transactions, not what is stored:
but it knows that something may have to be done before the next read (`waiting`, see `upkeep.write_buffer`), and
reads a copy in memory where that cannot be done in the file.
"""

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlite_utils

from hardwon.memory.errors import (
    ConfigError,
    HardwonError,
    LibraryDamaged,
    LibraryError,
    LibraryMissing,
    LibraryReadOnly,
    LibraryUnwritable,
    NewerSchema,
    NotALibrary,
)
from hardwon.memory.privacy.private_files import FILE_MODE, OwnLock

from .migrations import APPLICATION_ID, SCHEMA_VERSION, migrate

BUSY_TIMEOUT_S = 60.0
"""How long a writer waits for another one before it gives up."""
SOON_S = 20.0
"""How long a transaction that need not be durable waits for another writer: a read waits for it."""
SHRINK_S = 20.0
"""How long erasing waits for those who read an old version of the file."""
SHORT_LOG, LONG_LOG = 1000, 4000
"""Pages of the write-ahead log before it is copied into the file. A short one is soon written over, which costs a
commit a third less than growing it; in a long one a page that many large transactions change is copied once."""
CACHE_KIB = 65_536
"""Pages that a connection keeps: the rows of 25,000 steps."""
MAPPED = 2**31 - 2**16
"""Bytes that SQLite maps into memory at most. A file that is larger yet gains nothing by it."""
_OF_PARENTS: list[sqlite3.Connection] = []
"""Connections that a forked process inherited: closing one there would touch the parent's files."""
MAKING_S = 3.0
"""Seconds that a new library's file may be empty, while another process makes it."""
_MAGIC = b"SQLite format 3\x00"
_NO_TEXT = "Could not decode to UTF-8"
"""How Python's words begin for a text that is damaged."""
_VERIFY = "hardwon memory verify"

logger = logging.getLogger("hardwon.memory")


class Store:
    """A connection that many threads of one process share, with transactions that many processes share."""

    def __init__(self, path: str | Path, *, read_only: bool = False) -> None:
        """Open the library at `path`, creating it unless `read_only`.

        Raises: NotALibrary, NewerSchema, LibraryUnwritable, LibraryReadOnly (see `errors`).
        """
        self.path = str(path)
        self._at = Path(self.path)
        self.read_only = read_only
        self._owner = os.getpid()
        self._lock = OwnLock(self.path)
        self._depth = 0
        self._generation: int | None = None
        self._inode: tuple[int, int] | None = None
        self._file: sqlite3.Connection | None = None
        self.waiting: Callable[[], None] | None = None
        """What has to be done before the next read; it clears this when it is done."""
        self.on_forgotten: Callable[[], None] | None = None
        """Called before the next read or write after something was forgotten, by whatever process."""
        self.copies = 0
        """How often what is read went from the file to a copy or back: then nothing read before is to be trusted."""
        self._new = self.path != ":memory:" and not Path(self.path).exists()
        if self.path != ":memory:":
            _refuse_other_files(Path(self.path), read_only)
        with self._explained():
            self.connection = self._connect()
            try:
                self._prepare()
            except BaseException:
                self.connection.close()
                raise
        self._generation = self.generation()
        if self.path != ":memory:":
            found = self._at.stat()
            self._inode = found.st_dev, found.st_ino
        self.db = sqlite_utils.Database(self.connection)

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
            # a folder that may not be written: readers of WAL want a file there, and nobody else writes
            connection = _connect(f"{uri}?immutable=1", uri=True)
        return connection

    def _prepare(self) -> None:
        # tables first: another process may be creating them, and commits them together with the numbers
        (tables,) = self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if self._new:  # the file is there now, and empty; its log takes the mode that it has
            Path(self.path).chmod(FILE_MODE)
        (application,) = self.connection.execute("PRAGMA application_id").fetchone()
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        if tables and application != APPLICATION_ID:
            raise NotALibrary(f"{self.path} is a SQLite database, but not a hardwon library. Give another path.")
        if version > SCHEMA_VERSION:
            raise NewerSchema(
                f"{self.path} has schema {version}; this hardwon knows up to {SCHEMA_VERSION}. "
                "Update your clone of hardwon, then run: pip install ."
            )
        self._read_quickly()
        if self.read_only:
            if not tables:  # its process was stopped between making the file and committing the tables
                raise NotALibrary(
                    f"{self.path} is an empty library that was not finished: the process that made it was stopped. "
                    "Run its command again, or delete the file."
                )
            if version < SCHEMA_VERSION:
                raise LibraryReadOnly(
                    f"{self.path} has schema {version} and must be brought to {SCHEMA_VERSION} by a writer. "
                    f"Run: hardwon memory stats {self.path} --migrate"
                )
            return
        _keep_a_log(self.connection)
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute(f"PRAGMA wal_autocheckpoint = {SHORT_LOG}")
        if version < SCHEMA_VERSION:
            with self.transaction():
                migrate(self.connection)

    def _read_quickly(self) -> None:
        """Keep the pages of a small file; map a large one, of which most would be copied anew for every query."""
        self.connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        (pages,) = self.connection.execute("PRAGMA page_count").fetchone()
        (size,) = self.connection.execute("PRAGMA page_size").fetchone()
        if CACHE_KIB * 1024 < pages * size <= MAPPED:
            self.connection.execute(f"PRAGMA mmap_size = {MAPPED}")

    @property
    def writing(self) -> bool:
        """Whether a transaction runs."""
        return self._depth > 0

    @property
    def nested(self) -> bool:
        """Whether the transaction that runs is part of another one."""
        return self._depth > 1

    @contextmanager
    def transaction(self, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Everything inside becomes durable together, or not at all. May be nested.

        What need not be `durable` costs no fsync: a power cut may undo it, never a part of it nor out of turn.
        """
        if self.read_only:
            raise LibraryReadOnly(f"{self.path} was opened to be read; open it with read_only=False to write.")
        with self._lock:
            if self._depth:
                self._depth += 1
                try:
                    yield self.connection
                finally:
                    self._depth -= 1
                return
            if self._file is not None:
                raise LibraryUnwritable(f"{self.path} could not be written lately. Write once more, or open it anew.")
            self._same_file()
            run = self.connection.execute
            try:
                if not durable:
                    run("PRAGMA synchronous = NORMAL")
                    run(f"PRAGMA busy_timeout = {SOON_S * 1000:.0f}")
                    run(f"PRAGMA wal_autocheckpoint = {LONG_LOG}")
                run("BEGIN IMMEDIATE")
                self._depth += 1
                try:
                    self.heed()
                    yield self.connection
                    run("COMMIT")
                except BaseException:
                    if self.connection.in_transaction:
                        run("ROLLBACK")
                    raise
                finally:
                    self._depth -= 1
            except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:  # `_explained` takes as long
                raise self._explain(error) from error
            finally:
                if not durable:
                    run("PRAGMA synchronous = FULL")
                    run(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000:.0f}")
                    run(f"PRAGMA wal_autocheckpoint = {SHORT_LOG}")

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything read inside is of one moment. May be nested, also inside a transaction."""
        with self._lock, self._explained():
            if self.connection.in_transaction:
                yield
                return
            if self.waiting is not None:
                self.waiting()
            self.connection.execute("BEGIN")
            try:
                yield
            finally:
                self.connection.execute("COMMIT")

    def rows(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query, read at one moment."""
        with self._lock:
            if self.waiting is not None:
                self.waiting()
            try:
                return self.connection.execute(sql, parameters).fetchall()
            except sqlite3.OperationalError as error:
                if not str(error).startswith(_NO_TEXT):
                    raise self._explain(error) from error
                return self._as_well_as_can_be(sql, parameters)
            except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:  # `_explained` takes as long
                raise self._explain(error) from error

    def _as_well_as_can_be(self, sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Read rows in which a byte was changed so that a text is no UTF-8: the others are not to blame."""
        logger.warning("%s was damaged after it was written. Which rows says: hardwon memory verify", self.path)
        self.connection.text_factory = lambda text: text.decode(errors="replace")
        try:
            return self.connection.execute(sql, parameters).fetchall()
        finally:
            self.connection.text_factory = str

    def to_copy(self, change: Callable[[], None]) -> None:
        """Read from a copy in memory from now on, with a change that the file cannot take."""
        with self._lock, self._explained():
            self.to_file()
            copy, read_only = _connect(":memory:"), self.read_only
            self.connection.backup(copy)
            file, self.connection, self.read_only = self.connection, copy, False
            try:
                change()
            finally:
                self._file, self.read_only = file, read_only
                self.copies += 1

    def to_file(self) -> None:
        """Read and write the file again."""
        with self._lock:
            if self._file is not None:
                self.connection.close()
                self.connection, self._file = self._file, None
                self.copies += 1

    @property
    def copied(self) -> bool:
        """Whether a copy is read."""
        return self._file is not None

    @contextmanager
    def at_once(self) -> Iterator[bool]:
        """Hold the connection, unless another thread does; whether it is held."""
        free = self._lock.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                self._lock.release()

    def version(self) -> int:
        """A number that changes when another connection has written."""
        with self._lock:
            self._same_file()
            try:
                return int((self._file or self.connection).execute("PRAGMA data_version").fetchone()[0])
            except sqlite3.Error as error:
                raise self._explain(error) from error

    def _same_file(self) -> None:
        """Raise LibraryMissing if the file was removed or replaced: what is written to it now would be lost."""
        if self._inode is None:
            return
        try:
            found = self._at.stat()
        except OSError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != self._inode:
            became = "was removed" if found is None else "is another file than the one that was opened"
            raise LibraryMissing(f"{self.path} {became} while the library was open. Put it back, or open it anew.")

    def generation(self) -> int:
        """Return a number that grows whenever something is forgotten, and again when its bytes are erased."""
        return int(self.connection.execute("SELECT coalesce(sum(1 + erased), 0) FROM receipts").fetchone()[0])

    def heed(self) -> None:
        """Have what was read before dropped, if something was forgotten since."""
        if self._generation is None:  # the schema is being made
            return
        generation = self.generation()
        if generation != self._generation:
            self._generation = generation
            if self.on_forgotten is not None:
                self.on_forgotten()

    def shrink(self, *, rewrite: bool = True) -> None:
        """Rewrite the file without what was deleted, and cut its log to nothing.

        Raises: LibraryUnwritable where another process keeps reading an old version, or the disk is full.
        """
        with self._lock, self._explained():
            if rewrite:
                self.connection.execute("VACUUM")
            until = time.monotonic() + SHRINK_S
            while self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                if time.monotonic() > until:
                    raise LibraryUnwritable(f"{self.path} is being read by another process since {SHRINK_S:.0f} s.")
                time.sleep(0.05)

    def close(self) -> None:
        """Close the file. Closing twice is fine. In a forked process it stays as it is: it is the parent's."""
        if os.getpid() != self._owner:
            _OF_PARENTS.append(self.connection)
            return
        with self._lock:
            self.to_file()
            self.connection.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """SQLite's errors as ours, naming the file and the next step."""
        try:
            yield
        except (sqlite3.Error, OverflowError) as error:
            raise self._explain(error) from error

    def _explain(self, error: sqlite3.Error | OverflowError | UnicodeEncodeError) -> HardwonError:
        if isinstance(error, UnicodeEncodeError):
            return ConfigError(f"{self.path}: {error.object!r:.60} holds half a character, which cannot be looked up.")
        if isinstance(error, OverflowError):
            return LibraryError(f"{self.path}: a whole number is beyond 64 bits ({error}). Give a smaller one.")
        code = getattr(error, "sqlite_errorname", None) or ""
        words = str(error)
        if words.startswith((_NO_TEXT, "malformed JSON")):
            return LibraryDamaged(f"{self.path} was damaged after it was written ({words:.80}). Run: {_VERIFY}")
        if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return LibraryUnwritable(
                f"{self.path} is held by another writer since {BUSY_TIMEOUT_S:.0f} s. Stop it, then try again."
            )
        if code.startswith("SQLITE_FULL"):
            return LibraryUnwritable(f"the disk that holds {self.path} is full. Free some space, then try again.")
        if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
            how = "read" if self.read_only else "written"
            return LibraryUnwritable(f"{self.path} cannot be {how} ({words}). Check its permissions and its folder's.")
        if code.startswith("SQLITE_IOERR"):
            return LibraryUnwritable(f"{self.path}: the disk answered with an error ({words}). Nothing was torn.")
        if code.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
            return NotALibrary(f"{self.path} is damaged or not a SQLite database ({words}). Restore a copy.")
        return LibraryError(f"{self.path}: {words}")


def _connect(path: str, *, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, uri=uri)


def _keep_a_log(connection: sqlite3.Connection) -> None:
    """WAL. Where several open a new file at once SQLite refuses all but one without waiting, so it is asked again."""
    until = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > until:
                raise
            time.sleep(0.005)


def _refuse_other_files(path: Path, read_only: bool) -> None:
    if path.is_dir():
        raise NotALibrary(f"{path} is a folder. Give the path of a library file, such as {path / 'experience.db'}.")
    if not path.exists():
        if read_only:
            raise NotALibrary(f"there is no library at {path}. Make one with: hardwon run textworld --library {path}")
        if not path.absolute().parent.is_dir():
            raise LibraryUnwritable(f"the folder {path.absolute().parent} does not exist. Create it first.")
        return
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
    except OSError as error:
        raise LibraryUnwritable(f"{path} cannot be read: {error.strerror}. Check its permissions.") from error
    if not read_only and not os.access(path, os.W_OK):
        raise LibraryUnwritable(f"{path} may not be written. Change its permissions, or open it with read_only=True.")
    if not head:
        _wait_for_its_maker(path)
    elif head != _MAGIC:
        raise NotALibrary(f"{path} is not a hardwon library (nor a SQLite database). Give another path.")


def _wait_for_its_maker(path: Path) -> None:
    """Wait while another process makes the library; raise NotALibrary for a file that stays empty.

    SQLite creates a file empty and writes its first page a moment later. A file that is empty for longer was cut,
    or made by something else: to begin a new library in it would hide that the old one is lost.
    """
    while not path.stat().st_size:
        if time.time() - path.stat().st_mtime > MAKING_S:
            raise NotALibrary(
                f"{path} is empty, so it is no library (any more). Restore a copy, or delete the file to begin anew."
            )
        time.sleep(0.02)
