"""Compare the schema of a library file with the one that the migrations of hardwon create.

A file from elsewhere may contain SQL that runs when it is read or written: a trigger that deletes what was recorded, a
view in place of a table that never ends, a generated column, a check. So a file with any other object, or with another
definition of one, is refused.
"""

import hashlib
import re
import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing
from functools import cache
from typing import NamedTuple

from hardwon.memory.errors import LibraryDamaged

from .migrations import MIGRATIONS, SCHEMA_DIGEST, SCHEMA_VERSION, VALUE_TABLES, create_text_indexes

_READ = "SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master"
SHARED_TEXTS = 18
"""The first schema whose text indexes are shared by all namespaces."""
_TEXT_INDEX = re.compile(r"\b(states|testimony|items)_text_\d+")
"""Names of the text indexes of older schemas, of which every namespace has its own."""
_LISTED = 3


class SchemaObject(NamedTuple):
    """A table, index, view or trigger of a file."""

    type: str
    name: str
    table: str
    sql: str

    def __str__(self) -> str:
        where = f" on {self.table!r:.60}" if self.type in ("trigger", "index") else ""
        return f"{self.type} {self.name!r:.60}{where}"


Schema = frozenset[SchemaObject]


def check_schema(connection: sqlite3.Connection, version: int, path: str) -> None:
    """Check that a library file has the objects that the migrations up to `version` create, and no others.

    Raises:
        LibraryDamaged: It has others. The message names them.
    """
    if changes := find_changes(connection, version):
        raise LibraryDamaged(
            f"{path} was changed by another program, so it cannot be trusted: {changes}. "
            f"Save what can be read with `hardwon memory export {path} FILE`, and import FILE into a new library."
        )


def find_changes(connection: sqlite3.Connection, version: int) -> str:
    """Return in words how the schema of a library file differs from that of its version; empty if it does not."""
    schema = read_schema(connection)
    # The usual case, without running the migrations, which takes several milliseconds.
    if version == SCHEMA_VERSION and compute_digest(schema) == SCHEMA_DIGEST:
        return ""
    return describe_changes(schema, *compute_schema(version))


def describe_changes(schema: Schema, required: Schema, possible: Schema) -> str:
    """Return in words what a file has that is not possible, and what it lacks; empty if nothing."""
    names, present = {entry.name for entry in possible}, {entry.name for entry in schema}
    changes = [f"{entry} is {'changed' if entry.name in names else 'unknown'}" for entry in _sort(schema - possible)]
    changes += [f"{entry} is missing" for entry in _sort(required - schema) if entry.name not in present]
    more = f", and {len(changes) - _LISTED} more" if len(changes) > _LISTED else ""
    return ", ".join(changes[:_LISTED]) + more


def _sort(schema: Iterable[SchemaObject]) -> list[SchemaObject]:
    """Return objects with the tables first, because an index is missing or changed with its table."""
    return sorted(schema, key=lambda entry: (entry.type != "table", entry))


def harden(connection: sqlite3.Connection) -> None:
    """Let a connection call no function with side effects from the file's schema, and notice damaged pages."""
    # After the schema was checked: with this setting, SQLite itself refuses some schemas, and names no next step.
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)


def read_schema(connection: sqlite3.Connection) -> Schema:
    """Return the objects of a file. Texts are compared without differences in white space or numbers of namespaces."""
    return frozenset(
        SchemaObject(*(_TEXT_INDEX.sub(r"\1_text_1", " ".join(text.split())) for text in row))
        for row in connection.execute(_READ)
    )


def compute_digest(schema: Iterable[SchemaObject]) -> str:
    """Return a hash of a schema."""
    return hashlib.sha256("\n".join(map("\t".join, sorted(schema))).encode()).hexdigest()


@cache
def compute_schema(version: int) -> tuple[Schema, Schema]:
    """Return the objects that a file of a version must have, and those that it may have."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for migration in MIGRATIONS[:version]:
            migration(connection)
        required = read_schema(connection)
        if version < SHARED_TEXTS:
            create_text_indexes(connection, 1)
        connection.executescript(VALUE_TABLES)
        connection.execute("ANALYZE")  # statistics of tables, which users may compute
        return required, read_schema(connection)
