"""The bank: short-lived memory that teams share during one task, deleted when the task ends.

Readers see the keys and pull the values they need. Every pull is logged; pulls of a team's own entries are logged
separately. The bank is stored in the library's file, so teams in several processes can share it. It makes no
decisions: the runtime decides what to share, and the curator decides what outlasts the task.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from .errors import UnknownName
from .privacy.redaction import redact
from .records import Admission, Item
from .storage.counted import OUTCOME
from .storage.database import Store
from .validation import check_text, check_whole


@dataclass(frozen=True, slots=True)
class Entry:
    """A shared value as every team sees it: team and key. The value itself must be pulled."""

    id: int
    team: str
    """Name of the team that shared it."""
    key: str


class Bank:
    """The entries of one task. Use it as a context manager: leaving it deletes them."""

    def __init__(self, store: Store, namespace: int, task: str, promote: Callable[[Item], Admission]) -> None:
        self._store, self._namespace, self._promote = store, namespace, promote
        self.task = task

    def put(self, team: str, key: str, value: str) -> int:
        """Share a value under a short key."""
        for name, text in (("team", team), ("key", key), ("value", value)):
            check_text(name, text)
        with self._store.transaction() as connection:
            cursor = connection.execute(
                "INSERT INTO bank_entries(namespace, task, team, key, value) VALUES (?, ?, ?, ?, ?)",
                (self._namespace, self.task, redact(team), redact(key), redact(value)),
            )
            assert cursor.lastrowid is not None
            return cursor.lastrowid

    def entries(self, after: int = 0) -> list[Entry]:
        """Return the entries without their values, oldest first."""
        check_whole("after", after)
        rows = self._store.rows(
            "SELECT id, team, key FROM bank_entries WHERE namespace = ? AND task = ? AND id > ? ORDER BY id",
            (self._namespace, self.task, after),
        )
        return [Entry(*row) for row in rows]

    def keys(self) -> dict[int, str]:
        """Return the key of every entry by id, oldest first."""
        return {entry.id: entry.key for entry in self.entries()}

    def pull(self, entry: int, reader: str) -> str:
        """Return the value of an entry, and log the pull."""
        check_whole("entry", entry)
        check_text("reader", reader)
        reader = redact(reader)
        with self._store.transaction() as connection:
            row = connection.execute(
                "SELECT value, team FROM bank_entries WHERE id = ? AND namespace = ? AND task = ?",
                (entry, self._namespace, self.task),
            ).fetchone()
            if row is None:
                raise UnknownName.of("bank entry", str(entry), [str(ref) for ref in self.keys()])
            connection.execute(  # in the same transaction: no value is read without its log entry
                "INSERT INTO bank_pulls(entry, reader, own) VALUES (?, ?, ?)", (entry, reader, row[1] == reader)
            )
            return str(row[0])

    def pulls(self, *, own: bool = False) -> list[tuple[int, str]]:
        """Return (entry, reader) of every logged pull, oldest first."""
        rows = self._store.rows(
            "SELECT entry, reader FROM bank_pulls JOIN bank_entries ON bank_entries.id = entry "
            "WHERE namespace = ? AND task = ? AND own = ? ORDER BY bank_pulls.id",
            (self._namespace, self.task, own),
        )
        return [(entry, reader) for entry, reader in rows]

    def promote(self, item: Item, episode: str) -> Admission:
        """Propose an item to the library, so that it outlasts the task.

        The item passes the same admission as any other, and needs the evidence of a recorded episode that the
        environment scored as a success, graded ones with 1. An item without provenance gets the steps of this episode.
        """
        outcomes = self._store.rows(
            f"SELECT {OUTCOME} FROM trajectories WHERE namespace = ? AND id = ?", (self._namespace, episode)
        )
        # NULL, the outcome of an episode whose environment failed, is not a success either
        if outcomes != [(1,)]:
            reason = "is not recorded" if not outcomes else "did not succeed"
            return Admission("rejected", f"no verified outcome: episode {episode!r} {reason}")
        if not item.provenance:
            steps = self._store.rows(
                "SELECT id FROM steps WHERE namespace = ? AND trajectory_id = ? ORDER BY t", (self._namespace, episode)
            )
            item = replace(item, provenance=tuple(step for (step,) in steps))
        return self._promote(item)

    def drop(self) -> None:
        """Delete all entries of the task, with their pulls."""
        with self._store.transaction() as connection:
            entries = "SELECT id FROM bank_entries WHERE namespace = ? AND task = ?"
            # pulls first: they belong to a task only through their entries
            connection.execute(f"DELETE FROM bank_pulls WHERE entry IN ({entries})", (self._namespace, self.task))
            connection.execute(
                "DELETE FROM bank_entries WHERE namespace = ? AND task = ?", (self._namespace, self.task)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()
