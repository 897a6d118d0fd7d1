"""Measure recall latency and compare it with the plain calls that recall consists of.

Every query runs twice on the same data with the same search terms: through the library, and as plain SQLite, FAISS
and FTS5 calls. Blocks of ten queries alternate between the two, because an exact search of a million vectors evicts
everything else from the CPU caches. Both sides get the query's vector ready-made; the time to embed it is reported
separately. Everything runs in one thread.

    path      measured                                          plain parts
    cluster   recall of a state in a known situation            read the rows of k steps
    dense     vector search                                     + exact FAISS search over states and items
    hybrid    recall of a state in a new situation              + one FTS5 query over states and one over items
    random    search in an index of random vectors              exact FAISS search

Agreement is the share of the five returned states that are as similar to the query as the exact five nearest ones.
"""

import sqlite3
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.fixtures import CachedEmbedder, Rooms, build
from benchmarks.harness.tables import Row
from benchmarks.harness.timing import summarize_ms, time_ms
from hardwon.memory import ExperienceLibrary, Hit, State, Step
from hardwon.memory.retrieval.embedders import Vectors, open_embedder
from hardwon.memory.retrieval.search import Search
from hardwon.memory.retrieval.text_index import TextIndex
from hardwon.memory.retrieval.tuning import TUNING as RETRIEVAL
from hardwon.memory.retrieval.vector_index import TrainedIndex, VectorIndex
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import state_text

K = 5
BLOCK = 10
"""Consecutive queries to the library before the plain parts run the same queries."""
TIMED_S = 1.0
"""Minimum duration of a path that can repeat its queries, in seconds; a core may run slowly for 0.1 s at a time."""
AGREEMENT_QUERIES = 100
"""Number of queries used to measure agreement."""
ALIKE = 1e-5
"""Cosines within this tolerance are ties, and either state counts as correct."""
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


def measure(sizes: Sequence[int], queries: int, tell: Callable[[str], None], keep: Path | None = None) -> list[Row]:
    """Measure every path on a library of every size.

    Args:
        sizes: library sizes in steps.
        queries: number of queries per path.
        tell: function that receives lines of progress.
        keep: folder of libraries named `SIZE.db`; missing ones are built. A temporary folder if None.

    Returns:
        One row per size and path, with latencies in milliseconds.
    """
    import faiss

    faiss.omp_set_num_threads(1)
    rows: list[Row] = []
    for n in sizes:
        with TemporaryDirectory(prefix="hardwon-bench-") as folder:
            library, rooms, embedder = _open_library((keep or Path(folder)) / f"{n}.db", n, tell)
            with library:
                parts = Parts(library)
                for path in ("cluster", "dense", "hybrid"):
                    tell(f"measuring {path} on {n} steps ...")
                    rows.append({"n": n, "path": path, **_measure_path(path, library, parts, rooms, embedder, queries)})
                parts.close()
        tell(f"measuring {n} random vectors ...")
        rows.append({"n": n, "path": "random", **_measure_random(n, embedder.dim, queries)})
    return rows


def _open_library(path: Path, n: int, tell: Callable[[str], None]) -> tuple[ExperienceLibrary, Rooms, CachedEmbedder]:
    """Open the library at `path`, or build one of `n` steps there."""
    if path.exists():
        tell(f"opening {path} ...")
        rooms, embedder = Rooms(), CachedEmbedder(open_embedder())
        library = ExperienceLibrary.open(path, embedder=embedder)
        library.admin.index()
        return library, rooms, embedder
    tell(f"building a library of {n} steps ...")
    path.parent.mkdir(parents=True, exist_ok=True)
    return build(path, n, tell=tell)


class Parts:
    """The plain parts of recall: one SQLite connection and one exact FAISS index per kind, over the same data."""

    def __init__(self, library: ExperienceLibrary) -> None:
        self._connection = sqlite3.connect(f"{Path(library.path).absolute().as_uri()}?mode=ro", uri=True)
        self._word_counts = Counter(dict(self._connection.execute("SELECT word, episodes FROM words")))
        self._texts = {kind: TextIndex(self._fetch, kind, 1) for kind in ("states", "items")}
        self.signatures = {row[0] for row in self._connection.execute(_SIGNATURES)}
        self._indices = {kind: self._build_index(kind, library.admin.embedder.dim) for kind in ("states", "items")}

    def _build_index(self, kind: str, dim: int) -> Any:
        import faiss

        blobs = self._connection.execute("SELECT vector FROM vectors WHERE kind = ? ORDER BY ref", (kind,)).fetchall()
        index = faiss.IndexFlatIP(dim)
        index.add(np.frombuffer(b"".join(row[0] for row in blobs), dtype=np.float32).reshape(-1, dim))
        return index

    def read_cluster(self, signature: str) -> object:
        """Read the best steps of the situation with this signature."""
        return self._connection.execute(_OF_CLUSTER, (signature, K)).fetchall()

    def read_steps(self, ids: Sequence[int]) -> object:
        """Read steps by id, with their states before and after."""
        return self._connection.execute(_ROWS.format(",".join("?" * len(ids))), tuple(ids)).fetchall()

    def search_vectors(self, vector: Any, k: int) -> None:
        """Search the states and the items for the `k` nearest vectors, exactly."""
        for index in self._indices.values():
            index.search(vector, k)

    def find_kth_cosine(self, vector: Any) -> float:
        """Return the cosine of the exact K-th nearest state."""
        return float(self._indices["states"].search(vector, K)[0][0][-1])

    def choose_terms(self, text: str) -> dict[str, str]:
        """Return the FTS5 queries that the library would run for a text, by kind."""
        chosen = {kind: index.choose(text, lambda _: self._word_counts).words for kind, index in self._texts.items()}
        return {kind: " OR ".join(f'"{word}"' for word in words) for kind, words in chosen.items()}

    def search_terms(self, terms: Mapping[str, str]) -> None:
        """Run one full-text query over states and one over items, and rank every row that matches."""
        for kind, query in terms.items():
            table = f"{kind}_text"
            if query:
                self._fetch(
                    f"SELECT rowid FROM {table} WHERE {table} MATCH ? ORDER BY rank LIMIT ?", (query, RETRIEVAL.depth)
                )

    def _fetch(self, query: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, parameters).fetchall()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _measure_path(
    path: str, library: ExperienceLibrary, parts: Parts, rooms: Rooms, embedder: CachedEmbedder, queries: int
) -> Row:
    """Measure one path, with alternating blocks of queries to the library and to the plain parts."""
    states = [rooms.draw_new_state() if path == "hybrid" else _draw_known_state(rooms, parts) for _ in range(queries)]
    embedding = [time_ms(embedder.embed, [state_text(state)])[0] for state in states]
    ids = _step_ids(library.search(states[0].observation, K, how="dense"))
    if path == "cluster":
        # The first recall of a situation binds items to it. Warm up, so that this is not timed.
        for state in states:
            library.recall(state, k=K)
    scans = library.admin.stats()["scans"]
    ours: list[float] = []
    plain: list[float] = []
    # A situation is new only once, so the hybrid path cannot repeat its queries.
    for states_of_block in _iterate_blocks(states, repeat=path != "hybrid"):
        block = [(state, state_text(state)) for state in states_of_block]
        timed = [time_ms(_query_library, path, library, state, text) for state, text in block]
        ours.extend(ms for ms, _ in timed)
        for (state, text), (_, hits) in zip(block, timed, strict=True):
            call_parts = _prepare_parts(
                path, parts, state.signature, embedder.embed([text]), parts.choose_terms(text), ids
            )
            plain.append(time_ms(call_parts)[0])
            # Let the parts read the rows that the previous query returned: equally many, and just as cold in the cache.
            ids = _step_ids(hits) or ids
    # The promise of the cluster path is a direct lookup, so a scan makes the measurement invalid.
    assert path != "cluster" or library.admin.stats()["scans"] == scans, "recall of a known situation searched an index"
    agreement = None if path == "cluster" else _measure_agreement(library, parts, states, embedder)
    return _compare(ours, plain, agreement, round(statistics.median(embedding), 4))


def _compare(ours: Sequence[float], plain: Sequence[float], agreement: float | None, embedding: float | None) -> Row:
    """Return the figures of times in ms beside those of the plain parts."""
    return {
        **summarize_ms(ours, 4),
        "parts_p50_ms": round(statistics.median(plain), 4),
        "ratio": round(statistics.median(ours) / statistics.median(plain), 2),
        "agreement": agreement,
        "embedding_p50_ms": embedding,
    }


def _iterate_blocks(states: Sequence[State], *, repeat: bool) -> Iterator[Sequence[State]]:
    """Yield the states in blocks of `BLOCK`, once, or repeatedly for `TIMED_S` seconds."""
    until = time.perf_counter() + (TIMED_S if repeat else 0.0)
    while True:
        yield from (states[start : start + BLOCK] for start in range(0, len(states), BLOCK))
        if time.perf_counter() >= until:
            return


def _measure_agreement(
    library: ExperienceLibrary, parts: Parts, states: Sequence[State], embedder: CachedEmbedder
) -> float:
    """Return the agreement of the library's index of states, read through a second connection."""
    store = Store(library.path, read_only=True)
    try:
        index = Search(store, 1, embedder).index("states")
        correct = 0
        for state in states[:AGREEMENT_QUERIES]:
            (vector,) = embedder.embed([state_text(state)])
            threshold = parts.find_kth_cosine(vector.reshape(1, -1))
            correct += sum(cosine >= threshold - ALIKE for _, cosine in index.search(vector, K))
    finally:
        store.close()
    return round(correct / (K * len(states[:AGREEMENT_QUERIES])), 4)


def _measure_random(n: int, dim: int, queries: int) -> Row:
    """Measure an index of isotropic random vectors.

    This is the worst case for a clustered index, because no list of vectors is closer to a query than another.
    """
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
    ours, parts, correct = [], [], 0
    for _ in range(min(queries, AGREEMENT_QUERIES)):
        query = rng.standard_normal((1, dim), dtype=np.float32)
        query /= np.linalg.norm(query)
        ms, hits = time_ms(index.search, query[0], K)
        ours.append(ms)
        ms, (cosines, _) = time_ms(plain.search, query, K)
        parts.append(ms)
        correct += sum(cosine >= cosines[0][-1] - ALIKE for _, cosine in hits)
    return _compare(ours, parts, round(correct / (K * len(ours)), 4), None)


def _draw_known_state(rooms: Rooms, parts: Parts) -> State:
    """Return a state of a situation in which a step was recorded."""
    while True:
        state = rooms.draw_state()
        if state.signature in parts.signatures:
            return state


def _query_library(path: str, library: ExperienceLibrary, state: State, text: str) -> Sequence[Hit]:
    """Return the steps that the library finds on a path."""
    if path == "dense":
        return library.search(text, K, how="dense")
    return library.recall(state, k=K).steps


def _prepare_parts(
    path: str, parts: Parts, signature: str, vector: Vectors, terms: Mapping[str, str], ids: Sequence[int]
) -> Callable[[], None]:
    """Return the plain calls of a path as one function, with their arguments prepared."""

    def run_cluster() -> None:
        parts.read_cluster(signature)

    def run_dense() -> None:
        parts.search_vectors(vector, K)
        parts.read_steps(ids)

    def run_hybrid() -> None:
        parts.search_vectors(vector, RETRIEVAL.depth)
        parts.search_terms(terms)
        parts.read_steps(ids)

    return {"cluster": run_cluster, "dense": run_dense, "hybrid": run_hybrid}[path]


def _step_ids(hits: Sequence[Hit]) -> list[int]:
    """Return the ids of the hits that are steps."""
    return [hit.what.id for hit in hits if isinstance(hit.what, Step) and hit.what.id is not None]
