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
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from hardwon.memory.errors import (
    LibraryError,
    LibraryUnreachable,
)
from hardwon.memory.library import ExperienceLibrary
from hardwon.memory.records import EvolutionReport, Problem, State, Verdict
from hardwon.memory.retrieval.embedders import Embedder
from hardwon.memory.situations.keys import KEYS_VERSION
from hardwon.memory.storage.database import Store
from hardwon.memory.upkeep import forgetting, integrity
from hardwon.memory.upkeep.damage import names_damage
from hardwon.memory.upkeep.rekeying import rekey
from hardwon.memory.upkeep.setup import agree_on_embedder, namespace_number
from hardwon.memory.validation import check_id

from . import places
from .admin import FleetAdmin
from .file import ReplicaFile
from .follower import Follower
from .log import Log
from .outbox import FILE, Outbox
from .replica import read_position
from .session import ServerSession, list_risks, warn
from .vectors import share

logger = logging.getLogger("hardwon.memory")


FILE_NAME = f"library-k{KEYS_VERSION}.db"
"""Name of the replica's file in its folder."""


@names_damage
class FleetLibrary(ExperienceLibrary):
    """One namespace of a shared library. Safe to use from several threads; open it in each process."""

    _file: ReplicaFile
    admin: FleetAdmin

    def __init__(self, file: ReplicaFile, reopen: Callable[[str], "FleetLibrary"]) -> None:
        super().__init__(file)
        self._reopen = reopen
        self.admin = FleetAdmin(file, self.items, reopen)  # pyright: ignore[reportIncompatibleVariableOverride]
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"

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
                chosen = agree_on_embedder(store, embedder or (log.read_meta("embedder") if log.is_attached else None))
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
                file = ReplicaFile(store, share(chosen, log), namespace, log, follower, waiting if outbox else None)
                library = cls(file, reopen)
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
                log.name, path, library.admin.position, age_s, "wait in the outbox" if outbox else "fail",
            )  # fmt: skip
        elif not read_only:
            warn(log.name, log.read)
        follower.start()
        if not read_only:
            library._record_abandoned()
        return library

    def _note_contact(self) -> None:
        """Note in the replica's folder when it last held everything that was in the log."""
        log = self._file.log
        if log.is_attached:
            note = places.Note(log.identity, log.database, self.namespace)
            places.write_note(Path(self._file.store.path).parent, note, age_s=self.admin.staleness_s)

    def reopen(self, namespace: str | None = None) -> "FleetLibrary":
        """Open the library again, as another handle; see `ExperienceLibrary.reopen`."""
        return self._reopen(self.namespace if namespace is None else namespace)

    # -- writing ----------------------------------------------------------------------------------

    def _evolve(self) -> EvolutionReport:
        """Learn items, if no other process does so at the moment; see `ExperienceLibrary.evolve`.

        The process that called this last keeps the lease until it closes the library or does not call for ten seconds.
        Calls of the others return an empty report: they get the items through the log.
        """
        self._file.check_writable()
        term = self._file.log.take_lease(self._holder)
        if term is None:
            return EvolutionReport()
        self._file.sync()
        self._file.distiller.load(self.episodes.get)  # other threads recall meanwhile, and while the server answers
        with self._file.lock:
            self._file.term = term
            try:
                report = super()._evolve()
            finally:
                self._file.term = None
        self._file.follower.request_snapshot()
        return report

    def enforce(
        self, state: State, action: str, *, again: bool = False, keep: bool = True, by_hours: bool = False
    ) -> Verdict:
        """Check an action that is about to run; refusals are counted in this process, see `ExperienceLibrary.enforce`.

        The outcome of a trial is recorded with its episode, so all hosts learn it.
        """
        with self._file.use_server_clock():  # the times of trials and items are those of the server
            return super().enforce(state, action, again=again, keep=False, by_hours=by_hours)

    def close(self) -> None:
        """Stop following the log, give the lease back, and close the replica. Closing twice is allowed."""
        if not self._file.is_closed:
            self._file.applied = self._file.written  # closing reads, and the follower is gone
            self._note_contact()
            self._file.follower.close()
            if not self._file.read_only and self._file.log.is_attached:
                with suppress(LibraryError):  # it expires by itself
                    self._file.log.give_lease(self._holder)
        super().close()
        self._file.log.close()


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
            status = library._file.log.read_status()
            late = library._file.log.read(_LATE, {"after": before})
            figures = {
                **status._asdict(), "position": library.admin.position, "replica": library.admin.replica,
                "behind": status.head - before, "lag_s": round(float(late[0][0]), 3) if late else 0.0,
                "risks": list_risks(library._file.log.read), "embedder": library.admin.embedder.name,
                "episodes": library.episodes.count(), "items": len(library.items.find()),
            }  # fmt: skip
            yield namespace, figures, library.admin.verify()


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
