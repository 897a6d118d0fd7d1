"""Files and connections that belong to one owner: what is created may be read by its user alone, and a connection is
used by the process that opened it.

SQLite's connections and locks do not survive a fork (a server that loads the library before it forks its workers,
`multiprocessing` with the method "fork"): two processes would write through one file position and one set of locks, and
a lock that another thread held at that moment is never released in the child. So both know their process.
"""

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from hardwon.memory.errors import LibraryError

FILE_MODE, FOLDER_MODE = 0o600, 0o700
"""For the user who runs it alone. What is there already keeps the mode that it has."""


def open_new(path: Path, *, exclusive: bool = False) -> IO[bytes]:
    """Open a file to be written from its beginning; where it is new, for its user alone."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_EXCL if exclusive else os.O_TRUNC)
    return os.fdopen(os.open(path, flags, FILE_MODE), "wb")


def check_process(owner: int, path: str) -> None:
    """Raise LibraryError in another process than the one that opened a library."""
    if os.getpid() != owner:
        raise LibraryError(
            f"{path} was opened by process {owner}, which then forked this one, {os.getpid()}. A library is not "
            "used across a fork: open it in each process, after the fork (gunicorn: without --preload)."
        )


class OwnLock:
    """A lock that one thread may take again, of the process that made it: a forked one gets an error."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._owner = os.getpid()
        self._lock = threading.RLock()

    def acquire(self, blocking: bool = True) -> bool:
        """Take it. Raises LibraryError in another process."""
        if os.getpid() != self._owner:
            check_process(self._owner, self._path)
        return self._lock.acquire(blocking)

    def is_mine(self) -> bool:
        """Return whether this process made it."""
        return os.getpid() == self._owner

    def release(self) -> None:
        """Give it back."""
        self._lock.release()

    def __enter__(self) -> Any:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
