"""The administration of a library: figures, repairs, export and import, forgetting, and what lies beside experience."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from hardwon.memory.bank import Bank
from hardwon.memory.errors import KeyTaken, UnknownName
from hardwon.memory.privacy.redaction import redact, redact_trajectory
from hardwon.memory.records import Admission, Item, Problem, Trajectory, Trust
from hardwon.memory.retrieval.embedders import Embedder
from hardwon.memory.retrieval.search import KINDS
from hardwon.memory.storage.database import Store
from hardwon.memory.stored_values import StoredValues
from hardwon.memory.trust import opinions
from hardwon.memory.upkeep import forgetting, integrity, jsonl, queries
from hardwon.memory.upkeep.damage import names_damage
from hardwon.memory.upkeep.forgetting.phases import ANSWERS
from hardwon.memory.upkeep.forgetting.replacement import replace_episodes
from hardwon.memory.upkeep.write_buffer import WriteBuffer
from hardwon.memory.validation import check_text

from .file import LibraryFile
from .items import LibraryItems

WriteKind = Literal["items", "records", "outcomes", "idempotent"]
P = ParamSpec("P")
T = TypeVar("T")


@names_damage
class LibraryAdmin:
    """Administration of a namespace and its file: figures, repair, import and export, forgetting."""

    def __init__(self, file: LibraryFile, items: LibraryItems) -> None:
        self._file, self._items = file, items

    def query(self, read: Callable[Concatenate[Store, int, P], T], *args: P.args, **options: P.kwargs) -> T:
        """Return what a function reads, after everything recorded was written to the file.

        Args:
            read: A function of the library's rooms that takes the store and the number of the namespace first, such
                as those of `upkeep.figures`.
            *args: Its other arguments.
            **options: Its keyword arguments.
        """
        return read(self._file.filed(), self._file.number, *args, **options)

    def stats(self) -> dict[str, Any]:
        """Return counts, sizes and ages of this namespace.

        `scans` is the number of index searches of this process. Recall in a known situation adds none. `advice` says
        whether advice helps; see `values.effects.AdviceGain`.
        """
        counts = queries.stats(self._file.filed(), self._file.number, self._file.namespace, self._file.embedder)
        with self._file.lock:
            gain = self._file.caught_up().effects.gain()
        return {**counts, "scans": self._file.search.scans, "advice": {"says": gain.says, **asdict(gain)}}

    def verify(self) -> list[Problem]:
        """Check every derived structure against the recorded episodes and items.

        Returns:
            The problems found, each with its remedy; empty if all structures agree.
        """
        with self._file.lock:
            return integrity.verify(self._file.filed(), self._file.number)

    def repair(self) -> list[Problem]:
        """Rebuild every derived structure that `verify` reports.

        Returns:
            The problems that were repaired.
        """
        with self._file.lock:
            problems = integrity.repair(self._file.filed(), self._file.number)
            self._file.discard()  # before filing: derived state may come from the rows that were wrong
            self._file.inbox.file()
            if any(problem.where.endswith("vectors") for problem in problems):
                self.index()
            return problems

    def index(self) -> None:
        """Embed all new texts and load all values, so that the next recall does not have to."""
        with self._file.lock:
            derived = self._file.caught_up()
            with self._file.search.waiting():
                for kind in KINDS:
                    if kind != "testimony" or derived.words.clock.has_untrusted:
                        self._file.search.index(kind)
            derived.statistics.read()

    def export_jsonl(self, path: str | Path) -> int:
        """Write items and episodes to a JSONL file, from one consistent snapshot.

        Args:
            path: File to write.

        Returns:
            Number of lines written.

        Raises:
            ConfigError: The file cannot be written.
        """
        with self._file.lock, self._file.filed().snapshot():
            return jsonl.export_jsonl(self._file.store, self._file.number, path)

    def import_jsonl(self, path: str | Path, trust: Trust = "trusted") -> int:
        """Read a file that `export_jsonl` wrote, in one transaction. Reads of other threads do not wait for it.

        Args:
            path: File to read.
            trust: "trusted" or "untrusted". Items of an untrusted file are quarantined; its usages and histories are
                ignored.

        Returns:
            Number of lines that were new.

        Raises:
            ConfigError: The file cannot be read, or a line is not valid.
        """
        if self._file.store.path == ":memory:" or self._file.store.writing:
            return import_file(self._file, path, trust)
        file = self._file
        with closing(
            file.open(file.path, file.embedder, file.namespace, file.read_only)
        ) as other:  # with its own locks
            return import_file(other, path, trust)

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
            text: Text that episodes or items of this namespace contain in any field. Case, forms of letters and white
                space make no difference.
            namespace: Name of a namespace, which is deleted as a whole.
            dry_run: Count the rows without deleting them.

        Returns:
            A receipt with the number of deleted rows per table.

        Raises:
            UnknownName: The episode or the namespace does not exist.
            ConfigError: There is no selector, more than one, or an empty one.
        """
        what, value = forgetting.parse_selector(episode=episode, writer=writer, text=text, namespace=namespace)
        with self._file.lock:
            self._file.filed()
            number = self._file.number
            if what == "namespace":
                number = self._number_of(value)
                WriteBuffer(self._file.store, number).file()  # the selected namespace has a write buffer of its own
            elif not dry_run:
                self._file.inbox.on_file()
            try:
                with self._deleting_store(what == "namespace" and value == self._file.namespace) as store:
                    return forgetting.forget(store, number, what, value, dry_run=dry_run)
            finally:
                self._file.freshness.discard()  # even if it fails halfway, the next read must look again

    @contextmanager
    def _deleting_store(self, own: bool) -> Iterator[Store]:
        """Yield the store to delete with; the own namespace is deleted with another one.

        This store would notice the deletion at once and make the namespace anew, with its name.
        """
        if not own or self._file.store.path == ":memory:":
            yield self._file.store
            return
        with closing(Store(self._file.store.path)) as store:
            yield store

    def _number_of(self, namespace: str) -> int:
        """Return the number of an existing namespace. Raises UnknownName."""
        numbers = dict(self._file.store.rows("SELECT name, id FROM namespaces"))
        if namespace not in numbers:
            raise UnknownName.of("namespace", namespace, numbers)
        return int(numbers[namespace])

    def once(self, key: str, request: str, write: Callable[[], str], *, change: WriteKind = "items") -> str:
        """Carry out a write, or return its answer if it was carried out before, whatever process did it.

        Args:
            key: Identifies the write and its client, in hexadecimal digits.
            request: Hash of what is written, in hexadecimal digits.
            write: Writes, and returns the answer. An error writes nothing, and the write can be repeated.
            change: `items` if the write changes nothing else: a shared library keeps its answer in the log, as that
                of a grade (`outcomes`). A grade, and a write that is `idempotent` whatever was written since, need no
                transaction that holds up others until it ends.

        Raises:
            KeyTaken: The key was used with another request.
        """
        with nullcontext() if change in ("outcomes", "idempotent") else self._file.transaction():
            return self._answer(key, request, write)

    def _answer(self, key: str, request: str, write: Callable[[], str]) -> str:
        """Return the stored answer to a write, or carry it out, store its answer, and now and then drop old ones."""
        stored = self._find_answer(key, request)
        if stored is not None:
            return stored
        answer = write()
        with self._file.store.transaction() as connection:
            value = f"{time.time():.0f} {request} {answer}"
            # Without a transaction around all of this, a repetition may have been answered meanwhile.
            connection.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (f"answer {key}", value))
            if key.startswith("00"):
                old = f"{ANSWERS} AND CAST(value AS INTEGER) < ?"
                # Seconds for which the answer to a write is kept for a client that did not get it.
                connection.execute(f"DELETE FROM meta WHERE {old}", (time.time() - 3600.0,))
            return self._find_answer(key, request) or answer

    def _find_answer(self, key: str, request: str) -> str | None:
        rows = self._file.store.rows("SELECT value FROM meta WHERE name = ?", (f"answer {key}",))
        if not rows:
            return None
        _, stored, answer = rows[0][0].split(" ", 2)
        return check_request(stored, request, answer)

    @property
    def embedder(self) -> Embedder:
        """Return the embedder that turns texts into vectors."""
        return self._file.embedder

    def open_values(self) -> StoredValues:
        """Return the values that an application stored beside the experience; `HardwonStore` reads and writes them.

        Returns:
            The values of this namespace, with a connection of their own. Close them after use.
        """
        store = Store(self._file.store.path, read_only=self._file.read_only)
        return StoredValues(store, self._file.namespace, read_only=self._file.read_only)

    def bank(self, task: str) -> Bank:
        """Return a short-lived memory that parallel teams share during one task.

        Args:
            task: Name of the task. Banks of one task share their entries, also between processes.

        Returns:
            The bank. Use it as a context manager: its entries are deleted on exit.
        """
        check_text("task", task)
        return Bank(self._file.store, self._file.number, redact(task), self._promote)

    def count_rating(self, client: str, *, most: int) -> None:
        """Count one rating of a client, over all processes that serve this file.

        Args:
            client: The client.
            most: Largest number of ratings in a minute.

        Raises:
            TooMuchFeedback: The client has used up its ratings.
        """
        check_text("client", client)
        with self._file.transaction() as connection:
            opinions.count_rating(connection, client, most, time.time())

    @property
    def read_only(self) -> bool:
        """Return whether the library refuses writes."""
        return self._file.read_only

    def _promote(self, item: Item) -> Admission:
        return self._items.add_many([item])[0]


def import_file(file: LibraryFile, path: str | Path, trust: Trust) -> int:
    """Read an exported file in one transaction, and return the number of new lines."""
    with file.transaction() as connection:

        def write(trajectory: Trajectory, at: str) -> None:
            # redact here: unlike `record`, `write_alone` stores an episode as it is
            file.inbox.write_alone(connection, redact_trajectory(trajectory), at)

        def update(versions: Sequence[tuple[Trajectory, Sequence[str]]]) -> None:
            clean = [(redact_trajectory(episode), refs) for episode, refs in versions]
            replace_episodes(file.store, connection, file.inbox, clean)

        def record(trajectory: Trajectory) -> str:
            return file.record([trajectory])[0]

        return jsonl.Import(connection, file.store, file.number, record, write, update, trust).read(path)


def check_request(stored: str, request: str, answer: str) -> str:
    """Return the answer to a repeated write, after checking that its request is the one that was answered."""
    if stored != request:
        raise KeyTaken("this Idempotency-Key was used with another request. Send a new key with every new request.")
    return answer
