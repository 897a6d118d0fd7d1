"""The library's namespaces, opened on first use and closed again when many others are in use.

    with shelf.reading("acme") as library: ...

A write creates a missing namespace; a read never does.
"""

import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path

from hardwon.apps.http.access.problems import hide_folders
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import HardwonError, LibraryMissing, LibraryReadOnly, UnknownName
from hardwon.memory.fleet.places import Directory
from hardwon.memory.library import try_lock
from hardwon.memory.privacy.deadlines import deadline
from hardwon.memory.privacy.private_files import find_cache
from hardwon.memory.retrieval.embedders import Embedder
from hardwon.memory.upkeep.damage import readable
from hardwon.memory.upkeep.file_queries import list_namespaces

READ_S, WRITE_S = 5.0, 10.0
"""Seconds that a read or a write waits for others altogether; then it is answered with status 503."""
OPEN = 64
"""Number of idle namespaces kept open. Each holds its derived data in memory."""


class Shelf:
    """One library, in a file or shared, by namespace. Thread-safe."""

    def __init__(self, path: Path | str, *, read_only: bool = False, embedder: Embedder | None = None) -> None:
        self.path = path
        self.read_only = read_only
        self._directory: Directory | None = None
        self._embedder = embedder
        # `_lock` guards the dictionaries and is held only briefly; `_opening` is held while a library opens.
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._open: OrderedDict[str, ExperienceLibrary] = OrderedDict()
        self._users: dict[str, int] = {}
        if isinstance(path, str):
            self._directory = Directory(path, create=not read_only, offline=True)
            self.name = self._directory.name
            if not self._directory.names() and not read_only:
                ExperienceLibrary.open(path, embedder).close()
        else:
            self.name = path.name
            if not path.exists() and not read_only:
                ExperienceLibrary.open(path, embedder).close()
        self._file = Path(path).stat() if self._directory is None and Path(path).exists() else None
        # Fail at startup rather than at the first request if the file is not a library.
        self.names()

    def names(self) -> list[str]:
        """Return the existing namespaces."""
        if self._directory is not None:
            return self._directory.names()
        self._check_file()
        try:
            with deadline(READ_S):
                return list_namespaces(Path(self.path), read_only=self.read_only)
        except HardwonError as error:
            raise self._without_folders(error) from error

    def _check_file(self) -> None:
        """Raise LibraryMissing unless the file is that of the start: a new one would hide that the old one is gone."""
        if self._file is None:
            return
        with suppress(OSError):
            if os.path.samestat(self._file, Path(self.path).stat()):
                return
        raise LibraryMissing(
            f"{self.name} was removed or replaced while it was served. Restore the file, or restart the server."
        )

    def size(self) -> int:
        """Return the size in bytes of the library's file, or of the replicas that are open."""
        if self._directory is None:
            return Path(self.path).stat().st_size
        with self._lock:
            files = [Path(getattr(library.admin, "replica", "")) for library in self._open.values()]
        return sum(file.stat().st_size for file in files if file.is_file())

    @contextmanager
    def reading(self, namespace: str) -> Iterator[ExperienceLibrary]:
        """Open an existing namespace. Raise UnknownName if it does not exist."""
        with deadline(READ_S):
            yield from self._lease(namespace, make=False)

    @contextmanager
    def writing(self, namespace: str) -> Iterator[ExperienceLibrary]:
        """Open a namespace, and create it if it does not exist. Raise LibraryReadOnly on a read-only shelf."""
        self._must_be_writable()
        with deadline(WRITE_S):
            yield from self._lease(namespace, make=True)

    @contextmanager
    def recording(self, namespace: str) -> Iterator[ExperienceLibrary]:
        """Open an existing namespace for adding. Raise LibraryReadOnly on a read-only shelf."""
        self._must_be_writable()
        with deadline(WRITE_S):
            yield from self._lease(namespace, make=False)

    def _must_be_writable(self) -> None:
        if self.read_only:
            raise LibraryReadOnly(f"{self.name} is served read-only. Serve it without --read-only to write.")

    @contextmanager
    def at_once(self, namespace: str) -> Iterator[object | None]:
        """Hold an open namespace as `try_lock` does. Yield None if it is not open."""
        # Unlike `_lease`, this never opens a library: the caller holds the event loop's thread.
        with self._lock:
            library = self._acquire(namespace)
        if library is None:
            yield None
            return
        try:
            with try_lock(library) as moment:
                yield moment
        except HardwonError as error:
            raise self._without_folders(error) from error
        finally:
            with self._lock:
                self._users[namespace] -= 1

    def _lease(self, namespace: str, *, make: bool) -> Iterator[ExperienceLibrary]:
        self._check_file()
        with self._lock:
            library = self._acquire(namespace)
        try:
            if library is None:
                with readable(self.name):
                    library = self._open_namespace(namespace, make)
            try:
                with readable(self.name):
                    yield library
            finally:
                with self._lock:
                    self._users[namespace] -= 1
        except HardwonError as error:
            raise self._without_folders(error) from error

    def _without_folders(self, error: HardwonError) -> HardwonError:
        """Return an error for clients, which names no folders of this server. Its cause is logged."""
        for_clients = copy(error)
        for_clients.args = (self.hide_folders(str(error)),)
        return for_clients

    def hide_folders(self, text: str) -> str:
        """Return a text for clients, which names files without the folders of this server."""
        # The library's folder may be below one of the others, so it is the first.
        library = [] if self._directory else [Path(self.path)]
        return hide_folders(text, *library, find_cache() / "file", Path(tempfile.gettempdir(), "file"))

    def _acquire(self, namespace: str) -> ExperienceLibrary | None:
        if namespace not in self._open:
            return None
        self._open.move_to_end(namespace)
        self._users[namespace] += 1
        return self._open[namespace]

    def _open_namespace(self, namespace: str, make: bool) -> ExperienceLibrary:
        with self._opening:  # opens are serialized; calls on open namespaces continue
            with self._lock:
                # Another thread may have opened it while this one waited.
                library = self._acquire(namespace)
            if library is not None:
                return library
            if (
                not make and namespace not in self.names()
            ):  # no suggestions: the caller may not be allowed to know other names
                raise UnknownName(
                    f"unknown namespace {namespace!r}. Create it with POST /v1/namespaces, or by a write."
                )
            # An agent's episode must not be lost because a server restarts: a shared library has an outbox here.
            keeps = self._directory is not None and not self.read_only
            library = ExperienceLibrary.open(self.path, self._embedder, namespace, self.read_only, outbox=keeps)
            with self._lock:
                self._open[namespace] = library
                # In use before the lock is released, so that no other thread closes it as idle.
                self._users[namespace] = 1
                # Least recently used first. A namespace in use stays open, even if more than OPEN are.
                idle = [name for name in self._open if not self._users[name]]
                closing = [self._open.pop(name) for name in idle[: max(0, len(self._open) - OPEN)]]
            # Outside `_lock`, so that calls on other namespaces do not wait for it.
            for unused in closing:
                unused.close()
            return library

    def close(self) -> None:
        """Close all namespaces."""
        with self._lock:
            closing = list(self._open.values())
            self._open.clear()
        for library in closing:
            library.close()
        if self._directory is not None:
            self._directory.close()
