"""Hold the values of a file in a temporary database between reading and writing.

A file is checked to its end before anything is written, and may be larger than the memory. SQLite stores a database
without a name in a temporary file, which it removes when the connection closes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hardwon.memory.upkeep.file_queries import open_scratch
from hardwon.runtime.environments.calls import Call
from hardwon.runtime.integrations.tool_episode import extract_text

_SCHEMA = """
CREATE TABLE raw(seq INTEGER PRIMARY KEY, part TEXT NOT NULL, place TEXT NOT NULL, data TEXT NOT NULL);
CREATE INDEX raw_by_part ON raw(part, seq);
CREATE TABLE begun(digest BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE logged(seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, data TEXT NOT NULL);
"""

Request = tuple[str, tuple[Call, ...]]
"""The text of a request, and the calls made for it."""


@dataclass(frozen=True, slots=True)
class LoggedEpisode:
    """One episode of a file: a single request and its calls, or all requests of a graded conversation."""

    ref: str
    """Identifies the episode among files of its format: the id of a trace or message, or a digest."""
    requests: tuple[Request, ...]
    success: bool | None = None
    """None if the file has no outcome; then the episode fails if its last errors were not resolved."""
    score: float | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """Return the text of the first request."""
        return self.requests[0][0]

    @property
    def calls(self) -> tuple[Call, ...]:
        """Return all calls, in order."""
        return tuple(call for _, calls in self.requests for call in calls)


class Spool:
    """Temporary store of raw values, grouped by part (a conversation or trace), and of finished episodes.

    Both keep the order of insertion.
    """

    def __init__(self) -> None:
        self._db = open_scratch()
        # One open transaction: the data is temporary, so nothing has to survive a crash.
        self._db.executescript(f"{_SCHEMA} BEGIN;")

    def put(self, part: str, place: str, value: Any) -> int:
        """Store a value in a part and return its number.

        Args:
            part: Name of the part.
            place: Place of the value in the file, for messages.
            value: A JSON value.
        """
        # `extract_text` replaces lone surrogates, which SQLite cannot store; JSON escapes them.
        row = (extract_text(part), place, json.dumps(value))
        return int(self._db.execute("INSERT INTO raw(part, place, data) VALUES (?, ?, ?)", row).lastrowid or 0)

    def parts(self) -> Iterator[str]:
        """Yield the names of the parts, in the order of their first values."""
        rows = self._db.execute("SELECT part FROM raw GROUP BY part ORDER BY min(seq)")
        for (part,) in rows:
            yield str(part)

    def values(self, part: str) -> list[tuple[str, Any]]:
        """Return the values of a part with their places."""
        rows = self._db.execute("SELECT place, data FROM raw WHERE part = ? ORDER BY seq", (part,))
        return [(place, json.loads(data)) for place, data in rows]

    def begin(self, digests: Iterable[bytes]) -> None:
        """Store digests of prefixes of conversations that continue."""
        self._db.executemany("INSERT OR IGNORE INTO begun VALUES (?)", ((digest,) for digest in digests))

    def is_continued(self, digest: bytes) -> bool:
        """Return whether a conversation is a prefix of another."""
        return self._db.execute("SELECT 1 FROM begun WHERE digest = ?", (digest,)).fetchone() is not None

    def keep(self, episode: LoggedEpisode) -> None:
        """Store an episode; a later one with the same reference replaces it."""
        calls = [[task, [[c.name, c.arguments, c.result, c.error] for c in calls]] for task, calls in episode.requests]
        data = json.dumps([calls, episode.success, episode.score, dict(episode.meta)])
        # REPLACE deletes the old row and assigns a new `seq`: a replaced episode moves to the end.
        self._db.execute("INSERT OR REPLACE INTO logged(id, data) VALUES (?, ?)", (extract_text(episode.ref), data))

    def __iter__(self) -> Iterator[LoggedEpisode]:
        for ref, data in self._db.execute("SELECT id, data FROM logged ORDER BY seq"):
            requests, success, score, meta = json.loads(data)
            yield LoggedEpisode(ref, _parse_requests(requests), success, score, meta)

    def __len__(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM logged").fetchone()[0])


def _parse_requests(values: Sequence[Any]) -> tuple[Request, ...]:
    return tuple((task, tuple(Call(*call) for call in calls)) for task, calls in values)
