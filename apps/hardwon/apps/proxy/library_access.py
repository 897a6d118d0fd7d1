"""Open a library for the proxy, and open it again after it was out of reach."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import LibraryUnreachable, LibraryUnwritable
from hardwon.memory.privacy.deadlines import deadline
from hardwon.runtime.integrations.tool_episode import BEFORE_CALL_S

logger = logging.getLogger("hardwon.proxy")

RETRY_S = 10.0
"""Seconds between two attempts to open a library that cannot be reached."""


class LibraryAccess:
    """Access to one library, which may be out of reach for a while."""

    def __init__(self, opener: Callable[[], ExperienceLibrary]) -> None:
        """Open the library."""
        self._opener = opener
        self._lock = threading.Lock()
        self._library: ExperienceLibrary | None = None
        self._error: Exception | None = None
        self._tried_at = 0.0
        try:
            self.get()
        except (LibraryUnreachable, LibraryUnwritable) as error:
            logger.warning("the library cannot be used yet; calls pass through without experience: %s", error)

    def get(self) -> ExperienceLibrary:
        """Return the open library."""
        with self._lock:
            if self._library is not None:
                return self._library
            if self._error is not None and time.monotonic() - self._tried_at < RETRY_S:
                raise self._error
            try:
                with deadline(BEFORE_CALL_S):  # the other calls wait here too
                    self._library = self._opener()
            except Exception as error:
                self._error, self._tried_at = error, time.monotonic()
                raise
            return self._library

    def explain_outage(self) -> str:
        """Return why nothing can be recalled; empty if it can be."""
        try:
            library = self.get()
            if library.path != ":memory:" and "://" not in library.path and not Path(library.path).exists():
                return f"{library.path} is no longer there; restore it, and restart the proxy"
            library.recall(f"health check {time.monotonic()}")  # another text each time, which no cache knows
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def close(self) -> None:
        """Close the library."""
        with self._lock:
            if self._library is not None:
                self._library.close()
                self._library = None
