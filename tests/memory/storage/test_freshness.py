import os
import sqlite3
from contextlib import closing
from unittest.mock import Mock

import pytest

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import LibraryMissing, NotALibrary
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
    filed = Mock(side_effect=store.freshness.release)
    for ask in (lambda: store.rows("SELECT 1"), lambda: store.snapshot().__enter__()):
        filed.reset_mock()
        store.freshness.hold(filed)
        ask()
        assert filed.call_count == 1
        store.rows("SELECT 1")
        assert filed.call_count == 1


def test_the_buffer_is_filed_once_per_version(store, path):
    """And again when another process may have written to it, or this one did."""
    file = Mock(side_effect=store.freshness.release)
    changes = (lambda: None, lambda: write(path), lambda: store.freshness.hold(file), store.freshness.discard)
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


def test_a_file_that_was_replaced_is_noticed(store, path):
    """Otherwise writes would be lost."""
    store.freshness.check_same_file()
    path.rename(path.with_suffix(".old"))
    with pytest.raises(LibraryMissing, match="removed"):
        store.freshness.version()
    path.write_bytes(b"")
    with pytest.raises(LibraryMissing, match="replaced"):
        store.freshness.version()
    path.unlink()
    path.with_suffix(".old").rename(path)
    store.freshness.version()


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
