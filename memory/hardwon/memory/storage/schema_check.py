"""Compare the schema of a library file with the one that the migrations of hardwon create.

A file from elsewhere may contain SQL that runs when it is read or written: a trigger that deletes what was recorded, a
view in place of a table that never ends, a generated column, a check. So a file with any other object, or with another
definition of one, is refused. Plain tables of other programs, which nothing here reads, are accepted.
"""

import hashlib
import os
import re
import sqlite3
import sys
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from functools import cache, lru_cache
from typing import NamedTuple

from hardwon.memory.errors import LibraryDamaged

from .migrations import MIGRATIONS, SCHEMA_DIGEST, SCHEMA_VERSION, VALUE_TABLES, create_text_indexes

_COLUMNS = ", ".join(f"CAST(coalesce({column}, '') AS TEXT)" for column in ("type", "name", "tbl_name", "sql"))
_READ = f"SELECT {_COLUMNS} FROM sqlite_master"
"""Whatever type a damaged page says that the values have."""
SHARED_TEXTS = 18
"""The first schema whose text indexes are shared by all namespaces."""
_TEXT_INDEX = re.compile(r"\b(states|testimony|items)_text_\d+")
"""Names of the text indexes of older schemas, of which every namespace has its own."""
_LISTED = 3
_NAME = r"""(\w+|"[^"]+"|'[^']+'|`[^`]+`|\[[^]]+\])"""
_TABLE = re.compile(rf"CREATE TABLE {_NAME} ?\(", re.IGNORECASE)
_INDEX = re.compile(rf"CREATE (?:UNIQUE )?INDEX {_NAME} ON {_NAME} ?\([^()]+\)", re.IGNORECASE)
"""An index without functions, which would run when the file is rewritten."""
_RESERVED = ("sqlite_", "pragma_", "json_")
"""Beginnings of the names of SQLite itself, whatever its version."""
_STATISTICS = ("sqlite_stat1", "sqlite_stat3", "sqlite_stat4")
"""Tables that ANALYZE creates, which depend on the version of SQLite."""


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
    """Check that a library file has the objects that the migrations up to `version` create, and no others."""
    if changes := find_changes(connection, version, path):
        raise LibraryDamaged(
            f"{path} was changed by another program, so it cannot be trusted: {changes}. "
            f"Save what can be read with `hardwon memory export {path} FILE`, and import FILE into a new library."
        )


def find_changes(connection: sqlite3.Connection, version: int, path: str) -> str:
    """Return in words how the schema of a library file differs from that of its version; empty if it does not."""
    stamp = _read_stamp(path)
    if stamp is not None and (stamp, version) in _SOUND:
        return ""
    changes = _compare(tuple(connection.execute(_READ)), version)
    if stamp is not None and not changes:
        _SOUND.add((stamp, version))
    return changes


def _read_stamp(path: str) -> tuple[int, ...] | None:
    """Return numbers that change with any write to a file or its log; None if there are none yet.

    Nobody can choose the time of the last change of a file. It is counted in ticks, so it is none while it is recent.
    """
    numbers: list[int] = []
    with suppress(OSError):
        for name in (path, f"{path}-wal"):
            stat = os.stat(name)  # noqa: PTH116  # not Path.stat, which costs twice as much
            # Nanoseconds within which two changes of a file may get the same time.
            if stat.st_size and time.time_ns() - stat.st_ctime_ns < 10**8:
                return None
            numbers += (stat.st_dev, stat.st_ino, stat.st_ctime_ns, stat.st_size) if stat.st_size else ()
    return tuple(numbers) or None


_SOUND: set[tuple[tuple[int, ...], int]] = set()
"""Files whose schema has no changes, with their versions: a process opens the same file many times."""


@lru_cache(maxsize=64)  # a process opens files of the same schema many times
def _compare(rows: tuple[tuple[str, str, str, str], ...], version: int) -> str:
    # The usual case, without running the migrations, which takes 30 ms.
    if version == SCHEMA_VERSION and compute_digest(rows) == SCHEMA_DIGEST:
        return ""
    required, possible = compute_schema(version)
    schema = frozenset(map(_normalize, rows))
    plain = _find_plain_tables(schema - possible, _find_used_names(version))
    return describe_changes(schema - plain, required, possible)


def describe_changes(schema: Schema, required: Schema, possible: Schema) -> str:
    """Return in words what a file has that is not possible, and what it lacks; empty if nothing."""
    names, present = {entry.name for entry in possible}, {entry.name for entry in schema}
    changes = [f"{entry} is {'changed' if entry.name in names else 'unknown'}" for entry in _sort(schema - possible)]
    changes += [f"{entry} is missing" for entry in _sort(required - schema) if entry.name not in present]
    more = f", and {len(changes) - _LISTED} more" if len(changes) > _LISTED else ""
    return ", ".join(changes[:_LISTED]) + more


def _find_plain_tables(unknown: Schema, used_names: frozenset[str]) -> Schema:
    """Return the tables whose names are in no statement of hardwon, with their indexes."""
    tables = {
        entry.name
        for entry in unknown
        if (entry.type, entry.table) == ("table", entry.name)
        # The name in the definition is the one that SQLite uses.
        and _read_names(_TABLE.match(entry.sql)) == [entry.name]
        and entry.name.lower() not in used_names
        and (not entry.name.lower().startswith(_RESERVED) or entry.name in _STATISTICS)
    }
    return frozenset(entry for entry in unknown if entry.table in tables and (entry.name in tables or _is_index(entry)))


def _is_index(entry: SchemaObject) -> bool:
    """Return whether an object is an index without an expression."""
    if not entry.sql:  # of a UNIQUE or PRIMARY KEY constraint
        return entry.type == "index" and entry.name.startswith(f"sqlite_autoindex_{entry.table}_")
    return entry.type == "index" and _read_names(_INDEX.fullmatch(entry.sql)) == [entry.name, entry.table]


def _read_names(match: re.Match[str] | None) -> list[str]:
    """Return the names in a definition, without quotes."""
    return [name.strip("\"'`[]") for name in match.groups()] if match else []


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
    return frozenset(map(_normalize, connection.execute(_READ)))


def read_intact_schema(connection: sqlite3.Connection) -> Schema:
    """Return the entries of a damaged schema up to the first page that cannot be read."""
    entries = set[SchemaObject]()
    with suppress(sqlite3.DatabaseError):
        for row in connection.execute(_READ):
            entries.add(_normalize(row))
    return frozenset(entries)


def _normalize(row: Iterable[str]) -> SchemaObject:
    return SchemaObject(*(_TEXT_INDEX.sub(r"\1_text_1", " ".join(text.split())) for text in row))


def compute_digest(rows: Iterable[tuple[str, ...]]) -> str:
    """Return a hash of the rows of a schema."""
    return hashlib.sha256("\n".join(map("\t".join, sorted(rows))).encode()).hexdigest()


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


@cache
def _find_used_names(version: int) -> frozenset[str]:
    """Return the names, in lower case, that hardwon reads or creates in a file of a version and when it migrates it."""
    with closing(sqlite3.connect(":memory:")) as connection:
        modules = [name for (name,) in connection.execute("PRAGMA module_list")]  # such as json_each
    used = {entry.name for schema in (version, SCHEMA_VERSION) for entry in compute_schema(schema)[1]}
    return frozenset(name.lower() for name in (*used, *modules))
