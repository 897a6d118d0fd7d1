"""The experience library: record episodes, learn items from them, and recall both.

The SQLite file is the source of truth; every in-memory structure is rebuilt from it. Many threads and
processes may read and write one library. This module does not depend on prompts, models or graphs.

    with ExperienceLibrary.open("experience.db") as library:
        library.record(trajectory)
        library.evolve()
        recollection = library.recall(state, k=3)
        verdict = library.check(state, "eat raw potato")
        best = library.items.find(limit=10)
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Self
from weakref import ref

from . import items as catalogue
from .errors import ConfigError, LibraryError, UnknownName
from .grading.corrections import build_lesson
from .grading.grades import Grade, GradeRequest
from .learning import extraction
from .open_runs import OpenRuns
from .parts import reading
from .parts.admin import LibraryAdmin
from .parts.consulting import ConsultedLibrary
from .parts.episodes import LibraryEpisodes
from .parts.evolution import learn_by_rules, learn_from_words
from .parts.file import LibraryFile
from .parts.items import LibraryItems, make_curator
from .privacy.deadlines import deadline
from .privacy.redaction import redact
from .records import Admission, EvolutionReport, Item, Operation, Trajectory, Trust
from .retrieval.embedders import Embedder
from .trust import opinions
from .trust.intake import received
from .upkeep import jsonl
from .upkeep.damage import names_damage
from .upkeep.setup import reembed as reembed
from .upkeep.write_buffer import BRIEF_S
from .validation import check_episode, check_id, check_path, check_texts


@names_damage
class ExperienceLibrary(ConsultedLibrary):
    """A durable collection of recorded episodes and of the items learned from them, in one SQLite file.

    Create one with `open`. Its methods are what agents need; `items`, `episodes` and `admin` have what people and
    programs need to inspect and maintain it. All methods are safe to call from several threads, and several processes
    may use the same file. A library object sees one namespace.
    """

    items: LibraryItems
    """The items: find, read, change and merge them, and read their history and effects."""
    episodes: LibraryEpisodes
    """The recorded episodes: find and read them, and record those of clients."""
    admin: LibraryAdmin
    """Figures, checks and repairs, export and import, forgetting, and what is stored beside experience."""

    def __init__(self, file: LibraryFile) -> None:
        self._file, self.namespace = file, file.namespace
        self._runs = OpenRuns(file.store.path, file.namespace)
        file.on_close = lambda: self._runs.close(self._record_again)
        self.items = LibraryItems(file)
        self.episodes = LibraryEpisodes(file, self._runs)
        self.admin = LibraryAdmin(file, self.items)

    @classmethod
    def open(
        cls,
        path: str | Path = "experience.db",
        embedder: str | Embedder | None = None,
        namespace: str = "default",
        read_only: bool = False,
        *,
        replica: str | Path | None = None,
        outbox: bool = False,
    ) -> "ExperienceLibrary":
        """Open a library and create the file if it does not exist.

        Opening also finishes interrupted maintenance: stale rollups are rebuilt, keys of an older version are
        recomputed, and the bytes of forgotten rows are erased.

        Args:
            path: File of the library. ":memory:" keeps the library in this process. The address of a database,
                "postgresql://USER@HOST/DATABASE", opens a library that many machines share.
            embedder: Embedder, or the name of one, that turns texts into vectors. None uses the embedder that the
                library was created with.
            namespace: Separate part of the library to work in. It is created if it does not exist.
            read_only: Refuse writes. The file must exist.
            replica: Folder of the replica of a shared library. None uses a folder in the user's cache.
            outbox: While the server of a shared library does not answer, keep recorded episodes on the disk of this
                host, and send them later.

        Returns:
            The open library. Use it as a context manager, or call `close`.

        Raises:
            NotALibrary: The file is not a hardwon library.
            NewerSchema: The library was written by a newer version of hardwon.
            LibraryUnwritable: The file cannot be written, or another process locked it for too long.
            EmbedderMismatch: The library's vectors come from another embedder.
            LibraryUnreachable: The database server does not answer.
            ConfigError: The namespace is not a valid id, or `replica` or `outbox` is given for a file.
        """
        if isinstance(path, str) and path.startswith(("postgresql://", "postgres://")):
            # By name, because that room is above this one: it builds on this class.
            fleet = import_module("hardwon.memory.fleet.library").FleetLibrary
            opened: ExperienceLibrary = fleet.connect(
                path, embedder, namespace, read_only, replica=replica, outbox=outbox
            )
            return opened
        if replica is not None or outbox:
            option = f"replica is {str(replica)!r}" if replica is not None else "outbox is set"
            raise ConfigError(f"{option}, but {path} is a file. Only a database has replicas.")
        # before the file is created: a bad name must not leave an empty library behind
        check_path(path)
        check_id("namespace", namespace)
        library = cls(LibraryFile.open(path, embedder, namespace, read_only))
        library._record_abandoned()
        return library

    def reopen(self, namespace: str | None = None) -> "ExperienceLibrary":
        """Open the library again, as another handle with the same embedder and rights.

        Args:
            namespace: Namespace of the new handle; None for that of this one.
        """
        name = self.namespace if namespace is None else namespace
        return ExperienceLibrary.open(self.path, self._file.embedder, name, self._file.read_only)

    @property
    def path(self) -> str:
        """Return the path of the library's file, or the address of its database or server."""
        return self._file.path

    @property
    def revision(self) -> tuple[int, int]:
        """Return the number of episodes, and a number that changes when recorded ones are graded or forgotten.

        While the second number stays, the episodes of before are as they were, so reading the new ones is enough.
        """
        with self._file.lock:
            return self._file.caught_up().words.clock.episodes, self._file.freshness.changes

    # -- writing ----------------------------------------------------------------------------------

    def _record_abandoned(self) -> None:
        """Record the runs of processes that are gone."""
        if not self._runs.has_abandoned():
            return
        with suppress(LibraryError), deadline(BRIEF_S):  # they wait for the next opening
            if self._file.read_only:
                self.open(self._file.store.path, self._file.embedder, self.namespace).close()
            else:
                self._runs.record_abandoned(self._record_again)

    def _record_again(self, episode: Trajectory) -> None:
        """Record the run of a process that is gone, unless as much of it or more is recorded."""
        beginning = self._find_beginning(episode)
        if beginning is None or jsonl.is_later_version(episode, len(beginning.steps), beginning.success):
            self.record(episode, continued=True)

    def _record_whole(self, whole: Trajectory) -> str:
        """Record an episode, in place of its beginning, as the client did who would have recorded it."""
        beginning = self._find_beginning(whole)
        is_received = bool(whole.writer) or whole.trust == "untrusted"
        if beginning is not None:
            if is_received:
                whole = received(whole, writer=whole.writer, trust=whole.trust)
            self.episodes.replace_many([(whole, [whole.id])])
            return whole.id
        if is_received:
            return self.episodes.receive([whole], writer=whole.writer, trust=whole.trust)[0]
        return self.record(whole)

    def _find_beginning(self, whole: Trajectory) -> Trajectory | None:
        """Return the recorded episode with the id and the task of this one."""
        with suppress(UnknownName):
            beginning = self.episodes.get(whole.id)
            if (beginning.id, beginning.task) == (whole.id, redact(whole.task)):
                return beginning
        return None

    def record(self, trajectory: Trajectory, *, continued: bool = False) -> str:
        """Record one episode; it is durable when the call returns.

        The call is idempotent: an episode whose id is already recorded is not written again. Repeat the call if
        you do not know whether an earlier one succeeded.

        Args:
            trajectory: Episode to record. Without an id, it gets one.
            continued: The episode may replace its beginning, which was recorded when its run broke off. Its writer and
                trust count, if it was received from a client.

        Returns:
            The id of the episode.

        Raises:
            ConfigError: A value of the episode cannot be stored.
            WrongType: A value of the episode has the wrong type.
            LibraryError: The library cannot be written.
        """
        return self._record_whole(trajectory) if continued else self.record_many([trajectory])[0]

    def record_many(self, trajectories: Iterable[Trajectory]) -> list[str]:
        """Record several episodes in one transaction.

        Use it for imports and for groups of rollouts: it is faster than one `record` call per episode.

        Args:
            trajectories: Episodes to record.

        Returns:
            The ids of the episodes, in the same order.

        Raises:
            ConfigError: An episode cannot be stored. The message has its index, and no episode is written.
            WrongType: A value of an episode has the wrong type. No episode is written.
            LibraryError: The library cannot be written.
        """
        return self._file.record(trajectories)

    def add(self, item: Item) -> Admission:
        """Propose one item to the curator.

        Args:
            item: Item to add.

        Returns:
            Whether the item was added, merged, replaced another one or was rejected, with the reason.

        Raises:
            ConfigError: A value of the item cannot be stored.
            WrongType: A value of the item has the wrong type.
        """
        return self.items.add_many([item])[0]

    def apply(
        self, operations: Sequence[Operation], trajectory: Trajectory, seen_ids: Sequence[str]
    ) -> list[Admission]:
        """Apply the operations of an extractor that read a recorded episode.

        Args:
            operations: At most three operations; see `learning.extraction`.
            trajectory: The episode that the extractor read.
            seen_ids: Ids of the items that the extractor saw. The indices of an `Update` refer to this sequence.

        Returns:
            One admission for each `Add` and `Update`, in order.

        Raises:
            UnknownName: An id in `seen_ids` does not exist.
            ConfigError: A value of the episode cannot be stored.
        """
        check_episode(trajectory)
        with self._file.transaction() as connection:
            items = [self.items.get(item_id) for item_id in seen_ids]
            admissions = extraction.apply(
                make_curator(self._file, self.items, connection), operations, trajectory, items
            )
            reading.mark_read(connection, self._file.number, trajectory.id)
            return admissions

    def evolve(self, *, extractor: extraction.Extractor | None = None) -> EvolutionReport:
        """Learn items from the episodes recorded since the last call.

        New items are proposed from counts by rules and pass the curator. The number of additions per kind is
        limited; merges into existing items do not count against the limit. Items that no longer hold are retired
        or weakened, and idle or expired items are retired. Pinned items are not changed.

        Args:
            extractor: Also reads the episodes that no extractor has read, at most `reading.MOST` per call, and proposes
                lessons in words; see `ChatExtractor`.

        Returns:
            A report with one admission per proposal and the ids of retired items.
        """
        if not self._file.read_only:
            self._record_abandoned()  # a server that runs for long opens the library once
        report = self._evolve()
        if extractor is None:
            return report
        read = learn_from_words(self._file, self.items, self.episodes, self.apply, extractor)
        return replace(report, admissions=(*report.admissions, *read))

    def _evolve(self) -> EvolutionReport:
        return learn_by_rules(self._file, self.items, self.episodes.get)

    def feedback(self, item_id: str, helped: bool, *, writer: str, episode: str = "") -> Item:
        """Record the opinion of an untrusted writer on an item, which moves its score slightly and within bounds.

        Args:
            item_id: The id, or an unambiguous prefix of it.
            helped: Whether the item helped.
            writer: Name of the writer.
            episode: Id of the episode in which the item was used.

        Returns:
            The item with its new score; see `opinions`.

        Raises:
            TooMuchFeedback: The writer has given too much feedback.
            UnknownName: No item, or more than one, matches.
        """
        check_texts("writer and episode", (writer, episode))
        with self._file.transaction() as connection:
            # Read the item inside the transaction, so that two opinions at once both count.
            item = self.items.get(item_id)
            score = opinions.record_opinion(connection, self._file.number, item, helped, writer, episode)
            if score == item.score:
                return item
            return catalogue.change(connection, self._file.number, item, {"score": score}, "updated")

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

        Returns, values and counts are computed again as if the episode had ended so. The present scores of the items
        that it was shown move by the difference that the outcome makes today. Calling it twice with the same values
        changes nothing the second time.

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
        with self._file.lock:
            episode = self.episodes.get(episode_id)
            grade = request.grade(episode)
            if episode.success is None and grade.success is not None:  # its steps begin to count
                (episode,) = self._file.add_keys([episode])
            grade = self._file.write_grade(grade, episode)
            taught = build_lesson(grade, episode, trust)
            return grade if taught is None else replace(grade, admission=self.add(taught))

    def close(self) -> None:
        """Close the file, and save derived state beside it if that makes the next opening faster.

        Closing twice is allowed. A forked process saves nothing, because the library belongs to its parent.
        """
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def try_lock(library: ExperienceLibrary) -> Iterator[object | None]:
    """Hold a library's lock if it is free, so that calls inside do not wait.

    Yields:
        A token that stays equal as long as nothing is written. None if the lock is taken, or if new rows must be
        read first.
    """
    file = library._file
    if not file.lock.acquire(blocking=False):
        yield None
        return
    try:
        with file.store.at_once() as free:
            # data_version counts commits of other connections, total_changes the rows written by this one
            version = file.freshness.version() if free else None
            # a weak reference identifies the cache, but a token kept by a caller does not keep it alive
            yield (ref(file.derived), version) if free and version == file.freshness.read_at else None
    finally:
        file.lock.release()


def forget_findings(library: ExperienceLibrary) -> None:
    """Clear the cached search results of earlier situations.

    Afterwards recall depends only on the content of the library, not on earlier queries of this process.
    """
    with library._file.lock:
        library._file.derived.findings.forget_searches()
