"""The experience library: record episodes, learn items from them, and recall both.

The SQLite file is the source of truth; every in-memory structure is rebuilt from it. Many threads and
processes may read and write one library. This module does not depend on prompts, models or graphs.

    with ExperienceLibrary.open("experience.db") as library:
        library.record(trajectory)
        library.evolve()
        recollection = library.recall(state, k=3)
        verdict = library.check(state, "eat raw potato")
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from sqlite3 import Connection
from types import TracebackType
from typing import Self
from weakref import ref

from . import items as catalogue
from .bank import Bank
from .errors import ConfigError, LibraryBusy, LibraryError, UnknownName
from .guardrails.probation import WEAKENED, Probation
from .learning import extraction, reading
from .learning.consolidation import Consolidator, admit_within_limits
from .learning.curator import AdmissionGate, Curator, expire
from .learning.guardrail_index import GuardrailIndex
from .open_runs import OpenRun, OpenRuns
from .privacy.deadlines import deadline, seconds_left
from .privacy.private_files import OwnLock
from .privacy.redaction import redact, redact_state, redact_trajectory
from .records import (
    Admission,
    EvolutionReport,
    Item,
    Operation,
    State,
    Trajectory,
    Trust,
)
from .retrieval.cache import NamespaceCache
from .retrieval.consulting import ConsultedLibrary
from .retrieval.embedders import Embedder
from .retrieval.search import Search
from .storage.cache_files import SAVE_AFTER
from .storage.database import BUSY_TIMEOUT_S, Store
from .storage.freshness import Version
from .stored_values import StoredValues
from .trust.intake import has_keys, received, with_keys
from .upkeep import forgetting, integrity, jsonl
from .upkeep.damage import names_damage
from .upkeep.forgetting.replacement import replace_episodes
from .upkeep.maintenance import MaintainedLibrary
from .upkeep.rekeying import rekey
from .upkeep.setup import agree_on_embedder, namespace_number, reembed as reembed
from .upkeep.write_buffer import BRIEF_S, WriteBuffer
from .validation import (
    check_episode,
    check_episodes,
    check_id,
    check_item,
    check_items,
    check_path,
    check_text,
)

KEYS_AFTER = (64, 1 / 8)
"""Episodes without keys after which the words that keys depend on are refreshed: at least so many, and so large a share
of all episodes. The words are those that many episodes show, so few episodes among many hardly change them. For an
episode of a world that is not known yet, the first number alone counts: until then its keys have no such words."""


@names_damage
class ExperienceLibrary(ConsultedLibrary, MaintainedLibrary):
    """A durable collection of recorded episodes and of the items learned from them, in one SQLite file.

    Create one with `open`. All methods are safe to call from several threads, and several processes may use
    the same file. A library object sees one namespace.
    """

    def __init__(self, store: Store, embedder: Embedder, namespace: str) -> None:
        self._store = store
        self._embedder = embedder
        self._lock = OwnLock(store.path)
        self.namespace = namespace
        left = seconds_left()
        # Half of a deadline: the other half is for what the caller opens the library for.
        self._number = self._find_number(None if left is None else left / 2)
        self._derived = NamespaceCache(store, self._number)
        self._search = Search(store, self._number, embedder)
        self._distiller = Consolidator(store, self._number)
        self._guardrails = GuardrailIndex()
        self._probation = Probation(store, self._number)
        self._inbox = WriteBuffer(store, self._number)
        self._inbox.on_filed = self._keep_filed
        self._runs = OpenRuns(store.path, namespace)
        self._freshness = store.freshness
        self._freshness.on_forgotten = self._reset
        self._freshness.on_switched = self._drop_all
        self.gate: AdmissionGate | None = None
        """Learned admission model, called after the admission rules. None admits by rules alone."""
        self._steps_written = 0
        self._keyed = 0
        self._unreadable: set[str] = set()
        """Episodes at which an extractor failed in this process."""
        self._closed = False

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
        store = Store(path, read_only=read_only)
        try:
            # before the object exists: its caches would read rows that are about to change
            integrity.rebuild_tiers(store)
            rekey(store)
            forgetting.finish(store)
            library = cls(store, agree_on_embedder(store, embedder), namespace)
        except BaseException:
            store.close()
            raise
        library._record_abandoned()
        return library

    def reopen(self, namespace: str | None = None) -> "ExperienceLibrary":
        """Open the library again, as another handle with the same embedder and rights.

        Args:
            namespace: Namespace of the new handle; None for that of this one.
        """
        name = self.namespace if namespace is None else namespace
        return ExperienceLibrary.open(self.path, self.embedder, name, self.read_only)

    @property
    def path(self) -> str:
        """Return the path of the library's file."""
        return self._store.path

    @property
    def read_only(self) -> bool:
        """Return whether the library refuses writes."""
        return self._store.read_only

    @property
    def episodes(self) -> int:
        """Return the number of episodes in this namespace, without excluded ones."""
        with self._lock:
            return self._caught_up().clock.episodes

    def count_practice(self, state: State, actions: Iterable[str] = ()) -> int:
        """Return the number of episodes in the environment of a state, with whatever kind of task.

        An agent explores less the more it has practiced. Episodes of another game are no practice.

        Args:
            state: A state of the episode.
            actions: The admissible actions, which tell tasks apart that share no words.
        """
        with self._lock:
            return self._caught_up().count_practice(state, actions)

    @property
    def revision(self) -> tuple[int, int]:
        """Return the number of episodes, and a number that changes when recorded ones are graded or forgotten.

        While the second number stays, the episodes of before are as they were, so reading the new ones is enough.
        """
        with self._lock:
            return self._caught_up().clock.episodes, self._freshness.changes

    @property
    def embedder(self) -> Embedder:
        """Return the embedder that turns texts into vectors."""
        return self._embedder

    # -- writing ----------------------------------------------------------------------------------

    def open_run(self, episode: str, describe: Callable[[], Trajectory]) -> OpenRun:
        """Return a run that is not over yet, so that its steps are on the disk before its episode is recorded.

        Close it when the episode is recorded. If the process is killed before, the next one that opens or evolves the
        library records the steps, with an unknown outcome. A library in memory keeps nothing.

        Args:
            episode: Id of the episode.
            describe: Returns what is known of the episode when it has its first step; its steps are not read.
        """
        check_id("episode id", episode)
        return self._runs.begin(episode, describe)

    def _record_abandoned(self) -> None:
        """Record the runs of processes that are gone."""
        if not self._runs.has_abandoned():
            return
        with suppress(LibraryError), deadline(BRIEF_S):  # they wait for the next opening
            if self.read_only:
                self.open(self._store.path, self._embedder, self.namespace).close()
            else:
                self._runs.record_abandoned(self._record_again)

    def _record_again(self, episode: Trajectory) -> None:
        """Record the run of a process that is gone, unless as much of it or more is recorded."""
        beginning = self._find_beginning(episode)
        if beginning is None or jsonl.is_later_version(episode, len(beginning.steps), beginning.success):
            self.record_continued(episode)

    def record_continued(self, whole: Trajectory) -> str:
        """Record an episode, in place of the beginning that was recorded when its run broke off.

        Args:
            whole: The episode with its id, and with its writer and trust if it was received from a client.

        Returns:
            The id of the episode.
        """
        if self._find_beginning(whole) is None:
            return self._record_whole(whole)
        if whole.writer or whole.trust == "untrusted":
            whole = received(whole, self.keys, writer=whole.writer, trust=whole.trust)
        self.replace_many([(whole, [whole.id])])
        return whole.id

    def _record_whole(self, whole: Trajectory) -> str:
        """Record an episode as the client did who would have recorded it."""
        if whole.writer or whole.trust == "untrusted":
            return self.receive([whole], writer=whole.writer, trust=whole.trust)[0]
        return self.record(whole)

    def _find_beginning(self, whole: Trajectory) -> Trajectory | None:
        """Return the recorded episode with the id and the task of this one."""
        with suppress(UnknownName):
            beginning = self.trajectory(whole.id)
            if (beginning.id, beginning.task) == (whole.id, redact(whole.task)):
                return beginning
        return None

    def record(self, trajectory: Trajectory) -> str:
        """Record one episode; it is durable when the call returns.

        The call is idempotent: an episode whose id is already recorded is not written again. Repeat the call if
        you do not know whether an earlier one succeeded.

        Args:
            trajectory: Episode to record. Without an id, it gets one.

        Returns:
            The id of the episode.

        Raises:
            ConfigError: A value of the episode cannot be stored.
            WrongType: A value of the episode has the wrong type.
            LibraryError: The library cannot be written.
        """
        return self.record_many([trajectory])[0]

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
        with self._lock:
            episodes = self._with_keys(check_episodes(trajectories))
            version = self._freshness.read_at
            try:
                return self._inbox.put(episodes)
            except BaseException:  # not `with self._whole()`: its overhead equals a small insert
                self._rollback_memory(version)
                raise

    def _with_keys(self, episodes: list[Trajectory]) -> list[Trajectory]:
        """Return the episodes with keys on every step.

        Keys depend on words that many episodes share. These words are refreshed rarely, because a refresh files the
        write buffer, and filing episodes one by one takes three times as long as in bulk; see `KEYS_AFTER`.
        """
        if all(map(has_keys, episodes)):
            return episodes
        if self._freshness.read_at is None or self._has_old_words(episodes):
            self._caught_up()
            self._keyed = 0
        self._keyed += len(episodes)

        def keys(state: State, action: str, counts: str) -> tuple[str, ...]:
            return self._derived.keys(redact_state(state), redact(action), counts)

        return [with_keys(episode, keys) for episode in episodes]

    def _has_old_words(self, episodes: Sequence[Trajectory]) -> bool:
        """Return whether the words that keys depend on must be refreshed before these episodes get keys."""
        least, share = KEYS_AFTER
        if self._keyed < least:
            return False
        if self._keyed >= share * self._derived.clock.episodes:
            return True
        return any(self._derived.worlds.find(redact(episode.task)) is None for episode in episodes)

    def receive(self, trajectories: Iterable[Trajectory], *, writer: str, trust: Trust) -> list[str]:
        """Record episodes that came from a client, in one transaction.

        The writer and the trust of the episodes are replaced by the given ones, and keys are recomputed here. A
        client therefore cannot choose under which name, trust level or keys its episodes are stored.

        Args:
            trajectories: Episodes as the client sent them.
            writer: Name of the client.
            trust: "trusted" or "untrusted".

        Returns:
            The ids of the episodes, in the same order.

        Raises:
            ConfigError: An episode cannot be stored. No episode is written.
            WrongType: A value of an episode has the wrong type. No episode is written.
        """
        with self._lock:
            return self.record_many(
                [received(trajectory, self.keys, writer=writer, trust=trust) for trajectory in list(trajectories)]
            )

    def _keep_filed(self, episodes: Sequence[Trajectory]) -> None:
        """Pass newly filed episodes to the distiller and count their steps."""
        self._distiller.keep(episodes)
        self._steps_written += sum(len(stored.steps) for stored in episodes)

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
        return self.add_many([item])[0]

    def add_many(self, items: Iterable[Item]) -> list[Admission]:
        """Propose several items to the curator, in one transaction.

        Args:
            items: Items to add.

        Returns:
            One admission per item, in the same order.

        Raises:
            ConfigError: A value of an item cannot be stored. No item is added.
            WrongType: A value of an item has the wrong type. No item is added.
        """
        items = check_items(items)
        with self._transaction() as connection:
            curator = self._curator(connection)
            return [curator.admit(item) for item in items]

    def _curator(self, connection: Connection) -> Curator:
        return Curator(connection, self._number, self._caught_up().clock.time, self.gate, self._guardrails)

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
        with self._transaction() as connection:
            items = [self.get(item_id) for item_id in seen_ids]
            admissions = extraction.apply(self._curator(connection), operations, trajectory, items)
            reading.mark_read(connection, self._number, trajectory.id)
            return admissions

    def rewrite(self, item_ids: Sequence[str], item: Item) -> Admission:
        """Merge several items into one with new words.

        The first item is kept and gets the words of `item` and the evidence of all of them. The others are retired.

        Args:
            item_ids: Ids of the items to merge.
            item: Item with the new words.

        Returns:
            The decision of the curator, with the reason.

        Raises:
            UnknownName: An id does not exist.
            ConfigError: A value of the item cannot be stored.
        """
        check_item(item)
        with self._transaction() as connection:
            return self._curator(connection).rewrite([self.get(item_id) for item_id in item_ids], item)

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
        if not self.read_only:
            self._record_abandoned()  # a server that runs for long opens the library once
        report = self._evolve()
        if extractor is None:
            return report
        return replace(report, admissions=(*report.admissions, *self._read_with(extractor)))

    def _read_with(self, extractor: extraction.Extractor) -> list[Admission]:
        """Let an extractor read new episodes, and return one admission per proposal."""
        numbers = reading.find_unread(self._filed(), self._number)
        admissions, finished, failed = reading.read_episodes(self, extractor, list(numbers), self._unreadable)
        if failed:
            self._unreadable.add(failed)  # the next call tries the others
        if finished:
            with self._lock, self._store.transaction() as connection:
                reading.set_last_read(connection, self._number, numbers[finished[-1]])
        return admissions

    def _evolve(self) -> EvolutionReport:
        """Learn items by rules."""
        self._distiller.load(self.trajectory)  # other threads recall meanwhile
        with self._lock:
            derived = self._caught_up()
            self._distiller.read(self.trajectory)
            self._distiller.resume(derived)
            proposals = self._distiller.proposals(derived.values, derived.support)
            unpinned = [item for item in derived.items.values() if not item.pinned]
            released, weakened = self._distiller.review(derived.values, unpinned)
            released_ids = {item.id for item, _ in released}
            # a released item leaves use in this call: do not also retire it as idle
            idle = [(item, why) for item, why in self._distiller.idle(derived, unpinned) if item.id not in released_ids]
            aging = any(item.ttl is not None for item in unpinned)
            # no empty transaction: it would take the write lock from all other processes
            if not (proposals or released or weakened or idle or aging):
                return EvolutionReport()
            try:
                with self._transaction() as connection:
                    admissions = admit_within_limits(self._curator(connection), proposals)
                    for item, why in released:
                        catalogue.retire(connection, self._number, item.id, why)
                    for item, why in weakened:
                        catalogue.weaken(connection, self._number, item, WEAKENED, why)
                    # an admission may have merged new evidence into an idle item, which is then in use again
                    needed = {admission.item_id for admission in admissions}
                    idle = [(item, why) for item, why in idle if item.id not in needed]
                    for item, why in idle:
                        catalogue.retire(connection, self._number, item.id, why, until_needed=True)
                    self._distiller.reopen(item for item, _ in idle)
                    expired = expire(connection, self._number, derived.clock.time) if aging else []
                    self._distiller.save(connection, derived)
            except BaseException:  # the proposals were rolled back: the next call must propose them again
                self._distiller.start_over()
                self._forget()
                raise
            retired = (*(item.id for item, _ in (*released, *idle)), *expired)
            return EvolutionReport(tuple(admissions), retired, len(proposals))

    def bank(self, task: str) -> Bank:
        """Return a short-lived memory that parallel teams share during one task.

        Args:
            task: Name of the task. Banks of one task share their entries, also between processes.

        Returns:
            The bank. Use it as a context manager: its entries are deleted on exit.
        """
        check_text("task", task)
        return Bank(self._store, self._number, redact(task), self.add)

    def open_values(self) -> StoredValues:
        """Return the values that an application stored beside the experience; `HardwonStore` reads and writes them.

        Returns:
            The values of this namespace, with a connection of their own. Close them after use.
        """
        store = Store(self._store.path, read_only=self.read_only)
        return StoredValues(store, self.namespace, read_only=self.read_only)

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
        if self._store.path == ":memory:" or self._store.writing:
            return self._import_jsonl(path, trust)
        with self.reopen() as library:  # with locks of its own
            return library._import_jsonl(path, trust)

    def _import_jsonl(self, path: str | Path, trust: Trust) -> int:
        with self._transaction() as connection:

            def write(trajectory: Trajectory, at: str) -> None:
                # redact here: unlike `record`, `write_alone` stores an episode as it is
                self._inbox.write_alone(connection, redact_trajectory(trajectory), at)

            def update(versions: Sequence[tuple[Trajectory, Sequence[str]]]) -> None:
                clean = [(redact_trajectory(episode), refs) for episode, refs in versions]
                replace_episodes(self._store, connection, self._inbox, clean)

            return jsonl.Import(connection, self._store, self._number, self.record, write, update, trust).read(path)

    # -- transactions and caches ------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Open a transaction in which everything recorded earlier is filed first."""
        with self._whole():
            # leave the in-memory copy first: the store refuses transactions while reads use one
            self._inbox.on_file()
            with self._store.transaction() as connection:
                self._inbox.file()
                yield connection

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Hold the lock, and roll back the in-memory state if the body raises."""
        with self._lock:
            version = self._freshness.read_at
            try:
                yield
            except BaseException:
                self._rollback_memory(version)
                raise

    def _rollback_memory(self, version: Version | None) -> None:
        """Discard the in-memory state that a failed transaction produced since `version`."""
        self._inbox.rollback()
        self._guardrails.clear()  # numbers of changes that were rolled back are given again
        if self._freshness.read_at != version:  # derived state contains rows that were rolled back
            self._forget()

    @contextmanager
    def at_once(self) -> Iterator[object | None]:
        """Hold the library's lock if it is free, so that calls inside do not wait.

        Yields:
            A token that stays equal as long as nothing is written. None if the lock is taken, or if new rows must be
            read first.
        """
        if not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            with self._store.at_once() as free:
                # data_version counts commits of other connections, total_changes the rows written by this one
                version = self._freshness.version() if free else None
                # a weak reference identifies the cache, but a token kept by a caller does not keep it alive
                yield (ref(self._derived), version) if free and version == self._freshness.read_at else None
        finally:
            self._lock.release()

    def _filed(self) -> Store:
        """Return the store after filing all recorded episodes, of this and of other processes."""
        with self._lock:
            self._freshness.file_waiting(self._inbox.file)
            return self._store

    def _reset(self) -> None:
        """Reset all in-memory state after this or another process deleted rows with `forget`."""
        self._number = self._find_number(0.0)
        self._inbox.reset(self._number)
        self._probation = Probation(self._store, self._number)
        self._distiller = Consolidator(self._store, self._number)
        self._forget()

    def _find_number(self, wait_s: float | None) -> int:
        """Return the number of the namespace.

        A new one is created, unless another process holds the lock for so long. Then the number is 0, under which
        nothing is stored, and the next write creates it.
        """
        try:
            return namespace_number(self._store, self.namespace, wait_s=BUSY_TIMEOUT_S if wait_s is None else wait_s)
        except LibraryBusy:
            if wait_s is None:
                raise
            self._store.freshness.distrust()
            return 0

    def _forget(self) -> None:
        """Discard derived state, so that it is read again from the file."""
        self._derived = NamespaceCache(self._store, self._number)
        self._search = Search(self._store, self._number, self._embedder)
        self._guardrails.clear()
        self._freshness.discard()

    def _drop_all(self) -> None:
        """Discard derived state and the distiller's counts."""
        self._distiller.forget()
        self._forget()

    def _caught_up(self) -> NamespaceCache:
        """Return the derived state, updated with everything written since the last call."""
        self._freshness.catch_up(self._inbox.file, self._read_changes)
        return self._derived

    def _read_changes(self) -> None:
        """Update the derived state with everything written since the last call."""
        if "item" in self._derived.catch_up():
            self._search.forget("items")

    def close(self) -> None:
        """Close the file, and save derived state beside it if that makes the next opening faster.

        Closing twice is allowed. A forked process saves nothing, because the library belongs to its parent.
        """
        # checked before the lock is taken, because it raises in a forked process
        if not self._lock.is_mine():
            self._store.close()
            return
        with self._lock:
            if not self._closed:
                self._closed = True
                with suppress(LibraryError):  # the cache files only save time, so closing never fails for them
                    if not self.read_only:
                        with deadline(BRIEF_S):
                            self._runs.close(self._record_again)
                        self._inbox.file()
                    if self._steps_written >= SAVE_AFTER:
                        self._caught_up().read_values()
                    self._derived.save()
                    self._search.save()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items())
