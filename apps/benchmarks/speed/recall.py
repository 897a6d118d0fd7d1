"""How long recall takes in the store, beside the plain parts that it is made of.

Every query is timed twice: through the library, and as bare calls of SQLite, FAISS and FTS5 on the same
data with the same terms; ten queries through the one, ten through the others, and so on in turn, for an
exact search of a million vectors leaves the processor's caches without anything else. The query's vector
is known in both; making it is reported apart. One thread.

    cluster   recall of a state whose situation is known        parts: the rows of k steps
    dense     search by meaning                                 parts: + exact FAISS over states and items
    hybrid    recall of a state whose situation is unknown      parts: + an FTS5 query over each as well
    random    an index alone, of vectors that are near nothing  parts: exact FAISS

Agreement is the share of the five nearest states found that are as near as the exact five.
"""

import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.fixtures import CachedEmbedder, Rooms, build
from hardwon.memory import ExperienceLibrary, Hit, State, Step
from hardwon.memory.retrieval.embedders import Vectors, open_embedder
from hardwon.memory.retrieval.search import DEPTH, Search
from hardwon.memory.retrieval.text_index import TextIndex
from hardwon.memory.retrieval.vector_index import TrainedIndex, VectorIndex
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import state_text

K = 5
BLOCK = 10
"""Queries through the library before the parts have their turn."""
TIMED_S = 1.0
"""Seconds that known situations are asked for at least: a core may be slow for a tenth of one."""
AGREEMENT_QUERIES = 100
"""Queries over which agreement is counted."""
ALIKE = 1e-5
"""Cosines that differ by no more are equal: which of two such states is found is chance."""
_ROWS = """
SELECT steps.*, pre.*, post.* FROM steps
JOIN states AS pre ON pre.id = steps.pre JOIN states AS post ON post.id = steps.post
WHERE steps.id IN ({})
"""
_OF_CLUSTER = """
SELECT steps.*, pre.*, post.* FROM steps
JOIN states AS pre ON pre.id = steps.pre JOIN states AS post ON post.id = steps.post
WHERE steps.pre IN (SELECT id FROM states WHERE namespace = 1 AND signature = ? ORDER BY id DESC LIMIT 16)
ORDER BY return_to_go DESC, steps.id DESC LIMIT ?
"""
_SIGNATURES = "SELECT DISTINCT signature FROM states JOIN steps ON steps.pre = states.id"

Row = dict[str, Any]


def measure(sizes: Sequence[int], queries: int, tell: Callable[[str], None], keep: Path | None = None) -> list[Row]:
    """A row for every size and path; libraries are built in the folder `keep`, or found there."""
    import faiss

    faiss.omp_set_num_threads(1)
    rows: list[Row] = []
    for n in sizes:
        with TemporaryDirectory(prefix="hardwon-bench-") as folder:
            library, rooms, embedder = _library((keep or Path(folder)) / f"{n}.db", n, tell)
            with library:
                parts = Parts(library)
                for path in ("cluster", "dense", "hybrid"):
                    tell(f"measuring {path} on {n} steps ...")
                    rows.append({"n": n, "path": path, **_path(path, library, parts, rooms, embedder, queries)})
                parts.close()
        tell(f"measuring {n} random vectors ...")
        rows.append({"n": n, "path": "random", **_random(n, embedder.dim, queries)})
    return rows


def _library(path: Path, n: int, tell: Callable[[str], None]) -> tuple[ExperienceLibrary, Rooms, CachedEmbedder]:
    """A library of so many steps, as it is at this path or built there."""
    if path.exists():
        tell(f"opening {path} ...")
        rooms, embedder = Rooms(), CachedEmbedder(open_embedder())
        library = ExperienceLibrary.open(path, embedder=embedder)
        library.index()
        return library, rooms, embedder
    tell(f"building a library of {n} steps ...")
    path.parent.mkdir(parents=True, exist_ok=True)
    return build(path, n, tell=tell)


class Parts:
    """The plain parts: one SQLite connection and one FAISS index of the same data, nothing around them."""

    def __init__(self, library: ExperienceLibrary) -> None:
        self._connection = sqlite3.connect(f"{Path(library.path).absolute().as_uri()}?mode=ro", uri=True)
        self._words = dict(self._connection.execute("SELECT word, episodes FROM words"))
        self._texts = {kind: TextIndex(self._fetch, kind, 1) for kind in ("states", "items")}
        self.signatures = {row[0] for row in self._connection.execute(_SIGNATURES)}
        self._indices = {kind: self._index(kind, library.embedder.dim) for kind in ("states", "items")}

    def _index(self, kind: str, dim: int) -> Any:
        import faiss

        blobs = self._connection.execute("SELECT vector FROM vectors WHERE kind = ? ORDER BY ref", (kind,)).fetchall()
        index = faiss.IndexFlatIP(dim)
        index.add(np.frombuffer(b"".join(row[0] for row in blobs), dtype=np.float32).reshape(-1, dim))
        return index

    def cluster(self, signature: str) -> object:
        """The rows of the best steps of a situation."""
        return self._connection.execute(_OF_CLUSTER, (signature, K)).fetchall()

    def rows(self, ids: Sequence[int]) -> object:
        """The rows of steps by id, with their states."""
        return self._connection.execute(_ROWS.format(",".join("?" * len(ids))), tuple(ids)).fetchall()

    def dense(self, vector: Any, k: int) -> None:
        """Exact search over states and over items."""
        for index in self._indices.values():
            index.search(vector, k)

    def fifth(self, vector: Any) -> float:
        """The cosine of the exact fifth of the states."""
        return float(self._indices["states"].search(vector, K)[0][0][-1])

    def terms(self, text: str) -> dict[str, str]:
        """The words that the library's own queries look up in states and in items."""
        chosen = {kind: index.choose(text, self._words).words for kind, index in self._texts.items()}
        return {kind: " OR ".join(f'"{word}"' for word in words) for kind, words in chosen.items()}

    def words(self, terms: Mapping[str, str]) -> None:
        """One full-text query over states and one over items, each row with one of the words ranked."""
        for kind, query in terms.items():
            table = f"{kind}_text_1"
            if query:
                self._fetch(f"SELECT rowid FROM {table} WHERE {table} MATCH ? ORDER BY rank LIMIT ?", (query, DEPTH))

    def _fetch(self, query: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, parameters).fetchall()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _path(
    path: str, library: ExperienceLibrary, parts: Parts, rooms: Rooms, embedder: CachedEmbedder, queries: int
) -> Row:
    """The figures of one path over so many queries, ours and the parts in turn."""
    states = [rooms.unknown() if path == "hybrid" else _known(rooms, parts) for _ in range(queries)]
    embedding = [_timed(embedder.embed, [state_text(state)])[0] for state in states]
    ids = _step_ids(library.search(states[0].observation, K, how="dense"))
    if path == "cluster":
        for state in states:  # binds items to its situation, so that the timed visit is not the first
            library.recall(state, k=K)
    scans = library.stats()["scans"]
    ours: list[float] = []
    plain: list[float] = []
    for asked in _blocks(states, again=path != "hybrid"):  # an unknown one is unknown once
        block = [(state, state_text(state)) for state in asked]
        timed = [_timed(_ours, path, library, state, text) for state, text in block]
        ours.extend(took for took, _ in timed)
        for (state, text), (_, hits) in zip(block, timed, strict=True):
            needs = _needs(path, parts, state.signature, embedder.embed([text]), parts.terms(text), ids)
            plain.append(_timed(needs)[0])
            ids = _step_ids(hits) or ids  # the parts fetch what the query before found: as many rows, as cold
    assert path != "cluster" or library.stats()["scans"] == scans, "a recall on a known cluster searched an index"
    p50, plain_p50 = statistics.median(ours), statistics.median(plain)
    return {
        "p50_ms": round(p50, 4),
        "p99_ms": round(float(np.percentile(ours, 99)), 4),
        "parts_p50_ms": round(plain_p50, 4),
        "ratio": round(p50 / plain_p50, 2),
        "agreement": None if path == "cluster" else _agreement(library, parts, states, embedder),
        "embedding_p50_ms": round(statistics.median(embedding), 4),
    }


def _blocks(states: Sequence[State], *, again: bool) -> Iterator[Sequence[State]]:
    """All of them, BLOCK at a time, once or until TIMED_S are over."""
    until = time.perf_counter() + (TIMED_S if again else 0.0)
    while True:
        yield from (states[start : start + BLOCK] for start in range(0, len(states), BLOCK))
        if time.perf_counter() >= until:
            return


def _agreement(library: ExperienceLibrary, parts: Parts, states: Sequence[State], embedder: CachedEmbedder) -> float:
    """Of the library's own index of states, read by a second reader."""
    store = Store(library.path, read_only=True)
    try:
        index = Search(store, 1, embedder).index("states")
        found = 0
        for state in states[:AGREEMENT_QUERIES]:
            (vector,) = embedder.embed([state_text(state)])
            fifth = parts.fifth(vector.reshape(1, -1))
            found += sum(cosine >= fifth - ALIKE for _, cosine in index.search(vector, K))
    finally:
        store.close()
    return round(found / (K * len(states[:AGREEMENT_QUERIES])), 4)


def _random(n: int, dim: int, queries: int) -> Row:
    """An index of isotropic vectors: the worst case, for no list of near ones is nearer than another."""
    import faiss

    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((n, dim), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    plain = faiss.IndexFlatIP(dim)
    plain.add(vectors)
    index: VectorIndex | TrainedIndex = VectorIndex(dim)
    sample = vectors[rng.choice(n, TrainedIndex.sample_size(n), replace=False)]
    if n > VectorIndex.LIMIT:
        index = TrainedIndex(dim, lambda refs: (list(refs), vectors[list(refs)]), sample)
    index.add(range(n), vectors)
    if isinstance(index, TrainedIndex):
        index.choose_probe(sample)
    ours, parts, found = [], [], 0
    for _ in range(min(queries, AGREEMENT_QUERIES)):
        query = rng.standard_normal((1, dim), dtype=np.float32)
        query /= np.linalg.norm(query)
        took, hits = _timed(index.search, query[0], K)
        ours.append(took)
        took, (cosines, _) = _timed(plain.search, query, K)
        parts.append(took)
        found += sum(cosine >= cosines[0][-1] - ALIKE for _, cosine in hits)
    return {
        "p50_ms": round(statistics.median(ours), 4),
        "p99_ms": round(float(np.percentile(ours, 99)), 4),
        "parts_p50_ms": round(statistics.median(parts), 4),
        "ratio": round(statistics.median(ours) / statistics.median(parts), 2),
        "agreement": round(found / (K * len(ours)), 4),
        "embedding_p50_ms": None,
    }


def _known(rooms: Rooms, parts: Parts) -> State:
    """A state of a situation in which a step was taken."""
    while True:
        state = rooms.state()
        if state.signature in parts.signatures:
            return state


def _ours(path: str, library: ExperienceLibrary, state: State, text: str) -> Sequence[Hit]:
    if path == "dense":
        return library.search(text, K, how="dense")
    return library.recall(state, k=K).steps


def _needs(
    path: str, parts: Parts, signature: str, vector: Vectors, terms: Mapping[str, str], ids: Sequence[int]
) -> Callable[[], None]:
    """The plain calls of a path, with all that they take made ready."""

    def cluster() -> None:
        parts.cluster(signature)

    def dense() -> None:
        parts.dense(vector, K)
        parts.rows(ids)

    def hybrid() -> None:
        parts.dense(vector, DEPTH)
        parts.words(terms)
        parts.rows(ids)

    return {"cluster": cluster, "dense": dense, "hybrid": hybrid}[path]


def _step_ids(hits: Sequence[Hit]) -> list[int]:
    return [hit.what.id for hit in hits if isinstance(hit.what, Step) and hit.what.id is not None]


def _timed(call: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Milliseconds, and what the call gave."""
    began = time.perf_counter_ns()
    result = call(*arguments)
    return (time.perf_counter_ns() - began) / 1e6, result
