"""How long recall takes in the store, beside the plain parts that it is made of.

Every query is timed twice in turn: through the library, and as bare calls of SQLite, FAISS and FTS5
on the same data with the same terms. The query's vector is known in both; making it is reported
apart. One thread.

    cluster   recall of a state whose situation is known        parts: the rows of k steps
    dense     search by meaning                                 parts: + exact FAISS over states and items
    hybrid    recall of a state whose situation is unknown      parts: + an FTS5 query over each as well
"""

import sqlite3
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tacit.memory import ExperienceLibrary, Hit, State, Step
from tacit.memory.embed import Vectors
from tacit.memory.ledger import state_text
from tacit.memory.search import DEPTH
from tacit.memory.text_index import TextIndex

from .bench_library import CachedEmbedder, Rooms, build

K = 5
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


def measure(sizes: Sequence[int], queries: int, tell: Callable[[str], None]) -> list[Row]:
    """A row for every size and path."""
    import faiss

    faiss.omp_set_num_threads(1)
    rows: list[Row] = []
    for n in sizes:
        with TemporaryDirectory(prefix="tacit-bench-") as folder:
            tell(f"building a library of {n} steps ...")
            library, rooms, embedder = build(Path(folder) / "library.db", n)
            with library:
                parts = Parts(library)
                for path in ("cluster", "dense", "hybrid"):
                    tell(f"measuring {path} on {n} steps ...")
                    rows.append({"n": n, "path": path, **_path(path, library, parts, rooms, embedder, queries)})
                parts.close()
    return rows


class Parts:
    """The plain parts: one SQLite connection and one FAISS index of the same data, nothing around them."""

    def __init__(self, library: ExperienceLibrary) -> None:
        self._connection = sqlite3.connect(f"{Path(library.path).absolute().as_uri()}?mode=ro", uri=True)
        self._words = dict(self._connection.execute("SELECT word, episodes FROM words"))
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

    def terms(self, text: str) -> str:
        """The words that the library's own query would look up."""
        chosen = TextIndex(lambda *query: self._connection.execute(*query).fetchall(), "states", 1)
        return " OR ".join(f'"{word}"' for word in chosen.choose(text, self._words).words)

    def words(self, terms: str) -> None:
        """One full-text query over states and one over items."""
        for kind in self._indices:
            table = f"{kind}_text_1"
            query = f"SELECT rowid FROM {table} WHERE {table} MATCH ? ORDER BY rank LIMIT ?"
            self._connection.execute(query, (terms, DEPTH)).fetchall()

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
    scans = library._search.scans
    ours, plain = [], []
    for state in states:
        text = state_text(state)
        needs = _needs(path, parts, state.signature, embedder.embed([text]), parts.terms(text), ids)
        took, hits = _timed(_ours, path, library, state, text)
        ours.append(took)
        plain.append(_timed(needs)[0])
        ids = _step_ids(hits) or ids  # the parts fetch what the query before found: as many rows, as cold
    assert path != "cluster" or library._search.scans == scans, "a recall on a known cluster searched an index"
    p50, plain_p50 = statistics.median(ours), statistics.median(plain)
    return {
        "p50_ms": round(p50, 4),
        "p99_ms": round(float(np.percentile(ours, 99)), 4),
        "parts_p50_ms": round(plain_p50, 4),
        "ratio": round(p50 / plain_p50, 2),
        "embedding_p50_ms": round(statistics.median(embedding), 4),
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
    path: str, parts: Parts, signature: str, vector: Vectors, terms: str, ids: Sequence[int]
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
