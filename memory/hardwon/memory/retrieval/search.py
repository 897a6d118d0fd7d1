"""Search by words and by meaning, over the states of steps and over items.

Two derived indices, FTS5 in the library file and FAISS in memory, are asked with the same query and
their ranks fused (reciprocal rank fusion, Cormack et al. 2009). Every hit carries its cosine, so
that one threshold decides whether anything is near enough to be shown at all. A large vector index
is kept in a file beside the library (see `storage.cache_files`), so that opening need not train it.
"""

import ctypes
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import numpy as np

from hardwon.memory.errors import LibraryReadOnly, LibraryUnwritable
from hardwon.memory.storage.cache_files import Saved, Sidecar, due
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import dumps, plain

from .embedders import Embedder, Vectors, refuse_other
from .text_index import QUERY_TERMS, TextIndex, Worded
from .vector_index import Exact, TrainedIndex, VectorIndex

Kind = Literal["states", "items"]
KINDS: tuple[Kind, ...] = ("states", "items")
How = Literal["hybrid", "dense", "text"]
Version = tuple[int, int]
RRF = 60.0
"""Rank constant of the fusion: larger makes lower ranks count more."""
MEANING = 0.5
"""Of a cosine, what it counts beside the share of the best row's BM25 when the found are ordered."""
DEPTH = 24
"""Hits taken from each index before fusing."""
_READ = 4096
"""Vectors read at a time."""
_EMBED = 512
"""Texts embedded and committed at a time: what a kill loses of a long embedding."""
_ROWS: Mapping[Kind, tuple[str, str]] = {"states": ("states", "id"), "items": ("items", "number")}
_LIVE: Mapping[Kind, str] = {"states": "", "items": "AND status = 'active'"}
_TEXTS: Mapping[Kind, str] = {
    "states": "observation || char(10) || feedback",
    "items": "coalesce((SELECT text FROM items_text_{} WHERE rowid = number), '')",
}
_REFS = "SELECT ref FROM vectors WHERE namespace = ? AND kind = ? AND ref > ? AND ref <= ? ORDER BY ref"
_VECTORS = _REFS.replace("SELECT ref", "SELECT ref, vector") + " LIMIT ?"
_OF_REFS = (
    "SELECT ref, vector FROM vectors WHERE kind = ? AND ref IN (SELECT value FROM json_each(?)) "
    "AND namespace = ? AND length(vector) = ?"
)

logger = logging.getLogger("hardwon.memory")


class Search:
    """Both indices of one namespace."""

    def __init__(self, store: Store, namespace: int, embedder: Embedder) -> None:
        self._store = store
        self.namespace = namespace
        self._embedder = embedder
        self._texts = {kind: TextIndex(store.rows, kind, namespace) for kind in KINDS}
        self._sidecar = Sidecar(store, namespace)
        self._indices: dict[Kind, VectorIndex | TrainedIndex] = {}
        self._last: dict[Kind, int] = {}
        self._version: dict[Kind, Version] = {}
        self._saved: dict[Kind, int] = {}
        self._unkept: dict[Kind, dict[int, Vectors]] = {kind: {} for kind in KINDS}
        self._lock = threading.RLock()
        self.scans = 0
        """Index searches done so far; a recall on a known cluster adds none."""
        self.on_embedded: Callable[[Kind, int], None] = lambda kind, count: None
        """Called with how many texts were just embedded."""

    def embed(self, text: str) -> Vectors:
        """The query's vector, (dim,) float32."""
        vector: Vectors = self._embedder.embed([plain(text)])[0]
        return vector

    def embed_all(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of texts, (n, dim) float32."""
        return self._embedder.embed([plain(text) for text in texts])

    def find(
        self,
        kind: Kind,
        text: str,
        k: int,
        *,
        frequencies: Mapping[str, int],
        how: How = "hybrid",
        vector: Vectors | None = None,
        version: Version | None = None,
        terms: int = QUERY_TERMS,
        depth: int = DEPTH,
    ) -> list[tuple[int, float, str]]:
        """Return at most k triples (id, similarity, why), best first; of the library at this version, if it is known.

        `depth` is how many hits a hybrid search takes from each index before they are ordered.

        The similarity is the cosine or, where that is larger, the share of the query's words that the text has:
        a question of few words has a small cosine to a long text that answers it.
        """
        self.scans += 1
        if how == "text":
            return [(one.ref, one.share, "words") for one in self.by_words(kind, text, k, frequencies, terms)]
        if vector is None:
            vector = self.embed(text)
        index = self.index(kind, version)
        if how == "dense":
            return [(ref, cosine, "meaning") for ref, cosine in index.search(vector, k)]
        dense, worded = index.search(vector, depth), self.by_words(kind, text, depth, frequencies, terms)
        near, shares = dict(dense), {one.ref: one.share for one in worded}
        missing = [ref for ref in shares if ref not in near]
        cosines = {**near, **dict(zip(missing, index.cosine(vector, missing), strict=True))}
        scores = {one.ref: one.score for one in worded}

        def worth(ref: int) -> tuple[float, int]:
            return (-MEANING * cosines[ref] - scores.get(ref, 0.0), ref)

        why = {
            ref: "meaning" if ref not in shares else "words and meaning" if ref in near else "words" for ref in cosines
        }
        best = sorted(cosines, key=worth)[:k]
        return [(ref, max(cosines[ref], shares.get(ref, 0.0)), why[ref]) for ref in best]

    def by_words(self, kind: Kind, text: str, k: int, frequencies: Mapping[str, int], terms: int) -> list[Worded]:
        """Return what has the rarest words of the text, best first."""
        return self._texts[kind].scored(text, k, frequencies, terms)

    def index(self, kind: Kind, version: Version | None = None) -> VectorIndex | TrainedIndex:
        """The vector index, brought up to the truth, or to a version of it."""
        with self._lock:
            index = self._indices.get(kind)
            version = version or self.version()
            if index is not None and self._version.get(kind) == version:
                return index
            self._refuse_other_vectors()
            newest = self._newest(kind)
            if index is None:
                index = self._indices[kind] = self._opened(kind, newest)
                self.save(trained_only=True)
                _give_back_memory()
            if self._last[kind] < newest:
                self._embed_missing(kind, self._last[kind], newest)
                for refs, vectors in self._vectors(kind, self._last[kind], newest):
                    index.add(refs, vectors)
                self._last[kind] = newest
                if index.outgrown:
                    index = self._indices[kind] = self._trained(kind, newest)
                self.save(trained_only=True)
            self._version[kind] = version  # of before: what was written meanwhile is read the next time
            return index

    def version(self) -> Version:
        """What changes when the library does, whoever changes it."""
        return self._store.version(), self._store.connection.total_changes

    def forget(self, kind: Kind) -> None:
        """Drop an index; it is rebuilt from the truth when it is next needed."""
        with self._lock:
            self._indices.pop(kind, None)
            self._last.pop(kind, None)
            self._unkept[kind].clear()
            self._texts[kind].forget()

    def save(self, *, trained_only: bool = False) -> None:
        """Write the large indices of this process to their files: newly trained ones, and those much behind."""
        with self._lock:
            for kind, index in self._indices.items():
                if not isinstance(index, TrainedIndex) or not self._sidecar.writable:
                    continue
                covered = self._saved.get(kind, 0)
                if not covered or (not trained_only and due(len(index) - covered, covered)):
                    arrays: dict[str, Any] = {**index.arrays(), "trained": np.array([index.trained])}
                    self._sidecar.save(kind, self._made(), self._last[kind], len(index), arrays)
                    self._saved[kind] = len(index)

    # -- from the truth ---------------------------------------------------------------------------

    def _opened(self, kind: Kind, newest: int) -> VectorIndex | TrainedIndex:
        """The index of a file, to be brought up to the truth, or of the truth alone."""
        saved = self._sidecar.load(kind, self._made())
        index = self._restored(kind, saved) if saved is not None else None
        if saved is not None and index is not None:
            self._last[kind], self._saved[kind] = saved.last, saved.count
            return index
        if not self._all_embedded(kind, newest):
            self._embed_missing(kind, 0, newest)
        self._last[kind] = newest
        if self._count(kind, newest) > VectorIndex.LIMIT:
            return self._trained(kind, newest)
        flat = VectorIndex(self._embedder.dim)
        for refs, vectors in self._vectors(kind, 0, newest):
            flat.add(refs, vectors)
        return flat

    def _restored(self, kind: Kind, saved: Saved) -> TrainedIndex | None:
        """The index of a file, unless the truth has other vectors than it was made of."""
        if self._count(kind, saved.last) == saved.count and self._all_embedded(kind, saved.last):
            with suppress(RuntimeError, KeyError):
                return TrainedIndex.restored(saved.arrays, self._exact(kind), int(saved.arrays["trained"][0]))
        logger.warning("the saved index of %s has other vectors than the library. It is rebuilt.", kind)
        if not self._store.read_only:
            self._sidecar.drop(kind)  # before the vectors that it lacks are made: they would make it pass for right
        return None

    def _trained(self, kind: Kind, newest: int) -> TrainedIndex:
        """An index for many vectors, trained on a sample of them."""
        sample = self._sample(kind, newest)
        index = TrainedIndex(self._embedder.dim, self._exact(kind), sample)
        for refs, vectors in self._vectors(kind, 0, newest):
            index.add(refs, vectors)
        index.choose_probe(sample)
        self._saved.pop(kind, None)
        return index

    def _sample(self, kind: Kind, newest: int) -> Vectors:
        """Vectors drawn evenly over the ids."""
        refs = [row[0] for row in self._store.rows(_REFS, (self.namespace, kind, 0, newest))]
        drawn = np.random.default_rng(0).choice(len(refs), TrainedIndex.sample_size(len(refs)), replace=False)
        wanted = [refs[at] for at in np.sort(drawn)]
        return np.concatenate([self._exact(kind)(wanted[at : at + _READ])[1] for at in range(0, len(wanted), _READ)])

    def _vectors(self, kind: Kind, after: int, newest: int) -> Iterator[tuple[list[int], Vectors]]:
        """The vectors of what came after an id, in the order of the ids; a torn vector is made again."""
        here, length, began = self._unkept[kind], 4 * self._embedder.dim, after
        made_again: set[int] = set()
        while rows := self._store.rows(_VECTORS, (self.namespace, kind, after, newest, _READ)):
            torn = [row[0] for row in rows if len(row[1]) != length and row[0] not in here and row[0] not in made_again]
            if torn:
                self._embed_missing(kind, torn[0] - 1, torn[-1])
                made_again.update(torn)
                continue
            whole = [row for row in rows if row[0] not in here and len(row[1]) == length]
            if whole:
                yield [row[0] for row in whole], _unpack([row[1] for row in whole], self._embedder.dim)
            after = rows[-1][0]
        fresh = [ref for ref in here if began < ref <= newest]
        if fresh:
            yield fresh, np.stack([here[ref] for ref in fresh])

    def _exact(self, kind: Kind) -> Exact:
        """A reader of the truth's own vectors by id."""
        length, here = 4 * self._embedder.dim, self._unkept[kind]

        def read(refs: Sequence[int]) -> tuple[list[int], Vectors]:
            rows = self._store.rows(_OF_REFS, (kind, dumps(refs), self.namespace, length)) if refs else []
            rows += [(ref, here[ref].tobytes()) for ref in refs if ref in here]
            return [row[0] for row in rows], _unpack([row[1] for row in rows], self._embedder.dim)

        return read

    def _newest(self, kind: Kind) -> int:
        table, ref = _ROWS[kind]
        return int(self._store.rows(f"SELECT coalesce(max({ref}), 0) FROM {table}")[0][0])

    def _count(self, kind: Kind, newest: int) -> int:
        """Vectors of what came up to an id."""
        return int(self._store.rows(f"SELECT count(*) FROM ({_REFS})", (self.namespace, kind, 0, newest))[0][0])

    def _all_embedded(self, kind: Kind, newest: int) -> bool:
        """Whether all that came up to an id has a vector, torn or not."""
        table, ref = _ROWS[kind]
        live = f"SELECT count(*) FROM {table} WHERE namespace = ? AND {ref} <= ? {_LIVE[kind]}"
        return int(self._store.rows(live, (self.namespace, newest))[0][0]) == self._count(kind, newest)

    def _embed_missing(self, kind: Kind, after: int, newest: int) -> None:
        """Embed what came after an id and has no whole vector, in the order of the ids, and keep it batch by batch."""
        table, ref = _ROWS[kind]
        query = (
            # the plus keeps SQLite from reading the whole namespace by its index and sorting it
            f"SELECT {ref}, {_TEXTS[kind].format(self.namespace)} FROM {table} "
            f"WHERE +{table}.namespace = ? AND {ref} > ? AND {ref} <= ? {_LIVE[kind]} AND NOT EXISTS "
            f"(SELECT 1 FROM vectors WHERE kind = ? AND vectors.ref = {ref} AND length(vector) = ?) "
            f"ORDER BY {ref} LIMIT ?"
        )
        length = 4 * self._embedder.dim
        while rows := self._store.rows(query, (self.namespace, after, newest, kind, length, _EMBED)):
            vectors = self._embedder.embed([text for _, text in rows])
            self._keep(kind, dict(rows), vectors)
            self.on_embedded(kind, len(rows))
            after = rows[-1][0]

    def _keep(self, kind: Kind, texts: Mapping[int, str], vectors: Vectors) -> None:
        """Write the vectors of texts to the library; where it may not be written, in memory.

        A text that another process changed or retired while it was embedded gets none.
        """
        table, ref = _ROWS[kind]
        read = (
            f"SELECT {ref}, {_TEXTS[kind].format(self.namespace)} FROM {table} "
            f"WHERE {ref} IN (SELECT value FROM json_each(?)) {_LIVE[kind]}"
        )
        try:
            with self._store.transaction() as connection:
                self._refuse_other_vectors()
                now = dict(self._store.rows(read, (dumps(list(texts)),)))
                connection.executemany(
                    "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)",
                    [
                        (kind, number, self.namespace, vector.tobytes())
                        for (number, text), vector in zip(texts.items(), vectors, strict=True)
                        if now.get(number) == text
                    ],
                )
        except (LibraryReadOnly, LibraryUnwritable):
            self._unkept[kind].update(zip(texts, vectors, strict=True))

    def _refuse_other_vectors(self) -> None:
        """Raise EmbedderMismatch when another process has re-embedded the library since it was opened."""
        known = dict(self._store.rows("SELECT name, value FROM meta WHERE name IN ('embedder', 'fingerprint')"))
        if known:
            refuse_other(self._embedder, known["embedder"], known["fingerprint"], self._store.path)

    def _made(self) -> str:
        return _made(self._embedder.fingerprint)


def saved_problem(store: Store, namespace: int, kind: Kind) -> str:
    """How the file of an index differs from the vectors; empty when it does not, or is not there."""
    known = dict(store.rows("SELECT name, value FROM meta WHERE name = 'fingerprint'"))
    sidecar, made = Sidecar(store, namespace), _made(known.get("fingerprint", ""))
    wrong = sidecar.problem(kind, made)
    saved = None if wrong else sidecar.load(kind, made)
    if saved is None:
        return wrong or ""
    try:
        held = TrainedIndex.restored(saved.arrays, _nothing, 1).ids()
    except (RuntimeError, KeyError) as error:
        return f"FAISS does not read it ({error})"
    truth = {row[0] for row in store.rows(_REFS, (namespace, kind, 0, saved.last))}
    if kind == "items" and len(truth) != saved.count:
        return ""  # items were changed or retired since: no harm, it is made anew when it is opened
    return f"{len(truth - held)} missing, {len(held - truth)} too many" if held != truth else ""


def _give_back_memory() -> None:
    """What making an index took and let go of, some 50 MB, to the system; the C library keeps it otherwise."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _nothing(refs: Sequence[int]) -> tuple[list[int], Vectors]:
    return [], np.empty((0, 0), dtype=np.float32)


def _made(fingerprint: str) -> str:
    """What a file of an index depends on."""
    return f"sq8 1 {fingerprint}"


def fuse(*rankings: Sequence[int]) -> list[int]:
    """Reciprocal rank fusion: score(d) = sum over rankings of 1 / (RRF + rank), best first."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, ref in enumerate(ranking, 1):
            scores[ref] = scores.get(ref, 0.0) + 1.0 / (RRF + rank)
    return sorted(scores, key=lambda ref: (-scores[ref], ref))


def _unpack(blobs: Sequence[bytes], dim: int) -> Vectors:
    return np.frombuffer(b"".join(blobs), dtype=np.float32).reshape(-1, dim)
