"""The bank: what parallel teams share during one task, dropped when the task ends.

Readers see keys only and pull values; every pull is logged, a team's pull of its own entry apart.
It lives in the library's file, so that teams in several processes share it.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from .errors import UnknownName
from .records import Admission, Item
from .redaction import redact
from .store import Store


class Bank:
    """Entries of one task; use as a context manager."""

    def __init__(self, store: Store, namespace: int, task: str, promote: Callable[[Item], Admission]) -> None:
        self._store, self._namespace, self._promote = store, namespace, promote
        self.task = task

    def put(self, team: str, key: str, value: str) -> int:
        """Share a value under a short key; returns the entry's number."""
        with self._store.transaction() as connection:
            cursor = connection.execute(
                "INSERT INTO bank_entries(namespace, task, team, key, value) VALUES (?, ?, ?, ?, ?)",
                (self._namespace, self.task, team, redact(key), redact(value)),
            )
            assert cursor.lastrowid is not None
            return cursor.lastrowid

    def keys(self) -> dict[int, str]:
        """What there is, without the values: number to key, oldest first."""
        return dict(
            self._store.rows(
                "SELECT id, key FROM bank_entries WHERE namespace = ? AND task = ? ORDER BY id",
                (self._namespace, self.task),
            )
        )

    def pull(self, entry: int, reader: str) -> str:
        """The value of an entry; the pull is logged."""
        with self._store.transaction() as connection:
            row = connection.execute(
                "SELECT value, team FROM bank_entries WHERE id = ? AND namespace = ? AND task = ?",
                (entry, self._namespace, self.task),
            ).fetchone()
            if row is None:
                raise UnknownName.of("bank entry", str(entry), [str(known) for known in self.keys()])
            connection.execute(
                "INSERT INTO bank_pulls(entry, reader, own) VALUES (?, ?, ?)", (entry, reader, row[1] == reader)
            )
            return str(row[0])

    def pulls(self, *, own: bool = False) -> list[tuple[int, str]]:
        """(entry, reader) of every pull by another team, or of every pull of an own entry."""
        rows = self._store.rows(
            "SELECT entry, reader FROM bank_pulls JOIN bank_entries ON bank_entries.id = entry "
            "WHERE namespace = ? AND task = ? AND own = ? ORDER BY bank_pulls.id",
            (self._namespace, self.task, own),
        )
        return [(entry, reader) for entry, reader in rows]

    def promote(self, item: Item) -> Admission:
        """Keep something beyond the task: through the library's admission like any other item."""
        return self._promote(item)

    def drop(self) -> None:
        """Forget all entries of the task."""
        with self._store.transaction() as connection:
            mine = "SELECT id FROM bank_entries WHERE namespace = ? AND task = ?"
            connection.execute(f"DELETE FROM bank_pulls WHERE entry IN ({mine})", (self._namespace, self.task))
            connection.execute(
                "DELETE FROM bank_entries WHERE namespace = ? AND task = ?", (self._namespace, self.task)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()
