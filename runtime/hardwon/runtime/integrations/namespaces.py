"""Libraries for the namespaces of an application's runs, all in one file.

A run whose namespace cannot be determined is refused, so namespaces never mix.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.memory.privacy.private_files import OwnLock

FINISHED = 10_000
"""Threads whose newest episode is remembered."""
PAGE = 200
"""Episodes read at a time."""
OPEN_NAMESPACES = 64
"""Number of namespaces to keep open; beyond it, idle ones are closed."""


class Namespaces:
    """A library, plus the same file opened for the namespaces in use and the most recently used ones."""

    def __init__(self, library: ExperienceLibrary, namespace: Callable[[Any], str] | None) -> None:
        """Wrap a library; `namespace` maps a run's context to its namespace, None always uses the library's own."""
        self._library, self._namespace = library, namespace
        self._opened: OrderedDict[str, ExperienceLibrary] = OrderedDict()
        self._runs: Counter[str] = Counter()
        self._finished: OrderedDict[tuple[str, str], str] = OrderedDict()
        """Newest episode by namespace and thread."""
        self._lock = OwnLock(library.path)

    def of(self, context: Any) -> ExperienceLibrary:
        """Return the library for a run, to be released with `release`."""
        name = self._name(context)
        if name == self._library.namespace:
            return self._library
        with self._lock:
            # Opened under the lock, so that two runs of a namespace share one library.
            if name not in self._opened:
                self._opened[name] = self._library.reopen(name)
            self._opened.move_to_end(name)
            self._runs[name] += 1
            return self._opened[name]

    def release(self, library: ExperienceLibrary) -> None:
        """Release a library at the end of a run, and close unused ones beyond `OPEN_NAMESPACES`."""
        with self._lock:
            self._runs[library.namespace] -= 1
            # The dictionary is ordered by last use, so the least recently used are closed first.
            idle = [name for name in self._opened if self._runs[name] <= 0]
            for name in idle[: max(0, len(self._opened) - OPEN_NAMESPACES)]:
                self._opened.pop(name).close()

    def remember(self, library: ExperienceLibrary, thread: str, episode: str) -> None:
        """Remember the newest episode of a thread, for a client that may not read the log."""
        with self._lock:
            self._finished[library.namespace, thread] = episode
            self._finished.move_to_end((library.namespace, thread))
            if len(self._finished) > FINISHED:
                self._finished.popitem(last=False)

    def find_run(self, library: ExperienceLibrary, thread: str) -> str:
        """Return the id of the newest episode of a thread, of this process or of an earlier one."""
        with self._lock:
            finished = self._finished.get((library.namespace, thread))
        return finished if finished is not None else _find_recorded(library, thread)

    def close(self) -> None:
        """Close all libraries except the one given to the constructor."""
        with self._lock:
            while self._opened:
                self._opened.popitem()[1].close()

    def _name(self, context: Any) -> str:
        if self._namespace is None:
            return self._library.namespace
        try:
            name = self._namespace(context)
        except Exception as error:
            raise ConfigError(
                f"cannot determine the namespace from the context {context!r:.200} ({error!r}). "
                "Give the agent a context_schema, and pass a context to each run."
            ) from error
        if not isinstance(name, str) or not name:
            raise ConfigError(f"the namespace for the context {context!r:.200} is {name!r}; return a non-empty string.")
        return name


def _find_recorded(library: ExperienceLibrary, thread: str) -> str:
    """Return the id of the newest episode of a thread."""
    threads: dict[str, str] = {}
    offset = 0
    while rows := library.episodes.find(limit=PAGE, offset=offset):
        for row in rows:
            name = str(row["meta"].get("thread") or "")
            if name == thread and name:
                return str(row["id"])
            threads.setdefault(name, row["id"])
        offset += PAGE
    raise UnknownName.of("thread", thread, filter(None, threads))
