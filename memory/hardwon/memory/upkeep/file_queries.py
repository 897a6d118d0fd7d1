"""Query the file of a library as a whole: its namespaces, their sizes, its index files, and SQLite itself."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from hardwon.memory.storage.database import Store


def list_namespaces(path: Path, *, read_only: bool = True) -> list[str]:
    """Return the names of the namespaces of a library, sorted."""
    with closing(Store(path, read_only=read_only)) as store:
        return [row[0] for row in store.rows("SELECT name FROM namespaces ORDER BY name")]


def count_episodes(path: Path) -> dict[str, int]:
    """Return the number of episodes of every namespace that has any, largest first."""
    query = (
        "SELECT name, count(*) FROM trajectories JOIN namespaces ON namespaces.id = namespace "
        "GROUP BY name ORDER BY 2 DESC, 1"
    )
    with closing(Store(path, read_only=True)) as store:
        return dict(store.rows(query))


def list_index_files(path: Path) -> dict[str, int]:
    """Return the sizes in bytes of the index files beside a library, by file name."""
    return {file.name: file.stat().st_size for file in sorted(Path(f"{path}.index").glob("*")) if file.is_file()}


def sqlite_version() -> str:
    """Return the version of Python's SQLite."""
    return sqlite3.sqlite_version


def has_fts5() -> bool:
    """Return whether Python's SQLite supports full-text search."""
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE VIRTUAL TABLE probe USING fts5(text)")
        return True
    return False


def open_scratch() -> sqlite3.Connection:
    """Open an empty temporary database outside any library. SQLite removes its file when the connection closes.

    Use it for data that may be larger than the memory and need not survive a crash: it has no journal.
    """
    connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")
    return connection


def is_marked(store: Store, name: str) -> bool:
    """Return whether the file has a mark: a fact that stays true, such as that it had an access token."""
    return bool(store.rows("SELECT 1 FROM meta WHERE name = ?", (name,)))


def mark(connection: sqlite3.Connection, name: str) -> None:
    """Add a mark in an open transaction; marking twice is allowed."""
    connection.execute("INSERT OR IGNORE INTO meta (name, value) VALUES (?, ?)", (name, "yes"))
