"""The rows of one namespace that a deletion reads and deletes, and the count of what it deleted."""

from collections import Counter
from sqlite3 import Connection
from typing import Any

from hardwon.memory.storage.database import Store

LISTED = "IN (SELECT value FROM json_each(?))"
"""SQL condition for a value in a JSON list."""
OPINIONS = "SELECT item_id, writer, episode FROM opinions WHERE namespace = ? AND {}"
"""Query for feedback."""


class RowQueries:
    """Reads and deletes rows in the transaction of a deletion."""

    def __init__(self, store: Store, connection: Connection, namespace: int) -> None:
        self.store = store
        self.connection = connection
        self.run = connection.execute
        self.namespace = namespace
        self.counts: Counter[str] = Counter()
        """Number of deleted rows by table."""

    def read_ids(self, sql: str, *parameters: Any) -> list[Any]:
        """Return the first column of a query."""
        return [row[0] for row in self.run(sql, parameters)]

    def read_columns(self, table: str) -> dict[str, str]:
        """Return the columns of a table with their types; empty if there is no such table."""
        return {name: kind for _, name, kind, *_ in self.run(f"PRAGMA table_info({table})")}

    def delete(self, table: str, where: str, *parameters: Any, label: str = "") -> None:
        """Delete rows, and count them under the table's name or a label."""
        self.counts[label or table] += self.run(f"DELETE FROM {table} WHERE {where}", parameters).rowcount
