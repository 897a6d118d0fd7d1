"""Make a library file of an older schema out of a new one, for tests of migrations."""

import sqlite3
from contextlib import closing
from pathlib import Path

from hardwon.memory.storage.migrations import MIGRATIONS, create_text_indexes
from hardwon.memory.storage.schema_check import SHARED_TEXTS


def downgrade(path: Path, schema: int) -> None:
    """Take away every table, column and index that came after a schema, and bring back what it had."""
    then, now = _schema(schema), _schema(len(MIGRATIONS))
    with closing(sqlite3.connect(path)) as connection, connection:
        if schema < SHARED_TEXTS:
            _divide_text_indexes(connection)
        for (kind, name), sql in now.items():
            if kind == "index" and then.get((kind, name)) != sql:
                connection.execute(f"DROP INDEX IF EXISTS {name}")
        for kind, name in now:
            if kind == "table" and (kind, name) not in then:
                connection.execute(f"DROP TABLE IF EXISTS {name}")  # FTS5 drops its own tables with the first
            elif kind == "table":
                for column in _columns(len(MIGRATIONS), name) - _columns(schema, name):
                    connection.execute(f"ALTER TABLE {name} DROP COLUMN {column}")
        for (kind, name), sql in sorted(then.items(), reverse=True):  # tables before their indexes
            if (kind, name) not in now or (kind == "index" and now[kind, name] != sql):
                connection.execute(sql)
        connection.execute(f"PRAGMA user_version = {schema}")


def _divide_text_indexes(connection: sqlite3.Connection) -> None:
    """Give every namespace text indexes of its own, with the rows of the shared ones."""
    for (namespace,) in connection.execute("SELECT id FROM namespaces").fetchall():
        create_text_indexes(connection, namespace)
        connection.execute(
            f"INSERT INTO items_text_{namespace}(rowid, text) SELECT rowid & {2**40 - 1}, text FROM items_text "
            f"WHERE rowid >> 40 = {namespace}"
        )
        for untrusted, kind in enumerate(("states", "testimony")):
            connection.execute(
                f"INSERT INTO {kind}_text_{namespace}(rowid, text) SELECT id, observation || char(10) || feedback "
                "FROM states WHERE namespace = ? AND untrusted = ?",
                (namespace, untrusted),
            )


def _made(schema: int) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    for step in MIGRATIONS[:schema]:
        step(connection)
    return connection


def _schema(schema: int) -> dict[tuple[str, str], str]:
    with closing(_made(schema)) as connection:
        rows = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {(kind, name): sql for kind, name, sql in rows}


def _columns(schema: int, table: str) -> set[str]:
    with closing(_made(schema)) as connection:
        return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
