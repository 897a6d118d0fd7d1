"""The bank of a shared library: every operation is an entry of the log, and the position of an entry is its id."""

from collections.abc import Callable
from typing import Any

from hardwon.memory.bank import Bank
from hardwon.memory.errors import LibraryError, UnknownName
from hardwon.memory.fleet.entries import pack
from hardwon.memory.fleet.log import Log
from hardwon.memory.privacy.redaction import redact
from hardwon.memory.records import Admission, Item
from hardwon.memory.storage.database import Store
from hardwon.memory.validation import check_text, check_whole


class SharedBank(Bank):
    """The entries of one task, for teams on several machines."""

    def __init__(
        self,
        store: Store,
        namespace: int,
        task: str,
        promote: Callable[[Item], Admission],
        log: Log,
        sync: Callable[[], int],
        make_key: Callable[[], str],
    ) -> None:
        super().__init__(store, namespace, task, promote)
        self._log, self._sync, self._make_key = log, sync, make_key

    def put(self, team: str, key: str, value: str) -> int:
        """Share a value under a short key; see `Bank.put`."""
        for name, text in (("team", team), ("key", key), ("value", value)):
            check_text(name, text)
        entry = self._append("put", self.task, redact(team), redact(key), redact(value))
        query = "SELECT pos FROM hardwon.positions WHERE namespace = %(namespace)s AND log_id = %(id)s"
        rows = self._log.read(query, {"id": entry})
        if not rows:
            raise LibraryError(f"{self._log.name} gave an entry no position. Run: hardwon doctor")
        return int(rows[0][0])

    def pull(self, entry: int, reader: str) -> str:
        """Return the value of an entry, and log the pull; see `Bank.pull`."""
        check_whole("entry", entry)
        check_text("reader", reader)
        reader = redact(reader)
        query = "SELECT value FROM bank_entries WHERE id = ? AND namespace = ? AND task = ?"
        rows = self._store.rows(query, (entry, self._namespace, self.task))
        if not rows:
            self._sync()
            rows = self._store.rows(query, (entry, self._namespace, self.task))
        if not rows:
            raise UnknownName.of("bank entry", str(entry), [str(ref) for ref in self.keys()])
        self._append("pull", entry, reader)  # before the value is returned: no value is read without its log entry
        return str(rows[0][0])

    def drop(self) -> None:
        """Delete all entries of the task, with their pulls."""
        self._append("drop", self.task)

    def _append(self, *values: Any) -> int:
        """Append an operation, and apply it to this replica."""
        (entry,) = self._log.append("bank", [(self._make_key(), pack(list(values)))])
        self._sync()
        return entry
