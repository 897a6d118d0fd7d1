"""Hold the values of a file in a temporary database between reading and writing.

A file is checked to its end before anything is written, and may be larger than the memory. SQLite stores a database
without a name in a temporary file, which it removes when the connection closes.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hardwon.memory.storage.clock import format_moment, parse_time
from hardwon.memory.upkeep.file_queries import open_scratch
from hardwon.runtime.environments.calls import Call
from hardwon.runtime.integrations.tool_episode import extract_text
from hardwon.runtime.interfaces.endings import Ending, read_error

STARTED_AT = "started_at"
"""Name in the `meta` of an episode of the time at which it began; lists are ordered by it."""
NO_ROOT = {"without_root": True}
"""In the `meta` of a trace whose root is not in the file, which has the request."""
_RANDOM = re.compile(r"(?=.{16})(?=.*(?<![^\W_])(?=[^\W\d_]*\d)[^\W_]{12})", re.DOTALL)
"""Ids of calls with a random part. Some models count theirs (functions.Bash:0), and repeat them in every session."""
_FEWEST = 10
"""Different characters in a random id; a number with zeros before it has fewer."""
_SCHEMA = """
CREATE TABLE raw(
    seq INTEGER PRIMARY KEY, part TEXT NOT NULL, place TEXT NOT NULL, ref TEXT NOT NULL, at INTEGER,
    data TEXT NOT NULL);
CREATE INDEX raw_by_part ON raw(part, seq);
CREATE TABLE begun(digest BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE aliases(id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE logged(seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, data TEXT NOT NULL);
"""

LoggedRequest = tuple[str, tuple[Call, ...]]
"""The text of a request, and the calls made for it."""


def list_ended(calls: Iterable[Call]) -> tuple[Call, ...]:
    """Return the calls of a trace without those that an interrupt ended, which go on in another run or never ran."""
    return tuple(call for call in calls if read_error(call.error) != "unfinished")


@dataclass(frozen=True, slots=True)
class LoggedEpisode:
    """One episode of a file: a single request and its calls, or all requests of a graded conversation."""

    ref: str
    """Identifies the episode among files of its format: the id of a trace or message, or a digest."""
    requests: tuple[LoggedRequest, ...]
    success: bool | None = None
    """None if the file has no outcome; then the end of the run and its last errors decide."""
    score: float | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    """What identified the episode when the file was shorter."""
    ending: Ending = "completed"
    """How the run ended, which decides if the file has no outcome."""
    wholes: tuple[str, ...] = ()
    """What may identify the whole conversation of a request, if that was graded and is one episode."""
    older: tuple[str, ...] = ()
    """What identified the episode in an earlier version of hardwon, or in a log without ids."""

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

    Values and parts come in the order of their times. One without a time stays behind the one that came before it.
    """

    def __init__(self) -> None:
        self._db = open_scratch()
        # One open transaction: the data is temporary, so nothing has to survive a crash.
        self._db.executescript(f"{_SCHEMA} BEGIN;")

    def put(self, part: str, place: str, value: Any, *, ref: str = "", at: Any = None) -> None:
        """Store a value in a part."""
        # `extract_text` replaces lone surrogates, which SQLite cannot store; JSON escapes them.
        row = (extract_text(part), place, extract_text(ref), parse_time(at), json.dumps(value))
        query = "INSERT INTO raw(part, place, ref, at, data) VALUES (?, ?, ?, ?, ?)"
        self._db.execute(query, row)

    def parts(self) -> Iterator[str]:
        """Yield the names of the parts, in the order of their first times."""
        rows = self._db.execute("SELECT part, min(at) FROM raw GROUP BY part ORDER BY min(seq)").fetchall()
        for part in _sort_by_time(rows):
            yield str(part)

    def values(self, part: str) -> list[tuple[str, Any]]:
        """Return the values of a part with their places."""
        rows = self._db.execute("SELECT seq, ref, place, data, at FROM raw WHERE part = ? ORDER BY seq", (part,))
        values: dict[str | int, tuple[str, Any]] = {}
        times: dict[str | int, int | None] = {}
        for seq, ref, place, data, at in rows:
            value, key = json.loads(data), ref or seq
            if key in values:
                value = values[key][1] | {name: inner for name, inner in value.items() if inner not in _EMPTY}
            values[key], times[key] = (place, value), at if at is not None else times.get(key)
        return [values[key] for key in _sort_by_time(list(times.items()))]

    def find_start(self, part: str) -> dict[str, str]:
        """Return the first time of a part, for the `meta` of its episode; empty if it has none."""
        ((at,),) = self._db.execute("SELECT min(at) FROM raw WHERE part = ?", (extract_text(part),))
        return started_at(at)

    def begin(self, digests: Iterable[bytes]) -> None:
        """Store digests of prefixes of conversations that continue."""
        self._db.executemany("INSERT OR IGNORE INTO begun VALUES (?)", ((digest,) for digest in digests))

    def is_continued(self, digest: bytes) -> bool:
        """Return whether a conversation is a prefix of another."""
        return self._db.execute("SELECT 1 FROM begun WHERE digest = ?", (digest,)).fetchone() is not None

    def keep(self, episode: LoggedEpisode) -> None:
        """Store an episode; it replaces one with the same reference, and those whose references are its aliases."""
        calls = [[task, [[c.name, c.arguments, c.result, c.error] for c in calls]] for task, calls in episode.requests]
        names = [episode.aliases, episode.ending, episode.wholes, episode.older]
        data = json.dumps([calls, episode.success, episode.score, dict(episode.meta), *names])
        rows = ((extract_text(ref),) for ref in (*episode.aliases, *episode.older))
        self._db.executemany("INSERT OR IGNORE INTO aliases VALUES (?)", rows)
        # REPLACE deletes the old row and assigns a new `seq`: a replaced episode moves to the end.
        self._db.execute("INSERT OR REPLACE INTO logged(id, data) VALUES (?, ?)", (extract_text(episode.ref), data))

    def __iter__(self) -> Iterator[LoggedEpisode]:
        for ref, data in self._db.execute(f"SELECT id, data {_KEPT} ORDER BY seq"):
            requests, success, score, meta, aliases, ending, wholes, older = json.loads(data)
            names = tuple(aliases), ending, tuple(wholes), tuple(older)
            yield LoggedEpisode(ref, _parse_requests(requests), success, score, meta, *names)

    def __len__(self) -> int:
        return int(self._db.execute(f"SELECT count(*) {_KEPT}").fetchone()[0])


def refer_to_call(call_id: Any) -> str:
    """Return the reference of a request whose first call has an id; empty if the id is not random.

    A session that was resumed or forked repeats the requests, and may give them other ids; those of their calls stay.
    """
    is_random = isinstance(call_id, str) and _RANDOM.match(call_id) is not None and len({*call_id}) >= _FEWEST
    return f"call {call_id}" if is_random else ""


_KEPT = "FROM logged WHERE id NOT IN (SELECT id FROM aliases)"
_EMPTY: tuple[Any, ...] = (None, "", [], {})


def started_at(at: Any) -> dict[str, str]:
    """Return the time of an episode, for its `meta`; empty if it has none."""
    moment = parse_time(at)
    return {} if moment is None else {STARTED_AT: format_moment(moment)}


def _sort_by_time(rows: Sequence[tuple[Any, int | None]]) -> list[Any]:
    """Return the names of rows of a name and a time; one without a time goes where the one before it goes."""
    last, timed = -(2**63), list[tuple[int, Any]]()
    for name, at in rows:
        last = last if at is None else at
        timed.append((last, name))
    return [name for _, name in sorted(timed, key=lambda row: row[0])]


def _parse_requests(values: Sequence[Any]) -> tuple[LoggedRequest, ...]:
    return tuple((task, tuple(Call(*call) for call in calls)) for task, calls in values)
