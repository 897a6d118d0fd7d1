"""Checksums of rows: a byte changed in any column of the truth is found, named, and held up nothing else."""

import sqlite3
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.memory.older import downgrade

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Item, State, Step, Trajectory
from hardwon.memory.errors import LibraryError
from hardwon.memory.reasons import Reasons
from hardwon.memory.storage.checksums import SUMMED
from hardwon.memory.upkeep.figures import read_clusters

SEE = State("a room with a drawer", {"door": "shut"}, "room", "find the map", "you wait", ("a note",))
THEN = State("an open drawer", {"drawer": "open"}, "room", "find the map")


def _episode(name: str, **changes) -> Trajectory:
    steps = (
        Step(SEE, "open drawer", THEN, Diagnosis(True), -0.0, admissible=("open drawer", "wait")),
        Step(THEN, "eat drawer", SEE, Diagnosis(False, Failure.NO_EFFECT), 1, admissible=("eat drawer",)),
    )
    return Trajectory("find the map", steps, True, 1, "off", 7, "done", {"environment": "rooms"}, name, **changes)


def _populate(path) -> None:
    """Write every kind of row, and change what is changed later: scores, uses, history."""
    with ExperienceLibrary.open(path) as library:
        added = library.add(Item("insight", "drawers jam", "pull them hard"))
        assert added.item_id
        library.record(_episode("first"))
        shown = replace(
            _episode("second"), steps=tuple(replace(s, why=Reasons(recalled=(str(added.item_id),))) for s in SEEN)
        )
        library.record(shown)
        library.items.update(added.item_id, title="drawers often jam")
        library.items.retire(library.add(Item("insight", "tables do not jam")).item_id or "", "not so")
        library.evolve()
        library.recall(SEE, k=3)
        library.record(_episode("", writer="mcp:x", trust="untrusted"))
        library.items.find()


SEEN = _episode("x").steps


def _flipped(value):
    """The value with one byte changed, as a disk may change it."""
    if isinstance(value, bytes):
        return bytes([value[0] ^ 1]) + value[1:] if value else b"\x01"
    if isinstance(value, float):
        return value + 1e-9 if value else 1e-300
    return 1 if value is None else value ^ 2**30  # no other row has the number


def _columns(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Every column of every table of the truth, apart from the counts that are made of other rows."""
    made = {("steps", "attempt"), ("steps", "folded"), ("inbox", "failed")}
    named = [(table, row[1]) for table in SUMMED for row in connection.execute(f"PRAGMA table_info({table})")]
    return [one for one in named if one not in made]


def _change(path, table: str, column: str, invalid: bool) -> int:
    """Change one byte of the first row that has one there, and return the row's number (0 for none)."""
    key = SUMMED[table].key
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        text = f"CASE typeof({column}) WHEN 'text' THEN CAST({column} AS BLOB) ELSE {column} END"
        ref, value, kind = connection.execute(
            f"SELECT {key}, {text}, typeof({column}) FROM {table} ORDER BY length({column}) DESC LIMIT 1"
        ).fetchone()
        changed = b"\xff" + value[1:] if invalid and kind == "text" and value else _flipped(value)
        mark = "CAST(? AS TEXT)" if kind == "text" else "?"
        connection.execute(f"UPDATE {table} SET {column} = {mark} WHERE {key} = ?", (changed, ref))
        return int(changed if column == key or (table == "items" and column == "number") else ref)


@pytest.fixture(scope="module")
def content(tmp_path_factory) -> bytes:
    """A library that has a row in every table, one of them an episode that a killed process left in the inbox."""
    path: Path = tmp_path_factory.mktemp("sound") / "experience.db"
    _populate(path)
    library = ExperienceLibrary.open(path)
    library.record(_episode("waiting"))
    library._file.store.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes()


def _write(content: bytes, path) -> None:
    """Write a library file without the log of the one before."""
    path.write_bytes(content)
    for suffix in ("-wal", "-shm"):
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)


@pytest.mark.parametrize("invalid", [False, True], ids=["another letter", "no UTF-8"])
def test_one_byte_changed_in_any_column_is_found(tmp_path, content, invalid):
    """With its table and the number of its row; the library it was copied from is sound."""
    copy = tmp_path / "copy.db"
    _write(content, copy)
    with closing(sqlite3.connect(copy)) as connection:
        columns = _columns(connection)
        empty = [table for table in SUMMED if not connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]]
    assert empty == []
    assert len(columns) > 80
    missed = []
    for table, column in columns:
        _write(content, copy)
        ref = _change(copy, table, column, invalid)
        with ExperienceLibrary.open(copy) as library:
            problems = library.admin.verify()
        if not any(table in one.where and (str(ref) in one.what or table == "inbox") for one in problems):
            missed.append((table, column, ref, problems))
    assert missed == []
    _write(content, copy)
    with ExperienceLibrary.open(copy) as library:
        assert library.admin.verify() == []


NO_JSON = ("[1, 2", "null", "[]", '"text"', "7", '{"a": 1}', b"\xff{")
JSON_COLUMNS = (
    *(("trajectories", "meta"), ("states", "facts"), ("states", "notes"), ("steps", "diagnosis"), ("steps", "keys")),
    *(("steps", "why"), ("items", "record"), ("changes", "detail"), ("offers", "actions"), ("inbox", "episode")),
    *(("worlds", "record"), ("attempts", "failures")),
)


@pytest.mark.parametrize(("table", "column"), JSON_COLUMNS, ids=".".join)
def test_damaged_json_is_named_or_left_out(tmp_path, content, table, column):
    """Whatever is asked of the library: an answer, or an error of ours that names the table and the next step."""
    copy, refused = tmp_path / "copy.db", 0
    for text in NO_JSON[: -1 if table in ("attempts", "worlds") else None]:
        _write(content, copy)
        with closing(sqlite3.connect(copy)) as connection, connection:
            connection.execute(f"UPDATE {table} SET {column} = CAST(? AS TEXT)", (text,))
        refused += _ask_everything(copy, table)
    if table in ("trajectories", "states", "items"):
        assert refused


@contextmanager
def _named(table: str, number: int):
    try:
        yield
    except LibraryError as error:
        words = str(error)
        if table not in words or "hardwon memory" not in words:
            raise AssertionError(f"call {number} raised {error!r}") from error
        raise


def _ask_everything(path, table: str) -> int:
    """Ask for everything, and count the errors: each must be ours, and say what to do."""
    with ExperienceLibrary.open(path) as library:
        ids = [row[0] for row in library._file.store.rows("SELECT id FROM items")]
        asked = [
            lambda: library.recall(SEE, k=3, actions={"open drawer": "", "eat drawer": ""}),
            lambda: library.recall("a drawer", k=3),
            lambda: library.recall(SEE, level="task"),
            lambda: library.search("drawer"),
            lambda: library.check(SEE, "eat drawer"),
            lambda: library.items.find(status=None),
            lambda: library.items.find(text="drawers"),
            *(lambda ref=ref: library.items.get(ref) for ref in ids),
            *(lambda ref=ref: library.items.history(ref) for ref in ids),
            *(lambda ref=ref: library.items.update(ref, title="drawers jam at times") for ref in ids),
            library.episodes.find,
            lambda: library.episodes.get("first"),
            lambda: library.episodes.steps([1, 2, 3]),
            library.episodes.summaries,
            lambda: library.admin.query(read_clusters),
            library.evolve,
            library.admin.stats,
            lambda: library.record(_episode("one more")),
            lambda: library.admin.export_jsonl(path.parent / "out.jsonl"),
            library.admin.index,
            library.admin.repair,
        ]
        refused = 0
        assert library.admin.verify() or table in ("attempts", "worlds")
        for number, ask in enumerate(asked):
            with suppress(LibraryError), _named(table, number):
                ask()
                refused -= 1
            refused += 1
        return refused


def test_a_damaged_row_holds_up_no_other(path, content, caplog):
    """The other items are recalled and learned from; the damaged one is logged."""
    _write(content, path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE items SET record = substr(record, 1, 40) WHERE number = 1")
        connection.execute("UPDATE states SET observation = CAST(x'ff41' AS TEXT) WHERE id = 1")
    with ExperienceLibrary.open(path) as library:
        assert library.add(Item("insight", "doors creak", "oil them")).status == "added"
        assert library.recall("doors creak", k=5).items
        assert "is skipped" in caplog.text
        assert {one.where for one in library.admin.verify()} == {"rows of items", "rows of states"}
        assert {one.where for one in library.admin.repair()} == {"rows of items", "rows of states"}


def test_rows_of_an_older_library_get_checksums(tmp_path):
    """When it is opened: all of them, whatever its schema; and a row without one is told, and given one by repair."""
    path = tmp_path / "experience.db"
    _populate(path)
    for schema in (8, 10):
        downgrade(path, schema)
        with ExperienceLibrary.open(path) as library:
            assert library.admin.verify() == []
            for table in SUMMED:
                assert not library._file.store.rows(f"SELECT 1 FROM {table} WHERE checksum IS NULL")
            library._file.store.connection.execute("UPDATE items SET checksum = NULL")
            assert [one.where for one in library.admin.verify()] == ["checksums"]
            library.admin.repair()
            assert library.admin.verify() == []


def test_damage_of_a_state_names_the_episodes_to_delete(tmp_path):
    path = tmp_path / "a.db"
    with ExperienceLibrary.open(path) as library:
        (ref,) = library.record_many([_episode("x")])
        library.recall(SEE)
    assert _change(path, "states", "observation", invalid=False)
    with ExperienceLibrary.open(path) as library:
        (problem,) = (one for one in library.admin.verify() if one.where == "rows of states")
    assert f"(episodes: {ref})" in problem.what
    assert problem.remedy.endswith(f"hardwon memory forget LIBRARY --episode {ref}")
