"""Files that only their user can read, and locks that only their process can take.

SQLite connections and locks do not survive a fork, such as a server that loads the library before it forks its
workers, or `multiprocessing` with the "fork" method. Two processes would share one file position and one set of
locks, and a lock that another thread held during the fork is never released in the child. Therefore connections and
locks remember the process that created them.
"""

import os
from _thread import RLock
from pathlib import Path
from typing import IO

from hardwon.memory.errors import ConfigError, LibraryBusy, LibraryError

from .deadlines import seconds_left

FILE_MODE, FOLDER_MODE = 0o600, 0o700
"""Modes of new files and folders: access for their user only. Existing ones keep their mode."""


def find_cache() -> Path:
    """Return the folder of files that have no place of their own, such as replicas: in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hardwon"


def open_new(path: Path, *, exclusive: bool = False) -> IO[bytes]:
    """Open a file for writing from its beginning. A new file gets mode 0600."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_EXCL if exclusive else os.O_TRUNC)
    return os.fdopen(os.open(path, flags, FILE_MODE), "wb")


def refuse_links(folder: Path) -> None:
    """Raise ConfigError if a folder of results has a link among its files: writing it would change another file."""
    if link := next((path for path in folder.iterdir() if path.is_symlink()), None):
        raise ConfigError(
            f"{link} is a link, and results are not written through links. Remove it, or give another folder."
        )


def check_process(owner: int, path: str) -> None:
    """Raise LibraryError unless this process opened the library."""
    if os.getpid() != owner:
        raise LibraryError(
            f"{path} was opened by process {owner}, which then forked this one, {os.getpid()}. A library is not "
            "used across a fork: open it in each process, after the fork (gunicorn: without --preload)."
        )


class OwnLock(RLock):  # type: ignore[misc]  # final in the type stubs alone
    """A reentrant lock that raises LibraryError in a forked process."""

    def __new__(cls, path: str) -> "OwnLock":
        """Create the lock of its base, which takes no arguments from Python 3.15 on."""
        return super().__new__(cls)

    def __init__(self, path: str) -> None:
        self._path = path
        self._owner = os.getpid()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock; without a timeout, wait until the deadline."""
        if os.getpid() != self._owner:
            check_process(self._owner, self._path)
        is_free = RLock.acquire(self, False)  # mostly so, and every query comes here
        if is_free or not blocking:
            return is_free
        left = seconds_left() if timeout < 0 else timeout
        if not super().acquire(timeout=-1 if left is None else left):
            raise LibraryBusy(f"{self._path} is in use by another thread of this process. Try again later.")
        return True

    __enter__ = acquire

    def is_mine(self) -> bool:
        """Return whether this process created the lock."""
        return os.getpid() == self._owner
