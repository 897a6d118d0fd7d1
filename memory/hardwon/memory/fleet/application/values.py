"""Stored values of a shared library: a batch is one entry of the log, which every replica applies in its place.

The database decides the time and the order of an entry, and with them which of two writes is the later one, when a
value was created, and when it expires. The writer computes the vectors, so a text is embedded once in the fleet.
"""

import json
import logging
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from hardwon.memory.errors import ConfigError, LibraryError
from hardwon.memory.fleet.file import ReplicaFile
from hardwon.memory.sqlite_errors import TRANSLATED
from hardwon.memory.storage.clock import read_clock
from hardwon.memory.storage.database import Store
from hardwon.memory.stored_values import StoredValues, ValueBatch

from .batches import STORE, apply_entry, pack_batch

LARGEST = 256 * 2**20
"""Largest size of a batch in bytes: it is one entry, which is applied as a whole."""
STEP = 0.05
"""Part of the time to live by which reading must put the end of a value off to be worth an entry of the log."""
MANY = 500
"""Writes of a handle after which it looks whether a snapshot is due: a host that only stores values learns no items."""

logger = logging.getLogger("hardwon.memory")


class SharedValues(StoredValues):
    """The values of one namespace of a shared library: read from the replica, written to the log."""

    def __init__(self, file: ReplicaFile) -> None:
        """Open the replica of a library; the library stays open as long as the values are used."""
        super().__init__(Store(file.store.path, read_only=True), file.namespace, read_only=file.read_only)
        self._file = file

    @contextmanager
    def reading(self) -> Iterator[bool]:
        """Read after applying the writes of the library's handle; values expire by the clock of the server."""
        file = self._get_open_file()
        if file.is_behind:
            with file.lock:  # another thread may be in a transaction, in which nothing is applied
                file.apply_own()
        with file.use_server_clock("microseconds"), super().reading() as exists:
            yield exists

    def write(self, batch: ValueBatch) -> None:
        """Append a batch to the log, durable on return. What only reading would write is left out if that fails."""
        file = self._get_open_file()
        file.check_writable()
        is_refresh = bool(batch.touches) and not batch.writes
        batch = batch._replace(touches=self._find_due(batch.touches))
        # A read does not wait for a server that is down: an attempt to connect may take seconds.
        if is_refresh and (not batch.touches or file.log.fileno() is None):
            return
        values = pack_batch(batch)
        self._check(batch, values)
        try:
            file.append_once(STORE, values)
        except LibraryError as error:
            if not is_refresh:
                raise
            logger.info("values that were read keep their end: %s", error)
        else:
            file.note_write()
            if file.written % MANY == 0:
                file.follower.request_snapshot()

    def sweep(self) -> int:
        """Delete the expired values on every host, and return their number on this one."""
        self._get_open_file().check_writable()
        with self.reading() as exists:
            count = self.count_expired() if exists else 0
        if count:
            self.write(ValueBatch())
        return count

    def _get_open_file(self) -> ReplicaFile:
        if self._file.is_closed:
            raise LibraryError(f"{self._file.path} is closed. Close the library after the store.")
        return self._file

    def _find_due(self, touches: Sequence[int]) -> list[int]:
        """Return the values whose end moves by at least `STEP`: else each read of a value would be an entry."""
        if not touches:
            return []
        with self._file.use_server_clock("microseconds"):
            rows = self.store.rows(
                "SELECT id FROM langgraph_values WHERE id IN (SELECT value FROM json_each(?)) "
                "AND ? + ? * ttl >= expires_at ORDER BY id",
                (json.dumps(list(touches)), read_clock(), 60.0 * (1 - STEP)),
            )
        return [ref for (ref,) in rows]

    def _check(self, batch: ValueBatch, values: Any) -> None:
        """Refuse what no replica could apply, by applying it to an empty table: an entry cannot be taken back."""
        texts = (text or b"" for write in batch.writes for text in (*write[:3], *write.vectors.values()))
        size = 16 * len(batch.writes) + sum(map(len, texts))
        if size > LARGEST:
            raise ConfigError(f"a batch has {size} bytes; a shared library takes at most {LARGEST}. Split the batch.")
        with closing(sqlite3.connect(":memory:")) as trial:
            try:
                apply_entry(trial, self.namespace, values, 0)
            except TRANSLATED as error:
                raise self.store.translate(error) from error
