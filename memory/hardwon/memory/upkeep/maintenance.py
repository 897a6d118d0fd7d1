"""Maintenance of a library: forgetting, checks and repairs, export and import. `library` records and recalls."""

from abc import abstractmethod
from pathlib import Path
from typing import Any

from hardwon.memory.errors import UnknownName
from hardwon.memory.records import Problem
from hardwon.memory.retrieval.embedders import Embedder
from hardwon.memory.retrieval.search import KINDS, Search
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.freshness import Freshness

from . import forgetting, integrity, jsonl, queries
from .administration import TendedLibrary
from .digest import compute_digest
from .write_buffer import WriteBuffer


class MaintainedLibrary(TendedLibrary):
    """The methods of one namespace of a library that maintain its file."""

    namespace: str
    _store: Store
    _freshness: Freshness
    _embedder: Embedder
    _search: Search
    _inbox: WriteBuffer

    @abstractmethod
    def _forget(self) -> None:
        """Discard derived state, so that it is read again from the file."""

    def forget(
        self,
        *,
        episode: str | None = None,
        writer: str | None = None,
        text: str | None = None,
        namespace: str | None = None,
        dry_run: bool = False,
    ) -> forgetting.ForgetReceipt:
        """Delete experience permanently: rows, indexes, summaries, history, and items without other evidence.

        Give exactly one selector. Items that have other evidence are rebuilt from it. The bytes are removed from the
        file, its write-ahead log and the cache files beside it.

        Args:
            episode: Id of an episode.
            writer: Name of a writer.
            text: Text that episodes or items contain in any field, in upper or lower case.
            namespace: Name of a namespace, which is deleted as a whole.
            dry_run: Count the rows without deleting them.

        Returns:
            A receipt with the number of deleted rows per table.

        Raises:
            UnknownName: The episode or the namespace does not exist.
            ConfigError: There is no selector, more than one, or an empty one.
        """
        what, value = forgetting.parse_selector(episode=episode, writer=writer, text=text, namespace=namespace)
        with self._lock:
            self._filed()
            number = self._number
            if what == "namespace":
                number = self._number_of(value)
                WriteBuffer(self._store, number).file()  # the selected namespace has a write buffer of its own
            elif not dry_run:
                self._inbox.on_file()
            try:
                return forgetting.forget(self._store, number, what, value, dry_run=dry_run)
            finally:
                self._freshness.discard()  # even if it fails halfway, the next read must look again

    def _number_of(self, namespace: str) -> int:
        """Return the number of an existing namespace. Raises UnknownName."""
        numbers = dict(self._store.rows("SELECT name, id FROM namespaces"))
        if namespace not in numbers:
            raise UnknownName.of("namespace", namespace, numbers)
        return int(numbers[namespace])

    def stats(self) -> dict[str, Any]:
        """Return counts, sizes and ages of this namespace.

        `scans` is the number of index searches of this process. Recall in a known situation adds none.
        """
        counts = queries.stats(self._filed(), self._number, self.namespace, self._embedder)
        return {**counts, "scans": self._search.scans}

    def verify(self) -> list[Problem]:
        """Check every derived structure against the recorded episodes and items.

        Returns:
            The problems found, each with its remedy; empty if all structures agree.
        """
        with self._lock:
            return integrity.verify(self._filed(), self._number)

    def digest(self) -> str:
        """Return a hash of the recorded episodes, the items and everything derived from them in this namespace.

        Libraries with equal digests have the same content, whatever file and process it is in.
        """
        with self._lock:
            return compute_digest(self._filed(), self._number)

    def repair(self) -> list[Problem]:
        """Rebuild every derived structure that `verify` reports.

        Returns:
            The problems that were repaired.
        """
        with self._lock:
            problems = integrity.repair(self._filed(), self._number)
            self._forget()  # before filing: derived state may come from the rows that were wrong
            self._inbox.file()
            if any(problem.where.endswith("vectors") for problem in problems):
                self.index()
            return problems

    def index(self) -> None:
        """Embed all new texts and load all values, so that the next recall does not have to."""
        with self._lock:
            derived = self._caught_up()
            for kind in KINDS:
                if kind != "testimony" or derived.has_untrusted:
                    self._search.index(kind)
            derived.read_values()

    def export_jsonl(self, path: str | Path) -> int:
        """Write items and episodes to a JSONL file, from one consistent snapshot.

        Args:
            path: File to write.

        Returns:
            Number of lines written.

        Raises:
            ConfigError: The file cannot be written.
        """
        with self._lock, self._filed().snapshot():
            return jsonl.export_jsonl(self._store, self._number, path)
