import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from tests import warm

from hardwon.memory import ExperienceLibrary, Item, Trajectory
from hardwon.memory.errors import (
    LibraryError,
    LibraryMissing,
    LibraryReadOnly,
    LibraryUnwritable,
    NewerSchema,
    NotALibrary,
)
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.open_files import OPEN_FILES


@pytest.fixture
def store(path):
    """An empty library's file."""
    opened = Store(path)
    yield opened
    opened.close()


def test_a_library_writes_ahead(store):
    """WAL with full synchronisation: readers do not block the writer, a commit is on disk."""
    assert store.rows("PRAGMA journal_mode") == [("wal",)]
    assert store.rows("PRAGMA synchronous") == [(2,)]


def test_a_transaction_is_whole_or_not_at_all(store):
    """What raises inside leaves nothing behind."""
    with suppress(KeyError), store.transaction() as connection:
        connection.execute("INSERT INTO meta VALUES ('a', 'b')")
        raise KeyError
    assert store.rows("SELECT * FROM meta WHERE name != 'id'") == []


def test_transactions_nest(store):
    """An inner one belongs to the outer one."""
    with suppress(KeyError), store.transaction():
        with store.transaction() as connection:
            connection.execute("INSERT INTO meta VALUES ('a', 'b')")
        raise KeyError
    assert store.rows("SELECT * FROM meta WHERE name != 'id'") == []


CLOSE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM meta WHERE name != 'id'").fetchone()
connection.close()
"""


def test_a_second_connection_of_a_process_keeps_the_locks_of_the_first(store, path):
    """Another process that closes the file must not take itself for the last user and delete the log in use."""
    with store.transaction() as connection:
        connection.execute("INSERT INTO meta VALUES ('a', 'b')")
    other = Store(path)
    warm.run([sys.executable, "-c", CLOSE, str(path)], check=True, timeout=60)
    assert Path(f"{path}-wal").exists()
    other.close()
    warm.run([sys.executable, "-c", CLOSE, str(path)], check=True, timeout=60)
    assert Path(f"{path}-wal").exists()


def test_a_file_is_forgotten_when_its_last_connection_closes(path):
    one, other = Store(path), Store(path)
    one.close()
    assert path in OPEN_FILES
    other.close()
    other.close()
    assert path not in OPEN_FILES


def test_a_snapshot_is_of_one_moment(path, store):
    """What another process writes meanwhile is not seen until the snapshot ends."""
    other = Store(path)
    with store.snapshot():
        before = store.rows("SELECT count(*) FROM meta WHERE name != 'id'")
        with other.transaction() as connection:
            connection.execute("INSERT INTO meta VALUES ('a', 'b')")
        assert store.rows("SELECT count(*) FROM meta WHERE name != 'id'") == before
    assert store.rows("SELECT count(*) FROM meta WHERE name != 'id'") == [(1,)]
    other.close()


def test_a_folder_is_not_a_library(tmp_path):
    """The message offers a file in it."""
    with pytest.raises(NotALibrary, match=r"is a folder\. Give the path of a library file, such as .*experience\.db"):
        Store(tmp_path)


def test_a_text_file_is_not_a_library(tmp_path):
    """It is left as it is."""
    (tmp_path / "notes.txt").write_text("dear diary")
    with pytest.raises(NotALibrary, match=r"not a hardwon library .* Give another path"):
        Store(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "dear diary"


def test_another_program_s_database_is_not_a_library(tmp_path):
    """No table of ours is put into it."""
    other = sqlite3.connect(tmp_path / "photos.db")
    other.execute("CREATE TABLE photos (id)")
    other.close()
    with pytest.raises(NotALibrary, match="is a SQLite database, but not a hardwon library"):
        Store(tmp_path / "photos.db")


def test_a_newer_library_is_refused(path, store):
    """An older hardwon must not write what it does not understand."""
    store.connection.execute("PRAGMA user_version = 99")
    store.close()
    with pytest.raises(NewerSchema, match=r"has schema 99, .* run: pip install \."):
        Store(path)


def test_a_missing_folder_is_named(tmp_path):
    """It is not created: a typo should not make folders."""
    with pytest.raises(LibraryUnwritable, match=r"the folder .*nowhere does not exist\. Create it first"):
        Store(tmp_path / "nowhere" / "experience.db")


def test_reading_what_is_not_there(tmp_path):
    """Nothing is created by a reader."""
    with pytest.raises(
        NotALibrary, match=r"there is no library at .* Correct the path, or record there: with your agent"
    ):
        Store(tmp_path / "experience.db", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_does_not_write(path, store):
    """The message says how to open it for writing."""
    reader = Store(path, read_only=True)
    with pytest.raises(LibraryReadOnly, match="Open it with read_only=False to write"), reader.transaction():
        pass
    reader.close()


def test_a_damaged_file_is_named(path, store):
    """A file cut off in the middle is not taken for an empty library."""
    store.close()
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(NotALibrary, match=r"damaged or not a SQLite database .* Restore a copy"):
        Store(path)


def test_a_closed_library_says_so(path):
    """No error of SQLite comes through bare, and closing twice is fine."""
    library = ExperienceLibrary.open(path)
    library.close()
    library.close()
    with pytest.raises(LibraryError, match="closed database"):
        library.recall("anything")


def test_a_library_in_memory_leaves_no_file(tmp_path, monkeypatch):
    """`:memory:` is for this process alone."""
    monkeypatch.chdir(tmp_path)
    with ExperienceLibrary.open(":memory:") as library:
        library.add(Item("insight", "x"))
        assert len(library.items.find()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named_and_survived(library, episode):
    """The episode that does not fit is refused whole; with space again the library goes on."""
    kept = library.record(episode())
    store = library._file.store
    (pages,) = store.connection.execute("PRAGMA page_count").fetchone()
    store.connection.execute(f"PRAGMA max_page_count = {pages}")
    dusty = [episode(see=f"{number} " + "dust " * 500) for number in range(200)]
    with pytest.raises(LibraryUnwritable, match=r"a full disk, but|is full"):
        [library.record(one) for one in dusty]
    held = len(library.episodes.find())
    assert library.recall("wooden drawer").steps
    store.connection.execute("PRAGMA max_page_count = 1000000")
    library.record(episode())
    assert len(library.episodes.find()) == held + 1
    assert library.episodes.get(kept).steps
    assert library.admin.verify() == []


def test_a_writer_waits_for_another(path, store, monkeypatch):
    """A second process's short transaction is waited for, not refused."""
    other = Store(path)
    ready = threading.Event()

    def write():
        with other.transaction() as connection:
            ready.set()
            connection.execute("INSERT INTO meta VALUES ('a', 'b')")
            threading.Event().wait(0.1)

    thread = threading.Thread(target=write)
    thread.start()
    ready.wait()
    with store.transaction() as connection:
        connection.execute("INSERT INTO meta VALUES ('c', 'd')")
    thread.join()
    other.close()
    assert len(store.rows("SELECT * FROM meta WHERE name != 'id'")) == 2


def test_a_writer_that_never_ends_is_named(path, monkeypatch):
    """After the timeout the message says what to do."""
    monkeypatch.setattr("hardwon.memory.storage.database.BUSY_TIMEOUT_S", 0.05)
    first, second = Store(path), Store(path)
    with (
        first.transaction(),
        pytest.raises(LibraryUnwritable, match=r"locked by another writer .* Stop it"),
        second.transaction(),
    ):
        pass
    first.close()
    second.close()


def test_many_processes_may_create_one_library(path):
    """Whoever is first makes the tables; nobody fails."""
    code = (
        "import sys; from hardwon.memory import ExperienceLibrary, Item; "
        "ExperienceLibrary.open(sys.argv[1]).add(Item('insight', sys.argv[2]))"
    )
    runs = [warm.Popen([sys.executable, "-c", code, str(path), f"by {n}"], stderr=subprocess.PIPE) for n in range(3)]
    assert [run.communicate()[1] for run in runs] == [b""] * 3
    with ExperienceLibrary.open(path) as library:
        assert len(library.items.find()) == 3


def test_a_new_file_that_another_is_changing_is_waited_for(path):
    """SQLite itself refuses at once to write ahead while another process makes the tables."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    ended = threading.Timer(0.1, other.execute, ["COMMIT"])
    ended.start()
    Store(path).close()
    ended.join()
    other.close()


def as_nobody(check):
    """Run a check as a user without rights, since root may write anywhere; whether it passed."""
    child = os.fork()
    if child == 0:  # pragma: no cover
        os.setgid(65534)
        os.setuid(65534)
        try:
            check()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_file_that_may_not_be_written_is_refused_at_once():
    """Not at the end of the first episode. It may still be read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "experience.db"
        ExperienceLibrary.open(path).close()
        path.chmod(0o444)
        Path(folder).chmod(0o555)

        def check():
            with pytest.raises(LibraryUnwritable, match="is not writable"):
                Store(path)
            with pytest.raises(LibraryUnwritable, match="Check the permissions of the file and its folder"):
                Store(Path(folder) / "new.db")
            with ExperienceLibrary.open(path, read_only=True) as library:
                assert library.episodes.count() == 0

        assert as_nobody(check)


def test_a_library_cut_to_nothing_is_not_a_new_one(path):
    """Its experience is lost: that is told, with what to do, and not hidden behind an empty library."""
    with ExperienceLibrary.open(path) as library:
        library.add(Item("insight", "drawers jam in winter"))
    for read_only in (False, True):
        path.write_bytes(b"")
        os.utime(path, (0, 0))
        with pytest.raises(NotALibrary, match=r"is empty.*Restore a copy, or delete the file"):
            ExperienceLibrary.open(path, read_only=read_only)
        assert path.read_bytes() == b""
    path.unlink()
    with ExperienceLibrary.open(path) as library:
        assert library.items.find() == []


def test_an_empty_file_of_this_moment_is_waited_for(path, monkeypatch):
    """Another process may be making it; one that stays empty is refused."""
    monkeypatch.setattr("hardwon.memory.storage.database.MAKING_S", 0.3)
    path.touch()
    with pytest.raises(NotALibrary, match="is empty"):
        ExperienceLibrary.open(path)


@pytest.mark.parametrize("became", ["removed", "replaced"])
def test_a_file_that_is_gone_is_noticed(path, tmp_path, became):
    """At the next write and at the next read; nothing is acknowledged that nobody will find."""
    with ExperienceLibrary.open(path) as library, ExperienceLibrary.open(tmp_path / "other.db") as other:
        library.add(Item("insight", "drawers jam in winter"))
        other.add(Item("insight", "doors stick in summer"))
        path.unlink()
        if became == "replaced":
            shutil.copy(tmp_path / "other.db", path)
        with pytest.raises(LibraryMissing, match=f"was {became}"):
            library.add(Item("insight", "lamps break at night"))
        with pytest.raises(LibraryMissing):
            library.recall("drawers")
        with pytest.raises(LibraryMissing):
            library.record(Trajectory("t", (), True))
