"""Library files from elsewhere, with rows, pages and logs that hardwon never writes: no command ends in a traceback."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hardwon.apps.cli.app import app
from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Item, State, Step, Trajectory


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Return the path of a library; only to be copied."""
    path = tmp_path_factory.mktemp("sound") / "e.db"
    state = State("You see a kettle.", task="find the spoon")
    step = Step(state, "look", state, Diagnosis(True, Failure.NONE), 1.0, 0, ("*", "look"))
    with ExperienceLibrary.open(path) as library:
        library.record_many([Trajectory("find the spoon", (step,), True) for _ in range(3)])
        library.add(Item("insight", "A kettle stands beside the stove"))
        library.search("kettle")
    return path


ROWS = {
    "blob in text": "UPDATE trajectories SET task = x'ff00'",
    "blob in a name": "UPDATE namespaces SET name = x'ff'",
    "no namespace": "DELETE FROM namespaces",
    "number in text": "UPDATE trajectories SET task = 5, arm = 7",
    "text in numbers": "UPDATE trajectories SET success = 'yes', score = 'high'",
    "no JSON": "UPDATE steps SET why = '{'",
    "another JSON": "UPDATE steps SET why = '[1]'",
    "deep JSON": "INSERT INTO inbox(id, namespace, ref, named, at, episode) "
    f"VALUES (1, 1, 'a', 0, 'x', '{'[' * 99_999}')",
    "text in a vector": "UPDATE vectors SET vector = 'abc'",
    "large vector": "UPDATE vectors SET vector = zeroblob(1000000)",
    "no embedder": "DELETE FROM meta",
    "version": "UPDATE meta SET value = 'abc' WHERE name = 'keys'",
    "no words": "DELETE FROM states_text_data",
    "random words": "UPDATE states_text_data SET block = randomblob(200)",
    "length of a row": "UPDATE states_text_docsize SET sz = CAST('abc' AS TEXT)",
    "no length of a row": "UPDATE states_text_docsize SET sz = NULL",
    "long length of a row": f"UPDATE states_text_docsize SET sz = x'{'7f' * 2000}'",
    "settings": "UPDATE states_text_config SET v = 99",
    "largest number": "UPDATE items SET number = 9223372036854775807",
    "page of another table": "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master "
    "WHERE name = 'items') WHERE name = 'inbox'",
    "page of the table": "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master "
    "WHERE name = 'items') WHERE name = 'steps_by_pre'",
    "no definition": "UPDATE sqlite_master SET sql = NULL WHERE name = 'items'",
    "definition": "UPDATE sqlite_master SET sql = 'CREATE TABLE items(' WHERE name = 'items'",
    "twice": "INSERT INTO sqlite_master SELECT * FROM sqlite_master WHERE name = 'items'",
    "version of the schema": "PRAGMA user_version = -5",
}


def run_commands(path):
    """Run each command that reads; an error has a message and not a traceback."""
    runner = CliRunner()
    for command in (["stats"], ["ls"], ["verify"], ["search", "kettle"]):
        result = runner.invoke(app, ["memory", command[0], str(path), *command[1:]])
        assert result.exception is None or isinstance(result.exception, SystemExit), command


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ROWS)
def test_rows_that_hardwon_does_not_write(path, sound, name):
    shutil.copy(sound, path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(ROWS[name])
    run_commands(path)


def change_page_size(path: Path, size: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute(f"PRAGMA page_size = {size}")
        connection.execute("VACUUM")


def take_log(path: Path) -> None:
    """Put the log of a copy beside the file, in which a trigger drops what is recorded."""
    other = path.with_name("other.db")
    shutil.copy(path, other)
    with closing(sqlite3.connect(other, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TRIGGER evil BEFORE INSERT ON inbox BEGIN SELECT raise(IGNORE); END")
        shutil.copy(f"{other}-wal", f"{path}-wal")


def link(path: Path) -> None:
    path.rename(path.with_name("target.db"))
    path.symlink_to("target.db")


def write_bytes(path: Path, at: int, new: bytes) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:at] + new + content[at + len(new) :])


FILES = {
    "small pages": lambda path: change_page_size(path, 512),
    "large pages": lambda path: change_page_size(path, 65_536),
    "log of another file": take_log,
    "random log": lambda path: Path(f"{path}-wal").write_bytes(os.urandom(50_000)),
    "link": link,
    "half of a file": lambda path: os.truncate(path, path.stat().st_size // 2),
    "page size": lambda path: write_bytes(path, 16, b"\0\7"),
    "reserved bytes": lambda path: write_bytes(path, 20, b"\xff"),
    "UTF-16": lambda path: write_bytes(path, 56, b"\0\0\0\2"),
    "file format": lambda path: write_bytes(path, 18, b"\x09\x09"),
    "free pages": lambda path: write_bytes(path, 32, b"\0\0\0\2\0\0\xff\xff"),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", FILES)
def test_files_that_hardwon_does_not_write(path, sound, name):
    shutil.copy(sound, path)
    FILES[name](path)
    run_commands(path)


def test_a_trigger_in_a_log_from_elsewhere_is_refused(path, sound):
    shutil.copy(sound, path)
    take_log(path)
    result = CliRunner().invoke(app, ["memory", "stats", str(path)])
    assert result.exit_code == 1
    assert "trigger 'evil' on 'inbox' is unknown" in " ".join(result.output.split())
