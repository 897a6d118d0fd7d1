"""Row checksums, which reveal data that the disk changed without SQLite noticing.

Every row of the tables in `SUMMED` stores a checksum of its other columns in the column `checksum`. Code that writes a
row writes the checksum in the same transaction: it calls `compute_checksum` for an insertion, or `seal` after a change.

A migration that adds a column to one of these tables adds it to `SUMMED` and sets `checksum` to NULL. `seal_missing`
runs after the migrations and fills it in.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from sqlite3 import Connection
from typing import Any, NamedTuple
from zlib import crc32

from hardwon.memory.errors import LibraryDamaged

_CHUNK = 2_000
"""Rows read into memory at a time."""


class ChecksummedTable(NamedTuple):
    """A table whose rows have checksums."""

    key: str
    """Integer primary key, or `rowid`."""
    columns: str
    """Columns that the checksum covers, in this order. Counters derived from other rows are left out; `verify`
    recomputes them."""
    name: str
    """SQL expression that identifies the row for a person: its own id or the id of its episode or item."""


SUMMED = {
    "trajectories": ChecksummedTable(
        "rowid",
        "id, namespace, recorded_at, task, success, score, total_reward, arm, seed, ending, n_steps, meta, writer, "
        "trust",
        "id",
    ),
    "states": ChecksummedTable(
        "id", "id, namespace, digest, observation, facts, location, task, feedback, notes, signature", "''"
    ),
    "steps": ChecksummedTable(
        "id",
        "id, namespace, trajectory_id, t, pre, action, post, reward, return_to_go, failure, diagnosis, keys, why, "
        "witness, offer",
        "trajectory_id",
    ),
    "items": ChecksummedTable(
        "number",
        "number, id, namespace, kind, status, score, pinned, created_at, updated_at, record, uses, fresh",
        "id",
    ),
    "inbox": ChecksummedTable("id", "id, namespace, ref, named, at, episode", "ref"),
    "keys": ChecksummedTable("id", "id, text", "''"),
    "offers": ChecksummedTable("id", "id, namespace, digest, actions", "''"),
    "changes": ChecksummedTable("seq", "seq, at, namespace, what, ref, op, detail", "ref"),
    "usages": ChecksummedTable(
        "id", "id, namespace, item_id, trajectory_id, t, mode, arm, outcome, control_outcome", "item_id"
    ),
}

_NUMBERS = frozenset({int, float, type(None)})


def parse_json(text: str, where: str) -> Any:
    """Return the value of stored JSON that is derived from other rows, such as a summary."""
    try:
        return json.loads(text)
    except (ValueError, TypeError) as error:
        raise LibraryDamaged(
            f"{where} holds {text!r:.60}, which is not valid JSON. Run: hardwon memory repair"
        ) from error


def compute_checksum(values: Iterable[Any]) -> int:
    """Return the CRC-32 of a row.

    Numbers must have the types that SQLite returns: no bool, and no int in a REAL column.
    """
    # repr tells None, 1 and 1.0 apart, so a value whose type changed on disk changes the checksum too.
    reduced: list[Any] = []
    for value in values:
        # Text and bytes are replaced by their CRC-32, so that text need not be decoded.
        if type(value) in _NUMBERS:
            reduced.append(value)
        elif isinstance(value, str):
            reduced.append([crc32(value.encode())])  # in a list, so that it differs from an integer with the same value
        elif isinstance(value, bytearray):  # text that was read inside `raw_text`
            reduced.append([crc32(value)])
        else:
            reduced.append(crc32(value) if isinstance(value, bytes) else value)
    return crc32(repr(reduced).encode())


def normalize_real(value: float) -> float:
    """Return a number in the form in which SQLite returns it from a REAL column."""
    return float(value) + 0.0  # SQLite stores -0.0 as 0.0, and repr tells the two apart


def seal(connection: Connection, table: str, where: str, parameters: tuple[Any, ...]) -> None:
    """Write the checksums of rows that were inserted or changed."""
    key, columns, _ = SUMMED[table]
    with raw_text(connection):
        rows = connection.execute(f"SELECT {key}, {columns} FROM {table} WHERE {where}", parameters).fetchall()
    connection.executemany(
        f"UPDATE {table} SET checksum = ? WHERE {key} = ?", [(compute_checksum(values), ref) for ref, *values in rows]
    )


def seal_missing(connection: Connection) -> int:
    """Write the checksums of all rows that have none; return the number of rows."""
    count = 0
    for table, (key, _, _) in SUMMED.items():
        without = f"SELECT {key} FROM {table} WHERE checksum IS NULL AND {key} > ? ORDER BY {key} LIMIT {_CHUNK}"
        last = -(2**63)
        # Page by primary key rather than by OFFSET: rows that were just sealed leave the result.
        while refs := [ref for (ref,) in connection.execute(without, (last,))]:
            seal(connection, table, f"checksum IS NULL AND {key} BETWEEN ? AND ?", (refs[0], refs[-1]))
            count += len(refs)
            last = refs[-1]
    return count


class Damage(NamedTuple):
    """A row whose checksum does not match its columns."""

    table: str
    ref: int
    namespace: int | None
    name: str
    missing: bool
    """Whether the row has no checksum, as opposed to a wrong one."""

    def __str__(self) -> str:
        number = f"row {self.ref} of {self.table}"
        return f"{number} ({self.name})" if self.name else number


def find_damaged_rows(connection: Connection) -> Iterator[Damage]:
    """Yield every row of the file, in all namespaces, whose checksum is wrong or missing."""
    for table, (key, columns, name) in SUMMED.items():
        namespace = "namespace" if "namespace" in columns else "NULL"
        query = (
            f"SELECT {key}, checksum, {namespace}, {name}, {columns} FROM {table} "
            f"WHERE {key} > ? ORDER BY {key} LIMIT {_CHUNK}"
        )
        last = -(2**63)
        while True:
            # Fetch a whole chunk before yielding: the caller may run its own queries on the connection,
            # and those must see decoded text again.
            with raw_text(connection):
                rows = connection.execute(query, (last,)).fetchall()
            for ref, checksum, owner, label, *values in rows:
                if checksum != compute_checksum(values):
                    yield Damage(table, ref, _to_int(owner), _to_text(label), checksum is None)
            if len(rows) < _CHUNK:
                break
            last = rows[-1][0]


def _to_int(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _to_text(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="backslashreplace")[:200]
    return "" if value is None else str(value)


@contextmanager
def raw_text(connection: Connection, read: Callable[[bytes], Any] = bytearray) -> Iterator[None]:
    """Return text columns as bytearrays inside this context, because a corrupt text may not be valid UTF-8.

    Not as bytes: BLOB columns arrive as bytes, and `compute_checksum` tells the two apart. `read` may say otherwise.
    """
    before, connection.text_factory = connection.text_factory, read
    try:
        yield
    finally:
        connection.text_factory = before


def mend_text(text: bytes) -> str:
    """Return a text with replacement characters where it is not valid UTF-8, for `raw_text`."""
    return text.decode(errors="replace")
