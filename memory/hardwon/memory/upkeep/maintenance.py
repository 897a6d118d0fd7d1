"""Maintenance of a library: forgetting, checks and repairs, export and import. `library` records and recalls."""

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from hardwon.memory.errors import KeyTaken, UnknownName
from hardwon.memory.grading.corrections import build_lesson
from hardwon.memory.grading.grades import Grade, GradeRequest, read_grades
from hardwon.memory.grading.regrading import Regrading
from hardwon.memory.records import Admission, Item, Problem, Trajectory, Trust
from hardwon.memory.retrieval.embedders import Embedder
from hardwon.memory.retrieval.search import KINDS, Search
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.freshness import Freshness
from hardwon.memory.validation import check_episodes

from . import forgetting, integrity, jsonl, queries
from .administration import TendedLibrary
from .digest import compute_digest
from .forgetting.phases import ANSWERS
from .forgetting.replacement import EpisodeVersion, replace_episodes
from .write_buffer import DISCOUNT, WriteBuffer, redact_and_pack

ANSWERED_S = 3600.0
"""Seconds for which the answer to a write is kept for a client that did not get it."""

WriteKind = Literal["items", "records", "idempotent"]


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

    @abstractmethod
    def _with_keys(self, episodes: list[Trajectory]) -> list[Trajectory]:
        """Return the episodes with keys on every step."""

    @abstractmethod
    def add(self, item: Item) -> Admission:
        """Propose one item to the curator."""

    def once(self, key: str, request: str, write: Callable[[], str], *, change: WriteKind = "items") -> str:
        """Carry out a write, or return its answer if it was carried out before, whatever process did it.

        Args:
            key: Identifies the write and its client, in hexadecimal digits.
            request: Hash of what is written, in hexadecimal digits.
            write: Writes, and returns the answer. An error writes nothing, and the write can be repeated.
            change: `items` if the write changes nothing else: a shared library keeps its answer in the log. A write
                that is `idempotent` needs no transaction that holds up others until it ends.

        Raises:
            KeyTaken: The key was used with another request.
        """
        with nullcontext() if change == "idempotent" else self._transaction():
            return self._answer(key, request, write)

    def _answer(self, key: str, request: str, write: Callable[[], str]) -> str:
        """Return the stored answer to a write, or carry it out, store its answer, and now and then drop old ones."""
        rows = self._store.rows("SELECT value FROM meta WHERE name = ?", (f"answer {key}",))
        if rows:
            _, stored, answer = rows[0][0].split(" ", 2)
            return check_request(stored, request, answer)
        answer = write()
        with self._store.transaction() as connection:
            value = f"{time.time():.0f} {request} {answer}"
            connection.execute("INSERT INTO meta VALUES (?, ?)", (f"answer {key}", value))
            if key.startswith("00"):
                old = f"{ANSWERS} AND CAST(value AS INTEGER) < ?"
                connection.execute(f"DELETE FROM meta WHERE {old}", (time.time() - ANSWERED_S,))
        return answer

    def grade(
        self,
        episode_id: str,
        *,
        success: bool | None = None,
        score: float | None = None,
        unknown: bool = False,
        why: str = "",
        lesson: str = "",
        instead: str = "",
        step: int | None = None,
        grader: str = "user",
        trust: Trust = "trusted",
    ) -> Grade:
        """Grade, correct or explain a recorded episode.

        Everything learned from the episode is computed again as if it had ended so: returns and values, counts, and the
        scores of the items that it was shown, also where later episodes changed them. Calling it twice with the same
        values changes nothing the second time.

        Args:
            episode_id: The id, or an unambiguous prefix of it.
            success: Whether the episode succeeded. None keeps the outcome, unless `score` or `unknown` is given.
            score: Score in [0, 1]. Without `success`, only a score of 1 is a success.
            unknown: The outcome is unknown: exclude the episode from learning.
            why: The reason, kept in the history.
            lesson: What to learn from it, in words. It becomes an item, if the curator admits it.
            instead: The action that should have been taken. It becomes an item with the step as evidence.
            step: Number of the step at which it should have been taken. None is the last step that failed.
            grader: Name of who grades it, kept in the history.
            trust: "untrusted" puts the lesson or the correction in quarantine.

        Returns:
            The grade, with the outcome before and the curator's decision.

        Raises:
            UnknownName: No episode, or more than one, matches.
            ConfigError: A value is invalid, the grade says nothing, or the episode has no such step.
            LibraryError: The library cannot be written.
        """
        request = GradeRequest(success, score, unknown, why, lesson, instead, step, grader)
        request.check()
        with self._lock:
            grade, episode = self._prepare_grade(episode_id, request)
            return self._teach(self._write_grade(grade, episode), episode, trust)

    def replace_many(self, versions: Iterable[tuple[Trajectory, Sequence[str]]]) -> None:
        """Replace recorded episodes by later versions of them, all or none.

        An episode keeps its id, its grades, and what it says of the items that it was shown. Without a grade, its
        outcome is that of the new version.

        Args:
            versions: Each new version, with the ids of the recorded episodes that it replaces. The first one stays.

        Raises:
            UnknownName: An episode is not recorded.
            ConfigError: A version cannot be stored. Nothing is replaced.
        """
        versions = list(versions)
        with self._lock:
            episodes = self._with_keys(check_episodes(new for new, _ in versions))
            clean = [redact_and_pack(episode)[0] for episode in episodes]
            refs = [list(replaced) for _, replaced in versions]
            self._write_versions(list(zip(clean, refs, strict=True)))

    def _write_versions(self, versions: Sequence[EpisodeVersion]) -> None:
        """Write new versions of episodes in a transaction."""
        try:
            with self._transaction() as connection:
                replace_episodes(self._store, connection, self._inbox, versions)
        finally:
            self._freshness.discard()  # even if it fails halfway, the next read must look again

    def _prepare_grade(self, episode_id: str, request: GradeRequest) -> tuple[Grade, Trajectory]:
        """Return a grade and its episode, with the keys of the steps if it begins to count."""
        episode = self.trajectory(episode_id)
        grade = request.grade(episode)
        if episode.success is None and grade.success is not None:
            (episode,) = self._with_keys([episode])
        return grade, episode

    def _write_grade(self, grade: Grade, episode: Trajectory) -> Grade:
        """Write a grade in a transaction."""
        try:
            with self._transaction() as connection:
                return Regrading(self._store, connection, self._number, DISCOUNT).apply(grade, episode)
        finally:
            self._freshness.discard()  # even if it fails halfway, the next read must look again

    def _teach(self, grade: Grade, episode: Trajectory, trust: Trust) -> Grade:
        """Pass the lesson of a grade to the curator."""
        item = build_lesson(grade, episode, trust)
        return grade if item is None else replace(grade, admission=self.add(item))

    def grades(self, episode_id: str) -> list[Grade]:
        """Return the grades of an episode, oldest first: who gave which outcome, when and why.

        Args:
            episode_id: The id, or an unambiguous prefix of it.

        Raises:
            UnknownName: No episode, or more than one, matches.
        """
        store = self._filed()
        return read_grades(store, self._number, queries.trajectory_id(store, self._number, episode_id))

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
        with self._lock:
            self._filed()
            number = self._number
            if what == "namespace":
                number = self._number_of(value)
                WriteBuffer(self._store, number).file()  # the selected namespace has a write buffer of its own
            elif not dry_run:
                self._inbox.on_file()
            try:
                with self._deleting_store(what == "namespace" and value == self.namespace) as store:
                    return forgetting.forget(store, number, what, value, dry_run=dry_run)
            finally:
                self._freshness.discard()  # even if it fails halfway, the next read must look again

    @contextmanager
    def _deleting_store(self, own: bool) -> Iterator[Store]:
        """Yield the store to delete with; the own namespace is deleted with another one.

        This store would notice the deletion at once and make the namespace anew, with its name.
        """
        if not own or self._store.path == ":memory:":
            yield self._store
            return
        store = Store(self._store.path)
        try:
            yield store
        finally:
            store.close()

    def _number_of(self, namespace: str) -> int:
        """Return the number of an existing namespace. Raises UnknownName."""
        numbers = dict(self._store.rows("SELECT name, id FROM namespaces"))
        if namespace not in numbers:
            raise UnknownName.of("namespace", namespace, numbers)
        return int(numbers[namespace])

    def stats(self) -> dict[str, Any]:
        """Return counts, sizes and ages of this namespace.

        `scans` is the number of index searches of this process. Recall in a known situation adds none. `advice` says
        whether advice helps; see `values.effects.AdviceGain`.
        """
        counts = queries.stats(self._filed(), self._number, self.namespace, self._embedder)
        with self._lock:
            gain = self._caught_up().gain()
        return {**counts, "scans": self._search.scans, "advice": {"says": gain.says, **asdict(gain)}}

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
            with self._search.waiting():
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


def check_request(stored: str, request: str, answer: str) -> str:
    """Return the answer to a repeated write, after checking that its request is the one that was answered."""
    if stored != request:
        raise KeyTaken("this Idempotency-Key was used with another request. Send a new key with every new request.")
    return answer
