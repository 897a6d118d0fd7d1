"""A library that many machines share: it writes to a log in PostgreSQL and reads from a replica on this host.

    with ExperienceLibrary.open("postgresql://user@host/db") as library:
        library.record(trajectory)
        library.recall(state)

Recording is one INSERT. Items change through the log, too: a change is computed on the replica, at the end of the log,
while other processes wait; then it is undone there, appended, and applied in its place like any other entry. A handle
reads its own writes: before the next read it applies them.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from sqlite3 import Connection
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from hardwon.memory.errors import (
    KeyTaken,
    LeaseLost,
    LibraryError,
    LibraryUnreachable,
)
from hardwon.memory.privacy.redaction import redact
from hardwon.memory.records import EvolutionReport, Problem, State, Trajectory, Verdict
from hardwon.memory.retrieval.embedders import Embedder
from hardwon.memory.situations.keys import KEYS_VERSION
from hardwon.memory.storage.database import Store
from hardwon.memory.trust import opinions
from hardwon.memory.upkeep import forgetting, integrity
from hardwon.memory.upkeep.rekeying import rekey
from hardwon.memory.upkeep.setup import agree_on_embedder, namespace_number
from hardwon.memory.upkeep.write_buffer import redact_and_pack
from hardwon.memory.validation import check_episodes, check_id, check_text

from . import places
from .application.bank import SharedBank
from .application.values import SharedValues
from .entries import is_same_episode, locate_steps, pack_episode_entry
from .follower import Follower
from .log import Log
from .outbox import FILE, Outbox
from .replica import Capture, read_position
from .session import ServerSession, list_risks, warn
from .upkeep import TendedReplica, Undo
from .vectors import share

logger = logging.getLogger("hardwon.memory")


FILE_NAME = f"library-k{KEYS_VERSION}.db"
"""Name of the replica's file in its folder."""


class FleetLibrary(TendedReplica):
    """One namespace of a shared library. Safe to use from several threads; open it in each process."""

    def __init__(
        self,
        store: Store,
        embedder: Embedder,
        namespace: str,
        log: Log,
        follower: Follower,
        outbox: Outbox | None,
        reopen: Callable[[str], "FleetLibrary"],
    ) -> None:
        super().__init__(store, embedder, namespace, log, follower, outbox)
        self._reopen = reopen
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._term: int | None = None
        """Term of the lease while this process learns items."""

    @classmethod
    def connect(
        cls,
        url: str,
        embedder: str | Embedder | None = None,
        namespace: str = "default",
        read_only: bool = False,
        *,
        replica: str | Path | None = None,
        outbox: bool = False,
    ) -> "FleetLibrary":
        """Open a shared library; see `ExperienceLibrary.open`, which calls this for the address of a database."""
        check_id("namespace", namespace)
        log, folder = _open_log(url, namespace, Path(replica) if replica is not None else None, not read_only)
        age_s = 0.0 if log.is_attached else places.read_age_s(folder)
        try:
            path = places.create_folder(folder) / FILE_NAME
            with closing(Store(path)) as store:
                chosen = agree_on_embedder(store, embedder or (log.embedder if log.is_attached else None))
                if log.is_attached:
                    log.agree_on_embedder(chosen.name, chosen.fingerprint)
                integrity.rebuild_tiers(store)
                rekey(store)
                forgetting.finish(store)
                number = namespace_number(store, namespace)
            # Also without the option: an earlier process may have left episodes.
            waiting = Outbox(folder) if not read_only and (outbox or (folder / FILE).exists()) else None
            follower = Follower(log, path, number, waiting, tends=not read_only, age_s=age_s)

            def reopen(name: str) -> FleetLibrary:
                other = (
                    replica if replica is None or name == namespace else folder / "namespaces" / quote(name, safe="")
                )
                return cls.connect(url, chosen, name, read_only, replica=other, outbox=outbox)

            try:
                store = Store(path, read_only=read_only)
                library = cls(store, share(chosen, log), namespace, log, follower, waiting if outbox else None, reopen)
            except BaseException:
                follower.close()
                raise
        except BaseException:
            log.close()
            raise
        library._note_contact()
        if not log.is_attached:
            logger.warning(
                "%s does not answer. Reading goes on from the replica %s, at position %d, %.0f s old; writes %s.",
                log.name, path, library.position, age_s, "wait in the outbox" if outbox else "fail",
            )  # fmt: skip
        elif not read_only:
            warn(log.name, log.read)
        follower.start()
        if not read_only:
            library._record_abandoned()
        return library

    def _note_contact(self) -> None:
        """Note in the replica's folder when it last held everything that was in the log."""
        if self._log.is_attached:
            note = places.Note(self._log.identity, self._log.database, self.namespace)
            places.write_note(Path(self.replica).parent, note, age_s=self.staleness_s)

    def stats(self) -> dict[str, Any]:
        """Return counts, sizes and ages of this namespace, with the position of the replica and its age in seconds.

        With an outbox, `outbox` is the number of episodes that wait for the server.
        """
        figures = {**super().stats(), "position": self.position, "staleness_s": round(self.staleness_s, 3)}
        return figures if self._outbox is None else {**figures, "outbox": self._outbox.count()}

    def reopen(self, namespace: str | None = None) -> "FleetLibrary":
        """Open the library again, as another handle; see `ExperienceLibrary.reopen`."""
        return self._reopen(self.namespace if namespace is None else namespace)

    # -- writing ----------------------------------------------------------------------------------

    def record_many(self, trajectories: Iterable[Trajectory]) -> list[str]:
        """Record several episodes with one INSERT; see `ExperienceLibrary.record_many`."""
        self._check_writable()
        with self._lock:
            episodes = self._with_keys(check_episodes(trajectories))
            ids, rows = [], dict[str, bytes]()
            for clean, text in map(redact_and_pack, episodes):
                payload = pack_episode_entry(text, lambda steps: locate_steps(self._store, self._number, steps))
                ids.append(ref := clean.id or next(self._keys))
                if rows.setdefault(ref, payload) != payload:
                    raise KeyTaken(
                        f"two episodes have the id {ref!r}. Use different ids, or none to have one assigned."
                    )
        # Outside the lock: a slow network must not hold up those who read.
        if self._append_episodes(list(rows.items())):
            self._note_write()
        return ids

    def _append_episodes(self, rows: list[tuple[str, bytes]]) -> bool:
        """Append episodes to the log; return False if they wait in the outbox instead."""
        if self._outbox is None or not self._outbox.count():  # what waits is sent first, in the order of writing
            try:
                self._log.append("episode", rows, is_same=is_same_episode)
                return True
            except LibraryUnreachable as error:
                if self._outbox is None:
                    raise
                logger.warning("episodes wait in %s: %s", self._outbox.path, error)
        self._outbox.put(rows)
        self._follower.wake()
        return False

    def _evolve(self) -> EvolutionReport:
        """Learn items, if no other process does so at the moment; see `ExperienceLibrary.evolve`.

        The process that called this last keeps the lease until it closes the library or does not call for ten seconds.
        Calls of the others return an empty report: they get the items through the log.
        """
        self._check_writable()
        term = self._log.take_lease(self._holder)
        if term is None:
            return EvolutionReport()
        self.sync()
        self._distiller.load(self.trajectory)  # other threads recall meanwhile, and while the server answers
        with self._lock:
            self._term = term
            try:
                report = super()._evolve()
            finally:
                self._term = None
        self._follower.request_snapshot()
        return report

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Compute changes of items at the end of the log, and append them; no other process changes items meanwhile."""
        if self._store.writing:
            with super()._transaction() as connection:
                yield connection
            return
        self._check_writable()
        values = None
        with self._lock, self._appending("items", lambda: values) as term, self._use_server_clock():
            if self._term not in (None, term):
                raise LeaseLost(
                    f"{self.path}: another process took over learning (term {term}, this process had "
                    f"{self._term}). Call evolve again later."
                )
            try:
                with super()._transaction() as connection:
                    capture = Capture(self._store, connection, self._number)
                    yield connection
                    values = capture.read(self._reply)
                    raise Undo
            except Undo:
                pass

    def bank(self, task: str) -> SharedBank:
        """Return a short-lived memory that teams on several machines share during one task."""
        check_text("task", task)
        return SharedBank(self._store, self._number, redact(task), self.add, self._log, self.sync, self._next_key)

    def open_values(self) -> SharedValues:
        """Return the values that applications on several machines stored; see `ExperienceLibrary.open_values`."""
        return SharedValues(self)

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
        with self._use_server_clock():  # the times of trials and items are those of the server
            return super().enforce(state, action, again=again, keep=False, by_hours=by_hours)

    def close(self) -> None:
        """Stop following the log, give the lease back, and close the replica. Closing twice is allowed."""
        if not self._closed:
            self._applied = self._written  # closing reads, and the follower is gone
            self._note_contact()
            self._follower.close()
            if not self.read_only and self._log.is_attached:
                with suppress(LibraryError):  # it expires by itself
                    self._log.give_lease(self._holder)
        super().close()
        self._log.close()


def inspect_library(url: str) -> Iterator[tuple[str, dict[str, Any], list[Problem]]]:
    """Yield each namespace of a shared library with its figures and problems; nothing is written to the database.

    The figures are those of `LogStatus`, the position and the file of the replica on this host, the embedder, and the
    numbers of episodes and items. `behind` is the number of entries that the replica lacked before this call, and
    `lag_s` the age of the oldest one in seconds.
    """
    with closing(places.Directory(url)) as directory:
        names, database = directory.names(), directory.database
    for namespace in names:
        before = read_position(places.find_folder(database, namespace) / FILE_NAME)
        with FleetLibrary.connect(url, namespace=namespace, read_only=True) as library:
            status = library._log.read_status()
            late = library._log.read(_LATE, {"after": before})
            figures = {
                **status._asdict(), "position": library.position, "replica": library.replica,
                "behind": status.head - before, "lag_s": round(float(late[0][0]), 3) if late else 0.0,
                "risks": list_risks(library._log.read), "embedder": library.embedder.name,
                "episodes": library.episodes, "items": len(library.items()),
            }  # fmt: skip
            yield namespace, figures, library.verify()


_LATE = """
SELECT extract(epoch FROM clock_timestamp() - at) FROM hardwon.positions JOIN hardwon.log ON log.id = log_id
WHERE positions.namespace = %(namespace)s AND pos > %(after)s ORDER BY pos LIMIT 1
"""


def _open_log(url: str, namespace: str, replica: Path | None, create: bool) -> tuple[Log, Path]:
    """Return the log and the folder of its replica; while the server is down, of the one that this host has."""
    try:
        log = Log(url, namespace, create=create)
        return log, replica or places.find_folder(log.database, namespace)
    except LibraryUnreachable as error:
        identity = ServerSession(url).identity
        note = places.find_notes(identity).get(namespace) if replica is None else places.read_note(replica)
        where = "This host has no replica of it" if replica is None else f"The folder {replica} has no replica of it"
        if note is not None and (note.identity, note.namespace) == (identity, namespace):
            folder = replica or places.find_folder(note.database, namespace)
            if (folder / FILE_NAME).exists():
                return Log(url, namespace, create=create, database=note.database), folder
        raise LibraryUnreachable(
            f"{error} {where} in the namespace {namespace!r} that could be read until then."
        ) from None
