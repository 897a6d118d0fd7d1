"""Which episodes count: those of trusted writers or, while a namespace has a single writer, those of that writer.

Whatever is counted over episodes (words, worlds, choices, ages of items) decides what recall returns. If episodes of
other people's clients were counted, a stranger could change the answers by recording many of them.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from sqlite3 import Connection
from typing import Any

from hardwon.memory.records import Trajectory
from hardwon.memory.situations.keys import fact_words, vocabulary
from hardwon.memory.situations.refinements import MAY_CHANGE, MORE_OFTEN

TRUSTED, ALONE = "", " one writer"
"""Whose episodes count: those of trusted writers, or those of the only writer, who may be untrusted."""
COUNTED_STEPS = {TRUSTED: "AND witness = 0 ", ALONE: ""}
"""SQL condition on the steps that count."""
COUNTED_EPISODES = {TRUSTED: "AND trust = 'trusted' ", ALONE: ""}
"""SQL condition on the episodes that count."""
COUNTED_STATES = {TRUSTED: "AND untrusted = 0 ", ALONE: ""}
"""SQL condition on the states of steps that count."""
OUTCOME = (
    "CASE iif(json_valid(meta), json_extract(meta, '$.outcome'), '') WHEN 'score' THEN min(1.0, max(0.0, score)) "
    "WHEN 'reward' THEN min(1.0, max(0.0, total_reward)) ELSE success END"
)
"""SQL of `Trajectory.outcome` of a stored episode."""

STRUCTURAL_SHARE = 0.15
"""Share of the episodes in which a word must occur to be structural."""
AT_LIMIT = (0.7, 1.3)
"""The least and the most of this share at which a word may have become structural, or ceased to be, of late."""
STRUCTURAL_AFTER = 15
"""Number of episodes before any word is considered structural."""

QueryRows = Callable[[str, tuple[Any, ...]], Iterable[tuple[Any, ...]]]
"""Runs an SQL query with parameters and returns its rows."""


_WRITERS = "SELECT name FROM writers WHERE namespace = ? LIMIT 2"


def find_counted_writers(rows: QueryRows, namespace: int) -> str:
    """Return whose episodes count in a namespace: `TRUSTED` or `ALONE`.

    The episodes of an untrusted writer count only while nobody else has written to the namespace.
    """
    return choose_counted_writers([name for (name,) in rows(_WRITERS, (namespace,))])


def choose_counted_writers(names: Collection[str]) -> str:
    """Return whose episodes count in a namespace with these writers; see `find_counted_writers`."""
    return ALONE if len(names) == 1 and "" not in names else TRUSTED


def is_counted(episode: Trajectory, counted: str) -> bool:
    """Return whether an episode counts: it is not excluded, and its writer counts."""
    return episode.success is not None and (counted == ALONE or episode.trust == "trusted")


def is_outnumbered(connection: Connection, namespace: int, before: str, counted: str) -> bool:
    """Return whether untrusted episodes that counted before no longer do, because another writer has appeared."""
    if before == counted or before != ALONE:
        return False
    untrusted = "SELECT 1 FROM trajectories WHERE namespace = ? AND trust != 'trusted' LIMIT 1"
    return connection.execute(untrusted, (namespace,)).fetchone() is not None


class EpisodeClock:
    """The number of episodes of a namespace; those that count are the unit of an item's age."""

    def __init__(self, namespace: int) -> None:
        self._namespace = namespace
        self._last = 0
        self.counted = TRUSTED
        """Whose episodes count."""
        self.episodes = self._trusted = 0
        """Number of episodes of all writers, without excluded ones, and of trusted ones."""
        self.has_untrusted = False
        """Whether some may be of untrusted writers."""

    @property
    def time(self) -> int:
        """Return the number of episodes that count."""
        return self.episodes if self.counted == ALONE else self._trusted

    def read(self, rows: QueryRows) -> int:
        """Count the episodes that were recorded since the last call, and return the number of those that count."""
        ((new, trusted, newest, writers, untrusted),) = rows(_NEW, (self._last, self._namespace))
        self.episodes += new
        self._trusted += trusted
        self._last = newest or self._last
        self.has_untrusted = bool(untrusted)
        self.counted = ALONE if (writers, untrusted) == (1, 1) else TRUSTED
        return self.time


_NEW = """
SELECT count(success), count(success) FILTER (WHERE trust = 'trusted'), max(rowid),
(SELECT count(*) FROM writers WHERE namespace = ?2), (SELECT sum(name != '') FROM writers WHERE namespace = ?2)
FROM trajectories WHERE rowid > ?1 AND +namespace = ?2
"""
"""The unary plus makes SQLite scan the new rows by rowid instead of the index of the namespace."""


class EpisodeWords:
    """The words of the episodes that count: how many showed each, and which belong to the environment's structure."""

    def __init__(self, rows: QueryRows, namespace: int) -> None:
        self._rows = rows
        self._namespace = namespace
        self.clock = EpisodeClock(namespace)
        """The number of episodes in this namespace, and of those that count."""
        self._counts: dict[str, int] = {}
        """By word that was asked for, the number of episodes that showed it."""
        self._structural: frozenset[str] | None = None

    def read(self) -> bool:
        """Count new episodes; return whether other writers count now, so that all counts over episodes are void."""
        before = self.clock.counted
        self.clock.read(self._rows)
        self._counts.clear()
        self._structural = None
        return self.clock.counted != before

    def count(self, words: Collection[str]) -> Mapping[str, int]:
        """Return, by word, the number of episodes that showed it, at least for these words."""
        counts = self._counts
        if missing := [word for word in words if word not in counts]:
            counts.update(self._rows(_COUNTS, (json.dumps(missing), self._namespace)))
        return counts

    @property
    def structural(self) -> frozenset[str]:
        """Return the words that belong to the structure of the environment."""
        if self._structural is None:
            self._structural = read_structural_words(self._rows, self._namespace, self.clock.time)
        return self._structural


def read_structural_words(rows: QueryRows, namespace: int, episodes: int) -> frozenset[str]:
    """Return the words that belong to the structure of the environment, given the number of episodes that count."""
    if episodes < STRUCTURAL_AFTER:
        return frozenset()
    least, most = (share * STRUCTURAL_SHARE * episodes for share in AT_LIMIT)
    marks = [("", STRUCTURAL_SHARE * episodes)]
    marks += [(mark, 2.0**n * STRUCTURAL_SHARE * episodes) for n, mark in enumerate(MORE_OFTEN, 1)]
    query = "SELECT word, episodes FROM words WHERE namespace = ? AND episodes >= ?"
    counts = list(rows(query, (namespace, least)))
    certain = [f"{word}{mark}" for word, count in counts for mark, needed in marks if count >= needed]
    return frozenset([*certain, *[f"{word}{MAY_CHANGE}" for word, count in counts if count < most]])


_COUNTS = (
    "SELECT value, coalesce(episodes, 0) FROM json_each(?) LEFT JOIN words ON words.namespace = ? AND word = value"
)


# ---- document frequencies: in how many episodes that count each word occurred


def extract_words(trajectory: Trajectory) -> frozenset[str]:
    """Return the distinct words that occur in an episode's states, the unit of document frequency."""
    states = {id(state): state for step in trajectory.steps for state in (step.pre, step.post)}.values()
    return _words_of([(state.observation, state.feedback, state.facts) for state in states])


def _words_of(states: Iterable[tuple[str, str, Any]]) -> frozenset[str]:
    """Return the distinct words of states as (observation, feedback, facts)."""
    texts: dict[str, None] = {}
    facts: frozenset[str] = frozenset()
    for observation, feedback, values in states:
        texts[observation] = texts[feedback] = None
        if values:
            facts |= fact_words(values.values())
    return vocabulary("\n".join(texts)) | facts


def add_words(connection: Connection, namespace: int, episodes: Iterable[Trajectory]) -> None:
    """Count the words of new episodes."""
    counts: Counter[str] = Counter()
    for episode in episodes:
        counts.update(extract_words(episode))
    connection.executemany(
        "INSERT INTO words VALUES (?, ?, ?) ON CONFLICT(namespace, word) DO UPDATE SET "
        "episodes = episodes + excluded.episodes",
        [(namespace, word, counts[word]) for word in sorted(counts)],
    )


def recount_words(connection: Connection, namespace: int, counted: str) -> None:
    """Count the words of all stored episodes that count again; states that cannot be read are left out."""
    rows = connection.execute(_STATES.format(counted=COUNTED_EPISODES[counted]), (namespace,))
    counts: Counter[str] = Counter()
    for _, episode in groupby(rows, key=itemgetter(0)):
        counts.update(_words_of((observation, feedback, _parse(facts)) for _, observation, feedback, facts in episode))
    connection.execute("DELETE FROM words WHERE namespace = ?", (namespace,))
    connection.executemany(
        "INSERT INTO words VALUES (?, ?, ?)", [(namespace, word, n) for word, n in sorted(counts.items())]
    )


_STATES = """
WITH chosen AS MATERIALIZED (
    SELECT id FROM trajectories WHERE namespace = ?1 AND success IS NOT NULL {counted})
SELECT shown.trajectory_id, observation, feedback, facts FROM (
    SELECT trajectory_id, pre AS state FROM steps WHERE namespace = ?1 AND trajectory_id IN chosen
    UNION SELECT trajectory_id, post FROM steps WHERE namespace = ?1 AND trajectory_id IN chosen) AS shown
JOIN states ON states.id = state ORDER BY shown.trajectory_id
"""


def _parse(facts: str) -> dict[str, Any]:
    try:
        values = json.loads(facts)
    except ValueError:  # `verify` reports damaged rows
        return {}
    return values if isinstance(values, dict) else {}


def find_wrong_writers(rows: QueryRows, namespace: int, name_of: Callable[[str], str]) -> list[tuple[int, str]]:
    """Return the writers of episodes that the list of writers lacks, each with its number in the steps."""
    held = {name: number for number, name in rows("SELECT id, name FROM writers WHERE namespace = ?", (namespace,))}
    wanted = {
        ("" if trust == "trusted" else name_of(writer), 0 if trust == "trusted" else witness or 0)
        for writer, trust, witness in rows(_WITNESSES, (namespace,))
    }
    return sorted((number, name) for name, number in wanted if name not in held or (number and held[name] != number))


def renew_writers(connection: Connection, namespace: int, wrong: Iterable[tuple[int, str]]) -> None:
    """Write these writers under their numbers."""
    for number, name in wrong:
        connection.execute("DELETE FROM writers WHERE namespace = ? AND name = ?", (namespace, name))
        connection.execute(
            "INSERT OR REPLACE INTO writers(id, namespace, name) VALUES (?, ?, ?)", (number or None, namespace, name)
        )


_WITNESSES = (
    "SELECT DISTINCT writer, trust, witness FROM trajectories LEFT JOIN steps ON "
    "steps.namespace = trajectories.namespace AND trajectory_id = trajectories.id AND t = 0 "
    "WHERE trajectories.namespace = ?"
)
