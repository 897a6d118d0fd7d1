"""The follower: a thread that reads the log and applies it to the replica of this host.

Several processes may follow the same log into the same file; each entry is applied once. A follower is woken by the
server, or by a writer in its process; rarely it looks by itself, in case a wake-up call was lost. It outlives the
server, and says how old the replica is. It also sends the outbox, and stores the snapshots that are due.
"""

import logging
import os
import select
import threading
import time
from contextlib import suppress
from pathlib import Path

from hardwon.memory.errors import (
    HardwonError,
    LibraryError,
    LibraryUnreachable,
    LibraryUnwritable,
    MissingExtra,
    OtherReplica,
)
from hardwon.memory.storage.database import Store
from hardwon.memory.upkeep import forgetting

from . import snapshots
from .log import PAGE, Log
from .outbox import Outbox
from .replica import EntryErased, Replica

SOON_S, LATE_S = 0.02, 1.0
"""Pause after each look at the log in seconds, and the longest wait for a call before the next one."""
RETRY_S = 1.0
"""Seconds until the next attempt after the server did not answer."""

logger = logging.getLogger("hardwon.memory")


class Follower:
    """Keeps a replica close to its log. Safe to use from several threads."""

    def __init__(
        self,
        log: Log,
        path: Path,
        namespace: int,
        outbox: Outbox | None = None,
        *,
        tends: bool = True,
        age_s: float = 0.0,
    ) -> None:
        """Bind the replica to the log, and apply everything that is in the log if the server answered."""
        self._log = log
        self._store = Store(path)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._outbox, self._waker = outbox, Waker()
        self._is_snapshot_due, self._is_half_forgotten = False, tends
        self._contact = time.monotonic() - age_s
        self._is_joined = False
        self._thread: threading.Thread | None = None
        try:
            self._replica = Replica(self._store, namespace)
            self._replica.adopt(log.database, log.namespace)
            if log.is_attached:
                self.catch_up()
        except BaseException:
            self._store.close()
            self._waker.close()
            raise

    def _join(self) -> None:
        """Check that the log is the one that the replica followed, and begin from a snapshot if that is faster."""
        self._check_same_log()
        if (snapshot := snapshots.is_worth_loading(self._log, self._replica.position)) is not None:
            try:
                snapshots.load(self._log, self._store, snapshot)
            except (LibraryUnreachable, MissingExtra) as error:
                if snapshot.file is None:
                    raise
                logger.warning("%s The replica is filled from the log instead.", error)
        self._is_joined = True

    def _check_same_log(self) -> None:
        """Check that the log holds what the replica applied last: a restored copy may end earlier."""
        origin = self._replica.origin
        if not origin.position:
            return
        query = "SELECT log_id FROM hardwon.positions WHERE namespace = %(namespace)s AND pos = %(pos)s"
        if self._log.read(query, {"pos": origin.position}) != [(origin.entry,)]:
            raise OtherReplica(
                f"{self._store.path} has applied {origin.position} entries, and the last one is not in "
                f"{self._log.name}: the database was restored from an older copy. Delete the replica; it is filled "
                "again from the log."
            )

    def start(self) -> None:
        """Start the thread."""
        self._log.listen(self._on_notified)
        self._thread = threading.Thread(target=self._follow, name=f"hardwon follows {self._log.namespace}", daemon=True)
        self._thread.start()

    @property
    def position(self) -> int:
        """Return the position of the replica."""
        return self._replica.position

    @property
    def staleness_s(self) -> float:
        """Return the seconds since the replica last held everything that was in the log."""
        return time.monotonic() - self._contact

    def catch_up(self) -> int:
        """Apply everything that is in the log now, and return the position."""
        with self._lock:
            if not self._is_joined:
                self._join()
            contact = time.monotonic()
            head, position = self._log.assign(), self._replica.position
            if head < position:
                self._check_same_log()
            while position < head:
                entries = self._log.fetch(position, PAGE)
                if not entries:
                    break
                try:
                    position = self._replica.apply(entries)
                except EntryErased:
                    position = self._load_snapshot(position)
                if any(entry.kind == "forget" for entry in entries):
                    forgetting.finish(self._store)  # the rows are deleted; now their bytes
            self._contact = contact
            return position

    def _load_snapshot(self, position: int) -> int:
        """Continue from a snapshot, because entries after a position have no content any more."""
        snapshot = snapshots.find(self._log)
        if snapshot is None or snapshot.position <= position:
            raise LibraryError(
                f"{self._log.name} has entries after position {position} whose content was erased, and no snapshot "
                "that replaces them. Restore the table hardwon.snapshots from a backup."
            )
        snapshots.load(self._log, self._store, snapshot)
        forgetting.finish(self._store)
        return self._replica.position

    def refill(self) -> None:
        """Fill the file again from the log, in one transaction; for a replica that was damaged."""
        with self._lock:
            snapshots.rebuild(self._log, self._store)

    def store_snapshot(self) -> int:
        """Store a copy of the replica for new hosts; return its position."""
        return snapshots.save(self._log, self._store, self._replica.namespace)

    def erase(self) -> None:
        """Erase the content of the log that `forget` made obsolete, if any is left; a snapshot replaces it."""
        entries = snapshots.list_erasable(self._log, self._store, self._replica.namespace, self._replica.position)
        if entries:
            snapshots.save(self._log, self._store, self._replica.namespace, erase=entries)

    def request_snapshot(self) -> None:
        """Let the thread store a snapshot if one is due."""
        self._is_snapshot_due = True
        self._waker.wake()

    def wake(self) -> None:
        """Let the thread look at the log soon, because an entry was appended or put into the outbox."""
        self._waker.wake()

    def _on_notified(self) -> None:
        if threading.current_thread() is not self._thread:  # which has just looked
            self._waker.wake()

    def _follow(self) -> None:
        pause_s, trouble, pace = LATE_S, "", Pace()
        self._waker.wake()
        while not self._stopping.is_set():
            self._waker.wait(pause_s, self._log.fileno())
            if self._stopping.wait(pace.remaining_s()):
                return
            try:
                self._work()
                pause_s, trouble = LATE_S, ""
            except HardwonError as error:  # the next writer or reader that needs the log gets it as an exception
                if self._stopping.is_set():
                    return
                if str(error) != trouble:
                    level = logging.INFO if isinstance(error, LibraryUnreachable | LibraryUnwritable) else logging.ERROR
                    logger.log(level, "the replica %s does not follow its log: %s", self._store.path, error)
                pause_s, trouble = RETRY_S, str(error)
            pace.begin()

    def _work(self) -> None:
        if self._outbox is not None:
            self._outbox.send(self._log)
        is_snapshot_due = self._is_snapshot_due  # a request that comes meanwhile is for the next look
        position = self.catch_up()
        if self._is_half_forgotten:
            self._is_half_forgotten = False
            if self._log.may_manage():
                self.erase()
        if is_snapshot_due:
            self._is_snapshot_due = False
            if snapshots.is_due(self._log, position) and self._log.may_manage():
                self.store_snapshot()

    def close(self) -> None:
        """Stop the thread and close the file."""
        self._stopping.set()
        self._waker.wake()
        if self._thread is not None:
            self._thread.join(timeout=30)
        self._store.close()
        if self._thread is None or not self._thread.is_alive():
            self._waker.close()


class Pace:
    """A pause after each look at the log: what arrives meanwhile is applied together. A longer silence needs none."""

    def __init__(self) -> None:
        self._until = 0.0

    def remaining_s(self) -> float:
        """Return how much of the pause is left, in seconds."""
        return max(0.0, self._until - time.monotonic())

    def begin(self) -> None:
        """Begin the pause, at the end of a look."""
        self._until = time.monotonic() + SOON_S


class Waker:
    """Lets one thread sleep until something happens. `wake` may be called by any thread."""

    def __init__(self) -> None:
        self._reads, self._writes = os.pipe()
        os.set_blocking(self._reads, False)
        os.set_blocking(self._writes, False)

    def wake(self) -> None:
        """End the current wait, or the next one."""
        with suppress(BlockingIOError, OSError):  # full: it wakes anyway; closed: nobody waits any more
            os.write(self._writes, b"x")

    def wait(self, seconds: float, descriptor: int | None) -> None:
        """Sleep until `wake` is called, the descriptor can be read, or the time is over."""
        poll = select.poll()
        poll.register(self._reads, select.POLLIN)
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
        poll.poll(max(0.0, seconds) * 1000)
        with suppress(BlockingIOError):
            while os.read(self._reads, 4096):
                pass

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._reads)
        os.close(self._writes)
