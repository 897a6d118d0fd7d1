"""A damaged library is exported as far as it can be read, and the rest is named."""

import json
import random
import shutil
import sqlite3
from contextlib import closing, suppress

import pytest
from tests.memory import writers
from tests.memory.older import downgrade
from typer.testing import CliRunner

from hardwon.apps.cli.app import app
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import HardwonError, LibraryDamaged, NotALibrary
from hardwon.memory.storage.migrations import SCHEMA_VERSION
from hardwon.memory.storage.schema_check import read_schema
from hardwon.memory.upkeep.salvage import salvage

EPISODES, ITEMS = 16, 8


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The path of a library with episodes, items and usages."""
    path = tmp_path_factory.mktemp("sound") / "experience.db"
    with ExperienceLibrary.open(path) as library:
        library.record_many([writers.episode_of(f"e{number}") for number in range(EPISODES)])
        library.items.add_many([writers.item_of(f"i{number}") for number in range(ITEMS)])
        library.admin.index()
        library._file.store.shrink(rewrite=False)
    return path


@pytest.fixture
def copy(sound, path):
    shutil.copy(sound, path)
    return path


def save(path, target):
    """Salvage a library; return the counts of episodes and items that a new library imports, and the damage."""
    lines, damage = salvage(path, "default", target)
    kinds = [next(iter(json.loads(line))) for line in target.read_text().splitlines()]
    assert len(kinds) == lines
    with ExperienceLibrary.open(":memory:") as library:
        assert library.admin.import_jsonl(target) <= lines
        assert len(library.episodes.find()) == kinds.count("episode")
        assert len(library.items.find(status=None)) == kinds.count("item")
        assert library.admin.verify() == []
    assert [file.name for file in target.parent.glob("salvage-*")] == []
    return kinds.count("episode"), kinds.count("item"), damage


def change(path, *statements):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        for statement in statements:
            connection.execute(statement)


def test_a_sound_library_is_salvaged_whole(copy, tmp_path):
    assert save(copy, tmp_path / "out.jsonl") == (EPISODES, ITEMS, [])


def test_an_episode_in_the_write_buffer_is_salvaged(copy, tmp_path):
    library = ExperienceLibrary.open(copy)
    library.record(writers.episode_of("waiting"))
    library._file.store.close()  # as a kill does
    assert save(copy, tmp_path / "out.jsonl") == (EPISODES + 1, ITEMS, [])


ROW = {
    "item": ("UPDATE items SET record = '{' WHERE id = 'i3'", (0, 1)),
    "item of another shape": ("UPDATE items SET record = '[1]' WHERE id = 'i3'", (0, 1)),
    "item with a wrong type": ("UPDATE items SET record = json_set(record, '$.title', 5) WHERE id = 'i3'", (0, 1)),
    "meta": ("UPDATE trajectories SET meta = '{nope' WHERE id = 'e3'", (1, 0)),
    "score": ("UPDATE trajectories SET score = 'x' WHERE id = 'e3'", (1, 0)),
    "diagnosis": ("UPDATE steps SET diagnosis = 'x' WHERE trajectory_id = 'e3' AND t = 0", (1, 0)),
    "keys": ("UPDATE steps SET keys = '{}', why = '5' WHERE trajectory_id = 'e3' AND t = 0", (1, 0)),
    "facts of every state": ("UPDATE states SET facts = '{', notes = '7'", (0, 0)),
    "text that is no text": ("UPDATE states SET observation = CAST(x'c3ff' AS TEXT) WHERE id = 3", (0, 0)),
    "a key": ("DELETE FROM keys WHERE id = 2", (0, 0)),
    "history": (
        "UPDATE changes SET detail = '{' WHERE seq = (SELECT min(seq) FROM changes WHERE what = 'item')",
        (0, 0),
    ),
    "a letter": ("UPDATE states SET observation = observation || '!' WHERE id = 2", (0, 0)),
}


READABLE = {"a key", "a letter", "item with a wrong type", "score", "text that is no text"}
"""Damage that only checksums reveal: an export has what the row says, and `verify` names the row."""


@pytest.mark.parametrize("name", ROW)
def test_a_damaged_row_costs_what_needs_it(copy, tmp_path, name):
    statement, (episodes, items) = ROW[name]
    change(copy, statement)
    *counts, damage = save(copy, tmp_path / "out.jsonl")
    assert counts == [EPISODES - episodes, ITEMS - items]
    assert damage or name == "a key"
    with ExperienceLibrary.open(copy) as library:
        assert library.admin.verify()
    if name not in READABLE:
        with ExperienceLibrary.open(copy) as library, pytest.raises(LibraryDamaged, match="memory verify"):
            library.admin.export_jsonl(tmp_path / "none.jsonl")
        assert not (tmp_path / "none.jsonl").exists()


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_page_costs_its_rows(copy, tmp_path, seed):
    """Of a table or of an index; a damaged index costs nothing."""
    content, draw = bytearray(copy.read_bytes()), random.Random(seed)
    page = draw.randrange(1, len(content) // 4096)
    content[page * 4096 : (page + 1) * 4096] = draw.randbytes(4096)
    copy.write_bytes(content)
    episodes, items, damage = save(copy, tmp_path / "out.jsonl")
    assert (episodes, items) == (EPISODES, ITEMS) or damage
    assert episodes + items


def test_a_damaged_page_of_the_schema_costs_the_tables_behind_it(copy, tmp_path):
    """SQLite keeps the entries before it."""
    content, saved = copy.read_bytes(), []
    for page in range(1, 60):
        copy.write_bytes(content[: page * 4096] + bytes(4096) + content[(page + 1) * 4096 :])
        with closing(sqlite3.connect(copy)) as connection:
            try:
                read_schema(connection)
            except sqlite3.DatabaseError:
                with suppress(NotALibrary):  # the first of its pages
                    saved.append(save(copy, tmp_path / "out.jsonl"))
    assert len(saved) >= 2
    assert any(part[:2] == (EPISODES, ITEMS) for part in saved)
    assert all(damage for *_, damage in saved)


HEADER = {
    "name": (0, b"SQLite f0rmat 3"), "page size": (16, b"\0\5"), "versions": (18, b"\7\7"),
    "reserved space": (20, b"\5"), "payload fractions": (21, b"\0\0\0"), "number of pages": (28, b"\0\0\0\5"),
    "schema format": (44, b"\xff" * 4),
    "encoding": (56, b"\0\0\0\3"), "application": (68, b"\0\0\0\0"),
}  # fmt: skip


@pytest.mark.parametrize("field", HEADER)
def test_a_wrong_header_costs_nothing(copy, tmp_path, field):
    at, value = HEADER[field]
    content = copy.read_bytes()
    for wrong in (value, b"\0" * len(value), b"\0" * (len(value) - 1) + b"\1", content[at : at + len(value)]):
        copy.write_bytes(content[:at] + wrong + content[at + len(value) :])
        *counts, damage = save(copy, tmp_path / "out.jsonl")
        is_named = damage == [f"the {field} in the header of the file is wrong"]
        # some other values are right, too
        assert (counts, is_named or damage == []) == ([EPISODES, ITEMS], True)
        assert is_named or wrong != value
    for file in (copy, *copy.parent.glob("experience.db-*")):
        file.unlink()
    copy.write_bytes(content[:at] + value + content[at + len(value) :])
    result = CliRunner().invoke(app, ["memory", "export", str(copy), str(tmp_path / "out.jsonl")])
    assert (result.exit_code, type(result.exception)) == (1, SystemExit)
    assert f"the {field} in the header" in result.stderr


def test_a_wrong_header_does_not_cost_what_the_log_has(sound, copy, tmp_path):
    """Of a process that was killed, the newest episodes are in the file beside the library."""
    other = shutil.copy(sound, tmp_path / "running.db")
    with ExperienceLibrary.open(other) as library:
        library.items.add_many([writers.item_of("newest")])
        for end in ("", "-wal"):
            shutil.copy(f"{other}{end}", f"{copy}{end}")
    content = copy.read_bytes()
    copy.write_bytes(content[:28] + b"\0\0\0\5" + content[32:])
    assert save(copy, tmp_path / "out.jsonl")[:2] == (EPISODES, ITEMS + 1)


@pytest.mark.parametrize("version", [0, 1, 5, 2**31 - 1])
def test_a_wrong_version_in_the_header_costs_nothing(copy, tmp_path, version):
    content = copy.read_bytes()
    copy.write_bytes(content[:60] + version.to_bytes(4, "big") + content[64:])
    assert save(copy, tmp_path / "out.jsonl")[:2] == (EPISODES, ITEMS)


def test_a_file_of_a_newer_version_is_refused(copy, tmp_path):
    change(copy, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(NotALibrary, match="schema up to"):
        salvage(copy, "default", tmp_path / "out.jsonl")


@pytest.mark.parametrize("share", [0.6, 0.8, 0.95])
def test_a_truncated_file_costs_what_is_cut(copy, tmp_path, share):
    content = copy.read_bytes()
    copy.write_bytes(content[: int(len(content) * share)])
    episodes, items, damage = save(copy, tmp_path / "out.jsonl")
    assert (episodes, items) == (EPISODES, ITEMS) or damage


@pytest.mark.parametrize("schema", [1, 11, SCHEMA_VERSION - 1])
def test_an_older_library_is_salvaged(copy, tmp_path, schema):
    """Sound, and with damage in rows and in the file."""
    downgrade(copy, schema)
    assert save(copy, tmp_path / "out.jsonl") == (EPISODES, ITEMS, [])
    change(copy, ROW["item"][0], ROW["facts of every state"][0], ROW["meta"][0])
    episodes, items, damage = save(copy, tmp_path / "out.jsonl")
    assert (episodes, items) == (EPISODES - 1, ITEMS - 1)
    assert damage


def test_what_another_program_added_is_not_executed(copy, tmp_path):
    """A trigger, an index that fails, and a view without end."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id FROM n"
    change(
        copy,
        "CREATE TRIGGER t BEFORE INSERT ON steps BEGIN SELECT raise(IGNORE); END",
        "CREATE INDEX evil ON steps(abs(length(why)))",
        "DROP TABLE items",
        f"CREATE VIEW items AS {endless}",
    )
    episodes, items, damage = save(copy, tmp_path / "out.jsonl")
    assert (episodes, items, damage) == (EPISODES, 0, ["table items is missing or was changed"])


def test_the_command_writes_the_file_names_the_damage_and_fails(copy, tmp_path):
    change(copy, *ROW["item"][:1], "CREATE TRIGGER t BEFORE INSERT ON steps BEGIN SELECT raise(IGNORE); END")
    target = tmp_path / "out.jsonl"
    result = CliRunner().invoke(app, ["memory", "export", str(copy), str(target)])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert "item i3 cannot be read" in result.stderr
    assert f"{len(target.read_text().splitlines())} lines written" in result.stdout


FIRST_PAGE = {"zeros": (0, bytes(4096)), "noise": (0, b"\xa5\5\r" * 1365), "no schema": (100, bytes(3996))}


@pytest.mark.parametrize("is_compact", [False, True])
@pytest.mark.parametrize("what", FIRST_PAGE)
def test_a_lost_first_page_costs_nothing(copy, tmp_path, what, is_compact):
    """It only lists the other pages of the schema, which name their rows."""
    if is_compact:  # other pages
        change(copy, "VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)")
    at, page = FIRST_PAGE[what]
    content = copy.read_bytes()
    copy.write_bytes(content[:at] + page + content[at + len(page) :])
    assert save(copy, tmp_path / "out.jsonl") == (EPISODES, ITEMS, ["the first page of the file is damaged"])


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 50_000])
def test_a_file_without_any_page_of_the_schema_is_no_library(copy, tmp_path, size):
    copy.write_bytes(b"SQLite format 3\0"[:size] + bytes(max(0, size - 16)))
    with pytest.raises(NotALibrary, match="Restore a copy"):
        salvage(copy, "default", tmp_path / "out.jsonl")
    refused = CliRunner().invoke(app, ["memory", "export", str(copy), str(tmp_path / "out.jsonl")])
    assert (refused.exit_code, type(refused.exception)) == (1, SystemExit)
    assert "memory export" not in refused.stderr  # it was just tried


@pytest.mark.parametrize("column", ["type", "name", "tbl_name", "sql"])
def test_a_damaged_row_of_the_schema_costs_its_table(copy, tmp_path, column):
    change(copy, f"UPDATE sqlite_master SET {column} = 5 WHERE name = 'offers'")
    result = CliRunner().invoke(app, ["memory", "export", str(copy), str(tmp_path / "out.jsonl")])
    assert isinstance(result.exception, SystemExit), result.exception
    assert "offers" in result.output


CELLS = {
    "trajectories": ("score", "meta", "recorded_at", "task"),
    "steps": ("reward", "action"),
    "states": ("observation",),
    "namespaces": ("name",),
    "changes": ("detail",),
    "words": ("episodes",),
}


@pytest.mark.parametrize("value", ["x'00ff'", "CAST(x'c3ff7b' AS TEXT)", "'[1]'"])
@pytest.mark.parametrize("table", CELLS)
def test_no_command_ends_in_a_traceback(copy, table, value):
    change(copy, *(f"UPDATE {table} SET {column} = {value}" for column in CELLS[table]))
    for command in ("show e3", "history i1", "ls", "search drawer", "stats", "verify"):
        verb, *rest = command.split()
        result = CliRunner().invoke(app, ["memory", verb, str(copy), *rest])
        assert result.exception is None or isinstance(result.exception, (SystemExit, HardwonError)), command
