import os
import sqlite3
from contextlib import closing
from functools import partial
from unittest.mock import Mock

import pytest

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import NotALibrary
from hardwon.memory.storage.database import Store


@pytest.fixture
def store(path):
    """A store that is closed after the test."""
    store = Store(path)
    yield store
    store.close()


def write(path):
    """Write to the file through another connection."""
    with sqlite3.connect(path) as other:
        other.execute("INSERT INTO meta VALUES (?, '')", (f"x{other.execute('SELECT count(*) FROM meta').fetchone()}",))
    other.close()


def release(store):
    """Note that no episode waits."""
    store.freshness.waiting = None


def test_nothing_is_read_twice(store):
    """One catch-up for one version, and none for the next call."""
    file, read = Mock(), Mock()
    for _ in range(3):
        store.freshness.catch_up(file, read)
    assert (file.call_count, read.call_count) == (1, 1)


@pytest.mark.parametrize("own", [True, False])
def test_a_write_makes_what_was_read_stale(store, path, own):
    """Whichever connection writes."""
    read = Mock()
    store.freshness.catch_up(Mock(), read)
    if own:
        with store.transaction() as connection:
            connection.execute("INSERT INTO meta VALUES ('own', '')")
    else:
        write(path)
    assert store.freshness.version() != store.freshness.read_at
    store.freshness.catch_up(Mock(), read)
    assert read.call_count == 2
    assert store.freshness.version() == store.freshness.read_at


def test_rows_that_filing_writes_are_read_in_the_same_call(store):
    """They do not make the next call catch up again."""

    def file():
        with store.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('filed', '')")

    read = Mock()
    store.freshness.catch_up(file, read)
    store.freshness.catch_up(file, read)
    assert read.call_count == 1


def test_what_could_not_be_read_stays_stale(store):
    """An error during the read is not remembered as a success."""
    with pytest.raises(RuntimeError):
        store.freshness.catch_up(Mock(), Mock(side_effect=RuntimeError))
    assert store.freshness.read_at is None


def test_waiting_episodes_are_filed_before_a_read(store):
    """Before rows and before a snapshot; filing itself does not file again."""
    filed = Mock(side_effect=lambda: release(store))
    for ask in (lambda: store.rows("SELECT 1"), lambda: store.snapshot().__enter__()):
        filed.reset_mock()
        store.freshness.waiting = filed
        ask()
        assert filed.call_count == 1
        store.rows("SELECT 1")
        assert filed.call_count == 1


def test_the_buffer_is_filed_once_per_version(store, path):
    """And again when another process may have written to it, or this one did."""
    file = Mock(side_effect=lambda: release(store))
    hold = partial(setattr, store.freshness, "waiting", file)
    changes = (lambda: None, lambda: write(path), hold, store.freshness.discard)
    for expected, change in enumerate(changes, 1):
        change()
        for _ in range(2):
            store.freshness.file_waiting(file)
        assert file.call_count == expected


def test_a_switch_to_a_copy_is_noticed_once(store, path):
    """Ids of the file and of its copy may differ; a copy is stale when somebody writes to the file."""
    switched = store.freshness.on_switched = Mock()
    store.freshness.catch_up(Mock(), Mock())
    assert not store.freshness.is_copy_stale()
    store.to_copy(Mock())
    for _ in range(2):
        store.freshness.discard()  # or the second call would find nothing new
        store.freshness.catch_up(Mock(), Mock())
    assert switched.call_count == 1
    assert not store.freshness.is_copy_stale()
    write(path)
    assert store.freshness.is_copy_stale()
    store.to_file()
    store.freshness.catch_up(Mock(), Mock())
    assert switched.call_count == 2


def test_what_was_forgotten_is_dropped_once(path, episode):
    """In the process that forgets and in any other one."""
    with ExperienceLibrary.open(path) as one, ExperienceLibrary.open(path) as other:
        one.record(episode())
        assert other.episodes.count() == 1
        forgotten = Mock(wraps=other._file.freshness.on_forgotten)
        other._file.freshness.on_forgotten = forgotten
        one.admin.forget(text="spoon")
        assert other.episodes.count() == 0
        assert other.episodes.count() == 0
        one.record(episode(seed=9))
        assert other.episodes.count() == 1  # reads again, but nothing was forgotten since
        assert forgotten.call_count == 1


@pytest.mark.parametrize("rest", [0.0, 0.5, 0.99])
def test_a_file_that_was_cut_is_noticed(store, path, rest):
    """Before a write is acknowledged. SQLite would write to the rest, and read from its cache."""
    write(path)
    store.freshness.version()
    store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.freshness.version()
    os.truncate(path, int(path.stat().st_size * rest))
    for _ in range(2):
        with pytest.raises(NotALibrary, match=r"damaged|was cut while the library was open.*memory export"):
            store.freshness.version()
    with pytest.raises(NotALibrary), store.transaction():
        pass


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_file_that_another_process_compacted_is_whole(store, path, is_damaged):
    """Whatever its values are."""
    with store.transaction() as connection:
        if is_damaged:
            connection.execute("CREATE TABLE odd (value CHECK (value > 0))")
            connection.execute("PRAGMA ignore_check_constraints = 1")
            connection.execute("INSERT INTO odd VALUES (-1)")
            connection.execute("PRAGMA ignore_check_constraints = 0")
        connection.execute("CREATE TABLE filling AS SELECT zeroblob(200000) AS bytes")
    store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.freshness.version()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("DROP TABLE filling")
        other.execute("VACUUM")
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert store.freshness.version()
    write(path)
    assert store.rows("SELECT count(*) FROM items")


def overwrite(path, content, at=0):
    """Write to the file without SQLite, as `cp` does; it keeps its length if the content has it."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)
        file.truncate(max(file.tell(), at))


@pytest.fixture
def grown(store, path):
    """The store, its log copied into the file."""
    with store.transaction() as connection:
        connection.execute("CREATE TABLE filling AS SELECT randomblob(200000) AS bytes")
    store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.freshness.version()
    return store


@pytest.mark.parametrize(
    ("kind", "is_mapped"),
    [
        *((kind, is_mapped) for kind in ("zeros", "hole", "other", "longer", "shorter") for is_mapped in (False, True)),
        ("older", False),  # of a mapped file, nothing is in memory
    ],
)
def test_a_file_that_was_overwritten_is_noticed(grown, path, tmp_path, kind, is_mapped):
    """Before a write is acknowledged. SQLite would answer from its cache, and write into what is there."""
    size = path.stat().st_size
    old = path.read_bytes()
    if is_mapped:
        grown.connection.execute(f"PRAGMA mmap_size = {2**30}")
    with grown.transaction() as connection:
        connection.execute("INSERT INTO changes VALUES (1, 0.0, 1, 'items', 'x', 'add', '', 0)")
    grown.rows("SELECT * FROM changes ORDER BY seq DESC LIMIT 1")
    grown.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    grown.freshness.version()
    if kind in ("other", "longer", "shorter"):
        other = Store(tmp_path / "other.db")
        with other.transaction() as connection:
            filling = size * {"other": 1, "longer": 2, "shorter": 0}[kind]
            connection.execute("CREATE TABLE filling AS SELECT randomblob(?) AS bytes", (filling,))
        other.close()
        old = (tmp_path / "other.db").read_bytes()
        if kind == "other":
            old = old[: path.stat().st_size].ljust(path.stat().st_size, b"x")
    elif kind == "zeros":
        old = bytes(size)
    elif kind == "hole":
        old = old[: size // 2] + bytes(8192) + old[size // 2 + 8192 :]
    overwrite(path, old)
    for _ in range(2):
        with pytest.raises(NotALibrary, match=r"damaged|was overwritten while the library was open.*memory export"):
            grown.freshness.version()
    with pytest.raises(NotALibrary), grown.transaction():
        pass


def test_a_file_that_was_touched_or_restored_is_whole(grown, path):
    """It is read once in full, and used again."""
    os.utime(path)
    assert grown.freshness.version()
    content = path.read_bytes()
    overwrite(path, bytes(len(content)))
    with pytest.raises(NotALibrary):
        grown.freshness.version()
    overwrite(path, content)
    assert grown.freshness.version()


def test_a_backup_that_keeps_its_time_is_noticed_soon_after_a_commit(grown, path):
    content, times = path.read_bytes(), path.stat()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("INSERT INTO meta VALUES ('noticed', '')")
    grown.freshness.version()
    with grown.transaction() as connection:
        connection.execute("INSERT INTO changes VALUES (1, 0.0, 1, 'items', 'x', 'add', '', 0)")
    grown.rows("SELECT * FROM changes ORDER BY seq DESC LIMIT 1")
    grown.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    grown.freshness.version()
    overwrite(path, content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(NotALibrary):
        grown.freshness.version()


@pytest.mark.parametrize("own", [True, False])
def test_a_file_into_which_sqlite_copied_the_log_is_not_read(grown, path, own):
    """By this process or another one, of any size: to read it in full takes seconds."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        before = path.stat().st_mtime_ns
        for number in range(3):
            asked: list[str] = []
            other.execute("PRAGMA wal_autocheckpoint = 1")
            grown.connection.execute("PRAGMA wal_autocheckpoint = 1")
            if own:
                with grown.transaction() as connection:
                    connection.execute("INSERT INTO meta VALUES (?, '')", (f"own {number}",))
            else:
                other.execute("INSERT INTO meta VALUES (?, '')", (f"own {number}",))
            grown.connection.set_trace_callback(asked.append)
            grown.freshness.version()
            grown.connection.set_trace_callback(None)
            assert not any("quick_check" in statement for statement in asked)
        assert path.stat().st_mtime_ns != before


def test_the_log_may_be_copied_soon_after_a_commit_that_was_noticed(grown, path):
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("INSERT INTO meta VALUES ('noticed', '')")
        grown.freshness.version()
        other.execute("PRAGMA wal_checkpoint(PASSIVE)")
        asked: list[str] = []
        grown.connection.set_trace_callback(asked.append)
        grown.freshness.version()
        grown.connection.set_trace_callback(None)
        assert not any("quick_check" in statement for statement in asked)


def test_a_commit_while_a_touched_file_is_read_is_no_damage(grown, path, monkeypatch):
    read_tail = grown.freshness._read_tail

    def read_after_a_commit():
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("INSERT INTO changes VALUES (NULL, '', 1, 'a', 'b', 'c', '', 0)")
        return read_tail()

    os.utime(path)
    monkeypatch.setattr(grown.freshness, "_read_tail", read_after_a_commit)
    assert grown.freshness.version()
