"""Vector indices of one namespace: nearest by cosine, a cache of SQLite's vectors.

`VectorIndex` holds every vector, and looks through shorter copies. `TrainedIndex` is for many:
an inverted file of 8-bit codes (IVF, SQ8) proposes candidates, the truth's own vectors rank them.
So every cosine is exact, and an id that the truth does not have any more is never returned. How many
lists it probes is chosen when it is trained, so that it finds what a probe of all lists finds.

Adding while another thread searches crashes FAISS, so every call holds a lock.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .embedders import Vectors

Ids = NDArray[np.int64]
Exact = Callable[[Sequence[int]], tuple[list[int], Vectors]]
"""From ids to those of them that the truth has, and their vectors (n, dim)."""

AGREEMENT = 0.99
"""Of the nearest five by a probe of all lists, what the chosen probe finds at least."""
SPARE = 24
"""Candidates looked at beyond those asked for: codes of 8 bits misjudge a cosine by some thousandths."""
FEW = 1024
"""Vectors up to which those themselves are looked through."""
SPARE_OF_HALVES = 8
"""Candidates looked at beyond those asked for: numbers of 16 bits misjudge a cosine by some hundred thousandths."""
NEAREST = 8
"""How many are sought among whole numbers of 8 bits at most: of more, the last are seldom told from those left out."""
SPARE_OF_CODES = 12
"""Candidates looked at beyond four times those asked for, of vectors looked through as such numbers."""
WHOLE = 127.0
"""The largest of those whole numbers."""
MISJUDGED = 1.2
"""Four standard deviations of what rounding two vectors adds to a cosine, over the root of their steps' squares."""
_PER_LIST = 64
_QUERIES = 128
_MIXED = 4
_ROUNDS = 8
_ALIKE = 1e-5


class VectorIndex:
    """Ids and unit vectors; finds the nearest by cosine.

    Numbers of 16 bits propose candidates, for a search takes as long as its reading does; the vectors rank them. Where
    few are sought, numbers of 8 bits do, unless their candidates are too near to what was left out to be told from it.
    """

    LIMIT = 32_768
    """Vectors beyond which looking through all takes too long (some 1 ms)."""

    def __init__(self, dim: int) -> None:
        import faiss

        self.dim = dim
        self._faiss = faiss.IndexFlatIP(dim)
        kinds, by = faiss.ScalarQuantizer, faiss.METRIC_INNER_PRODUCT
        self._halves = faiss.IndexScalarQuantizer(dim, kinds.QT_fp16, by)
        self._codes = faiss.IndexScalarQuantizer(dim, kinds.QT_8bit_direct_signed, by)
        self._step = dim**-0.5 / WHOLE
        self._ids: list[int] = []
        self._at: dict[int, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._at)

    @property
    def outgrown(self) -> bool:
        """Whether it holds so many that a trained index is quicker."""
        return len(self._ids) > self.LIMIT

    def add(self, ids: Sequence[int], vectors: Vectors) -> None:
        """Add vectors (n, dim) under ids; an id that is there already moves to its new vector."""
        with self._lock:
            start, whole = len(self._ids), np.ascontiguousarray(vectors, dtype=np.float32)
            self._faiss.add(whole)
            self._halves.add(whole)
            self._ids.extend(ids)
            self._at.update({ref: start + offset for offset, ref in enumerate(ids)})
            self._add_codes(whole)

    def _add_codes(self, vectors: Vectors) -> None:
        """Add vectors as whole numbers; all are written anew, in longer steps, when one is too large for them."""
        needed = _step_for(vectors)
        if needed > self._step:
            self._step = 1.25 * needed
            self._codes.reset()
            vectors = self._vectors()
        self._codes.add(_whole(vectors, self._step))

    def remove(self, ref: int) -> None:
        """Forget an id; its vector is skipped from now on and dropped at the next rebuild."""
        with self._lock:
            self._at.pop(ref, None)

    def search(self, vector: Vectors, k: int) -> list[tuple[int, float]]:
        """At most k pairs (id, cosine), best first; ties by which came first."""
        with self._lock:
            stale = len(self._ids) - len(self._at)
            if not self._at:
                return []
            found = ((self._ids[place], place, cosine) for place, cosine in self._nearest(vector, k + stale))
            if not stale:
                return [(ref, cosine) for ref, _, cosine in found]
            return [(ref, cosine) for ref, place, cosine in found if self._at.get(ref) == place][:k]

    def _nearest(self, vector: Vectors, k: int) -> list[tuple[int, float]]:
        """At most k pairs (place, cosine), of vectors that were replaced too."""
        count, query = len(self._ids), vector.reshape(1, -1)
        if count <= FEW:
            cosines, places = self._faiss.search(query, min(k, count))
            return _best(places[0], cosines[0], k)
        if k <= NEAREST and (found := self._surely_nearest(vector, k)):
            return found
        proposed = self._halves.search(query, min(k + SPARE_OF_HALVES, count))[1][0]
        return _best(proposed, self._vectors()[proposed] @ vector, k)

    def _surely_nearest(self, vector: Vectors, k: int) -> list[tuple[int, float]]:
        """The same among whole numbers; nothing where one that they left out might be as near."""
        step = _step_for(vector)
        products, proposed = self._codes.search(_whole(vector, step).reshape(1, -1), 4 * k + SPARE_OF_CODES)
        found = _best(proposed[0], self._vectors()[proposed[0]] @ vector, k)
        left_out = float(products[0, -1]) * step * self._step
        sure = len(found) == k and found[-1][1] > left_out + MISJUDGED * math.hypot(step, self._step)
        return found if sure else []

    def _vectors(self) -> Vectors:
        """All vectors, (count, dim), where FAISS holds them."""
        import faiss

        whole: Vectors = faiss.rev_swig_ptr(self._faiss.get_xb(), len(self._ids) * self.dim).reshape(-1, self.dim)
        return whole

    def cosine(self, vector: Vectors, refs: Sequence[int]) -> list[float]:
        """Cosine to each of these ids; 0 for one that is not here."""
        with self._lock:
            places = [self._at.get(ref, -1) for ref in refs]
            cosines = (self._vectors()[places] @ vector).tolist() if self._ids and places else [0.0] * len(places)
            return [cosine if place >= 0 else 0.0 for place, cosine in zip(places, cosines, strict=True)]


def _step_for(vectors: Vectors) -> float:
    """The step between whole numbers that has room for the largest of these."""
    return max(float(np.abs(vectors).max(initial=0.0)), 1e-9) / WHOLE


def _whole(vectors: Vectors, step: float) -> Vectors:
    """Vectors in steps, rounded: FAISS cuts off what stands behind the point, of what is asked for too."""
    counted: Vectors = np.rint(vectors / np.float32(step))
    return counted


def _best(places: Ids, cosines: Vectors, k: int) -> list[tuple[int, float]]:
    """The k pairs (place, cosine) with the largest cosines, ties by place; FAISS pads places with -1."""
    order = np.lexsort((places, -cosines))[:k]
    pairs = zip(places[order].tolist(), cosines[order].tolist(), strict=True)
    return [pair for pair in pairs if pair[0] >= 0]


class TrainedIndex:
    """Codes of many vectors in lists of near ones; `exact` reads vectors from the truth."""

    def __init__(self, dim: int, exact: Exact, sample: Vectors) -> None:
        """Train on a sample (n, dim) of what will be added."""
        import faiss

        self.dim = dim
        self._exact = exact
        lists = max(1, min(2048, 2 ** round(np.log2(len(sample) / _PER_LIST))))
        self._faiss: Any = faiss.IndexIVFScalarQuantizer(
            faiss.IndexFlatIP(dim), dim, lists, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        )
        self._faiss.cp.niter = _ROUNDS
        self._faiss.cp.min_points_per_centroid = 1
        self._faiss.cp.max_points_per_centroid = 2 * _PER_LIST
        self._faiss.train(np.ascontiguousarray(sample, dtype=np.float32))
        self._gone: set[int] = set()
        self._lock = threading.Lock()
        self.trained = 0
        """Vectors it held when the probe was chosen."""

    @staticmethod
    def sample_size(count: int) -> int:
        """How many of so many vectors to train on: as many lists as four times the square root."""
        return min(count, int(_PER_LIST * min(2048, 2 * count**0.5)))

    def __len__(self) -> int:
        return int(self._faiss.ntotal) - len(self._gone)

    @property
    def outgrown(self) -> bool:
        """Whether it holds twice what it was trained for."""
        return self.trained > 0 and self._faiss.ntotal > 2 * self.trained

    def add(self, ids: Sequence[int], vectors: Vectors) -> None:
        """Add vectors (n, dim) under ids."""
        with self._lock:
            again = self._gone.intersection(ids)
            if again:  # the old codes go first: an id must not be gone and there
                self._remove(again)
            self._faiss.add_with_ids(np.ascontiguousarray(vectors, dtype=np.float32), np.asarray(ids, dtype=np.int64))

    def remove(self, ref: int) -> None:
        """Forget an id."""
        with self._lock:
            self._gone.add(ref)
            if len(self._gone) > SPARE:
                self._remove(set(self._gone))

    def _remove(self, refs: set[int]) -> None:
        self._faiss.remove_ids(np.fromiter(refs, dtype=np.int64))
        self._gone -= refs

    def choose_probe(self, sample: Vectors) -> None:
        """The fewest lists that find what all lists find, for queries that lie between vectors of the sample.

        A situation that was never seen resembles several that were, none of them much: a mean of
        four vectors is as hard to place as such a one, where a vector of the sample is easy.
        """
        import faiss

        parameters: Any = faiss.IVFSearchParameters
        with self._lock:
            drawn = np.random.default_rng(0).integers(len(sample), size=(_QUERIES, _MIXED))
            queries = sample[drawn].sum(axis=1)
            queries /= np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), 1e-9)
            k = min(5, self._faiss.ntotal)
            self.trained, lists = int(self._faiss.ntotal), int(self._faiss.nlist)

            def fifth(probe: int) -> NDArray[np.float32]:
                found = self._faiss.search(queries, k, params=parameters(nprobe=probe))
                return np.asarray(found[0], dtype=np.float32)

            best = fifth(lists)[:, -1:]
            probe = min(8, lists)
            while probe < lists and (fifth(probe) >= best - _ALIKE).mean() < AGREEMENT:
                probe *= 2
            self._faiss.nprobe = min(probe, lists)

    def search(self, vector: Vectors, k: int) -> list[tuple[int, float]]:
        """At most k pairs (id, cosine), best first; ties by id."""
        with self._lock:
            wanted = min(k + SPARE + len(self._gone), int(self._faiss.ntotal))
            if not wanted:
                return []
            found = self._faiss.search(vector.reshape(1, -1), wanted)[1][0].tolist()
            near = [ref for ref in dict.fromkeys(found) if ref >= 0 and ref not in self._gone]
        refs, vectors = self._exact(near)
        cosines = (vectors @ vector).tolist()
        return sorted(zip(refs, cosines, strict=True), key=lambda pair: (-pair[1], pair[0]))[:k]

    def cosine(self, vector: Vectors, refs: Sequence[int]) -> list[float]:
        """Cosine to each of these ids; 0 for one that is not here."""
        known, vectors = self._exact(refs)
        cosines: Mapping[int, float] = dict(zip(known, (vectors @ vector).tolist(), strict=True))
        return [0.0 if ref in self._gone else cosines.get(ref, 0.0) for ref in refs]

    def ids(self) -> set[int]:
        """All that it holds."""
        import faiss

        with self._lock:
            lists: Any = self._faiss.invlists
            found: set[int] = set()
            for number in range(self._faiss.nlist):
                size = lists.list_size(number)
                if size:
                    found.update(faiss.rev_swig_ptr(lists.get_ids(number), size).tolist())
            return found - self._gone

    def arrays(self) -> dict[str, NDArray[np.uint8]]:
        """What `restored` makes it from again."""
        import faiss

        with self._lock:
            if self._gone:
                self._remove(set(self._gone))
            return {"faiss": faiss.serialize_index(self._faiss)}

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[np.uint8]], exact: Exact, trained: int) -> "TrainedIndex":
        """The index of these arrays. Raises RuntimeError when they are not of one."""
        import faiss

        index = cls.__new__(cls)
        index._faiss = faiss.deserialize_index(arrays["faiss"])
        index.dim, index._exact, index.trained = int(index._faiss.d), exact, trained
        index._gone, index._lock = set(), threading.Lock()
        return index
