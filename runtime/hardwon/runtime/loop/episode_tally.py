"""A summary of a library's episodes that grows with it: each episode is read once.

    tally = EpisodeTally(library, Counter, lambda counts, row: counts.update([row["task"]]))
    tally.read()["clean the hall"]

A graded or forgotten episode changes what was read before, so everything is then read again.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from hardwon.memory import ExperienceLibrary

PAGE = 50
"""Number of rows to ask for at a time; mostly one is new."""

TallyType = TypeVar("TallyType")
EpisodeRow = Mapping[str, Any]


class EpisodeTally(Generic[TallyType]):
    """Adds the trusted episodes of a library that ended with an outcome to a summary, oldest first."""

    def __init__(
        self, library: ExperienceLibrary, begin: Callable[[], TallyType], add: Callable[[TallyType, EpisodeRow], object]
    ) -> None:
        """Create a tally that has read nothing."""
        self._library, self._begin, self._add = library, begin, add
        self._summary = begin()
        self._revision = (0, -1)
        self._newest = ""
        """Id of the newest episode that was read; empty before the first one."""
        self._lock = threading.Lock()  # concurrent episodes of an agent share a tally

    def read(self) -> TallyType:
        """Return the summary of all episodes so far."""
        with self._lock:
            revision = self._library.revision
            if revision == self._revision:
                return self._summary
            rows = self._read_new() if revision[1] == self._revision[1] else None
            if rows is None:
                self._summary, self._newest = self._begin(), ""
                rows = self._read_new() or {}
            for row in reversed(rows.values()):
                if row["success"] is not None and row["trust"] == "trusted":
                    self._add(self._summary, row)
            self._newest = next(iter(rows), self._newest)
            self._revision = revision
            return self._summary

    def _read_new(self) -> dict[str, EpisodeRow] | None:
        """Return the rows above the newest one by id, newest first; None if that one is gone."""
        rows: dict[str, EpisodeRow] = {}
        for offset in range(0, 1 << 62, PAGE):
            page = self._library.episodes.find(limit=PAGE, offset=offset)
            for row in page:
                if row["id"] == self._newest:
                    return rows
                rows.setdefault(row["id"], row)  # an episode recorded between two pages repeats a row
            if len(page) < PAGE:
                break
        return None if self._newest else rows
