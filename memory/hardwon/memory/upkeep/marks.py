"""Marks: facts about a library file that stay true, such as that it had an access token."""

from sqlite3 import Connection

from hardwon.memory.storage.database import Store


def is_marked(store: Store, name: str) -> bool:
    """Return whether the file has a mark."""
    return bool(store.rows("SELECT 1 FROM meta WHERE name = ?", (name,)))


def mark(connection: Connection, name: str) -> None:
    """Add a mark in an open transaction; marking twice is allowed."""
    connection.execute("INSERT OR IGNORE INTO meta (name, value) VALUES (?, ?)", (name, "yes"))
