"""Export what can be read of a damaged library, and name what cannot.

The rows that SQLite can still read are copied by their numbers, without indexes, into a new file, and that is exported.
Nothing of the damaged file's schema is executed: a table is copied only if its definition is the one of hardwon. The
copy of an older library is migrated. A file with a wrong header or first page is read from a copy with the right one.
"""

import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from hardwon.memory.errors import LibraryUnwritable, NotALibrary, UnknownName
from hardwon.memory.storage.checksums import SUMMED, find_damaged_rows, mend_text
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.migrations import APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION
from hardwon.memory.storage.schema_check import SchemaObject, compute_schema, read_intact_schema

from . import jsonl
from .damage import UNREADABLE
from .write_buffer import WriteBuffer

_LAST = 2**63 - 1
_PRAGMAS = ("application_id", "user_version")
_PAGE = 4096
_FIELDS = (
    ("name", 0, (b"SQLite format 3\0",)),
    ("versions", 18, (b"\2\2", b"\1\1")),
    ("reserved space", 20, (b"\0",)),
    ("payload fractions", 21, (b"@  ",)),
    ("schema format", 44, (b"\0\0\0\4",)),
    ("encoding", 56, (b"\0\0\0\1",)),
    ("application", 68, (APPLICATION_ID.to_bytes(4, "big"),)),
)
"""Fields of the header of a file, with their places, and what SQLite and hardwon write there."""
_LEAF = b"\r"
"""The first byte of a page with rows of a table."""
_ENTRY = re.compile(
    rb"[\x80-\xff]{0,2}[\0-\x7f]([\x80-\xff]?[\0-\x7f])[\6-\x0a](?:\x17|\x1b)"
    rb"(?:[\x80-\xff]?[\0-\x7f]){2}[\0-\6](?:[\x80-\xff]{0,2}[\0-\x7f])(?:table|index)[a-z]"
)
"""A row of the schema: its size, number and types, then whether it is a table or an index, and its name."""
_NEWER = 1 << 10
"""Greater numbers are no version of a schema, but damage."""
_TABLES = ("namespaces", *SUMMED)
_WITHOUT_LOST = (
    # A state belongs to many episodes, so what is unreadable in it is left out rather than the episodes.
    "UPDATE states SET facts = '{}' WHERE CASE WHEN json_valid(facts) THEN json_type(facts) END IS NOT 'object'",
    "UPDATE states SET notes = '[]' WHERE CASE WHEN json_valid(notes) THEN json_type(notes) END IS NOT 'array'",
    "UPDATE offers SET actions = '[]' WHERE CASE WHEN json_valid(actions) THEN json_type(actions) END IS NOT 'array'",
    "UPDATE steps SET keys = (SELECT json_group_array(value) FROM json_each(steps.keys) WHERE value IN "
    "(SELECT id FROM keys)) WHERE json_valid(keys) AND EXISTS (SELECT 1 FROM json_each(steps.keys) WHERE value NOT IN "
    "(SELECT id FROM keys))",
)


class Salvage(NamedTuple):
    """The result of an export of a damaged library."""

    lines: int
    """Lines of the file."""
    damage: list[str]
    """What is damaged: rows that were written as they are, and rows and records that were left out."""


def salvage(path: Path, namespace: str, target: Path) -> Salvage:
    """Write the readable records of one namespace of a damaged file to a JSONL file."""
    with _make_folder(target) as folder:
        copy = Path(folder) / "copy.db"
        try:
            damage = _copy_readable(path, path, copy)
        except NotALibrary:
            if not (page := _make_first_page(path)):
                raise
            whole = _copy_with(path, page, Path(folder) / "whole.db")
            damage = ["the first page of the file is damaged", *_copy_readable(whole, path, copy)]
        try:
            store = Store(copy)
        except UNREADABLE as error:
            raise NotALibrary(f"{path} cannot be migrated ({error}). Restore a copy.") from error
        with closing(store):
            return _export(store, namespace, target, damage)


def _copy_readable(file: Path, path: Path, copy: Path) -> list[str]:
    """Copy the readable rows of a file to a new one; return what is damaged."""
    whole, damage = _mend_header(file, copy.with_name("mended.db"))
    with _open_damaged(whole, path) as (source, version):
        return damage + _copy_tables(source, copy, version)


def _export(store: Store, namespace: str, target: Path, damage: list[str]) -> Salvage:
    """Export a namespace of the copy, without what is unreadable in it."""
    numbers = dict(store.rows("SELECT name, id FROM namespaces"))
    if not numbers:  # its table is lost; most libraries have no other
        with store.transaction() as connection:
            connection.execute("INSERT INTO namespaces(id, name) VALUES (1, 'default')")
        numbers = {"default": 1}
    if namespace not in numbers:
        raise UnknownName.of("namespace", namespace, numbers)
    damage += [f"{row} is damaged" for row in find_damaged_rows(store.connection) if not row.missing]
    WriteBuffer(store, numbers[namespace]).file()
    return Salvage(jsonl.export_jsonl(store, numbers[namespace], target, damage), damage)


def _mend_header(path: Path, mended: Path) -> tuple[Path, list[str]]:
    """Return the path of the file, or of a copy with the right header; and what was wrong in the header.

    SQLite reads nothing of a file that has, for example, fewer pages by its header than the first ones refer to.
    """
    try:
        with path.open("rb") as file:
            header = bytearray(file.read(100))
    except OSError as error:
        raise NotALibrary(f"{path} is not readable ({error.strerror}). Check its rights.") from error
    fields, size = list(_FIELDS), path.stat().st_size
    page = int.from_bytes(header[16:18], "big")
    if page < 512 or page & (page - 1) or size % page:
        fields.append(("page size", 16, (_PAGE.to_bytes(2, "big"),)))
        page = _PAGE
    if int.from_bytes(header[28:32], "big") < size // page:
        fields.append(("number of pages", 28, ((size // page).to_bytes(4, "big"),)))
    wrong = [(name, at, form[0]) for name, at, form in fields if header[at : at + len(form[0])] not in form]
    if not wrong or {"name", "application"} <= {name for name, *_ in wrong}:  # or no file of ours
        return path, []
    for _, at, value in wrong:
        header[at : at + len(value)] = value
    _copy_with(path, header, mended)
    return mended, [f"the {name} in the header of the file is wrong" for name, *_ in wrong]


def _copy_with(path: Path, beginning: bytes | bytearray, copy: Path) -> Path:
    """Copy a file and its log, with another beginning; return the path of the copy."""
    shutil.copyfile(path, copy)
    if (log := Path(f"{path}-wal")).exists():
        shutil.copyfile(log, f"{copy}-wal")
    with copy.open("r+b") as file:
        file.write(beginning)
    return copy


def _make_first_page(path: Path) -> bytes:
    """Return a first page that refers to the other pages of the schema; nothing if there are none.

    The schema of a library takes several pages, and the first one only lists them: the largest row number in each page
    but the last, from the end of the page, with their places at its beginning.
    """
    with path.open("rb") as file:
        first = file.read(_PAGE)
        if SCHEMA_VERSION < int.from_bytes(first[60:64], "big") < _NEWER:  # that of a newer hardwon
            return b""
        pages = enumerate(iter(lambda: file.read(_PAGE), b""), 2)
        rows = {number: _read_schema_rows(page) for number, page in pages if page[:1] == _LEAF}
    *most, last = sorted((number for number in rows if rows[number]), key=lambda number: rows[number]) or [0]
    if not last:
        return b""
    page, places, end = bytearray(_PAGE), b"", _PAGE
    for _, at, form in _FIELDS:
        page[at : at + len(form[0])] = form[0]
    numbers = [(16, 2, _PAGE), (28, 4, path.stat().st_size // _PAGE), (60, 4, SCHEMA_VERSION)]
    for at, size, number in numbers:
        page[at : at + size] = number.to_bytes(size, "big")
    for number in most:
        row = max(rows[number])
        cell = number.to_bytes(4, "big") + (bytes([0x80 | row >> 7]) if row > 127 else b"") + bytes([row & 127])
        page[end - len(cell) : end], end = cell, end - len(cell)
        places += end.to_bytes(2, "big")
    tree = b"\5\0\0" + len(most).to_bytes(2, "big") + end.to_bytes(2, "big") + b"\0" + last.to_bytes(4, "big")
    page[100 : 100 + len(tree + places)] = tree + places
    return bytes(page)


def _read_schema_rows(page: bytes) -> list[int]:
    """Return the row numbers in a page of the schema; of any other page, none."""
    rows = []
    for at in range(8, 8 + 2 * int.from_bytes(page[3:5], "big"), 2):
        cell = page[int.from_bytes(page[at : at + 2], "big") :]
        match = _ENTRY.match(cell)
        if match is None:
            return []
        *high, low = match[1]
        rows.append((high[0] & 127) * 128 + low if high else low)
    return rows


@contextmanager
def _open_damaged(file: Path, path: Path) -> Iterator[tuple[sqlite3.Connection, int]]:
    """Open a file, or its copy, for reading, whatever its schema and its length are; yield its version, too."""
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)) as source:
        source.text_factory = mend_text
        try:
            # So that SQLite skips damaged parts of the schema and accepts a file that was cut.
            source.execute("PRAGMA writable_schema = ON")
            application, version = (source.execute(f"PRAGMA {name}").fetchone()[0] for name in _PRAGMAS)
        except sqlite3.DatabaseError as error:
            raise NotALibrary(f"{path} is not readable ({error}). Restore a copy.") from error
        if application != APPLICATION_ID or SCHEMA_VERSION < version < _NEWER:
            raise NotALibrary(f"{path} is not a library of a schema up to {SCHEMA_VERSION}. Restore a copy.")
        yield source, version


def _make_folder(target: Path) -> tempfile.TemporaryDirectory[str]:
    """Make a folder for the copy beside the target, where there is space for the export too."""
    try:
        return tempfile.TemporaryDirectory(prefix="salvage-", dir=target.absolute().parent)
    except OSError as error:
        raise LibraryUnwritable(f"{target} cannot be written: {error.strerror}. Use an existing folder.") from error


def _copy_tables(source: sqlite3.Connection, copy: Path, version: int) -> list[str]:
    """Copy the readable rows of the primary tables to a new file of this version; return what could not be read."""
    schema = read_intact_schema(source)
    # Another version than that of the header, if the file has more of its tables.
    tables = {number: _require_tables(number) for number in range(1, SCHEMA_VERSION + 1)}
    version = max(tables, key=lambda number: (len(schema & tables[number]), number == version, number))
    required = tables[version]
    readable = {entry.name for entry in schema & required}
    if not readable:
        raise NotALibrary("the schema of the file cannot be read. Restore a copy.")
    damage = [f"table {entry.name} is missing or was changed" for entry in sorted(required - schema)]
    with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        for number, step in enumerate(MIGRATIONS[:version], 1):
            step(connection)
            connection.execute(f"PRAGMA user_version = {number}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for table in _TABLES:
            if table in readable:
                damage += _copy_rows(source, connection, table)
        for statement in _WITHOUT_LOST:
            table, column = statement.split()[1:4:2]
            if table in readable and (rows := connection.execute(statement).rowcount):
                damage.append(f"{column} of {rows} rows of {table} cannot be read")
        connection.execute("COMMIT")
    return damage


def _require_tables(version: int) -> set[SchemaObject]:
    """Return the primary tables of a version of the schema."""
    return {entry for entry in compute_schema(version)[0] if entry.type == "table" and entry.name in _TABLES}


def _copy_rows(source: sqlite3.Connection, connection: sqlite3.Connection, table: str) -> Iterator[str]:
    """Copy the readable rows of a table; yield the ranges of the others."""
    columns = ["rowid", *(row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[1] != "rowid")]
    read = f"SELECT {', '.join(columns)} FROM {table} NOT INDEXED WHERE rowid >= ? ORDER BY rowid"
    write = f"INSERT INTO {table}({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    start: int | None = 0
    while start is not None:
        try:
            for row in source.execute(read, (start,)):
                start = row[0] + 1
                try:
                    connection.execute(write, row)
                except sqlite3.IntegrityError as error:
                    yield f"row {row[0]} of {table} is damaged ({error})"
            return
        except sqlite3.DatabaseError as error:
            first, start = start, _find_readable(source, table, start)
            until = "on" if start is None else f"to {start - 1}"
            yield f"rows {first} {until} of {table} cannot be read ({error})"


def _find_readable(source: sqlite3.Connection, table: str, start: int) -> int | None:
    """Return the first row number from which a table can be read again, or None."""
    read = f"SELECT * FROM {table} NOT INDEXED WHERE rowid >= ? ORDER BY rowid LIMIT 1"

    def is_readable(number: int) -> bool:
        try:
            source.execute(read, (number,)).fetchall()
        except sqlite3.DatabaseError:
            return False
        return True

    # The rows of a damaged page are neighbors: double the distance, then halve the interval.
    distance = 1
    while start + distance < _LAST and not is_readable(start + distance):
        distance *= 2
    if start + distance >= _LAST:
        return None
    low, high = start + distance // 2, start + distance
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_readable(middle) else (middle, high)
    return high
