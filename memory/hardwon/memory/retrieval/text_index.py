"""Search by words in one FTS5 table: which of a text's words to look up, and how many rows to rank.

FTS5 ranks every row that has one of the words, a microsecond each: four common words of a large
library cost as much as reading it. So the rarest words are chosen, by the rows that have them, and
words with too many rows are left out where rarer ones serve. Many rows are ranked by the weights of the
words that they have, and of those where even the rarest word has many, the newest.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardwon.memory.situations.keys import content_words

Rows = Callable[[str, tuple[Any, ...]], list[tuple[Any, ...]]]
"""Runs a query."""
QUERY_TERMS = 4
"""Words of a text that are looked up whatever their rows: its rarest."""
MORE_TERMS = 24
"""Words of a question that are looked up at most, where all of them together have few rows."""
CONSIDERED = 64
"""Words of a text whose rows are counted, those of the fewest episodes first."""
WINDOW = 500
"""Rows with the rarest word that are ranked, newest first."""
RANKED = 2000
"""Rows that are ranked in all, about."""
FEW = 600
"""Rows of which FTS5 computes the BM25, about: some .4 ms. Beyond, weights serve, in a seventh of the time."""
COUNTED, LISTED = 16_384, 256
"""Words of which it is remembered how common they are, and which rows have them: some 4 MB at most."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How common a word is."""

    rows: float
    """That have it; estimated from the newest where they are many."""
    since: int
    """The WINDOW-th newest of them; 0 where there are fewer."""


@dataclass(frozen=True, slots=True)
class Query:
    """The chosen words with their weights, the row from which on rows are ranked (0 for all), and about how many."""

    words: tuple[str, ...]
    weights: tuple[float, ...]
    since: int
    rows: float
    missing: float = 0.0
    """The weight of the words that no row has."""


class Worded(NamedTuple):
    """A row found by words."""

    ref: int
    share: float
    """Of the weight of the words looked up, what this row has."""
    score: float
    """Its BM25 as a share of the best row's."""


class TextIndex:
    """One FTS5 table, asked by words."""

    def __init__(self, rows: Rows, kind: str, namespace: int) -> None:
        self._rows = rows
        self._table = f"{kind}_text_{namespace}"
        self._with_word = f"SELECT rowid FROM {self._table} WHERE {self._table} MATCH ?"
        self._reaches: dict[str, Reach] = {}
        self._listed: dict[str, tuple[int, NDArray[np.int64]]] = {}
        self._newest = 0

    def search(self, text: str, k: int, frequencies: Mapping[str, int], terms: int = QUERY_TERMS) -> list[int]:
        """Ids of at most k rows that share the text's rare words, best first."""
        query = self.choose(text, frequencies, terms)
        return [ref for ref, _ in self._find(query, k)]

    def _find(self, query: Query, k: int) -> list[tuple[int, float]]:
        """Return ids with their BM25 or, where there are many rows, the weight of their words, best first."""
        if not query.words:
            return []
        if query.since or query.rows > FEW:
            return self._heaviest(query, k)
        ranked = f"SELECT rowid, -rank FROM {self._table} WHERE {self._table} MATCH ? ORDER BY rank, rowid LIMIT ?"
        return [(row[0], row[1]) for row in self._rows(ranked, (" OR ".join(map(_quoted, query.words)), k))]

    def scored(self, text: str, k: int, frequencies: Mapping[str, int], terms: int = QUERY_TERMS) -> list[Worded]:
        """Return the same rows with their coverage and their score, best first.

        The coverage is the share, in [0, 1], of the weight of the words looked up that a row has. Words that
        no row has count as looked up: of a question that is mostly about other things, nothing covers much.
        """
        query = self.choose(text, frequencies, terms)
        found = self._find(query, k)
        best = found[0][1] if found else 0.0
        shares = self._coverage(query, [ref for ref, _ in found])
        return [
            Worded(ref, share, score / best if best > 0 else 1.0)
            for (ref, score), share in zip(found, shares, strict=True)
        ]

    def _coverage(self, query: Query, refs: Sequence[int]) -> list[float]:
        if not refs:
            return []
        wanted = np.asarray(refs, dtype=np.int64)
        sums = np.zeros(len(refs))
        for word, weight in zip(query.words, query.weights, strict=True):
            rows = self._rows_with(word, query.since)  # in order: np.isin would sort them again, five times as slow
            if len(rows):
                at = np.minimum(np.searchsorted(rows, wanted), len(rows) - 1)
                sums += weight * (rows[at] == wanted)
        shares: list[float] = (sums / (sum(query.weights) + query.missing)).tolist()
        return shares

    def choose(self, text: str, frequencies: Mapping[str, int], terms: int = QUERY_TERMS) -> Query:
        """The words to look up; ties in alphabetical order.

        `frequencies` (episodes that showed a word) says which words of a long text to consider; `terms` how many to
        look up at most, beyond QUERY_TERMS only while all of them together have few rows.
        """
        ((newest,),) = self._rows(f"SELECT coalesce(max(id), 0) FROM {self._table}_docsize", ())
        if newest != self._newest:
            self._newest = newest
            self.forget()
        reaches = {word: self._reach(word) for word in _considered(text, frequencies)}
        rarest = sorted((word for word, reach in reaches.items() if reach.rows), key=lambda w: (reaches[w].rows, w))
        if not rarest:
            return Query((), (), 0, 0.0)
        since = reaches[rarest[0]].since
        share, load = (newest - since + 1) / (newest + 1), 0.0
        chosen: list[str] = []
        for word in rarest[:terms]:
            rows = share * reaches[word].rows
            if chosen and load + rows > (RANKED if len(chosen) < QUERY_TERMS else FEW):
                break
            chosen.append(word)
            load += rows
        weights = tuple(math.log1p(newest / reaches[word].rows) for word in chosen)
        missing = sum(not reach.rows for reach in reaches.values()) * math.log1p(newest)
        return Query(tuple(chosen), weights, since, load, missing)

    def _heaviest(self, query: Query, k: int) -> list[tuple[int, float]]:
        """The k rows whose words weigh most; of equally heavy ones the newer first."""
        found = [self._rows_with(word, query.since) for word in query.words]
        refs, at = np.unique(np.concatenate(found), return_inverse=True)
        sums = np.bincount(at, np.repeat(query.weights, [len(rows) for rows in found]))
        near = np.flatnonzero(sums >= np.sort(sums)[-k:][:1])
        best = near[np.argsort(sums[near], kind="stable")[::-1][:k]]
        return list(zip(refs[best].tolist(), sums[best].tolist(), strict=True))

    def _rows_with(self, word: str, since: int) -> NDArray[np.int64]:
        """From one row on, those that have a word, in order: the newest RANKED."""
        start, rows = self._listed.get(word, (math.inf, None))
        if rows is None or since < start:
            rows = self._list(word, since)
            if len(self._listed) >= LISTED:
                self._listed.clear()
            self._listed[word] = since, rows
        return rows[np.searchsorted(rows, since) :]

    def _list(self, word: str, since: int) -> NDArray[np.int64]:
        """The same as one text from SQLite: to make a Python number of each takes thrice as long."""
        newest = f"{self._with_word} AND rowid >= ? ORDER BY rowid DESC LIMIT ?"
        ((listed,),) = self._rows(f"SELECT group_concat(rowid) FROM ({newest})", (_quoted(word), since, RANKED))
        return np.sort(np.fromstring(listed or "", dtype=np.int64, sep=","))

    def forget(self) -> None:
        """Look anew which rows have a word: what the table held was changed."""
        self._reaches.clear()
        self._listed.clear()

    def _reach(self, word: str) -> Reach:
        known = self._reaches.get(word)
        if known is None:
            newest = f"{self._with_word} ORDER BY rowid DESC LIMIT ?"
            counted = f"SELECT count(*), min(rowid) FROM ({newest})"
            ((rows, since),) = self._rows(counted, (_quoted(word), WINDOW))
            if rows == WINDOW:
                known = Reach(rows * (self._newest + 1) / (self._newest - since + 1), since)
            else:
                known = Reach(float(rows), 0)
            if len(self._reaches) >= COUNTED:
                self._reaches.clear()
            self._reaches[word] = known
        return known


def _quoted(word: str) -> str:
    return f'"{word}"'


def _considered(text: str, frequencies: Mapping[str, int]) -> list[str]:
    """The words of a text that the fewest episodes showed; those that none showed come last."""
    words = sorted(content_words(text), key=lambda word: (word not in frequencies, frequencies.get(word, 0), word))
    return words[:CONSIDERED]
