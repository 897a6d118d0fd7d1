"""Locks by which a process sees that another one, which has runs in the same folder, still lives."""

import fcntl
import os
import threading
import uuid
from contextlib import suppress
from pathlib import Path

from hardwon.memory.privacy.private_files import FILE_MODE, FOLDER_MODE


class Locked:
    """The lock of a process that is gone."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_RDWR)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)


class Locks:
    """The locks by which other processes see that this one lives, one per folder."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[Path, tuple[str, int]] = {}
        os.register_at_fork(after_in_child=self._drop)

    def take(self, folder: Path) -> str:
        """Return the token of this process in a folder, which it creates if necessary."""
        with self._lock:
            while folder not in self._held:
                folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
                token = uuid.uuid4().hex[:16]
                with suppress(FileNotFoundError):  # another process removed the empty folder meanwhile
                    descriptor = os.open(folder / f"{token}.lock", os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE)
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                    if os.fstat(descriptor).st_nlink:
                        self._held[folder] = token, descriptor
                    else:  # another process took it for the lock of one that is gone
                        os.close(descriptor)
            return self._held[folder][0]

    def release(self, folder: Path) -> None:
        """Remove the lock and the folder, unless this process still has runs there."""
        with self._lock, suppress(OSError):
            if folder in self._held and not any(folder.glob(f"{self._held[folder][0]}.*.jsonl")):
                token, descriptor = self._held.pop(folder)
                (folder / f"{token}.lock").unlink(missing_ok=True)
                os.close(descriptor)
                folder.rmdir()

    def _drop(self) -> None:
        """Leave the locks to the parent in a forked process, so that they end with the parent."""
        self._lock = threading.Lock()
        for _, descriptor in self._held.values():
            os.close(descriptor)
        self._held = {}


LOCKS = Locks()
