"""The error of a write that fails names its cause: the disk, temporary files, a quota, a limit, or memory."""

import os
import sqlite3
import subprocess
import sys
from collections import namedtuple
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from hardwon.memory import ExperienceLibrary, sqlite_errors
from hardwon.memory.errors import LibraryError, LibraryUnwritable, NotALibrary
from hardwon.memory.upkeep.damage import readable

Usage = namedtuple("Usage", "total used free")
PLENTY = 40 * 10**9


def failed(code, message="database or disk is full"):
    error = sqlite3.OperationalError(message)
    error.sqlite_errorname = code
    return sqlite_errors.translate_error(error, "/data/library.db", read_only=False, busy_s=1)


@pytest.fixture
def free(monkeypatch, tmp_path):
    """Sets the free space of the disk of the library and of the folder of temporary files."""
    monkeypatch.setenv("SQLITE_TMPDIR", str(tmp_path))

    def set_free(library, temporary=PLENTY):
        sizes = {Path("/data"): library, tmp_path: temporary}
        monkeypatch.setattr("shutil.disk_usage", lambda folder: Usage(0, 0, sizes[folder]))

    return set_free


def test_a_full_disk_is_called_full_only_if_it_is(free, tmp_path):
    free(library=10**6)
    assert "the disk of /data/library.db is full. Free some space" in str(failed("SQLITE_FULL"))
    free(library=PLENTY, temporary=10**6)
    words = str(failed("SQLITE_FULL"))
    assert f"temporary files, {tmp_path}, is full (1 MB free)" in words
    assert "set SQLITE_TMPDIR" in words
    free(library=PLENTY)
    words = str(failed("SQLITE_FULL"))
    assert "40.0 GB are free in /data now" in words
    assert "quota" in words


@pytest.mark.parametrize("code", ["SQLITE_IOERR_NOMEM", "SQLITE_IOERR_SHMMAP"])
def test_a_file_error_for_lack_of_memory_does_not_blame_the_disk(code):
    error = failed(code, "disk I/O error")
    assert type(error) is LibraryError
    assert "not enough memory" in str(error)
    assert code in str(error)


def test_a_lost_table_is_damage():
    error = failed("SQLITE_ERROR", "no such table: steps")
    assert type(error) is NotALibrary
    assert "no such table: steps" in str(error)
    assert "memory export /data/library.db" in str(error)


def test_a_bare_error_of_a_library_names_its_file(path, monkeypatch):
    """The connection is also asked where nothing translates: what does come through still names the next step."""
    with ExperienceLibrary.open(path) as library:
        lost = Mock(side_effect=sqlite3.DatabaseError("no such table: receipts"))
        monkeypatch.setattr(library._file, "caught_up", lost)
        with pytest.raises(NotALibrary, match=f"{path.name} has lost .*memory export"):
            library.recall("kettle")


def test_a_bare_error_of_a_command_names_its_file(path):
    path.write_bytes(b"x" * 4096)
    with (
        pytest.raises(NotALibrary, match=f"{path.name} is damaged or not a SQLite database"),
        readable(path.name),
        closing(sqlite3.connect(path)) as connection,
    ):
        connection.execute("SELECT * FROM sqlite_master")


def test_another_file_error_names_its_code():
    assert "the disk reported an error (disk I/O error, SQLITE_IOERR_FSYNC)" in str(
        failed("SQLITE_IOERR_FSYNC", "disk I/O error")
    )


def run(code, **environment):
    """Run a program with a library at `path` and return the error that it prints."""
    head = "import resource, sys\nfrom hardwon.memory.errors import HardwonError\n"
    head += "from hardwon.memory.storage.database import Store\npath = sys.argv[1]\n"
    done = subprocess.run(
        [sys.executable, "-c", head + code, environment.pop("path")],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_process_that_runs_out_of_memory_says_so_and_goes_on(path):
    said = run(
        """
store = Store(path)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 50_000_000, -1))
for sql in ("CREATE TABLE big AS SELECT zeroblob(400000000) AS x", "SELECT hex(zeroblob(400000000))"):
    try:
        with store.transaction() as connection:
            connection.execute(sql).fetchall()
    except HardwonError as error:
        print(type(error).__name__, error)
try:
    store.rows("SELECT hex(zeroblob(400000000))")
except HardwonError as error:
    print(type(error).__name__, error)
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
with store.transaction() as connection:
    connection.execute("CREATE TABLE small (x)")
print(store.rows("SELECT count(*) FROM small"))
""",
        path=str(path),
    )
    assert said.count(f"LibraryError {path}: there was not enough memory") == 3
    assert "the disk" not in said
    assert said.splitlines()[-1] == "[(0,)]"


def test_a_limit_of_the_size_of_files_is_named(path):
    said = run(
        """
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, -1))
try:
    with store.transaction() as connection:
        connection.execute("CREATE TABLE big AS SELECT randomblob(8000000) AS x")
except HardwonError as error:
    print(type(error).__name__, error)
""",
        path=str(path),
    )
    assert f"LibraryUnwritable {path}: a file of the library may not grow beyond 3 MB" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_full_temporary_files_are_not_called_a_full_library(path, tmp_path):
    """A sort that does not fit into memory uses temporary files. They fill a disk of 1 MB; the library has room."""
    disk = tmp_path / "temporary"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False
    ).returncode:
        pytest.skip("no right to mount")
    try:
        said = run(
            """
store = Store(path)
store.connection.execute("PRAGMA cache_size = 10")
with store.transaction() as connection:
    connection.execute("CREATE TABLE big (x)")
    connection.executemany("INSERT INTO big VALUES (randomblob(1000))", [()] * 4000)
try:
    with store.transaction() as connection:
        connection.execute("CREATE TABLE sorted AS SELECT x FROM big ORDER BY x")
except HardwonError as error:
    print(type(error).__name__, error)
""",
            path=str(path),
            SQLITE_TMPDIR=str(disk),
        )
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert f"temporary files, {disk}, is full" in said
    assert issubclass(LibraryUnwritable, LibraryError)
