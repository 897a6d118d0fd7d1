"""Search by words in one FTS5 table: choose which words of a text to look up, and how many rows to rank.

FTS5 ranks every row that contains one of the words, about 1 us per row. Four common words of a large library would cost
as much as reading it. Therefore the rarest words are chosen by their number of rows, and words with too many rows are
left out if rarer ones suffice. If the chosen words have many rows, these are ranked by the weights of their words. If
even the rarest word has many rows, only the newest ones are ranked. A few thousand short texts, which need no such
choices, are ranked by `StemIndex` in memory.
"""

import math
import re
import sqlite3
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardwon.memory.situations.keys import content_words, words
from hardwon.memory.situations.scripts import index_text

Rows = Callable[[str, tuple[Any, ...]], list[tuple[Any, ...]]]
"""Runs an SQL query with parameters and returns its rows."""
QUERY_TERMS = 4
"""Number of words of a text that are looked up regardless of their rows, the rarest ones."""
MORE_TERMS = 24
"""Largest number of words of a question, if all of them together have few rows."""
CONSIDERED = 64
"""Number of words of a text whose rows are counted, those of the fewest episodes first."""
WINDOW = 500
"""Number of rows with the rarest word that are ranked, the newest ones."""
RANKED = 2000
"""Approximate number of rows ranked in total."""
FEW = 600
"""Approximate number of rows up to which BM25 is computed (0.4 ms); word weights take a seventh of the time."""
MOST_WORDS = 64
"""Number of words of a query that are looked up."""
LONGEST_WORD = 200
"""Characters of the longest word that is looked up. FTS5 compares the parts of `a-a-a-a` one by one."""
_JOINTS = re.compile(r"(?<=[a-z])(?=[A-Z])|_+")
"""Joints of words in names of tools and arguments, as in `get_user` and `getUser`."""
COUNTED, LISTED = 16_384, 256
"""Largest numbers of words with a cached count, and with cached rows; about 4 MB."""


@dataclass(frozen=True, slots=True)
class WordFrequency:
    """How common a word is."""

    rows: float
    """Number of rows that contain it, estimated from the newest ones if there are many."""
    since: int
    """Id of the WINDOW-th newest of these rows; 0 if there are fewer."""


@dataclass(frozen=True, slots=True)
class Query:
    """The chosen words with their weights, the first row to rank (0 for all), and the estimated number of rows."""

    words: tuple[str, ...]
    weights: tuple[float, ...]
    since: int
    rows: float
    missing: float = 0.0
    """Weight of the words that occur in no row."""


class TextMatch(NamedTuple):
    """A row found by words."""

    ref: int
    """Id of the row."""
    share: float
    """Share of the weight of the query's words that this row contains."""
    score: float
    """Its BM25 relative to the best row's."""


class TextIndex:
    """Word search over one FTS5 table."""

    def __init__(self, rows: Rows, kind: str, namespace: int) -> None:
        self._rows = rows
        self._table = f"{kind}_text_{namespace}"
        self._with_word = f"SELECT rowid FROM {self._table} WHERE {self._table} MATCH ?"
        self._reaches: dict[str, WordFrequency] = {}
        self._listed: dict[str, tuple[int, NDArray[np.int64]]] = {}
        self._ids = array("q")
        """Ids of all rows, ascending. Gaps between them depend on rows of other tables, which must not count here."""

    def search(self, text: str, k: int, frequencies: Mapping[str, int], terms: int = QUERY_TERMS) -> list[int]:
        """Return the ids of at most k rows that share the text's rarest words, the best first.

        Args:
            text: The query.
            k: Largest number of rows.
            frequencies: By word, the number of episodes that showed it.
            terms: Largest number of words to look up; see `choose`.
        """
        query = self.choose(text, frequencies, terms)
        return [ref for ref, _ in self._find(query, k)]

    def _find(self, query: Query, k: int) -> list[tuple[int, float]]:
        """Return (id, score) pairs, the best first; the score is BM25 or, for many rows, a sum of word weights."""
        if not query.words:
            return []
        if query.since or query.rows > FEW:
            return self._heaviest(query, k)
        ranked = f"SELECT rowid, -rank FROM {self._table} WHERE {self._table} MATCH ? ORDER BY rank, rowid LIMIT ?"
        return [(row[0], row[1]) for row in self._rows(ranked, (" OR ".join(map(_quote, query.words)), k))]

    def scored(self, text: str, k: int, frequencies: Mapping[str, int], terms: int = QUERY_TERMS) -> list[TextMatch]:
        """Return the rows that `search` finds, with their coverage and score, the best first.

        The coverage is the share, in [0, 1], of the weight of the query's words that a row contains. Words that occur
        in no row count, too, so no row covers much of a question about other topics.
        """
        query = self.choose(text, frequencies, terms)
        matches = self._find(query, k)
        best = matches[0][1] if matches else 0.0
        shares = self._coverage(query, [ref for ref, _ in matches])
        return [
            TextMatch(ref, share, score / best if best > 0 else 1.0)
            for (ref, score), share in zip(matches, shares, strict=True)
        ]

    def _coverage(self, query: Query, refs: Sequence[int]) -> list[float]:
        """Return the coverage of each row, in [0, 1]."""
        if not refs:
            return []
        wanted = np.asarray(refs, dtype=np.int64)
        sums = np.zeros(len(refs))
        for word, weight in zip(query.words, query.weights, strict=True):
            rows = self._rows_with(
                word, query.since
            )  # sorted, so searchsorted applies; np.isin would sort again and take five times as long
            if len(rows):
                at = np.minimum(np.searchsorted(rows, wanted), len(rows) - 1)
                sums += weight * (rows[at] == wanted)
        shares: list[float] = (sums / (sum(query.weights) + query.missing)).tolist()
        return shares

    def choose(self, text: str, frequencies: Mapping[str, int], terms: int = QUERY_TERMS) -> Query:
        """Choose the words of a text to look up; ties are broken alphabetically.

        Args:
            text: The query.
            frequencies: By word, the number of episodes that showed it; selects the words to consider in a long text.
            terms: Largest number of words. Beyond QUERY_TERMS, words are added only while all of them together have few
                rows.
        """
        self._follow()
        cached = self._reaches
        reaches = {word: cached.get(word) or self._count_rows(word) for word in _select_words(text, frequencies)}
        rarest = [word for _, word in sorted((reach.rows, word) for word, reach in reaches.items() if reach.rows)]
        if not rarest:
            return Query((), (), 0, 0.0)
        since = reaches[rarest[0]].since
        # If the rarest word has many rows, all words are looked up only in the newest ids, a share of the table.
        share, load = (self._count_from(since) / (len(self._ids) + 1) if since else 1.0), 0.0
        chosen: list[str] = []
        for word in rarest[:terms]:
            rows = share * reaches[word].rows
            if chosen and load + rows > (RANKED if len(chosen) < QUERY_TERMS else FEW):
                break
            chosen.append(word)
            load += rows
        weights = tuple(math.log1p(len(self._ids) / reaches[word].rows) for word in chosen)
        missing = sum(not reach.rows for reach in reaches.values()) * math.log1p(len(self._ids))
        return Query(tuple(chosen), weights, since, load, missing)

    def _heaviest(self, query: Query, k: int) -> list[tuple[int, float]]:
        """Return the k rows with the largest sum of word weights; of equal rows, the newer one comes first."""
        row_lists = [self._rows_with(word, query.since) for word in query.words]
        refs, at = np.unique(np.concatenate(row_lists), return_inverse=True)
        sums = np.bincount(at, np.repeat(query.weights, [len(rows) for rows in row_lists]))
        # Slices, not indices: with fewer than k rows, the smallest sum becomes the bound.
        top = np.flatnonzero(sums >= np.sort(sums)[-k:][:1])
        # A stable sort, reversed: of rows with equal weight, the larger id comes first.
        best = top[np.argsort(sums[top], kind="stable")[::-1][:k]]
        return list(zip(refs[best].tolist(), sums[best].tolist(), strict=True))

    def _rows_with(self, word: str, since: int) -> NDArray[np.int64]:
        """Return the ids of the newest RANKED rows from `since` on that contain a word, ascending."""
        start, rows = self._listed.get(word, (math.inf, None))
        # A list that was read from a later row on lacks the older rows; a longer one is only cut.
        if rows is None or since < start:
            rows = self._list(word, since)
            if len(self._listed) >= LISTED:
                self._listed.clear()
            self._listed[word] = since, rows
        return rows[np.searchsorted(rows, since) :]

    def _list(self, word: str, since: int) -> NDArray[np.int64]:
        """Read the ids of rows that contain a word.

        SQLite returns them as one text, because creating a Python integer per row takes three times as long.
        """
        newest = f"{self._with_word} AND rowid >= ? ORDER BY rowid DESC LIMIT ?"
        ((listed,),) = self._rows(f"SELECT group_concat(rowid) FROM ({newest})", (_quote(word), since, RANKED))
        return np.sort(np.fromstring(listed or "", dtype=np.int64, sep=","))

    def _read_ids(self) -> None:
        """Read the ids of the rows that were added, as one text, which is faster than a Python integer per row."""
        last = self._ids[-1] if self._ids else -1
        added = f"SELECT id FROM {self._table}_docsize WHERE id > ? ORDER BY id"
        ((listed,),) = self._rows(f"SELECT group_concat(id) FROM ({added})", (last,))
        self._ids.frombytes(np.fromstring(listed or "", dtype=np.int64, sep=",").tobytes())

    def _count_from(self, since: int) -> int:
        """Return the number of rows from an id on."""
        return len(self._ids) - bisect_left(self._ids, since)

    def select_present(self, words: Sequence[str]) -> list[str]:
        """Return those of the words that occur in any row, in their order."""
        self._follow()
        return [word for word in words if self._count_rows(word).rows]

    def _follow(self) -> None:
        """Drop cached counts if rows were added."""
        # FTS5 keeps a row per document in this table, keyed by id: the maximum costs one lookup.
        ((newest,),) = self._rows(f"SELECT coalesce(max(id), 0) FROM {self._table}_docsize", ())
        if newest != (self._ids[-1] if self._ids else 0):
            self._forget_words()
            self._read_ids()

    def measure_rarity(self, word: str) -> float:
        """Return log((n + 1) / the number of rows with the word), for n rows as of the last search; at least 0."""
        return max(0.0, math.log((len(self._ids) + 1) / max(1.0, self._count_rows(word).rows)))

    def forget(self) -> None:
        """Drop everything that was cached, after rows were deleted or replaced."""
        self._forget_words()
        del self._ids[:]

    def _forget_words(self) -> None:
        """Drop cached counts and rows after rows were added."""
        self._reaches.clear()
        self._listed.clear()

    def _count_rows(self, word: str) -> WordFrequency:
        """Return how common a word is, estimated from its WINDOW newest rows."""
        reach = self._reaches.get(word)
        if reach is None:
            newest = f"{self._with_word} ORDER BY rowid DESC LIMIT ?"
            counted = f"SELECT count(*), min(rowid) FROM ({newest})"
            ((rows, since),) = self._rows(counted, (_quote(word), WINDOW))
            if rows == WINDOW:
                reach = WordFrequency(rows * (len(self._ids) + 1) / self._count_from(since), since)
            else:
                reach = WordFrequency(float(rows), 0)
            if len(self._reaches) >= COUNTED:
                self._reaches.clear()
            self._reaches[word] = reach
        return reach


def _quote(word: str) -> str:
    """Return the word as an FTS5 string."""
    return f'"{word}"'


def _short(words_found: Iterable[str]) -> set[str]:
    """Return the words that can be looked up."""
    return {word for word in words_found if len(word) <= LONGEST_WORD}


def _select_words(text: str, frequencies: Mapping[str, int]) -> list[str]:
    """Return the words of a text that the fewest episodes showed; unseen words come last."""
    # The sort decides ties by the word itself, which is the last of each tuple.
    counts = [(word not in frequencies, frequencies.get(word, 0), word) for word in _short(content_words(text))]
    counts.sort()
    return [word for _, _, word in counts[:CONSIDERED]]


class StemIndex:
    """Texts that are ranked together; not thread-safe, so callers hold a lock."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Index the texts; their positions are their ids."""
        self._count = len(texts)
        self._texts = sqlite3.connect(":memory:", check_same_thread=False)  # used under the lock of the caller
        self._texts.execute("CREATE VIRTUAL TABLE texts USING fts5(text, tokenize='porter unicode61')")
        self._texts.executemany(
            "INSERT INTO texts(rowid, text) VALUES (?, ?)",
            [(ref, index_text(_divide(text))) for ref, text in enumerate(texts)],
        )

    def rank(self, query: str) -> list[tuple[int, float]]:
        """Return the texts that share a word with a query, the best first.

        Rare words weigh more. Words that no text has count as the rarest ones.

        Returns:
            Pairs of a position and the share of the query's weight that the text contains, in (0, 1].
        """
        divided, total = _divide(query), 0.0
        weights: dict[int, float] = {}
        for word in sorted(_short(content_words(divided)) or _short(words(divided)))[:MOST_WORDS]:
            rows = self._texts.execute("SELECT rowid FROM texts WHERE texts MATCH ?", (f'"{word}"',)).fetchall()
            weight = math.log1p(self._count / max(1, len(rows)))
            total += weight
            for (ref,) in rows:
                weights[ref] = weights.get(ref, 0.0) + weight
        return sorted(((ref, weight / total) for ref, weight in weights.items()), key=lambda pair: (-pair[1], pair[0]))


def _divide(text: str) -> str:
    """Return a text in which joined words are separate."""
    return _JOINTS.sub(" ", text)
