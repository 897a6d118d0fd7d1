"""Search by words in one namespace of an FTS5 table: choose which words to look up, and how many rows to rank.

FTS5 ranks every row that contains one of the words, about 1 us per row. Four common words of a large library would cost
as much as reading it. Therefore the rarest words are chosen by their number of rows, and words with too many rows are
left out if rarer ones suffice. Rows are ranked by the weights of their words; if there are few, long rows count less.
If even the rarest word has many rows, only the newest ones are ranked. FTS5's own rank is of no use here: it counts the
rows of all namespaces. A few thousand short texts, which need no such choices, are ranked by `StemIndex` in memory.
"""

import heapq
import json
import math
import re
import sqlite3
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardwon.memory.situations.keys import content_words, words
from hardwon.memory.situations.scripts import index_text
from hardwon.memory.storage.counted import QueryRows
from hardwon.memory.storage.episodes import first_row, last_row, plain

from .tuning import TUNING

WordCounts = Callable[[Collection[str]], Mapping[str, int]]
"""Returns, by word, the number of episodes that showed it, at least for the given words."""
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
    """Id of the `ranked_per_word`-th newest of these rows; 0 if there are fewer."""


@dataclass(frozen=True, slots=True)
class TextQuery:
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
    """Share of the weight of the query's words that this row contains, in [0, 1]. Words that occur in no row count,
    too, so no row covers much of a question about other topics."""
    score: float
    """The weight of its words relative to the best row's; in a small result, long rows weigh less."""


class TextIndex:
    """Word search over the rows of one namespace in an FTS5 table."""

    def __init__(self, rows: QueryRows, kind: str, namespace: int) -> None:
        self._rows = rows
        self._table = f"{kind}_text"
        self._first, self._last = first_row(namespace), last_row(namespace)
        self._with_word = f"SELECT rowid FROM {self._table} WHERE {self._table} MATCH ? AND rowid BETWEEN ? AND ?"
        self._reaches: dict[str, WordFrequency] = {}
        self._listed: dict[str, tuple[int, NDArray[np.int64]]] = {}
        self._lengths: dict[int, int] = {}
        self._ids = array("q")
        """Ids of all rows, ascending. Gaps between them depend on rows of other tables, which must not count here."""

    def search(self, text: str, k: int, count_episodes: WordCounts, terms: int = TUNING.query_terms) -> list[TextMatch]:
        """Return at most k rows that share the text's rarest words, the best first, and of equal ones the newer."""
        query = self.choose(text, count_episodes, terms)
        if not query.words:
            return []
        row_lists = [self._rows_with(word, query.since) for word in query.words]
        joined = np.concatenate(row_lists)
        order = joined.argsort(kind="stable")  # merges the lists, each of which is sorted
        ordered, is_first = joined[order], np.empty(len(joined), dtype=bool)
        is_first[:1] = True
        np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
        rows, weights = ordered[is_first], np.repeat(query.weights, [len(listed) for listed in row_lists])
        covered = scores = np.bincount(is_first.cumsum() - 1, weights[order])
        if not query.since and query.rows <= TUNING.few_rows:
            lengths = self._read_lengths(rows)
            scores = scores / (1.0 + TUNING.length_weight * lengths / max(1.0, lengths.mean()))
        # Slices, not indices: with fewer than k rows, the smallest score becomes the bound.
        top = np.flatnonzero(scores >= np.sort(scores)[-k:][:1])
        # A stable sort, reversed: of rows with equal scores, the larger id comes first.
        best = top[np.argsort(scores[top], kind="stable")[::-1][:k]]
        shares = covered[best] / (sum(query.weights) + query.missing)
        relative = scores[best] / (scores.max(initial=0.0) or 1.0)
        ids = (rows[best] - self._first).tolist()
        return list(map(TextMatch, ids, shares.tolist(), relative.tolist()))

    def _read_lengths(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the number of words of each row; 0 for one that was deleted meanwhile."""
        listed, lengths = rows.tolist(), self._lengths
        if missing := [row for row in listed if row not in lengths]:
            if len(lengths) >= COUNTED:
                lengths.clear()
                missing = listed
            size = "substr(CAST(coalesce(sz, x'00') AS BLOB), 1, 5)"  # of a file from elsewhere, too
            read = f"SELECT id, {size} FROM {self._table}_docsize WHERE id IN (SELECT value FROM json_each(?))"
            lengths.update((row, _decode(size)) for row, size in self._rows(read, (json.dumps(missing),)))
        return np.array([lengths.get(row, 0) for row in listed], dtype=np.float64)

    def measure_share(self, text: str, row: str, count_episodes: WordCounts, terms: int) -> float:
        """Return the coverage that `search` would find if a text were one of the rows."""
        own = _select_contained(plain(row), _select_words(text, count_episodes))
        query = self.choose(text, count_episodes, terms, own)
        covered = sum(weight for word, weight in zip(query.words, query.weights, strict=True) if word in own)
        return covered / (sum(query.weights) + query.missing) if covered else 0.0

    def choose(
        self,
        text: str,
        count_episodes: WordCounts,
        terms: int = TUNING.query_terms,
        further: Collection[str] | None = None,
    ) -> TextQuery:
        """Choose the words of a text to look up; ties are broken alphabetically.

        The rarest `terms` words are looked up regardless of their rows. `further` words are those of one more row.
        """
        self._follow()
        reaches = self._count_rows(_select_words(text, count_episodes))
        count = len(self._ids)
        if further is not None:
            count += 1
            reaches.update({word: replace(reaches[word], rows=reaches[word].rows + 1) for word in further})
        rarest = [word for _, word in sorted([(reach.rows, word) for word, reach in reaches.items() if reach.rows])]
        if not rarest:
            return TextQuery((), (), 0, 0.0)
        since = reaches[rarest[0]].since
        # If the rarest word has many rows, all words are looked up only in the newest ids, a share of the table.
        share, load = (self._count_from(since) / (len(self._ids) + 1) if since else 1.0), 0.0
        chosen: list[str] = []
        for word in rarest[:terms]:
            rows = share * reaches[word].rows
            if chosen and load + rows > (TUNING.ranked_rows if len(chosen) < TUNING.query_terms else TUNING.few_rows):
                break
            chosen.append(word)
            load += rows
        weights = [math.log1p(count / reaches[word].rows) for word in chosen]
        missing = (len(reaches) - len(rarest)) * math.log1p(count)
        return TextQuery(tuple(chosen), tuple(weights), since, load, missing)

    def _rows_with(self, word: str, since: int) -> NDArray[np.int64]:
        """Return the ids of the newest ranked_rows rows from `since` on that contain a word, ascending."""
        start, rows = self._listed.get(word, (math.inf, None))
        # A list that was read from a later row on lacks the older rows; a longer one is only cut.
        if rows is None or since < start:
            rows = self._list(word, since)
            if len(self._listed) >= LISTED:
                self._listed.clear()
            start = since
            self._listed[word] = since, rows
        return rows if since == start else rows[np.searchsorted(rows, since) :]

    def _list(self, word: str, since: int) -> NDArray[np.int64]:
        """Read the ids of rows that contain a word.

        SQLite returns them as one text, because creating a Python integer per row takes three times as long.
        """
        newest = f"{self._with_word} ORDER BY rowid DESC LIMIT ?"
        limits = max(since, self._first), self._last, TUNING.ranked_rows
        ((listed,),) = self._rows(f"SELECT group_concat(rowid) FROM ({newest})", (_quote(word), *limits))
        return np.sort(np.fromstring(listed or "", dtype=np.int64, sep=","))

    def _read_ids(self) -> None:
        """Read the ids of the rows that were added, as one text, which is faster than a Python integer per row."""
        newest = self._ids[-1] if self._ids else self._first
        added = f"SELECT id FROM {self._table}_docsize WHERE id > ? AND id <= ? ORDER BY id"
        ((listed,),) = self._rows(f"SELECT group_concat(id) FROM ({added})", (newest, self._last))
        self._ids.frombytes(np.fromstring(listed or "", dtype=np.int64, sep=",").tobytes())

    def _count_from(self, since: int) -> int:
        """Return the number of rows from an id on."""
        return len(self._ids) - bisect_left(self._ids, since)

    def select_present(self, words: Sequence[str]) -> list[str]:
        """Return those of the words that occur in any row, in their order."""
        self._follow()
        reaches = self._count_rows(words)
        return [word for word in words if reaches[word].rows]

    def _follow(self) -> None:
        """Drop cached counts if rows were added."""
        # FTS5 keeps a row per document in this table, keyed by id: the maximum costs one lookup.
        greatest = f"SELECT max(id) FROM {self._table}_docsize WHERE id BETWEEN ? AND ?"
        ((newest,),) = self._rows(greatest, (self._first, self._last))
        if newest != (self._ids[-1] if self._ids else None):
            self._forget_words()
            self._read_ids()

    def measure_rarity(self, words: Collection[str]) -> dict[str, float]:
        """Return log((n + 1) / the number of rows with a word), for n rows as of the last search; at least 0."""
        count = len(self._ids) + 1
        reaches = self._count_rows(words)
        return {word: max(0.0, math.log(count / max(1.0, reach.rows))) for word, reach in reaches.items()}

    def forget(self) -> None:
        """Drop everything that was cached, after rows were deleted or replaced."""
        self._forget_words()
        self._lengths.clear()
        del self._ids[:]

    def _forget_words(self) -> None:
        """Drop cached counts and rows after rows were added."""
        self._reaches.clear()
        self._listed.clear()

    def _count_rows(self, words: Collection[str]) -> dict[str, WordFrequency]:
        """Return how common words are, each estimated from its `ranked_per_word` newest rows, by one query for all."""
        cached = self._reaches
        if missing := [word for word in words if word not in cached]:
            if len(cached) + len(missing) > COUNTED:
                cached.clear()
                missing = list(words)
            newest = (
                f"SELECT rowid FROM {self._table} WHERE {self._table} MATCH value AND rowid BETWEEN ? AND ? "
                "ORDER BY rowid DESC LIMIT ?"
            )
            counted = f"SELECT count(*) || ' ' || coalesce(min(rowid), 0) FROM ({newest})"
            limits = self._first, self._last, TUNING.ranked_per_word
            read = f"SELECT ({counted}) FROM json_each(?)"
            counts = self._rows(read, (*limits, json.dumps(list(map(_quote, missing)))))
            for word, (text,) in zip(missing, counts, strict=True):
                rows, since = map(int, text.split())
                if rows == TUNING.ranked_per_word:
                    cached[word] = WordFrequency(rows * (len(self._ids) + 1) / self._count_from(since), since)
                else:
                    cached[word] = WordFrequency(float(rows), 0)
        return {word: cached[word] for word in words}


def _quote(word: str) -> str:
    """Return the word as an FTS5 string."""
    return f'"{word}"'


def _select_contained(row: str, words_wanted: Iterable[str]) -> list[str]:
    """Return those of some words that FTS5 finds in a text."""
    with closing(sqlite3.connect(":memory:")) as table:
        table.execute("CREATE VIRTUAL TABLE texts USING fts5(text, tokenize='porter unicode61')")
        table.execute("INSERT INTO texts VALUES (?)", (index_text(row),))
        match = "SELECT 1 FROM texts WHERE texts MATCH ?"
        return [word for word in words_wanted if table.execute(match, (_quote(word),)).fetchone()]


def _short(words_found: Iterable[str]) -> set[str]:
    """Return the words that can be looked up."""
    return {word for word in words_found if len(word) <= TUNING.max_word_length}


def _decode(size: bytes) -> int:
    """Return the number of words that FTS5 stores with a row, seven bits per byte."""
    number = 0
    for byte in size:
        number = number << 7 | byte & 0x7F
    return number


def _select_words(text: str, count_episodes: WordCounts) -> list[str]:
    """Return the words of a text that the fewest episodes showed; unseen words come last."""
    all_words = {word for word in content_words(text) if len(word) <= TUNING.max_word_length}
    if len(all_words) <= TUNING.counted_words:
        return list(all_words)
    counts = count_episodes(all_words)
    # Ties are decided by the word itself, which is the last of each tuple.
    chosen = heapq.nsmallest(TUNING.counted_words, ((not counts[word], counts[word], word) for word in all_words))
    return [word for _, _, word in chosen]


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

        Rare words weigh more. Words that no text has count as the rarest ones, wherever the alphabet puts them: their
        sum is exact, because the order of its terms would show in the last digit.
        """
        divided, all_weights = _divide(query), list[float]()
        weights: dict[int, float] = {}
        for word in sorted(_short(content_words(divided)) or _short(words(divided)))[: TUNING.max_query_words]:
            rows = self._texts.execute("SELECT rowid FROM texts WHERE texts MATCH ?", (f'"{word}"',)).fetchall()
            weight = math.log1p(self._count / max(1, len(rows)))
            all_weights.append(weight)
            for (ref,) in rows:
                weights[ref] = weights.get(ref, 0.0) + weight
        total = math.fsum(all_weights)
        return sorted(((ref, weight / total) for ref, weight in weights.items()), key=lambda pair: (-pair[1], pair[0]))


def _divide(text: str) -> str:
    """Return a text in which joined words are separate."""
    return _JOINTS.sub(" ", text)
