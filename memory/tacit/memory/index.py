"""Vector index of one namespace: exact inner-product search with FAISS, a cache of SQLite's vectors.

Adding while another thread searches crashes FAISS, so every call holds a lock.
"""

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .embed import Vectors

Ids = NDArray[np.int64]


class VectorIndex:
    """Ids and unit vectors; finds the nearest by cosine."""

    def __init__(self, dim: int) -> None:
        import faiss

        self.dim = dim
        self._faiss = faiss.IndexFlatIP(dim)
        self._ids: list[int] = []
        self._at: dict[int, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._at)

    def add(self, ids: Sequence[int], vectors: Vectors) -> None:
        """Add vectors (n, dim) under ids; an id that is there already moves to its new vector."""
        with self._lock:
            start = len(self._ids)
            self._faiss.add(np.ascontiguousarray(vectors, dtype=np.float32))
            self._ids.extend(ids)
            self._at.update({ref: start + offset for offset, ref in enumerate(ids)})

    def remove(self, ref: int) -> None:
        """Forget an id; its vector is skipped from now on and dropped at the next rebuild."""
        with self._lock:
            self._at.pop(ref, None)

    def search(self, vector: Vectors, k: int) -> list[tuple[int, float]]:
        """At most k pairs (id, cosine), best first."""
        with self._lock:
            stale = len(self._ids) - len(self._at)
            if not self._at:
                return []
            scores, places = self._faiss.search(vector.reshape(1, -1), min(k + stale, len(self._ids)))
            found = []
            for place, score in zip(places[0].tolist(), scores[0].tolist(), strict=True):
                ref = self._ids[place] if place >= 0 else -1  # FAISS pads missing hits with -1
                if self._at.get(ref) == place:
                    found.append((ref, score))
            return found[:k]

    def cosine(self, vector: Vectors, refs: Sequence[int]) -> list[float]:
        """Cosine to each of these ids; 0 for one that is not here."""
        with self._lock:
            return [float(self._faiss.reconstruct(self._at[ref]) @ vector) if ref in self._at else 0.0 for ref in refs]
