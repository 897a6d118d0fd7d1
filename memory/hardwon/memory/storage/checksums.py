"""Checksums of stored rows: a byte that the disk changed behind SQLite's back is found, with its table and row.

Every row of the tables in `SUMMED` has a checksum of its other columns in `checksum`. Whoever writes a row writes its
checksum in the same transaction: `sum_of` the values at insertion, or `seal` after a change.

A migration that adds a column to one of these tables lists it here and sets `checksum` to NULL there: `seal_missing`
runs after the migrations.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from sqlite3 import Connection
from typing import Any, NamedTuple
from zlib import crc32

from hardwon.memory.errors import LibraryDamaged

_AT_ONCE = 2_000
"""Rows that are read into memory at a time."""


class Summed(NamedTuple):
    """A table whose rows have checksums."""

    key: str
    """The column that is the number of a row."""
    columns: str
    """What is summed, in this order. Counts that are made of other rows are left out: `verify` compares them."""
    name: str
    """The column by which a person knows a row, or whose it is."""


SUMMED = {
    "trajectories": Summed(
        "rowid",
        "id, namespace, recorded_at, task, success, score, total_reward, arm, seed, ending, n_steps, meta, writer, "
        "trust",
        "id",
    ),
    "states": Summed(
        "id", "id, namespace, digest, observation, facts, location, task, feedback, notes, signature", "''"
    ),
    "steps": Summed(
        "id",
        "id, namespace, trajectory_id, t, pre, action, post, reward, return_to_go, failure, diagnosis, keys, why, "
        "witness, offer",
        "trajectory_id",
    ),
    "items": Summed(
        "number",
        "number, id, namespace, kind, status, score, pinned, created_at, updated_at, record, uses, fresh",
        "id",
    ),
    "inbox": Summed("id", "id, namespace, ref, named, at, episode", "ref"),
    "keys": Summed("id", "id, text", "''"),
    "offers": Summed("id", "id, namespace, digest, actions", "''"),
    "changes": Summed("seq", "seq, at, namespace, what, ref, op, detail", "ref"),
    "usages": Summed("id", "id, namespace, item_id, trajectory_id, t, mode, arm, outcome, control_outcome", "item_id"),
}


def parse(text: str, where: str) -> Any:
    """Return stored JSON that is made of other rows, such as a summary.

    Raises: LibraryDamaged, for what is no JSON; it can be made again.
    """
    try:
        return json.loads(text)
    except (ValueError, TypeError) as error:
        raise LibraryDamaged(f"{where} holds {text!r:.60}, which is no JSON. Run: hardwon memory repair") from error


def sum_of(values: Iterable[Any]) -> int:
    """Return the checksum of a row, whose numbers have the type that SQLite gives back: no bool, no int for a real."""
    return crc32(repr([_part(value) for value in values]).encode())


def _part(value: Any) -> Any:
    if isinstance(value, str):
        return [crc32(value.encode())]
    if isinstance(value, bytearray):  # a text as it was read by `undecoded`
        return [crc32(value)]
    return crc32(value) if isinstance(value, bytes) else value


def real(value: float) -> float:
    """Return a number as SQLite gives it back from a column of reals."""
    return float(value) + 0.0  # it knows no -0.0


def seal(connection: Connection, table: str, where: str, parameters: tuple[Any, ...]) -> None:
    """Write the checksums of rows that were inserted or changed."""
    key, columns, _ = SUMMED[table]
    with undecoded(connection):
        rows = connection.execute(f"SELECT {key}, {columns} FROM {table} WHERE {where}", parameters).fetchall()
    connection.executemany(
        f"UPDATE {table} SET checksum = ? WHERE {key} = ?", [(sum_of(values), ref) for ref, *values in rows]
    )


def seal_missing(connection: Connection) -> int:
    """Write the checksums of all rows that have none; return how many."""
    count = 0
    for table, (key, _, _) in SUMMED.items():
        without = f"SELECT {key} FROM {table} WHERE checksum IS NULL AND {key} > ? ORDER BY {key} LIMIT {_AT_ONCE}"
        last = -(2**63)
        while found := [ref for (ref,) in connection.execute(without, (last,))]:
            seal(connection, table, f"checksum IS NULL AND {key} BETWEEN ? AND ?", (found[0], found[-1]))
            count += len(found)
            last = found[-1]
    return count


class Damage(NamedTuple):
    """A row whose checksum is not that of its columns."""

    table: str
    ref: int
    namespace: int | None
    name: str
    missing: bool
    """Whether it has no checksum at all."""

    def __str__(self) -> str:
        number = f"row {self.ref} of {self.table}"
        return f"{number} ({self.name})" if self.name else number


def damages(connection: Connection) -> Iterator[Damage]:
    """Yield every row of the file, in all namespaces, whose checksum does not fit."""
    for table, (key, columns, name) in SUMMED.items():
        namespace = "namespace" if "namespace" in columns else "NULL"
        query = (
            f"SELECT {key}, checksum, {namespace}, {name}, {columns} FROM {table} "
            f"WHERE {key} > ? ORDER BY {key} LIMIT {_AT_ONCE}"
        )
        last = -(2**63)
        while True:
            with undecoded(connection):
                rows = connection.execute(query, (last,)).fetchall()
            for ref, checksum, belongs, called, *values in rows:
                if checksum != sum_of(values):
                    yield Damage(table, ref, _whole(belongs), _text(called), checksum is None)
            if len(rows) < _AT_ONCE:
                break
            last = rows[-1][0]


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _text(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="backslashreplace")[:200]
    return "" if value is None else str(value)


@contextmanager
def undecoded(connection: Connection) -> Iterator[None]:
    """Read texts as they are stored: a changed byte may leave no UTF-8."""
    before, connection.text_factory = connection.text_factory, bytearray
    try:
        yield
    finally:
        connection.text_factory = before
