"""The library's namespaces, each opened when it is first asked for and closed when many others were.

    with shelf.reading("acme") as library: ...

A namespace that does not exist is made by a write, never by a read.
"""

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hardwon.apps.shared.file_queries import list_namespaces
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError, HardwonError, LibraryError, LibraryReadOnly, UnknownName
from hardwon.memory.retrieval.embedders import Embedder

OPEN = 64
"""Namespaces kept open while nobody uses them: each holds what it derived in memory."""


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Give what fails while a library's rows are made records of a name: rows that were changed by hand, or torn.

    Raises: ConfigError for what is nested too deeply, LibraryError for the rest.
    """
    try:
        yield
    except HardwonError:
        raise
    except RecursionError as error:
        raise ConfigError("what was sent has too many lists and objects inside one another. Send less deep.") from error
    except (ValueError, LookupError, TypeError, AttributeError, sqlite3.Error) as error:
        raise LibraryError(
            f"{name} holds something that cannot be read ({type(error).__name__}: {str(error)[:200]}). "
            f"Look for it with: hardwon memory verify {name}"
        ) from error


class Shelf:
    """One library file, by namespace. Safe for many threads."""

    def __init__(self, path: Path, *, read_only: bool = False, embedder: Embedder | None = None) -> None:
        self.path = path
        self.read_only = read_only
        self._embedder = embedder
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._open: OrderedDict[str, ExperienceLibrary] = OrderedDict()
        self._users: dict[str, int] = {}
        if not path.exists() and not read_only:
            ExperienceLibrary.open(path, embedder).close()
        self.names()

    def names(self) -> list[str]:
        """The namespaces that there are."""
        return list_namespaces(self.path, read_only=self.read_only)

    @contextmanager
    def reading(self, namespace: str) -> Iterator[ExperienceLibrary]:
        """A namespace that exists. Raises UnknownName."""
        yield from self._leased(namespace, make=False)

    @contextmanager
    def writing(self, namespace: str) -> Iterator[ExperienceLibrary]:
        """A namespace, made where it does not exist. Raises LibraryReadOnly."""
        self._must_be_writable()
        yield from self._leased(namespace, make=True)

    @contextmanager
    def recording(self, namespace: str) -> Iterator[ExperienceLibrary]:
        """A namespace that exists, to be added to. Raises LibraryReadOnly, UnknownName."""
        self._must_be_writable()
        yield from self._leased(namespace, make=False)

    def _must_be_writable(self) -> None:
        if self.read_only:
            raise LibraryReadOnly(f"{self.path.name} is served to be read. Serve it without --read-only to write.")

    @contextmanager
    def at_once(self, namespace: str) -> Iterator[object | None]:
        """Hold a namespace that is open, as `ExperienceLibrary.at_once` does; None where it is not."""
        with self._lock:
            library = self._taken(namespace)
        if library is None:
            yield None
            return
        try:
            with library.at_once() as moment:
                yield moment
        finally:
            with self._lock:
                self._users[namespace] -= 1

    def _leased(self, namespace: str, *, make: bool) -> Iterator[ExperienceLibrary]:
        with self._lock:
            library = self._taken(namespace)
        if library is None:
            with readable(self.path.name):
                library = self._opened(namespace, make)
        try:
            with readable(self.path.name):
                yield library
        finally:
            with self._lock:
                self._users[namespace] -= 1

    def _taken(self, namespace: str) -> ExperienceLibrary | None:
        if namespace not in self._open:
            return None
        self._open.move_to_end(namespace)
        self._users[namespace] += 1
        return self._open[namespace]

    def _opened(self, namespace: str, make: bool) -> ExperienceLibrary:
        with self._opening:  # one at a time, while those that are open go on
            with self._lock:
                library = self._taken(namespace)
            if library is not None:
                return library
            if not make and namespace not in self.names():  # the others may be no business of the caller's
                raise UnknownName(f"unknown namespace {namespace!r}. A write makes it, or: POST /v1/namespaces")
            library = ExperienceLibrary.open(self.path, self._embedder, namespace, self.read_only)
            with self._lock:
                self._open[namespace] = library
                self._users[namespace] = 1
                idle = [name for name in self._open if not self._users[name]]
                closing = [self._open.pop(name) for name in idle[: max(0, len(self._open) - OPEN)]]
            for unused in closing:
                unused.close()
            return library

    def close(self) -> None:
        """Close all of them."""
        with self._lock:
            closing = list(self._open.values())
            self._open.clear()
        for library in closing:
            library.close()
