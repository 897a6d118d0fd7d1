"""The baseline: SQLite (WAL, synchronous=FULL, one commit per call), exact in-memory FAISS, and FTS5.

It measures the minimum cost of any memory built on these parts. The `fts5` variant also writes each text to a full-text
index and supports hybrid search; the default variant supports vector search only.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from .probe import LookUp

_DEPTH = 24
"""Number of hits of each index that are fused."""


class SqliteFaiss:
    """One database file, and one in-memory index per tenant that is loaded from the file on opening."""

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
            self._index(tenant, [id_], np.frombuffer(vector, dtype=np.float32)[None])

    def _index(self, tenant: str, ids: Sequence[int], vectors: Any) -> None:
        if tenant not in self._indices:
            self._indices[tenant] = faiss.IndexIDMap(faiss.IndexFlatIP(self._look_up.dim))
        self._indices[tenant].add_with_ids(vectors, np.asarray(ids, dtype=np.int64))

    def add(self, tenant: str, text: str) -> None:
        """Store one text in one commit."""
        self.add_batch(tenant, [text])

    def add_batch(self, tenant: str, texts: Sequence[str]) -> None:
        """Store all texts in one commit."""
        vectors = np.stack([self._look_up.get_vector(text) for text in texts])
        self._connection.execute("BEGIN IMMEDIATE")
        ids = [self._insert(tenant, text, vector) for text, vector in zip(texts, vectors, strict=True)]
        self._connection.execute("COMMIT")
        self._index(tenant, ids, vectors)

    def _insert(self, tenant: str, text: str, vector: Any) -> int:
        row = (tenant, text, vector.tobytes())
        cursor = self._connection.execute("INSERT INTO memories(tenant, text, vector) VALUES (?, ?, ?)", row)
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def search(self, tenant: str, text: str, k: int) -> list[str]:
        """Search the index for the k nearest ids, then read their texts."""
        return self._load_texts(self._search_index(tenant, text, k))

    def _search_index(self, tenant: str, text: str, k: int) -> list[int]:
        _, ids = self._indices[tenant].search(self._look_up.get_vector(text)[None], k)
        # FAISS pads a short result with -1.
        return [int(id_) for id_ in ids[0] if id_ >= 0]

    def _load_texts(self, ids: Sequence[int]) -> list[str]:
        # SQL returns rows in any order; the dictionary restores the order of the ranking.
        marks = ",".join("?" * len(ids))
        rows = dict(self._connection.execute(f"SELECT id, text FROM memories WHERE id IN ({marks})", tuple(ids)))
        return [rows[id_] for id_ in ids]

    def close(self) -> None:
        """Close the database."""
        self._connection.close()


class SqliteFaissFts(SqliteFaiss):
    """The same baseline with a full-text index."""

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
        """Search both indexes and fuse the results by reciprocal rank."""
        query = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?"
        text_ids = [row[0] for row in self._connection.execute(query, (terms, _DEPTH))]
        scores: dict[int, float] = {}
        for ranking in (self._search_index(tenant, text, _DEPTH), text_ids):
            for rank, id_ in enumerate(ranking, 1):
                scores[id_] = scores.get(id_, 0.0) + 1 / (60 + rank)
        return self._load_texts(sorted(scores, key=lambda id_: -scores[id_])[:k])


def open_memory(folder: Path, look_up: LookUp, variant: str) -> SqliteFaiss:
    """Open the baseline with one database file in `folder`."""
    return (SqliteFaissFts if variant == "fts5" else SqliteFaiss)(folder / "parts.db", look_up)
