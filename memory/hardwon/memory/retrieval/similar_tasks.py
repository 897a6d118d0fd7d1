"""Similar tasks: find earlier tasks of a namespace by words and meaning.

The index is kept in memory and derived from the episodes. Words are matched with SQLite's BM25 and Porter stemming over
all words of a task, because tasks are few and short compared to states. Meaning is the cosine of the embedder. The sum
of both finds paraphrased tasks as well as rare names.
"""

import sqlite3
from collections.abc import Callable, Sequence

import numpy as np

from hardwon.memory.situations.keys import content_words, words
from hardwon.memory.situations.scripts import index_text
from hardwon.memory.storage.database import Store

from .embedders import Vectors
from .tuning import TUNING

Embed = Callable[[Sequence[str]], Vectors]
"""Returns the unit vectors of texts, (n, dim) float32."""


class Tasks:
    """The distinct tasks of one namespace; not thread-safe, so callers hold the library's lock."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store = store
        self._namespace = namespace
        self._last = 0
        self._numbers: dict[str, int] = {}
        self._tasks: dict[int, str] = {}
        self._vectors: dict[str, Vectors] = {}
        self._words: sqlite3.Connection | None = None

    def nearest(self, task: str, k: int, embed: Embed) -> list[str]:
        """Return the k most similar tasks, the best first; a known task comes first of all."""
        self._catch_up()
        scores = self._by_words(task)
        candidates = list(self._numbers) if len(self._numbers) <= TUNING.compared_tasks else list(scores)
        if task in self._numbers and task not in scores:
            candidates.append(task)
        for other, cosine in zip(candidates, self._cosines(task, candidates, embed), strict=True):
            scores[other] = scores.get(other, 0.0) + cosine
        return sorted(scores, key=lambda other: (other != task, -scores[other], self._numbers[other]))[:k]

    def _catch_up(self) -> None:
        """Add the tasks that were recorded since the last call."""
        if self._words is None:
            self._words = sqlite3.connect(":memory:", check_same_thread=False)  # used under the library's lock
            self._words.execute("CREATE VIRTUAL TABLE tasks USING fts5(text, tokenize='porter unicode61')")
        rows = self._store.rows(
            "SELECT task, min(rowid), max(rowid) FROM trajectories "
            "WHERE namespace = ? AND rowid > ? AND success IS NOT NULL AND trust = 'trusted' GROUP BY task ORDER BY 2",
            (self._namespace, self._last),
        )
        for task, number, newest in rows:
            self._last = max(self._last, newest)
            if task not in self._numbers:
                self._numbers[task], self._tasks[number] = number, task
                self._words.execute("INSERT INTO tasks(rowid, text) VALUES (?, ?)", (number, index_text(task)))

    def _by_words(self, task: str) -> dict[str, float]:
        """Return the best tasks with their BM25 scores relative to the best one, in [0, 1]."""
        assert self._words is not None
        short = sorted(word for word in content_words(task) or {*words(task)} if len(word) <= TUNING.max_word_length)
        terms = " OR ".join(f'"{word}"' for word in short[: TUNING.max_task_words])
        if not terms:
            return {}
        # The rank of FTS5 is a negative BM25, the best match the smallest.
        query = "SELECT rowid, -rank FROM tasks WHERE tasks MATCH ? ORDER BY rank, rowid LIMIT ?"
        rows = self._words.execute(query, (terms, TUNING.task_candidates)).fetchall()
        best = max((score for _, score in rows), default=0.0)
        return {self._tasks[number]: score / best if best > 0 else 1.0 for number, score in rows}

    def _cosines(self, task: str, tasks: Sequence[str], embed: Embed) -> list[float]:
        """Return the cosine of a task to each of the others; vectors are cached."""
        if not tasks:
            return []
        new = [text for text in dict.fromkeys((task, *tasks)) if text not in self._vectors]
        if len(self._vectors) + len(new) > 8192:
            self._vectors.clear()  # simpler than evicting single entries, and rare
            new = list(dict.fromkeys((task, *tasks)))
        if new:
            self._vectors.update(zip(new, embed(new), strict=True))
        cosines: list[float] = (np.stack([self._vectors[text] for text in tasks]) @ self._vectors[task]).tolist()
        return cosines
