"""Search by words and by meaning, over the states of steps and over items.

Two derived indices, FTS5 in the library file and FAISS in memory, are asked with the same query and
their ranks fused (reciprocal rank fusion, Cormack et al. 2009). Every hit carries its cosine, so
that one threshold decides whether anything is near enough to be shown at all.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal

import numpy as np

from .embed import Embedder, Vectors
from .errors import LibraryReadOnly, LibraryUnwritable
from .index import VectorIndex
from .ledger import plain
from .situation import content_words
from .store import Store

Kind = Literal["states", "items"]
How = Literal["hybrid", "dense", "text"]
RRF = 60.0
"""Rank constant of the fusion: larger makes lower ranks count more."""
QUERY_TERMS = 4
"""Words of a query that are looked up: its rarest. A long observation must not make FTS5 slow."""
DEPTH = 24
"""Hits taken from each index before fusing."""
_BATCH = 2048
_ROWS: Mapping[Kind, tuple[str, str]] = {"states": ("states", "id"), "items": ("items", "number")}


class Search:
    """Both indices of one namespace."""

    def __init__(self, store: Store, namespace: int, embedder: Embedder) -> None:
        self._store = store
        self.namespace = namespace
        self._embedder = embedder
        self._indices: dict[Kind, VectorIndex] = {}
        self._last: dict[Kind, int] = {}
        self._lock = threading.RLock()
        self.scans = 0
        """Index searches done so far; a recall on a known cluster adds none."""

    def embed(self, text: str) -> Vectors:
        """The query's vector, (dim,) float32."""
        vector: Vectors = self._embedder.embed([plain(text)])[0]
        return vector

    def find(
        self,
        kind: Kind,
        text: str,
        k: int,
        *,
        frequencies: Mapping[str, int],
        how: How = "hybrid",
        vector: Vectors | None = None,
    ) -> list[tuple[int, float, str]]:
        """At most k triples (id, cosine, why), best first."""
        self.scans += 1
        if how == "text" and vector is None:
            return [(ref, 0.0, "words") for ref in self.by_words(kind, text, k, frequencies)]
        if vector is None:
            vector = self.embed(text)
        index = self.index(kind)
        if how == "dense":
            return [(ref, cosine, "meaning") for ref, cosine in index.search(vector, k)]
        dense = index.search(vector, DEPTH)
        worded = self.by_words(kind, text, DEPTH, frequencies)
        fused = fuse([ref for ref, _ in dense], worded)[:k]
        near, said = dict(dense), set(worded)
        missing = [ref for ref in fused if ref not in near]
        cosines = {**near, **dict(zip(missing, index.cosine(vector, missing), strict=True))}
        why = {ref: "meaning" if ref not in said else "words and meaning" if ref in near else "words" for ref in fused}
        return [(ref, cosines[ref], why[ref]) for ref in fused]

    def by_words(self, kind: Kind, text: str, k: int, frequencies: Mapping[str, int]) -> list[int]:
        """Ids by BM25 over the rarest words of the text, best first."""
        query = choose_terms(text, frequencies)
        if not query:
            return []
        table = f"{kind}_text_{self.namespace}"
        rows = self._store.rows(f"SELECT rowid FROM {table} WHERE {table} MATCH ? ORDER BY rank LIMIT ?", (query, k))
        return [row[0] for row in rows]

    def index(self, kind: Kind) -> VectorIndex:
        """The vector index, brought up to the truth."""
        with self._lock:
            index = self._indices.get(kind)
            if index is None:
                index = self._indices[kind] = VectorIndex(self._embedder.dim)
            table, ref = _ROWS[kind]
            ((newest,),) = self._store.rows(f"SELECT coalesce(max({ref}), 0) FROM {table}")
            length = 4 * index.dim
            while (last := self._last.get(kind, 0)) < newest:
                rows = self._store.rows(self._unread(kind), (length, length, self.namespace, last, newest, _BATCH))
                self._take_in(kind, index, rows)
                self._last[kind] = rows[-1][0] if len(rows) == _BATCH else newest
            return index

    def forget(self, kind: Kind) -> None:
        """Drop an index; it is rebuilt from the truth when it is next needed."""
        with self._lock:
            self._indices.pop(kind, None)
            self._last.pop(kind, None)

    def _take_in(self, kind: Kind, index: VectorIndex, rows: Sequence[tuple[int, bytes | None, str]]) -> None:
        """Add what has a vector, embed what has none, and keep the new vectors where that can be done."""
        known = [(ref, vector) for ref, vector, _ in rows if vector is not None]
        if known:
            index.add([ref for ref, _ in known], _unpack([vector for _, vector in known], index.dim))
        fresh = [(ref, text) for ref, vector, text in rows if vector is None]
        if not fresh:
            return
        vectors = self._embedder.embed([text for _, text in fresh])
        index.add([ref for ref, _ in fresh], vectors)
        made = [(kind, ref, self.namespace, vector.tobytes()) for (ref, _), vector in zip(fresh, vectors, strict=True)]
        with suppress(LibraryReadOnly, LibraryUnwritable), self._store.transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)", made)

    def _unread(self, kind: Kind) -> str:
        """(id, vector or NULL, text if there is no vector) of what came after an id; a torn vector is none.

        The plus keeps SQLite from reading the whole namespace by its index and sorting it.
        """
        table, ref = _ROWS[kind]
        if kind == "states":
            text, which = "task || char(10) || observation || char(10) || feedback", ""
        else:
            text = f"coalesce((SELECT text FROM items_text_{self.namespace} WHERE rowid = number), '')"
            which = "AND status = 'active'"
        return (
            f"SELECT {ref}, CASE WHEN length(vector) = ? THEN vector END, "
            f"CASE WHEN length(vector) = ? THEN '' ELSE {text} END "
            f"FROM {table} LEFT JOIN vectors ON vectors.kind = '{kind}' AND ref = {ref} "
            f"WHERE +{table}.namespace = ? AND {ref} > ? AND {ref} <= ? {which} ORDER BY {ref} LIMIT ?"
        )


def choose_terms(text: str, frequencies: Mapping[str, int]) -> str:
    """An FTS5 query of the rarest words of a text; ties in alphabetical order.

    Words that no episode showed come last: in a long text they would crowd out what can be found,
    in a short one they may be what an item is about.
    """
    rarest = sorted(content_words(text), key=lambda word: (word not in frequencies, frequencies.get(word, 0), word))
    return " OR ".join(f'"{word}"' for word in rarest[:QUERY_TERMS])


def fuse(*rankings: Sequence[int]) -> list[int]:
    """Reciprocal rank fusion: score(d) = sum over rankings of 1 / (RRF + rank), best first."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, ref in enumerate(ranking, 1):
            scores[ref] = scores.get(ref, 0.0) + 1.0 / (RRF + rank)
    return sorted(scores, key=lambda ref: (-scores[ref], ref))


def _unpack(blobs: Sequence[bytes], dim: int) -> Vectors:
    return np.frombuffer(b"".join(blobs), dtype=np.float32).reshape(-1, dim)
