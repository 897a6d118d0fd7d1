"""The indices of one namespace: words (FTS5 in the library file) and meaning (FAISS in memory).

Both are derived from the library and follow it. A large vector index is stored in a file beside the library (see
`storage.cache_files`), so that opening does not train it again. `candidates` merges their results.
"""

import ctypes
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal

import numpy as np

from hardwon.memory.errors import LibraryBusy, LibraryReadOnly, LibraryUnwritable
from hardwon.memory.privacy.deadlines import Interruptible, seconds_left
from hardwon.memory.situations.keys import KEYS_VERSION
from hardwon.memory.storage.cache_files import CacheFile, Saved, due
from hardwon.memory.storage.database import BUSY_TIMEOUT_S, Store
from hardwon.memory.storage.episodes import dumps, first_row, plain
from hardwon.memory.storage.freshness import Version

from .embedders import LOCAL, Embedder, Vectors, refuse_other
from .text_index import TextIndex
from .vector_index import Exact, TrainedIndex, VectorIndex

IndexKind = Literal["states", "testimony", "items"]
"""What an index holds: states of trusted steps, states of untrusted ones, or items. States of untrusted writers have
indices of their own, because in a shared one they would push out trusted states and change the weights of words."""
KINDS: tuple[IndexKind, ...] = ("states", "testimony", "items")
_EMBED, _EMBED_BRIEFLY = 512, 32
"""Texts embedded and committed per batch, the most that an interruption loses, without and with a deadline."""
_ROWS: Mapping[IndexKind, tuple[str, str]] = {
    "states": ("states", "id"),
    "testimony": ("states", "id"),
    "items": ("items", "number"),
}
_LIVE: Mapping[IndexKind, str] = {
    "states": "AND untrusted = 0",
    "testimony": "AND untrusted = 1",
    "items": "AND status = 'active'",
}
_TEXTS: Mapping[IndexKind, str] = {
    "states": "observation || char(10) || feedback",
    "testimony": "observation || char(10) || feedback",
    "items": "coalesce((SELECT substr(text, 1, instr(text || char(10, 31), char(10, 31)) - 1) "
    "FROM items_text WHERE rowid = {} + number), '')",  # without the words that `index_text` puts beside it
}
NOT_ASCII = "{} GLOB '*[^' || char(1) || '-' || char(127) || ']*'"
"""SQL condition: texts of which earlier versions of the hashing embedder made other vectors."""
_REFS = "SELECT ref FROM vectors WHERE namespace = ? AND kind = ? AND ref > ? AND ref <= ? ORDER BY ref"
_VECTORS = _REFS.replace("SELECT ref", "SELECT ref, vector") + " LIMIT ?"
_NEWEST = (
    "SELECT coalesce(max({ref}), 0), (SELECT value FROM meta WHERE name = 'embedder'), "
    "(SELECT value FROM meta WHERE name = 'fingerprint') FROM {table}"
)
_OF_REFS = (
    "SELECT ref, vector FROM vectors WHERE kind = ? AND ref IN (SELECT value FROM json_each(?)) "
    "AND namespace = ? AND length(vector) = ?"
)

logger = logging.getLogger("hardwon.memory")


class Search:
    """Both indices of one namespace; thread-safe."""

    def __init__(self, store: Store, namespace: int, embedder: Embedder) -> None:
        self._store = store
        self.namespace = namespace
        self._embedder = embedder
        self.texts = {kind: TextIndex(store.rows, kind, namespace) for kind in KINDS}
        self._cache_file = CacheFile(store, namespace)
        self._is_older = embedder.name.startswith("hashing") and is_older_copy(store)
        self._indices: dict[IndexKind, VectorIndex | TrainedIndex] = {}
        self._last: dict[IndexKind, int] = {}
        self._version: dict[IndexKind, Version] = {}
        self._saved: dict[IndexKind, int] = {}
        self._unsaved: dict[IndexKind, dict[int, tuple[str, Vectors]]] = {kind: {} for kind in KINDS}
        """Texts with vectors that could not be written to the library yet."""
        self._wait_s = 0.0
        """Seconds for which the write of new vectors waits for another process; a search can do without."""
        self._lock = threading.RLock()
        self._calls = Interruptible(f"the embedder {embedder.name}")
        self._is_local = embedder.name.startswith(LOCAL)
        self.scans = 0
        """Number of index searches so far; recall on a known cluster adds none."""
        self.on_embedded: Callable[[IndexKind, int], None] = lambda kind, count: None
        """Called with the kind and the number of texts that were just embedded."""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let the write of new vectors wait for other processes inside this context."""
        self._wait_s = BUSY_TIMEOUT_S
        try:
            yield
        finally:
            self._wait_s = 0.0

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of texts, (n, dim) float32."""
        texts = list(map(plain, texts))
        return self._embedder.embed(texts) if self._is_local else self._calls.call(partial(self._embedder.embed, texts))

    def index(self, kind: IndexKind, version: Version | None = None) -> VectorIndex | TrainedIndex:
        """Return the vector index, updated to a version of the library or to the current one."""
        with self._lock:
            if self._unsaved[kind]:
                self._write_unsaved(kind)
            index = self._indices.get(kind)
            version = version or self._store.freshness.version()
            if index is not None and self._version.get(kind) == version:
                return index
            newest = self._read_newest(kind)
            if index is None:
                index = self._indices[kind] = self._open_index(kind, newest)
                self.save(trained_only=True)
                _trim_memory()
            if self._last[kind] < newest:
                self._embed_missing(kind, self._last[kind], newest)
                for refs, vectors in self._vectors(kind, self._last[kind], newest):
                    index.add(refs, vectors)
                self._last[kind] = newest
                if index.outgrown:
                    index = self._indices[kind] = self._train(kind, newest)
                self.save(trained_only=True)
            self._version[kind] = version  # read before the update: later writes are picked up next time
            return index

    def forget(self, kind: IndexKind) -> None:
        """Drop an index; it is rebuilt when it is next needed."""
        with self._lock:
            self._indices.pop(kind, None)
            self._last.pop(kind, None)
            self._unsaved[kind].clear()
            self.texts[kind].forget()

    def save(self, *, trained_only: bool = False) -> None:
        """Write vectors that are not in the library yet, and large indices to their files if those are far behind."""
        with self._lock:
            for kind, index in self._indices.items():
                if self._unsaved[kind]:
                    self._write_unsaved(kind)
                # An index with vectors that the library lacks would not match it.
                if not isinstance(index, TrainedIndex) or not self._cache_file.writable or self._unsaved[kind]:
                    continue
                covered = self._saved.get(kind, 0)
                if not covered or (not trained_only and due(len(index) - covered, covered)):
                    arrays: dict[str, Any] = {**index.arrays(), "trained": np.array([index.trained])}
                    self._cache_file.save(kind, self._index_identity(), self._last[kind], len(index), arrays)
                    self._saved[kind] = len(index)

    # -- building indices from the library ------------------------------------------------------------

    def _open_index(self, kind: IndexKind, newest: int) -> VectorIndex | TrainedIndex:
        """Return an index loaded from its file, or one built from the library."""
        saved = None if self._is_older else self._cache_file.load(kind, self._index_identity())
        index = self._restore(kind, saved) if saved is not None else None
        if saved is not None and index is not None:
            self._last[kind], self._saved[kind] = saved.last, saved.count
            return index
        if self._is_older or not self._all_embedded(kind, newest):
            self._embed_missing(kind, 0, newest)
        self._last[kind] = newest
        if self._count(kind, newest) > VectorIndex.LIMIT:
            return self._train(kind, newest)
        flat = VectorIndex(self._embedder.dim)
        for refs, vectors in self._vectors(kind, 0, newest):
            flat.add(refs, vectors)
        return flat

    def _restore(self, kind: IndexKind, saved: Saved) -> TrainedIndex | None:
        """Return the index of a file, or None with a warning if the library has other vectors."""
        if self._count(kind, saved.last) == saved.count and self._all_embedded(kind, saved.last):
            with suppress(RuntimeError, KeyError):
                return TrainedIndex.restored(saved.arrays, self._exact(kind), int(saved.arrays["trained"][0]))
        logger.warning("the saved index of %s does not match the vectors of the library; rebuilding it", kind)
        if not self._store.read_only:
            self._cache_file.drop(kind)  # first, because embedding what it lacks would make the counts match
        return None

    def _train(self, kind: IndexKind, newest: int) -> TrainedIndex:
        """Return an index for many vectors, trained on a sample of them."""
        sample = self._sample(kind, newest)
        index = TrainedIndex(self._embedder.dim, self._exact(kind), sample)
        for refs, vectors in self._vectors(kind, 0, newest):
            index.add(refs, vectors)
        index.choose_probe(sample)
        self._saved.pop(kind, None)
        return index

    def _sample(self, kind: IndexKind, newest: int) -> Vectors:
        """Return vectors sampled uniformly over the ids, (n, dim) float32."""
        stored = {row[0] for row in self._store.rows(_REFS, (self.namespace, kind, 0, newest))}
        # while the library cannot be written, new vectors are only in memory, perhaps all of them
        refs = sorted(stored | {ref for ref in self._unsaved[kind] if ref <= newest})
        # A fixed seed: the same vectors give the same index in any process.
        drawn = np.random.default_rng(0).choice(len(refs), TrainedIndex.sample_size(len(refs)), replace=False)
        wanted = [refs[at] for at in np.sort(drawn)]
        return np.concatenate([self._exact(kind)(wanted[at : at + 4096])[1] for at in range(0, len(wanted), 4096)])

    def _vectors(self, kind: IndexKind, after: int, newest: int) -> Iterator[tuple[list[int], Vectors]]:
        """Yield (ids, vectors) batches after an id in ascending order; damaged vectors are computed again."""
        unsaved, length, first = self._unsaved[kind], 4 * self._embedder.dim, after
        # Each vector is recomputed at most once: if it cannot be replaced, the loop must still end.
        recomputed: set[int] = set()
        while after < newest and (rows := self._store.rows(_VECTORS, (self.namespace, kind, after, newest, 4096))):
            torn = [
                row[0] for row in rows if len(row[1]) != length and row[0] not in unsaved and row[0] not in recomputed
            ]
            if torn:
                self._embed_missing(kind, torn[0] - 1, torn[-1])
                recomputed.update(torn)
                continue
            whole = [row for row in rows if row[0] not in unsaved and len(row[1]) == length]
            if whole:
                yield [row[0] for row in whole], _unpack([row[1] for row in whole], self._embedder.dim)
            after = rows[-1][0]
        fresh = [ref for ref in unsaved if first < ref <= newest]
        if fresh:
            yield fresh, np.stack([unsaved[ref][1] for ref in fresh])

    def _exact(self, kind: IndexKind) -> Exact:
        """Return a function that reads the library's own vectors by id."""
        length, unsaved = 4 * self._embedder.dim, self._unsaved[kind]

        def read(refs: Sequence[int]) -> tuple[list[int], Vectors]:
            stored = [ref for ref in refs if ref not in unsaved]
            rows = self._store.rows(_OF_REFS, (kind, dumps(stored), self.namespace, length)) if stored else []
            rows += [(ref, unsaved[ref][1].tobytes()) for ref in refs if ref in unsaved]
            return [row[0] for row in rows], _unpack([row[1] for row in rows], self._embedder.dim)

        return read

    def _read_newest(self, kind: IndexKind) -> int:
        """Return the largest id of a kind.

        Raises:
            EmbedderMismatch: Another process has re-embedded the library since it was opened.
        """
        table, ref = _ROWS[kind]
        ((newest, name, fingerprint),) = self._store.rows(_NEWEST.format(ref=ref, table=table))
        if name is not None:
            refuse_other(self._embedder, name, fingerprint, self._store.path)
        return int(newest)

    def _count(self, kind: IndexKind, newest: int) -> int:
        """Return the number of vectors up to an id."""
        return int(self._store.rows(f"SELECT count(*) FROM ({_REFS})", (self.namespace, kind, 0, newest))[0][0])

    def _all_embedded(self, kind: IndexKind, newest: int) -> bool:
        """Return whether everything up to an id has a vector, damaged or not."""
        table, ref = _ROWS[kind]
        live = f"SELECT count(*) FROM {table} WHERE namespace = ? AND {ref} <= ? {_LIVE[kind]}"
        return int(self._store.rows(live, (self.namespace, newest))[0][0]) == self._count(kind, newest)

    def _embed_missing(self, kind: IndexKind, after: int, newest: int) -> None:
        """Embed everything in an id range without an intact vector of this version, and store it batch by batch."""
        table, ref = _ROWS[kind]
        text = _TEXTS[kind].format(first_row(self.namespace))
        other = f"OR {NOT_ASCII.format(f'({text})')}" if self._is_older else ""
        query = (
            # The unary plus disables the namespace index, which would sort the whole namespace.
            f"SELECT {ref}, {text} FROM {table} "
            f"WHERE +{table}.namespace = ? AND {ref} > ? AND {ref} <= ? {_LIVE[kind]} AND (NOT EXISTS "
            f"(SELECT 1 FROM vectors WHERE kind = ? AND vectors.ref = {ref} AND length(vector) = ?) {other}) "
            f"ORDER BY {ref} LIMIT ?"
        )
        length = 4 * self._embedder.dim
        batch = _EMBED if seconds_left() is None else _EMBED_BRIEFLY
        while after < newest:
            rows = self._store.rows(query, (self.namespace, after, newest, kind, length, batch))
            if not rows:
                return
            if seconds_left() == 0.0:
                path = self._store.path
                raise LibraryBusy(f"{path} has texts without vectors. Embed them: hardwon memory search {path} WORD")
            # Outside the transaction: embedding is slow and must not block writers.
            vectors = self.embed([text for _, text in rows])
            self._keep(kind, dict(rows), vectors)
            self.on_embedded(kind, len(rows))
            after = rows[-1][0]

    def _keep(self, kind: IndexKind, texts: Mapping[int, str], vectors: Vectors) -> None:
        """Write vectors to the library or, if it cannot be written now, keep them in memory."""
        self._unsaved[kind].update(zip(texts, zip(texts.values(), vectors, strict=True), strict=True))
        self._write_unsaved(kind)

    def _write_unsaved(self, kind: IndexKind) -> None:
        """Write the vectors that are kept in memory, if the library can be written.

        Texts that another process changed or retired in the meantime are skipped.
        """
        unsaved = self._unsaved[kind]
        table, ref = _ROWS[kind]
        read = (
            f"SELECT {ref}, {_TEXTS[kind].format(first_row(self.namespace))} FROM {table} "
            f"WHERE {ref} IN (SELECT value FROM json_each(?)) {_LIVE[kind]}"
        )
        try:
            with self._store.transaction(wait_s=self._wait_s) as connection:
                self._read_newest(kind)
                # Inside the transaction, so that no other process can change a text after this check.
                now = dict(self._store.rows(read, (dumps(list(unsaved)),)))
                connection.executemany(
                    "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)",
                    [
                        (kind, number, self.namespace, vector.tobytes())
                        for number, (text, vector) in unsaved.items()
                        if now.get(number) == text
                    ],
                )
        except (LibraryReadOnly, LibraryUnwritable):
            # A search reads these too. A later one writes them, or the next process computes them again.
            return
        unsaved.clear()

    def _index_identity(self) -> str:
        """Return the string that identifies how an index file was made."""
        return _index_identity(self._embedder.fingerprint)


def saved_problem(store: Store, namespace: int, kind: IndexKind) -> str:
    """Compare an index file with the vectors of the library."""
    meta = dict(store.rows("SELECT name, value FROM meta WHERE name = 'fingerprint'"))
    cache_file, expected = CacheFile(store, namespace), _index_identity(meta.get("fingerprint", ""))
    problem = cache_file.problem(kind, expected)
    saved = None if problem else cache_file.load(kind, expected)
    if saved is None:
        return problem or ""
    try:
        indexed = TrainedIndex.restored(saved.arrays, _read_nothing, 1).ids()
    except (RuntimeError, KeyError) as error:
        return f"FAISS cannot read it ({error})"
    stored = {row[0] for row in store.rows(_REFS, (namespace, kind, 0, saved.last))}
    if kind == "items" and len(stored) != saved.count:
        return ""  # items changed since; the file is rebuilt when it is opened
    return f"{len(stored - indexed)} missing, {len(indexed - stored)} too many" if indexed != stored else ""


def _trim_memory() -> None:
    """Return freed memory (about 50 MB after building an index) to the system; glibc would keep it."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _read_nothing(refs: Sequence[int]) -> tuple[list[int], Vectors]:
    """Return no vectors, in place of a reader of the library."""
    return [], np.empty((0, 0), dtype=np.float32)


def read_keys_version(store: Store) -> int:
    """Return the version of the keys in a library, which is also that of its words and hashed vectors."""
    rows = store.rows("SELECT value FROM meta WHERE name = 'keys'")
    # Libraries from before this entry have keys of version 1.
    return int(rows[0][0]) if rows else 1


def is_older_copy(store: Store) -> bool:
    """Return whether a library holds what an older version computed, and cannot be written to replace it."""
    return store.read_only and read_keys_version(store) < KEYS_VERSION


def _index_identity(fingerprint: str) -> str:
    """Return the string that identifies how an index file was made; files with another string are stale."""
    return f"sq8 1 {fingerprint}"


def _unpack(blobs: Sequence[bytes], dim: int) -> Vectors:
    """Decode vectors, (n, dim) float32."""
    return np.frombuffer(b"".join(blobs), dtype=np.float32).reshape(-1, dim)
