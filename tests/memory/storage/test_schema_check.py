"""A library file from elsewhere: every object that hardwon does not create is refused by name."""

import sqlite3
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import LibraryDamaged, LibraryError
from hardwon.memory.fleet import snapshots
from hardwon.memory.fleet.outbox import Outbox
from hardwon.memory.storage import schema_check
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.migrations import MIGRATIONS, SCHEMA_DIGEST, SCHEMA_VERSION
from hardwon.memory.storage.schema_check import compute_digest, compute_schema, read_schema
from hardwon.memory.stored_values import ValueBatch, ValueWrite

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"


def edit(path, *statements):
    """Change a library as another program would, with `sql` columns of the schema written directly."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        for statement in statements:
            connection.execute(statement)


def rewrite(table, old, new):
    """Return a statement that changes the definition of an object."""
    return f"UPDATE sqlite_master SET sql = replace(sql, '{old}', '{new}') WHERE name = '{table}'"


CHANGES = {
    "drop": ["CREATE TRIGGER drop_it BEFORE INSERT ON inbox BEGIN SELECT raise(IGNORE); END"],
    "delete_it": ["CREATE TRIGGER delete_it AFTER INSERT ON trajectories BEGIN DELETE FROM trajectories; END"],
    "tell": ["CREATE TRIGGER tell AFTER UPDATE ON items BEGIN DELETE FROM usages; END"],
    "items": ["ALTER TABLE items RENAME TO kept", "CREATE VIEW items AS SELECT * FROM kept"],
    "trajectories": [
        "DROP TABLE trajectories",
        f"CREATE VIEW trajectories AS {ENDLESS} SELECT i AS id, 1 AS namespace, 1 AS success FROM n",
    ],
    "meta": ["DROP TABLE meta", f"CREATE VIEW meta AS {ENDLESS} SELECT i AS name, i AS value FROM n"],
    "namespaces": ["DROP TABLE namespaces", "CREATE TABLE namespaces (id INTEGER PRIMARY KEY, name TEXT)"],
    "inside": [
        "CREATE VIEW inside AS SELECT 1 AS id",
        "CREATE TRIGGER inside_it INSTEAD OF INSERT ON inside BEGIN SELECT 1; END",
    ],
    "steps": ["ALTER TABLE steps RENAME COLUMN reward TO gain"],
    "usages": ["ALTER TABLE usages ADD COLUMN twice REAL GENERATED ALWAYS AS (outcome * 2) VIRTUAL"],
    "states": [rewrite("states", "notes TEXT NOT NULL", "notes TEXT NOT NULL CHECK (length(notes) < 3)")],
    "inbox": [rewrite("inbox", "episode TEXT NOT NULL", "episode TEXT NOT NULL ON CONFLICT IGNORE")],
    "keys": [rewrite("keys", "text TEXT NOT NULL UNIQUE", "text TEXT NOT NULL UNIQUE ON CONFLICT REPLACE")],
    "changes": ["DROP TABLE changes"],
    "steps_by_pre": ["DROP INDEX steps_by_pre"],
    "items_by_namespace": [
        "DROP INDEX items_by_namespace",
        "CREATE UNIQUE INDEX items_by_namespace ON items(namespace)",
    ],
    "evil": ["CREATE INDEX evil ON steps(abs(json_extract(why, '$.x')))"],
    "some": ["CREATE INDEX some ON steps(action) WHERE reward > 0"],
    "photos": ["CREATE VIRTUAL TABLE photos USING fts5(id)"],
    "json_each": ["CREATE TABLE json_each (value)"],
    "JSON_Tree": ["CREATE TABLE JSON_Tree (value)"],
    "pragma_table_info": ["CREATE TABLE pragma_table_info (name)"],
    "of_mine": ["CREATE TABLE mine (a)", "CREATE TRIGGER of_mine AFTER INSERT ON mine BEGIN DELETE FROM items; END"],
    "by_size": ["CREATE TABLE mine (a)", "CREATE INDEX by_size ON mine(length(a))"],
    "some_of_mine": ["CREATE TABLE mine (a)", "CREATE INDEX some_of_mine ON mine(a) WHERE zeroblob(9) IS NULL"],
    "twice": ["CREATE UNIQUE INDEX twice ON steps(action)"],
    "words": ["DROP TABLE words", "CREATE VIRTUAL TABLE words USING fts5(namespace, word, episodes)"],
    "opinions": ["DROP TABLE opinions", "CREATE TABLE opinions (namespace, item_id, writer, episode, moved)"],
    "states_text": ["DROP TABLE states_text", "CREATE VIEW states_text AS SELECT '' AS text"],
    "langgraph_values": ["CREATE TABLE langgraph_values (id)"],
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_changed_schema_is_refused_by_name(path, episode, name, read_only):
    with ExperienceLibrary.open(path) as library:
        library.record(episode("go"))
    edit(path, *CHANGES[name])
    content = path.read_bytes()
    with pytest.raises(LibraryDamaged, match=rf"changed by another program.* '{name}.*hardwon memory export"):
        ExperienceLibrary.open(path, read_only=read_only)
    assert path.read_bytes() == content


@pytest.mark.parametrize("schema", [1, SCHEMA_VERSION - 1])
def test_a_changed_schema_is_refused_before_it_is_migrated(path, schema):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for step in MIGRATIONS[:schema]:
            step(connection)
        connection.execute("PRAGMA application_id = 502807")
        connection.execute(f"PRAGMA user_version = {schema}")
        connection.execute("CREATE TRIGGER drop_it BEFORE INSERT ON meta BEGIN SELECT raise(IGNORE); END")
    with pytest.raises(LibraryDamaged, match="trigger 'drop_it' on 'meta' is unknown"):
        Store(path)
    edit(path, "DROP TRIGGER drop_it")
    Store(path).close()


def test_a_false_version_is_refused(path):
    """A table of a later version, as those of schema 18, is unknown, and nothing is migrated twice."""
    Store(path).close()
    edit(path, "PRAGMA user_version = 17")
    with pytest.raises(LibraryDamaged, match="is unknown"):
        Store(path)


def test_what_hardwon_and_sqlite_create_is_accepted(path, episode):
    """Several namespaces, stored values, statistics and a copy by VACUUM."""
    for namespace in ("default", "second"):
        with ExperienceLibrary.open(path, namespace=namespace) as library:
            library.record(episode("go"))
            with closing(library.admin.open_values()) as values:
                values.write(ValueBatch([ValueWrite("users.", "ann", "{}")]))
    edit(path, "ANALYZE", "VACUUM")
    with ExperienceLibrary.open(path) as library:
        assert library.episodes.count() == 1


PLAIN = {
    "Litestream": [
        "CREATE TABLE _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER)",
        "CREATE TABLE _litestream_lock (id INTEGER)",
    ],
    "quoted": ['CREATE TABLE "my notes" (a TEXT UNIQUE, b)', 'CREATE INDEX "by b" ON "my notes" (b, a DESC)'],
    "brackets": ["CREATE TABLE [notes] (a PRIMARY KEY) WITHOUT ROWID", "CREATE UNIQUE INDEX n ON notes(a)"],
    "lines": ["CREATE TABLE\n  notes(\n  a INTEGER PRIMARY KEY\n)"],
    "statistics": ["ANALYZE"],
    "column": ["CREATE TABLE mine (item TEXT REFERENCES items(id) ON DELETE CASCADE)"],
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("schema", [2, SCHEMA_VERSION])
def test_plain_tables_of_other_programs_are_accepted(path, episode, name, schema):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for step in MIGRATIONS[:schema]:
            step(connection)
        connection.execute("PRAGMA application_id = 502807")
        connection.execute(f"PRAGMA user_version = {schema}")
    edit(path, *PLAIN[name])
    with ExperienceLibrary.open(path) as library:
        library.record(episode("go"))
        assert library.admin.verify() == []
    with ExperienceLibrary.open(path, read_only=True) as library:
        assert library.episodes.count() == 1


@pytest.mark.parametrize("name", ["drop", "items", "trajectories", "some"])
def test_a_schema_that_changes_while_the_file_is_open_is_noticed(path, episode, name):
    """Before the next write is acknowledged, and by the next recall."""
    with ExperienceLibrary.open(path) as library, ExperienceLibrary.open(path) as reader:
        library.record(episode("go"))
        reader.recall("go")
        edit(path, *CHANGES[name])
        with pytest.raises(LibraryDamaged, match=f"changed by another program.*'{name}"):
            library.record(episode("go"))
        with pytest.raises(LibraryDamaged, match=f"changed by another program.*'{name}"):
            reader.recall("go")


def test_a_plain_table_may_come_while_the_file_is_open(path, episode):
    with ExperienceLibrary.open(path) as library:
        library.record(episode("go"))
        edit(path, *PLAIN["Litestream"], "ANALYZE")
        library.record(episode("go"))
        assert library.episodes.count() == 2


def test_a_table_with_the_name_of_a_later_migration_is_refused(path):
    """The migration would use it as its own."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        MIGRATIONS[0](connection)
        connection.execute("PRAGMA application_id = 502807")
        connection.execute("PRAGMA user_version = 1")
        connection.execute("CREATE TABLE Attempts (id)")
    with pytest.raises(LibraryDamaged, match="table 'Attempts' is unknown"):
        Store(path)


def test_the_hash_of_the_schema_is_current(path):
    """Update SCHEMA_DIGEST with each migration."""
    ExperienceLibrary.open(path).close()
    with closing(sqlite3.connect(path)) as connection:
        found = read_schema(connection)
        rows = connection.execute(schema_check._READ).fetchall()
    assert found <= compute_schema(SCHEMA_VERSION)[1]
    assert compute_digest(rows) == SCHEMA_DIGEST


def test_functions_of_the_schema_are_not_trusted(path):
    with closing(Store(path)) as store:
        assert store.connection.execute("PRAGMA trusted_schema").fetchone() == (0,)
        assert store.connection.execute("PRAGMA cell_size_check").fetchone() == (1,)


def test_a_changed_snapshot_of_a_shared_library_is_refused(path):
    """Before its table `meta` is read, which may be a view without end."""
    Store(path).close()
    edit(path, *CHANGES["meta"])
    log: Any = SimpleNamespace(name="log", database="d", namespace="n")
    snapshot = snapshots.Snapshot(1, 1, SCHEMA_VERSION, 1, "")
    with closing(sqlite3.connect(path)) as source, pytest.raises(LibraryError, match="view 'meta' is changed"):
        snapshots._check(log, snapshot, source)


def test_a_changed_outbox_is_refused(tmp_path):
    """It would acknowledge episodes and drop them."""
    Outbox(tmp_path).put([("e", b"x")])
    Outbox(tmp_path)
    edit(tmp_path / "outbox.db", "CREATE TRIGGER t BEFORE INSERT ON waiting BEGIN SELECT raise(IGNORE); END")
    with pytest.raises(LibraryDamaged, match="trigger 't' on 'waiting' is unknown"):
        Outbox(tmp_path)


@pytest.mark.parametrize(("since_ns", "has_stamp"), [(10**8 - 1, False), (10**8, True)])
def test_a_file_that_was_just_written_has_no_stamp(path, monkeypatch, since_ns, has_stamp):
    """Another change within the same tick would get the same time."""
    path.write_bytes(b"x")
    now = path.stat().st_ctime_ns + since_ns
    monkeypatch.setattr(schema_check, "time", SimpleNamespace(time_ns=lambda: now))
    assert (schema_check._read_stamp(str(path)) is not None) is has_stamp
