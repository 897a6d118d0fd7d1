"""Search by words and by meaning, over the states of steps and over items.

Two derived indices, FTS5 in the library file and FAISS in memory, are asked with the same query and
their ranks fused (reciprocal rank fusion, Cormack et al. 2009). Every hit carries its cosine, so
that one threshold decides whether anything is near enough to be shown at all.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from .embed import Embedder, Vectors
from .index import VectorIndex
from .situation import content_words
from .store import Store

Kind = Literal["states", "items"]
How = Literal["hybrid", "dense", "text"]
RRF = 60.0
"""Rank constant of the fusion: larger makes lower ranks count more."""
QUERY_TERMS = 8
"""Words of a query that are looked up: its rarest. A long observation must not make FTS5 slow."""
DEPTH = 24
"""Hits taken from each index before fusing."""
_BATCH = 2048


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
        vector: Vectors = self._embedder.embed([text])[0]
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
        cosines = dict(dense)
        missing = [ref for ref in fused if ref not in cosines]
        cosines.update(zip(missing, index.cosine(vector, missing), strict=True))
        both = set(cosines).intersection(worded)
        return [
            (ref, cosines[ref], "words and meaning" if ref in both else "words" if ref in missing else "meaning")
            for ref in fused
        ]

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
                self._load(kind, index)
            self._embed_missing(kind, index)
            return index

    def forget(self, kind: Kind) -> None:
        """Drop an index; it is rebuilt from the truth when it is next needed."""
        with self._lock:
            self._indices.pop(kind, None)
            self._last.pop(kind, None)

    def _load(self, kind: Kind, index: VectorIndex) -> None:
        rows = self._store.rows(
            "SELECT ref, vector FROM vectors WHERE namespace = ? AND kind = ? ORDER BY ref", (self.namespace, kind)
        )
        if rows:
            index.add([row[0] for row in rows], _unpack([row[1] for row in rows], index.dim))
            self._last[kind] = rows[-1][0]

    def _embed_missing(self, kind: Kind, index: VectorIndex) -> None:
        """Embed what has no vector yet; the vectors are kept in the library when it may be written."""
        while True:
            rows = self._store.rows(self._pending(kind), (self.namespace, self._last.get(kind, 0), _BATCH))
            fresh = [(ref, text) for ref, text in rows]
            if not fresh:
                return
            vectors = self._embedder.embed([text for _, text in fresh])
            index.add([ref for ref, _ in fresh], vectors)
            self._last[kind] = fresh[-1][0]
            if not self._store.read_only:
                with self._store.transaction() as connection:
                    connection.executemany(
                        "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)",
                        [
                            (kind, ref, self.namespace, vector.tobytes())
                            for (ref, _), vector in zip(fresh, vectors, strict=True)
                        ],
                    )

    def _pending(self, kind: Kind) -> str:
        if kind == "states":
            return (
                "SELECT id, task || char(10) || observation || char(10) || feedback FROM states "
                "WHERE namespace = ? AND id > ? ORDER BY id LIMIT ?"
            )
        return (
            f"SELECT number, (SELECT text FROM items_text_{self.namespace} WHERE rowid = number) FROM items "
            "WHERE namespace = ? AND status = 'active' AND number > ? ORDER BY number LIMIT ?"
        )


def choose_terms(text: str, frequencies: Mapping[str, int]) -> str:
    """An FTS5 query of the rarest words of a text; ties in alphabetical order."""
    rarest = sorted(content_words(text), key=lambda word: (frequencies.get(word, 0), word))
    known = [word for word in rarest if word in frequencies] or rarest
    return " OR ".join(f'"{word}"' for word in known[:QUERY_TERMS])


def fuse(*rankings: Sequence[int]) -> list[int]:
    """Reciprocal rank fusion: score(d) = sum over rankings of 1 / (RRF + rank), best first."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, ref in enumerate(ranking, 1):
            scores[ref] = scores.get(ref, 0.0) + 1.0 / (RRF + rank)
    return sorted(scores, key=lambda ref: (-scores[ref], ref))


def _unpack(blobs: Sequence[bytes], dim: int) -> Vectors:
    return np.frombuffer(b"".join(blobs), dtype=np.float32).reshape(-1, dim)
