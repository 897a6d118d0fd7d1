"""Values that an application stores in a library, such as those of the runtime's `HardwonStore`.

They are the application's data, not experience: they come back exactly as they were put. Two tables, which the first
write creates, hold them under the name of the library's namespace. `apply` is their only writer, in a library file and
in a replica of a shared library, so both follow the same rules. Its times are those of `storage.clock`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from sqlite3 import Connection
from typing import NamedTuple

from .errors import LibraryBusy
from .storage.clock import read_clock
from .storage.database import BUSY_TIMEOUT_S, Store
from .storage.migrations import VALUE_TABLES

# The plus keeps SQLite from the index by namespace, in which it would read every value of the namespace.
_EXPIRED = "SELECT id FROM langgraph_values WHERE expires_at <= ? AND +namespace = ?"


class ValueWrite(NamedTuple):
    """One value that is put or deleted."""

    path: str
    """Labels of its namespace in the store, each followed by a dot."""
    key: str
    value: str | None
    """The value as JSON; None deletes it."""
    fields: str = "[]"
    """JSON list of the fields that are embedded."""
    ttl: float | None = None
    """Minutes until it expires; None if it does not."""
    vectors: Mapping[str, bytes] = {}
    """Embeddings by field."""


class ValueBatch(NamedTuple):
    """The writes of one transaction."""

    writes: Sequence[ValueWrite] = ()
    touches: Sequence[int] = ()
    """Ids of values that live for another `ttl` from now, because they were read."""
    fingerprint: str = ""
    """Embedder of the vectors."""
    sweeps: bool = True
    """Whether expired values are deleted, too."""


class StoredValues:
    """The values of one namespace of a library file, on a connection of their own."""

    def __init__(self, store: Store, namespace: str, *, read_only: bool) -> None:
        """Take over a store, which `close` closes."""
        self.store, self.namespace, self.read_only = store, namespace, read_only

    @contextmanager
    def reading(self) -> Iterator[bool]:
        """Read everything inside from one state; yield whether there are tables."""
        with self.store.snapshot():
            yield has_tables(self.store)

    def write(self, batch: ValueBatch) -> None:
        """Write a batch; it is durable when the call returns."""
        # A read that prolongs values waits for nobody: they are prolonged by a later one.
        wait_s = BUSY_TIMEOUT_S if batch.writes else 0.0
        with suppress(*([] if batch.writes else [LibraryBusy])), self.store.transaction(wait_s=wait_s) as connection:
            apply(connection, self.namespace, batch)

    def sweep(self) -> int:
        """Delete the expired values, and return their number; none while others hold the library."""
        with suppress(LibraryBusy), self.store.transaction(wait_s=0.0) as connection:
            return _sweep(connection, self.namespace) if has_tables(self.store) else 0
        return 0

    def count_expired(self) -> int:
        """Return the number of expired values. Call it inside `reading`, if there are tables."""
        return len(self.store.rows(_EXPIRED, (read_clock(), self.namespace)))

    def close(self) -> None:
        """Close the connection."""
        self.store.close()


def has_tables(store: Store) -> bool:
    """Return whether a file has the tables."""
    return bool(store.rows("SELECT 1 FROM sqlite_master WHERE name = 'langgraph_vectors'"))


def apply(connection: Connection, namespace: str, batch: ValueBatch, first_id: int | None = None) -> None:
    """Write a batch in the open transaction."""
    # `executescript` would commit the open transaction.
    for statement in VALUE_TABLES.split(";\n"):
        connection.execute(statement)
    connection.executemany(
        "UPDATE langgraph_values SET expires_at = ? + 60.0 * ttl WHERE id = ?",
        [(read_clock(), ref) for ref in batch.touches],
    )
    for number, write in enumerate(batch.writes):
        _put(connection, namespace, write, batch.fingerprint, None if first_id is None else first_id + number)
    if batch.sweeps:
        _sweep(connection, namespace)


def _put(connection: Connection, namespace: str, write: ValueWrite, fingerprint: str, ref: int | None) -> None:
    """Replace a value, so that its id reflects the time of the last put; `created_at` is kept."""
    place, now = (namespace, write.path, write.key), datetime.fromtimestamp(read_clock(), UTC).isoformat()
    created = now
    for old, created_at, expires_at in connection.execute(
        "SELECT id, created_at, expires_at FROM langgraph_values WHERE namespace = ? AND path = ? AND key = ?", place
    ).fetchall():
        _delete(connection, [old])
        # An expired value counts as deleted, even if it was not swept yet.
        created = created_at if expires_at is None or expires_at > read_clock() else now
    if write.value is None:
        return
    expires = None if write.ttl is None else read_clock() + 60.0 * write.ttl
    ref = connection.execute(
        "INSERT INTO langgraph_values VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (ref, *place, write.value, write.fields, created, now, write.ttl, expires),
    ).lastrowid
    connection.executemany(
        "INSERT INTO langgraph_vectors VALUES (?, ?, ?, ?)",
        [(ref, field, fingerprint, vector) for field, vector in write.vectors.items()],
    )


def _sweep(connection: Connection, namespace: str) -> int:
    return _delete(connection, [ref for (ref,) in connection.execute(_EXPIRED, (read_clock(), namespace))])


def _delete(connection: Connection, refs: Sequence[int]) -> int:
    for table, column in (("langgraph_vectors", "value"), ("langgraph_values", "id")):
        connection.executemany(f"DELETE FROM {table} WHERE {column} = ?", [(ref,) for ref in refs])
    return len(refs)
