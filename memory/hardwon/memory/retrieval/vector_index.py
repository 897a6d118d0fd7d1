"""Vector indices of one namespace: nearest neighbors by cosine, a cache of the vectors in SQLite.

`VectorIndex` holds every vector and scans shorter copies. `TrainedIndex` is for many vectors: an inverted file of 8-bit
codes (IVF, SQ8) proposes candidates, and the library's own vectors rank them. So every cosine is exact, and an id that
the library no longer has is never returned. The number of lists to probe is chosen in training, so that the result
agrees with a probe of all lists.

FAISS crashes if one thread adds while another searches, so every call holds a lock.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .embedders import Vectors
from .tuning import TUNING

IdArray = NDArray[np.int64]
Exact = Callable[[Sequence[int]], tuple[list[int], Vectors]]
"""Returns those of the given ids that the library has, and their vectors, (n, dim) float32."""

WHOLE = 127.0
"""Largest absolute value of the 8-bit integers."""


class VectorIndex:
    """Ids with unit vectors, and an exact nearest-neighbor search by cosine.

    A search takes as long as reading its data, so 16-bit numbers propose candidates and the full vectors rank them. For
    small k, 8-bit numbers suffice, unless the candidates are too close to the rest to be certain.
    """

    LIMIT = 32_768
    """Number of vectors beyond which a full scan is too slow (about 1 ms)."""

    def __init__(self, dim: int) -> None:
        """Create an empty index for vectors of `dim` dimensions."""
        import faiss

        self.dim = dim
        self._faiss = faiss.IndexFlatIP(dim)
        kinds, by = faiss.ScalarQuantizer, faiss.METRIC_INNER_PRODUCT
        self._halves = faiss.IndexScalarQuantizer(dim, kinds.QT_fp16, by)
        self._codes = faiss.IndexScalarQuantizer(dim, kinds.QT_8bit_direct_signed, by)
        # The least step that a unit vector can need; `_add_codes` widens it on demand.
        self._step = dim**-0.5 / WHOLE
        self._ids: list[int] = []
        self._at: dict[int, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._at)

    @property
    def outgrown(self) -> bool:
        """Return whether a trained index would be faster."""
        return len(self._ids) > self.LIMIT

    def add(self, ids: Sequence[int], vectors: Vectors) -> None:
        """Add vectors, (n, dim) float32; an existing id gets its new vector."""
        with self._lock:
            start, whole = len(self._ids), np.ascontiguousarray(vectors, dtype=np.float32)
            # Three copies of different precision: 4, 2 and 1 bytes per number.
            self._faiss.add(whole)
            self._halves.add(whole)
            self._ids.extend(ids)
            self._at.update({ref: start + offset for offset, ref in enumerate(ids)})
            self._add_codes(whole)

    def _add_codes(self, vectors: Vectors) -> None:
        """Add vectors as integers; if one exceeds the range, encode all of them again with a larger step."""
        needed = _step_for(vectors)
        if needed > self._step:
            self._step = 1.25 * needed  # some room, so that the next larger vector does not re-encode all again
            self._codes.reset()
            vectors = self._vectors()
        self._codes.add(_quantize(vectors, self._step))

    def remove(self, ref: int) -> None:
        """Remove an id; its vector is skipped from now on and dropped in the next rebuild."""
        with self._lock:
            self._at.pop(ref, None)

    def search(self, vector: Vectors, k: int) -> list[tuple[int, float]]:
        """Return at most k pairs (id, cosine), the best first; ties are in the order of insertion."""
        with self._lock:
            stale = len(self._ids) - len(self._at)  # replaced vectors may occupy this many of the results
            if not self._at:
                return []
            ids, pairs = self._ids, self._nearest(vector, k + stale)
            if stale:
                pairs = [(place, cosine) for place, cosine in pairs if self._at.get(ids[place]) == place][:k]
            return [(ids[place], cosine) for place, cosine in pairs]

    def _nearest(self, vector: Vectors, k: int) -> list[tuple[int, float]]:
        """Return at most k pairs (place, cosine), including replaced vectors."""
        count, query = len(self._ids), vector.reshape(1, -1)
        if count <= TUNING.scanned_vectors:
            cosines, places = self._faiss.search(query, min(k, count))
            return _best(places[0], cosines[0], k)
        if k <= TUNING.max_k_of_codes and (nearest := self._surely_nearest(vector, k)):
            return nearest
        proposed = self._halves.search(query, min(k + TUNING.spare_of_halves, count))[1][0]
        return _best(proposed, self._vectors()[proposed] @ vector, k)

    def _surely_nearest(self, vector: Vectors, k: int) -> list[tuple[int, float]]:
        """Search among integers; return nothing if an excluded vector might be as near."""
        step = _step_for(vector)
        products, proposed = self._codes.search(_quantize(vector, step).reshape(1, -1), 4 * k + TUNING.spare_of_codes)
        nearest = _best(proposed[0], self._vectors()[proposed[0]] @ vector, k)
        best_excluded = float(products[0, -1]) * step * self._step
        is_certain = len(nearest) == k and nearest[-1][1] > best_excluded + TUNING.code_error * math.hypot(
            step, self._step
        )
        return nearest if is_certain else []

    def _vectors(self) -> Vectors:
        """Return all vectors, (count, dim) float32, as a view of FAISS's memory."""
        import faiss

        # Valid until the next `add`, which may move FAISS's memory, so callers hold the lock.
        whole: Vectors = faiss.rev_swig_ptr(self._faiss.get_xb(), len(self._ids) * self.dim).reshape(-1, self.dim)
        return whole

    def cosine(self, vector: Vectors, refs: Sequence[int]) -> list[float]:
        """Return the cosine to each of these ids; 0 for an unknown id."""
        with self._lock:
            places = [self._at.get(ref, -1) for ref in refs]
            # -1 reads the last vector; its cosine is replaced by 0 below.
            cosines = (self._vectors()[places] @ vector).tolist() if self._ids and places else [0.0] * len(places)
            return [cosine if place >= 0 else 0.0 for place, cosine in zip(places, cosines, strict=True)]


def _step_for(vectors: Vectors) -> float:
    """Return the quantization step for which the largest number fits."""
    return max(float(np.abs(vectors).max(initial=0.0)), 1e-9) / WHOLE


def _quantize(vectors: Vectors, step: float) -> Vectors:
    """Return the vectors in steps, rounded, because FAISS truncates both codes and queries."""
    counted: Vectors = np.rint(vectors / np.float32(step))
    return counted


def _best(places: IdArray, cosines: Vectors, k: int) -> list[tuple[int, float]]:
    """Return the k (place, cosine) pairs with the largest cosines; FAISS marks missing places with -1."""
    order = np.lexsort((places, -cosines))[:k]
    pairs = zip(places[order].tolist(), cosines[order].tolist(), strict=True)
    return [pair for pair in pairs if pair[0] >= 0]


class TrainedIndex:
    """Codes of many vectors in lists of similar ones; `exact` reads full vectors from the library."""

    def __init__(self, dim: int, exact: Exact, sample: Vectors) -> None:
        """Train the index on a sample of the vectors that will be added, (n, dim) float32."""
        import faiss

        self.dim = dim
        self._exact = exact
        lists = max(1, min(2048, 2 ** round(np.log2(len(sample) / TUNING.vectors_per_list))))
        self._faiss: Any = faiss.IndexIVFScalarQuantizer(
            faiss.IndexFlatIP(dim), dim, lists, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        )
        self._faiss.cp.niter = TUNING.kmeans_rounds
        # FAISS warns on stderr below 39 points per centroid, which small samples have.
        self._faiss.cp.min_points_per_centroid = 1
        self._faiss.cp.max_points_per_centroid = 2 * TUNING.vectors_per_list
        self._faiss.train(np.ascontiguousarray(sample, dtype=np.float32))
        self._gone: set[int] = set()
        self._lock = threading.Lock()
        self.trained = 0
        """Number of vectors when the probe was chosen."""

    @staticmethod
    def sample_size(count: int) -> int:
        """Return the number of training vectors for an index of `count` vectors."""
        return min(count, int(TUNING.vectors_per_list * min(2048, 2 * count**0.5)))

    def __len__(self) -> int:
        return int(self._faiss.ntotal) - len(self._gone)

    @property
    def outgrown(self) -> bool:
        """Return whether the index holds more than twice as many vectors as in training."""
        return self.trained > 0 and self._faiss.ntotal > 2 * self.trained

    def add(self, ids: Sequence[int], vectors: Vectors) -> None:
        """Add vectors, (n, dim) float32, under new or removed ids."""
        with self._lock:
            again = self._gone.intersection(ids)
            if again:  # drop the old codes first: an id must not be both removed and present
                self._remove(again)
            self._faiss.add_with_ids(np.ascontiguousarray(vectors, dtype=np.float32), np.asarray(ids, dtype=np.int64))

    def remove(self, ref: int) -> None:
        """Remove an id."""
        with self._lock:
            self._gone.add(ref)
            if len(self._gone) > TUNING.spare_of_probes:  # removing scans all lists, so ids are collected first
                self._remove(set(self._gone))

    def _remove(self, refs: set[int]) -> None:
        """Remove the codes of these ids from FAISS."""
        self._faiss.remove_ids(np.fromiter(refs, dtype=np.int64))
        self._gone -= refs

    def choose_probe(self, sample: Vectors) -> None:
        """Choose the fewest lists to probe that find the same neighbors as a probe of all lists.

        The queries are means of four sample vectors. A new situation resembles several recorded ones without being
        close to any, and such a mean is equally hard to place; a vector of the sample would be too easy.
        """
        import faiss

        parameters: Any = faiss.IVFSearchParameters
        with self._lock:
            drawn = np.random.default_rng(0).integers(len(sample), size=(TUNING.probing_queries, TUNING.mixed_vectors))
            queries = sample[drawn].sum(axis=1)
            queries /= np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), 1e-9)
            k = min(5, self._faiss.ntotal)
            self.trained, lists = int(self._faiss.ntotal), int(self._faiss.nlist)

            def fifth(probe: int) -> NDArray[np.float32]:
                result = self._faiss.search(queries, k, params=parameters(nprobe=probe))
                return np.asarray(result[0], dtype=np.float32)

            best = fifth(lists)[:, -1:]
            probe = min(8, lists)
            # Compared by cosine, not by id: neighbors at the same distance are equally good.
            while probe < lists and (fifth(probe) >= best - TUNING.cosine_tolerance).mean() < TUNING.min_agreement:
                probe *= 2
            self._faiss.nprobe = min(probe, lists)

    def search(self, vector: Vectors, k: int) -> list[tuple[int, float]]:
        """Return at most k pairs (id, cosine), the best first; ties are ordered by id."""
        with self._lock:
            # Removed ids still have codes and may take that many places.
            wanted = min(k + TUNING.spare_of_probes + len(self._gone), int(self._faiss.ntotal))
            if not wanted:
                return []
            candidates = self._faiss.search(vector.reshape(1, -1), wanted)[1][0].tolist()
            present = [ref for ref in dict.fromkeys(candidates) if ref >= 0 and ref not in self._gone]
        # Outside the lock: reading vectors from SQLite must not block other searches.
        refs, vectors = self._exact(present)
        cosines = (vectors @ vector).tolist()
        return sorted(zip(refs, cosines, strict=True), key=lambda pair: (-pair[1], pair[0]))[:k]

    def cosine(self, vector: Vectors, refs: Sequence[int]) -> list[float]:
        """Return the cosine to each of these ids; 0 for an unknown id."""
        refs_present, vectors = self._exact(refs)
        cosines: Mapping[int, float] = dict(zip(refs_present, (vectors @ vector).tolist(), strict=True))
        return [0.0 if ref in self._gone else cosines.get(ref, 0.0) for ref in refs]

    def ids(self) -> set[int]:
        """Return all ids in the index."""
        import faiss

        with self._lock:
            lists: Any = self._faiss.invlists
            ids: set[int] = set()
            for number in range(self._faiss.nlist):
                size = lists.list_size(number)
                if size:
                    ids.update(faiss.rev_swig_ptr(lists.get_ids(number), size).tolist())
            return ids - self._gone

    def arrays(self) -> dict[str, NDArray[np.uint8]]:
        """Return the arrays from which `restored` rebuilds the index."""
        import faiss

        with self._lock:
            if self._gone:
                self._remove(set(self._gone))
            return {"faiss": faiss.serialize_index(self._faiss)}

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[np.uint8]], exact: Exact, trained: int) -> "TrainedIndex":
        """Rebuild an index from its arrays."""
        import faiss

        # Not __init__, which would train.
        index = cls.__new__(cls)
        index._faiss = faiss.deserialize_index(arrays["faiss"])
        index.dim, index._exact, index.trained = int(index._faiss.d), exact, trained
        index._gone, index._lock = set(), threading.Lock()
        return index
