"""The bank: what parallel teams share during one task, dropped when the task ends.

Readers see keys only and pull values; every pull is logged, a team's pull of its own entry apart.
It lives in the library's file, so that teams in several processes share it. It decides nothing:
what is worth sharing is the runtime's business, what outlasts the task is the curator's.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from .errors import UnknownName
from .privacy.redaction import redact
from .records import Admission, Item
from .storage.database import Store
from .validation import check_text, check_whole


@dataclass(frozen=True, slots=True)
class Entry:
    """What every team sees of something that was shared; the value is pulled."""

    id: int
    team: str
    """Who shared it."""
    key: str


class Bank:
    """Entries of one task; use as a context manager."""

    def __init__(self, store: Store, namespace: int, task: str, promote: Callable[[Item], Admission]) -> None:
        self._store, self._namespace, self._promote = store, namespace, promote
        self.task = task

    def put(self, team: str, key: str, value: str) -> int:
        """Share a value under a short key; returns the entry's number."""
        for name, text in (("team", team), ("key", key), ("value", value)):
            check_text(name, text)
        with self._store.transaction() as connection:
            cursor = connection.execute(
                "INSERT INTO bank_entries(namespace, task, team, key, value) VALUES (?, ?, ?, ?, ?)",
                (self._namespace, self.task, team, redact(key), redact(value)),
            )
            assert cursor.lastrowid is not None
            return cursor.lastrowid

    def entries(self, after: int = 0) -> list[Entry]:
        """What there is, without the values, oldest first; only what came after the entry of this number."""
        check_whole("after", after)
        rows = self._store.rows(
            "SELECT id, team, key FROM bank_entries WHERE namespace = ? AND task = ? AND id > ? ORDER BY id",
            (self._namespace, self.task, after),
        )
        return [Entry(*row) for row in rows]

    def keys(self) -> dict[int, str]:
        """Number to key, oldest first."""
        return {entry.id: entry.key for entry in self.entries()}

    def pull(self, entry: int, reader: str) -> str:
        """The value of an entry; the pull is logged."""
        check_whole("entry", entry)
        check_text("reader", reader)
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

    def promote(self, item: Item, episode: str) -> Admission:
        """Keep something beyond the task, through the library's admission like any other item.

        `episode` is the id of a recorded episode that vouches for it: one that the environment called a
        success. Nobody's word will do, and no answer that nothing verified. Its steps are the evidence
        of an item that names none.
        """
        known = self._store.rows(
            "SELECT success FROM trajectories WHERE namespace = ? AND id = ?", (self._namespace, episode)
        )
        if known != [(1,)]:
            ended = "is not recorded" if not known else "did not succeed"
            return Admission("rejected", f"no verified outcome: episode {episode!r} {ended}")
        if not item.provenance:
            steps = self._store.rows(
                "SELECT id FROM steps WHERE namespace = ? AND trajectory_id = ? ORDER BY t", (self._namespace, episode)
            )
            item = replace(item, provenance=tuple(step for (step,) in steps))
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
