"""The outbox: episodes that wait for the server, in a file beside the replica.

An episode in the outbox is on the disk of this host. It is sent under the id that it was given here, so an attempt
whose outcome is unknown is repeated without writing it twice. Several processes may send the same file at once.
"""

import logging
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from hardwon.memory.errors import KeyTaken, LibraryDamaged, LibraryUnwritable
from hardwon.memory.privacy.private_files import FILE_MODE, open_new
from hardwon.memory.storage.schema_check import describe_changes, read_schema

from .entries import is_same_episode, unpack
from .log import Log

FILE = "outbox.db"
"""Name of the file in the replica's folder."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS waiting (
    number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, payload BLOB NOT NULL, refused TEXT NOT NULL DEFAULT '')
"""

logger = logging.getLogger("hardwon.memory")


class Outbox:
    """The episodes of one namespace that wait for the server. Safe to use from several threads and processes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._lock = threading.Lock()
        if not self.path.exists():
            open_new(self.path).close()
        self.path.chmod(FILE_MODE)
        with self._transaction() as connection:
            connection.execute(_SCHEMA)
            schema = read_schema(connection)
        with closing(sqlite3.connect(":memory:")) as fresh:
            fresh.execute(_SCHEMA)
            required = read_schema(fresh)
        if changes := describe_changes(schema, required, required):
            raise LibraryDamaged(f"{self.path} was changed by another program: {changes}. Move the file away.")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection whose changes are on the disk at the end."""
        with self._lock:
            try:
                connection = sqlite3.connect(self.path, timeout=60, isolation_level=None)
                try:
                    connection.execute("PRAGMA synchronous = FULL")
                    connection.execute("BEGIN IMMEDIATE")
                    yield connection
                    connection.execute("COMMIT")
                finally:
                    connection.close()  # rolls back what was not committed
            except sqlite3.Error as error:
                raise LibraryUnwritable(
                    f"{self.path} cannot be written ({error}). Free some space, or check its permissions."
                ) from error

    def put(self, rows: Sequence[tuple[str, bytes]]) -> None:
        """Keep episodes, durable on return; those that wait already are kept once."""
        with self._transaction() as connection:
            for key, payload in rows:
                before = connection.execute("SELECT payload FROM waiting WHERE key = ?", (key,)).fetchone()
                if before is None:
                    connection.execute("INSERT INTO waiting(key, payload) VALUES (?, ?)", (key, payload))
                elif before[0] != payload and not is_same_episode(unpack(before[0]), unpack(payload)):
                    raise KeyTaken(
                        f"another episode with the id {key!r} waits in {self.path}. Use a different id, or none to "
                        "have one assigned."
                    )

    def count(self) -> int:
        """Return the number of episodes that wait."""
        with self._transaction() as connection:
            return int(connection.execute("SELECT count(*) FROM waiting WHERE refused = ''").fetchone()[0])

    def refused(self) -> list[tuple[str, str]]:
        """Return the ids of the episodes that the log refused, each with the reason."""
        with self._transaction() as connection:
            return connection.execute("SELECT key, refused FROM waiting WHERE refused <> '' ORDER BY number").fetchall()

    def send(self, log: Log) -> int:
        """Send what waits, in the order of writing; return the number of episodes."""
        count = 0
        while rows := self._read():
            try:
                log.append("episode", rows, is_same=is_same_episode)
                self._remove([key for key, _ in rows])
            except KeyTaken:
                # One by one, so that an id that is taken does not hold up the others.
                for row in rows:
                    self._send_one(log, row)
            count += len(rows)
        return count

    def _send_one(self, log: Log, row: tuple[str, bytes]) -> None:
        try:
            log.append("episode", [row], is_same=is_same_episode)
        except KeyTaken as error:
            logger.error("episode %s stays in %s: %s", row[0], self.path, error)
            with self._transaction() as connection:
                connection.execute("UPDATE waiting SET refused = ? WHERE key = ?", (str(error), row[0]))
            return
        self._remove([row[0]])

    def _read(self) -> list[tuple[str, bytes]]:
        with self._transaction() as connection:
            return connection.execute(
                "SELECT key, payload FROM waiting WHERE refused = '' ORDER BY number LIMIT ?", (200,)
            ).fetchall()

    def _remove(self, keys: Sequence[str]) -> None:
        with self._transaction() as connection:
            connection.executemany("DELETE FROM waiting WHERE key = ?", [(key,) for key in keys])
