"""The plain parts, not a product: SQLite (WAL, synchronous=FULL, one commit a call), exact FAISS in memory, FTS5.

What any memory built on them costs at least. With the variant `fts5` texts are written to a
full-text index as well and can be searched both ways; without it they cannot.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from .probe import LookUp

_DEPTH = 24
"""Hits of each index that are fused."""


class Parts:
    """One file; an index in memory for every tenant, filled from the file when it is opened."""

    def __init__(self, path: Path, look_up: LookUp) -> None:
        faiss.omp_set_num_threads(1)
        self._look_up = look_up
        self._connection = sqlite3.connect(path, timeout=60, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS memories (id INTEGER PRIMARY KEY, tenant TEXT, text TEXT, vector BLOB)"
        )
        self._indices: dict[str, Any] = {}
        for id_, tenant, vector in self._connection.execute("SELECT id, tenant, vector FROM memories"):
            self._take_in(tenant, [id_], np.frombuffer(vector, dtype=np.float32)[None])

    def _take_in(self, tenant: str, ids: Sequence[int], vectors: Any) -> None:
        if tenant not in self._indices:
            self._indices[tenant] = faiss.IndexIDMap(faiss.IndexFlatIP(self._look_up.dim))
        self._indices[tenant].add_with_ids(vectors, np.asarray(ids, dtype=np.int64))

    def add(self, tenant: str, text: str) -> None:
        """One commit."""
        self.add_batch(tenant, [text])

    def add_batch(self, tenant: str, texts: Sequence[str]) -> None:
        """One commit for all."""
        vectors = np.stack([self._look_up.one(text) for text in texts])
        self._connection.execute("BEGIN IMMEDIATE")
        ids = [self._insert(tenant, text, vector) for text, vector in zip(texts, vectors, strict=True)]
        self._connection.execute("COMMIT")
        self._take_in(tenant, ids, vectors)

    def _insert(self, tenant: str, text: str, vector: Any) -> int:
        row = (tenant, text, vector.tobytes())
        cursor = self._connection.execute("INSERT INTO memories(tenant, text, vector) VALUES (?, ?, ?)", row)
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def search(self, tenant: str, text: str, k: int) -> list[str]:
        """The nearest ids, then their rows."""
        return self._texts(self._nearest(tenant, text, k))

    def _nearest(self, tenant: str, text: str, k: int) -> list[int]:
        _, ids = self._indices[tenant].search(self._look_up.one(text)[None], k)
        return [int(id_) for id_ in ids[0] if id_ >= 0]

    def _texts(self, ids: Sequence[int]) -> list[str]:
        marks = ",".join("?" * len(ids))
        rows = dict(self._connection.execute(f"SELECT id, text FROM memories WHERE id IN ({marks})", tuple(ids)))
        return [rows[id_] for id_ in ids]

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


class PartsWithWords(Parts):
    """The same with a full-text index."""

    def __init__(self, path: Path, look_up: LookUp) -> None:
        super().__init__(path, look_up)
        self._connection.execute(
            "CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(text, content='', tokenize='porter unicode61')"
        )

    def _insert(self, tenant: str, text: str, vector: Any) -> int:
        id_ = super()._insert(tenant, text, vector)
        self._connection.execute("INSERT INTO words(rowid, text) VALUES (?, ?)", (id_, text))
        return id_

    def hybrid(self, tenant: str, text: str, terms: str, k: int) -> list[str]:
        """Both indices asked, their ranks fused."""
        query = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?"
        worded = [row[0] for row in self._connection.execute(query, (terms, _DEPTH))]
        scores: dict[int, float] = {}
        for ranking in (self._nearest(tenant, text, _DEPTH), worded):
            for rank, id_ in enumerate(ranking, 1):
                scores[id_] = scores.get(id_, 0.0) + 1 / (60 + rank)
        return self._texts(sorted(scores, key=lambda id_: -scores[id_])[:k])


def open_memory(folder: Path, look_up: LookUp, variant: str) -> Parts:
    """One file in this folder."""
    return (PartsWithWords if variant == "fts5" else Parts)(folder / "parts.db", look_up)
