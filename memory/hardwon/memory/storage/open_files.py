"""The library files that this process has open.

Such a file must not be opened and closed without SQLite: on POSIX, closing any descriptor of a file ends all locks of
the process on it. Another process then takes itself for the last user, and deletes the log that is in use.
"""

import threading
from collections import Counter
from pathlib import Path

FileKey = tuple[int, int]
"""Device and inode of a file."""


class OpenFiles:
    """A count of connections by file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[FileKey] = Counter()

    def add(self, path: str) -> FileKey | None:
        """Count one more connection to a file; return its key for `discard`, or None for a library in memory."""
        if path == ":memory:":
            return None
        stat = Path(path).stat()
        key = stat.st_dev, stat.st_ino
        with self._lock:
            self._counts[key] += 1
        return key

    def discard(self, key: FileKey | None) -> None:
        """Count one connection less."""
        if key is not None:
            with self._lock:
                self._counts[key] -= 1
                self._counts = +self._counts

    def __contains__(self, path: Path) -> bool:
        stat = path.stat()
        with self._lock:
            return (stat.st_dev, stat.st_ino) in self._counts


OPEN_FILES = OpenFiles()
"""The open library files of this process."""
