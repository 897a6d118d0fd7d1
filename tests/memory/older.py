"""Make a library file of an older schema out of a new one, for tests of migrations."""

import sqlite3
from contextlib import closing
from pathlib import Path

from hardwon.memory.storage.migrations import MIGRATIONS


def downgrade(path: Path, schema: int) -> None:
    """Take away every table, column and index that came after a schema, and bring back what it had."""
    then, now = _schema(schema), _schema(len(MIGRATIONS))
    with closing(sqlite3.connect(path)) as connection, connection:
        for (kind, name), sql in now.items():
            if kind == "index" and then.get((kind, name)) != sql:
                connection.execute(f"DROP INDEX IF EXISTS {name}")
        for kind, name in now:
            if kind == "table" and (kind, name) not in then:
                connection.execute(f"DROP TABLE {name}")
            elif kind == "table":
                for column in _columns(len(MIGRATIONS), name) - _columns(schema, name):
                    connection.execute(f"ALTER TABLE {name} DROP COLUMN {column}")
        for (kind, name), sql in then.items():
            if kind == "index" and now.get((kind, name)) != sql:
                connection.execute(sql)
        connection.execute(f"PRAGMA user_version = {schema}")


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
