"""A library that many machines share: it writes to a log in PostgreSQL and reads from a replica on this host.

    with ExperienceLibrary.open("postgresql://user@host/db") as library:
        library.record(trajectory)
        library.recall(state)

Recording is one INSERT. Items change through the log, too: a change is computed on the replica, at the end of the log,
while other processes wait; then it is undone there, appended, and applied in its place like any other entry. A handle
reads its own writes: before the next read it applies them.
"""

import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from sqlite3 import Connection
from typing import Any, NoReturn
from urllib.parse import quote
from uuid import uuid4

from hardwon.memory.errors import (
    KeyTaken,
    LeaseLost,
    LibraryError,
    LibraryReadOnly,
    LibraryUnreachable,
    LibraryUnwritable,
)
from hardwon.memory.library import ExperienceLibrary
from hardwon.memory.privacy.private_files import FOLDER_MODE
from hardwon.memory.privacy.redaction import redact
from hardwon.memory.records import EvolutionReport, Problem, State, Trajectory, Trust, Verdict
from hardwon.memory.retrieval.cache import NamespaceCache
from hardwon.memory.retrieval.embedders import Embedder
from hardwon.memory.situations.keys import KEYS_VERSION
from hardwon.memory.storage.database import Store
from hardwon.memory.upkeep import integrity
from hardwon.memory.upkeep.forgetting import ForgetReceipt
from hardwon.memory.upkeep.rekeying import rekey
from hardwon.memory.upkeep.setup import agree_on_embedder, namespace_number
from hardwon.memory.upkeep.write_buffer import redact_and_pack
from hardwon.memory.validation import check_episodes, check_id, check_text
from hardwon.memory.values import opinions

from .bank import SharedBank
from .entries import is_same_episode, locate_steps, pack, pack_episode_entry
from .follower import Follower
from .log import Log, list_namespaces
from .replica import Capture


class FleetLibrary(ExperienceLibrary):
    """One namespace of a shared library. Safe to use from several threads; open it in each process."""

    def __init__(self, store: Store, embedder: Embedder, namespace: str, log: Log, follower: Follower) -> None:
        super().__init__(store, embedder, namespace)
        self._log = log
        self._follower = follower
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._term: int | None = None
        """Term of the lease while this process learns items."""
        self._is_behind = False
        """True if the log has writes of this handle that its replica may lack."""

    @classmethod
    def connect(
        cls,
        url: str,
        embedder: str | Embedder | None = None,
        namespace: str = "default",
        read_only: bool = False,
        *,
        replica: str | Path | None = None,
    ) -> "FleetLibrary":
        """Open a shared library; see `ExperienceLibrary.open`, which calls this for the address of a database."""
        check_id("namespace", namespace)
        log = Log(url, namespace, create=not read_only)
        try:
            folder = Path(replica) if replica is not None else find_folder(log)
            path = _create_folder(folder) / f"library-k{KEYS_VERSION}.db"
            with closing(Store(path)) as store:
                chosen = agree_on_embedder(store, embedder or log.embedder)
                log.agree_on_embedder(chosen.name, chosen.fingerprint)
                integrity.rebuild_tiers(store)
                rekey(store)
                number = namespace_number(store, namespace)
            follower = Follower(log, path, number)
            try:
                library = cls(Store(path, read_only=read_only), chosen, namespace, log, follower)
            except BaseException:
                follower.close()
                raise
        except BaseException:
            log.close()
            raise
        follower.start()
        return library

    @property
    def path(self) -> str:
        """Return the address of the database, without the password."""
        return self._log.name

    @property
    def replica(self) -> str:
        """Return the path of the replica's file on this host."""
        return self._store.path

    @property
    def position(self) -> int:
        """Return the position in the log up to which the replica is filled."""
        return self._follower.position

    @property
    def staleness_s(self) -> float:
        """Return the seconds since the replica last held everything that was in the log."""
        return self._follower.staleness_s

    def sync(self) -> int:
        """Apply everything that is in the log now, and return the position.

        Raises:
            LibraryUnreachable: The server does not answer.
        """
        position = self._follower.catch_up()
        self._is_behind = False
        return position

    def stats(self) -> dict[str, Any]:
        """Return counts, sizes and ages of this namespace, with the position of the replica and its age in seconds."""
        return {**super().stats(), "position": self.position, "staleness_s": round(self.staleness_s, 3)}

    # -- writing ----------------------------------------------------------------------------------

    def record_many(self, trajectories: Iterable[Trajectory]) -> list[str]:
        """Record several episodes with one INSERT; see `ExperienceLibrary.record_many`.

        Raises:
            KeyTaken: Another episode has the same id.
            LibraryUnreachable: The server does not answer. Call it again with the same ids: what was written is not
                written twice.
        """
        self._check_writable()
        with self._lock:
            episodes = self._with_keys(check_episodes(trajectories))
            ids, rows = [], dict[str, bytes]()
            for clean, text in map(redact_and_pack, episodes):
                payload = pack_episode_entry(text, lambda steps: locate_steps(self._store, self._number, steps))
                ids.append(ref := clean.id or uuid4().hex)
                if rows.setdefault(ref, payload) != payload:
                    raise KeyTaken(
                        f"two episodes have the id {ref!r}. Use different ids, or none to have one assigned."
                    )
        # Outside the lock: a slow network must not hold up those who read.
        self._log.append("episode", list(rows.items()), is_same=is_same_episode)
        self._note_write()
        return ids

    def evolve(self) -> EvolutionReport:
        """Learn items, if no other process does so at the moment; see `ExperienceLibrary.evolve`.

        The process that called this last keeps the lease until it closes the library or does not call for ten seconds.
        Calls of the others return an empty report: they get the items through the log.

        Raises:
            LeaseLost: The process was stopped for so long that another one took over. Nothing was written.
        """
        self._check_writable()
        with self._lock:
            self._term = self._log.take_lease(self._holder)
            if self._term is None:
                return EvolutionReport()
            try:
                self.sync()
                return super().evolve()
            finally:
                self._term = None

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Compute changes of items at the end of the log, and append them; no other process changes items meanwhile."""
        if self._store.writing:
            with super()._transaction() as connection:
                yield connection
            return
        self._check_writable()
        key, values = uuid4().hex, None
        with self._lock:
            try:
                with self._log.change() as term:
                    if self._term not in (None, term):
                        raise LeaseLost(
                            f"{self.path}: another process took over learning (term {term}, this process had "
                            f"{self._term}). Call evolve again later."
                        )
                    self._follower.catch_up()
                    try:
                        with super()._transaction() as connection:
                            capture = Capture(self._store, connection, self._number)
                            yield connection
                            values = capture.read()
                            raise _Undo
                    except _Undo:
                        pass
                    if values is not None:
                        self._log.append("items", [(key, pack(values))], term=term)
            except LibraryUnreachable:
                # The connection may have been lost after the server committed: ask before reporting a failure.
                if values is None or not self._log.has("items", key):
                    raise
            self._note_write()

    def _note_write(self) -> None:
        """Let the next read apply what was appended."""
        self._is_behind = True
        self._freshness.discard()

    def _check_writable(self) -> None:
        if self.read_only:
            raise LibraryReadOnly(f"{self.path} is open for reading only. Open it with read_only=False to write.")

    def bank(self, task: str) -> SharedBank:
        """Return a short-lived memory that teams on several machines share during one task."""
        check_text("task", task)
        return SharedBank(self._store, self._number, redact(task), self.add, self._log, self.sync)

    def count_rating(self, client: str, *, most: int) -> None:
        """Count one rating of a client, over all processes of this host; see `ExperienceLibrary.count_rating`."""
        check_text("client", client)
        with self._lock, self._store.transaction() as connection:
            opinions.count_rating(connection, client, most, time.time())

    def enforce(
        self, state: State, action: str, *, again: bool = False, keep: bool = True, by_hours: bool = False
    ) -> Verdict:
        """Check an action that is about to run; refusals are counted in this process, see `ExperienceLibrary.enforce`.

        The outcome of a trial is recorded with its episode, so all hosts learn it.
        """
        return super().enforce(state, action, again=again, keep=False, by_hours=by_hours)

    # -- reading ----------------------------------------------------------------------------------

    def _filed(self) -> Store:
        self._apply_own()
        return super()._filed()

    def _caught_up(self) -> NamespaceCache:
        self._apply_own()
        return super()._caught_up()

    def _apply_own(self) -> None:
        """Apply the writes of this handle. If the server is down, reads continue with what the replica holds."""
        # Inside a transaction the file is locked, and everything was applied before it began.
        if self._is_behind and not self._store.writing:
            try:
                self.sync()
            except LibraryUnreachable:
                return

    # -- what a replica cannot do -------------------------------------------------------------------

    def repair(self) -> list[Problem]:
        """Raise LibraryError: a replica is not repaired, but filled again."""
        self._refuse("repaired", f"Close the library and delete {self.replica}; it is filled again from the log.")

    def forget(self, **selectors: Any) -> ForgetReceipt:
        """Raise LibraryError: the log keeps every entry."""
        self._refuse("made to forget", "Keep what must be forgotten in a library file of its own.")

    def import_jsonl(self, path: str | Path, trust: Trust = "trusted") -> int:
        """Raise LibraryError: a file cannot be imported into a log."""
        self._refuse("imported into", "Read the episodes from a library file and record them with record_many.")

    def _refuse(self, what: str, advice: str) -> NoReturn:
        raise LibraryError(f"{self.path} is a shared library and cannot be {what}. {advice}")

    def close(self) -> None:
        """Stop following the log, give the lease back, and close the replica. Closing twice is allowed."""
        if not self._closed:
            self._is_behind = False  # closing reads, and the follower is gone
            self._follower.close()
            if not self.read_only:
                with suppress(LibraryError):  # it expires by itself
                    self._log.give_lease(self._holder)
        super().close()
        self._log.close()


class _Undo(Exception):
    """Rolls back the transaction in which a change was computed."""


def inspect_library(url: str) -> Iterator[tuple[str, dict[str, Any], list[Problem]]]:
    """Yield each namespace of a shared library with its figures and problems; nothing is written to the database.

    The figures are those of `LogStatus`, the position and the file of the replica on this host, the embedder, and the
    numbers of episodes and items.

    Args:
        url: Address of the database.
    """
    for namespace in list_namespaces(url):
        with FleetLibrary.connect(url, namespace=namespace, read_only=True) as library:
            figures = {
                **library._log.read_status()._asdict(), "position": library.position, "replica": library.replica,
                "embedder": library.embedder.name, "episodes": library.episodes, "items": len(library.items()),
            }  # fmt: skip
            yield namespace, figures, library.verify()


def find_folder(log: Log) -> Path:
    """Return the default folder of a replica: in the user's cache, named after the database and the namespace."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "hardwon" / f"{log.database}-{quote(log.namespace, safe='')}"


def _create_folder(folder: Path) -> Path:
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise LibraryUnwritable(
            f"the folder {folder} of the replica cannot be created ({error.strerror}). Give another one as replica."
        ) from error
    return folder
