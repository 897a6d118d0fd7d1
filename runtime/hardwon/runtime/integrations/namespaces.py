"""One library file opened for several namespaces, as the runs of an application name them.

Nothing is mixed: a run whose namespace cannot be told gets none. This file opens and closes, no more.
"""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError

OPEN_NAMESPACES = 64
"""Namespaces that are kept open; of those beyond, what no run uses is closed."""


class Namespaces:
    """The library, and the same file opened for other namespaces: those in use, and those used last."""

    def __init__(self, library: ExperienceLibrary, namespace: Callable[[Any], str] | None) -> None:
        self._library, self._namespace = library, namespace
        self._opened: OrderedDict[str, ExperienceLibrary] = OrderedDict()
        self._runs: Counter[str] = Counter()
        self._lock = threading.Lock()

    def of(self, context: Any) -> ExperienceLibrary:
        """Whose experience a run uses, until it is released.

        Raises: ConfigError where that cannot be told, for somebody else's must not be used instead.
        """
        name = self._name(context)
        if name == self._library.namespace:
            return self._library
        with self._lock:
            if name not in self._opened:
                self._opened[name] = ExperienceLibrary.open(
                    self._library.path, self._library.embedder, name, self._library.read_only
                )
            self._opened.move_to_end(name)
            self._runs[name] += 1
            return self._opened[name]

    def release(self, library: ExperienceLibrary) -> None:
        """A run is over."""
        with self._lock:
            self._runs[library.namespace] -= 1
            idle = [name for name in self._opened if self._runs[name] <= 0]
            for name in idle[: max(0, len(self._opened) - OPEN_NAMESPACES)]:
                self._opened.pop(name).close()

    def close(self) -> None:
        """Close all but the library that was given."""
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
                f"namespace cannot be told from the context {context!r:.200} ({error!r}). "
                "Give the agent a context_schema, and each run its context."
            ) from error
        if not isinstance(name, str) or not name:
            raise ConfigError(f"namespace is {name!r} by the context {context!r:.200}; it is a word.")
        return name
