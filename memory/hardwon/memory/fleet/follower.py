"""The follower: a thread that reads the log and applies it to the replica of this host.

Several processes may follow the same log into the same file; each entry is applied once. A follower polls: often while
entries arrive, rarely while nothing happens. It outlives the server, and says how old the replica is.
"""

import logging
import threading
import time
from pathlib import Path

from hardwon.memory.errors import HardwonError, LibraryUnreachable, LibraryUnwritable, OtherReplica
from hardwon.memory.storage.database import Store

from .log import PAGE, Log
from .replica import Replica

SOON_S, LATE_S = 0.02, 0.5
"""Seconds between two looks at the log, while entries arrive and after nothing has happened for long."""
RETRY_S = 1.0
"""Seconds until the next attempt after the server did not answer."""

logger = logging.getLogger("hardwon.memory")


class Follower:
    """Keeps a replica close to its log. Safe to use from several threads."""

    def __init__(self, log: Log, path: Path, namespace: int) -> None:
        """Bind the replica to the log, and apply everything that is in the log.

        Raises:
            OtherReplica: The file follows another log, or the log is not the one that it followed.
        """
        self._log = log
        self._store = Store(path)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._contact = time.monotonic()
        self._thread: threading.Thread | None = None
        try:
            self._replica = Replica(self._store, namespace)
            self._replica.adopt(log.database, log.namespace)
            self._check_same_log()
            self.catch_up()
        except BaseException:
            self._store.close()
            raise

    def _check_same_log(self) -> None:
        """Check that the log holds what the replica applied last: a restored copy may end earlier."""
        origin = self._replica.origin
        if origin.position and self._log.find_entry(origin.position) != origin.entry:
            raise OtherReplica(
                f"{self._store.path} has applied {origin.position} entries, and the last one is not in "
                f"{self._log.name}: the database was restored from an older copy. Delete the replica; it is filled "
                "again from the log."
            )

    def start(self) -> None:
        """Start the thread."""
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
        """Apply everything that is in the log now, and return the position.

        Raises:
            LibraryUnreachable: The server does not answer.
            LibraryError: An entry cannot be applied.
        """
        with self._lock:
            contact = time.monotonic()
            head, position = self._log.assign(), self._replica.position
            while position < head:
                entries = self._log.fetch(position, PAGE)
                if not entries:
                    break
                position = self._replica.apply(entries)
            self._contact = contact
            return position

    def _follow(self) -> None:
        pause_s, position, trouble = SOON_S, self.position, ""
        while not self._stopping.wait(pause_s):
            try:
                reached = self.catch_up()
                pause_s = SOON_S if reached > position else min(LATE_S, 1.2 * pause_s)
                position, trouble = reached, ""
            except HardwonError as error:  # the next writer or reader that needs the log gets it as an exception
                if self._stopping.is_set():
                    return
                if str(error) != trouble:
                    level = logging.INFO if isinstance(error, LibraryUnreachable | LibraryUnwritable) else logging.ERROR
                    logger.log(level, "the replica %s does not follow its log: %s", self._store.path, error)
                pause_s, trouble = RETRY_S, str(error)

    def close(self) -> None:
        """Stop the thread and close the file."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=30)
        self._store.close()
