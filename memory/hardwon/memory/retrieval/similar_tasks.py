"""Tasks of a namespace, found by their words and meaning: which earlier tasks are like the one at hand.

The index lives in this process's memory and is derived from the episodes. Words are looked up by SQLite's own
BM25 with Porter's stems, over every word of the task: tasks are few and short where states are many. Meaning is
the cosine of the embedder. Both are added, so that a task worded otherwise is found, and so is a rare name.
"""

import sqlite3
from collections.abc import Callable, Sequence

import numpy as np

from hardwon.memory.situations.keys import content_words, words
from hardwon.memory.storage.database import Store

from .embedders import Vectors

CANDIDATES = 64
"""Tasks found by words whose meaning is compared."""
ALL = 1024
"""Tasks up to which the meaning of all is compared, and not only of those found by words."""
EMBEDDED = 8192
"""Tasks whose vectors are kept."""

Embed = Callable[[Sequence[str]], Vectors]


class Tasks:
    """The distinct tasks of one namespace; not thread-safe by itself, the library holds the lock."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store = store
        self._namespace = namespace
        self._last = 0
        self._known: dict[str, int] = {}
        self._vectors: dict[str, Vectors] = {}
        self._words: sqlite3.Connection | None = None

    def nearest(self, task: str, k: int, embed: Embed) -> list[str]:
        """Return at most k tasks, the most similar first; tasks that share nothing with this one come last or not."""
        self._catch_up()
        scores = self._by_words(task)
        candidates = list(self._known) if len(self._known) <= ALL else list(scores)
        if task in self._known and task not in scores:
            candidates.append(task)
        for known, cosine in zip(candidates, self._cosines(task, candidates, embed), strict=True):
            scores[known] = scores.get(known, 0.0) + cosine
        return sorted(scores, key=lambda known: (known != task, -scores[known], self._known[known]))[:k]

    def _catch_up(self) -> None:
        if self._words is None:
            self._words = sqlite3.connect(":memory:", check_same_thread=False)
            self._words.execute("CREATE VIRTUAL TABLE tasks USING fts5(text, tokenize='porter unicode61')")
        rows = self._store.rows(
            "SELECT task, min(rowid), max(rowid) FROM trajectories "
            "WHERE namespace = ? AND rowid > ? AND success IS NOT NULL AND trust = 'trusted' GROUP BY task ORDER BY 2",
            (self._namespace, self._last),
        )
        for task, number, newest in rows:
            self._last = max(self._last, newest)
            if task not in self._known:
                self._known[task] = number
                self._words.execute("INSERT INTO tasks(rowid, text) VALUES (?, ?)", (number, task))

    def _by_words(self, task: str) -> dict[str, float]:
        """Return the best tasks with their BM25 as a share of the best one's."""
        assert self._words is not None
        asked = " OR ".join(f'"{word}"' for word in sorted(content_words(task) or set(words(task))))
        if not asked:
            return {}
        query = "SELECT text, -rank FROM tasks WHERE tasks MATCH ? ORDER BY rank, rowid LIMIT ?"
        rows = self._words.execute(query, (asked, CANDIDATES)).fetchall()
        best = max((score for _, score in rows), default=0.0)
        return {text: score / best if best > 0 else 1.0 for text, score in rows}

    def _cosines(self, task: str, others: Sequence[str], embed: Embed) -> list[float]:
        if not others:
            return []
        new = [one for one in dict.fromkeys((task, *others)) if one not in self._vectors]
        if len(self._vectors) + len(new) > EMBEDDED:
            self._vectors.clear()
            new = list(dict.fromkeys((task, *others)))
        if new:
            self._vectors.update(zip(new, embed(new), strict=True))
        found: list[float] = (np.stack([self._vectors[one] for one in others]) @ self._vectors[task]).tolist()
        return found
