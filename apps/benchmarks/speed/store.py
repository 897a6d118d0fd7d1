"""Measure writing, memory, disk and opening, through the public API only.

    single     episodes of one step, each durable on return, next to the same rows in plain SQLite
    batched    episodes of 50 steps, two or twenty per transaction
    filed      the same, including the transfer from the write buffer to the store, which the next read would do, and
               in which the steps get their keys
    memory     peak memory of a new process that recalls by situation and by words, without embedding
    disk       size of the same library, and of an embedded one
    open       time to open a large library and recall, with its index files and without them

Single writes to the library and to plain SQLite alternate, so that their ratio is meaningful on a busy machine. Plain
SQLite also writes a vector, which the library computes at its next search. Opening measures the store alone: the
query's vector is known and no embedder is loaded.
"""

import json
import resource
import shutil
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.fixtures import EPISODE, Rooms, build
from benchmarks.harness.tables import Row, build_row
from benchmarks.harness.timing import call_in_new_process, time_ms
from hardwon.memory import ExperienceLibrary, Step, Trajectory
from hardwon.memory.retrieval.embedders import Vectors, open_embedder
from hardwon.memory.storage.episodes import dumps, state_text

SINGLES = 300
"""Number of single writes."""
BATCHES = (2, 20)
"""Episodes per transaction."""
ACTIONS = 20
"""Admissible actions in the recall with estimates."""


def measure(steps: int, large: int, tell: Callable[[str], None]) -> list[Row]:
    """Measure every figure of the store.

    Args:
        steps: size in steps of the library for writing, memory and disk.
        large: size in steps of the library for opening.
        tell: function that receives lines of progress.

    Returns:
        One row per figure, with its unit and the promised bound.
    """
    rows = []
    with TemporaryDirectory(prefix="hardwon-bench-") as folder:
        for measure_part in (_measure_writing, _measure_memory_and_disk, _measure_opening):
            at = Path(folder) / measure_part.__name__
            at.mkdir()
            rows += measure_part(at, large if measure_part is _measure_opening else steps, tell)
            shutil.rmtree(at)
    return rows


# -- writing --------------------------------------------------------------------------------------


def _measure_writing(folder: Path, steps: int, tell: Callable[[str], None]) -> list[Row]:
    """Measure single writes against plain SQLite, and batched writes."""
    rooms = Rooms(0)
    batched = [_write_batches(folder / f"{batch}.db", rooms, steps, batch, tell) for batch in BATCHES]
    with ExperienceLibrary.open(folder / f"{BATCHES[0]}.db") as library:
        tell(f"writing {SINGLES} episodes of one step, each beside the plain rows ...")
        ref = library.episodes.find(limit=1)[0]["id"]
        plain = _PlainStore(folder / "plain.db", library.admin.embedder.embed(["a"]).shape[1])
        ours, parts = [], []
        for episode in rooms.generate_episodes(SINGLES, lambda *_: ()):
            for step in episode.steps:
                single = Trajectory(episode.task, (step,), True, 1.0)
                ours.append(time_ms(library.record, single)[0])
                parts.append(time_ms(plain.add, single.steps[0])[0])
        plain.close()
        # The first read empties the write buffer.
        filing_s = time_ms(library.episodes.get, ref)[0] / 1000 / len(ours)
    single_s, plain_s = statistics.median(ours) / 1000, statistics.median(parts) / 1000
    return [
        build_row("single adds", SINGLES, 1 / single_s, "1/s", ""),
        build_row("single adds, plain parts", SINGLES, 1 / plain_s, "1/s", ""),
        build_row("single adds, of the plain parts", SINGLES, plain_s / single_s, "x", ">= 0.8"),
        build_row("single adds, filed, of the plain parts", SINGLES, plain_s / (single_s + filing_s), "x", ""),
        *(
            build_row(f"batched adds, {batch * EPISODE} a transaction{filed}", steps, rate, "steps/s", promise)
            for batch, rates in zip(BATCHES, batched, strict=True)
            for rate, filed, promise in zip(rates, ("", ", filed"), (">= 15000", ""), strict=True)
        ),
    ]


def _write_batches(
    path: Path, rooms: Rooms, steps: int, batch: int, tell: Callable[[str], None]
) -> tuple[float, float]:
    """Write a new library, and return steps per second without and with emptying the write buffer."""
    with ExperienceLibrary.open(path) as library:
        episodes = iter(list(rooms.generate_episodes(steps, lambda *_: ())))
        tell(f"writing {steps} steps, {batch} episodes at a time ...")
        start = time.perf_counter()
        while group := list(islice(episodes, batch)):
            library.record_many(group)
        acknowledged = time.perf_counter() - start
        assert library.episodes.count()  # a read: it empties the write buffer
        return steps / acknowledged, steps / (time.perf_counter() - start)


class _PlainStore:
    """Plain SQLite tables with the rows of a step, durable on return."""

    def __init__(self, path: Path, dim: int) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._vector = np.random.default_rng(0).standard_normal(dim).astype(np.float32).tobytes()
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "CREATE TABLE states (id INTEGER PRIMARY KEY, signature, observation, location, task, feedback)",
            "CREATE INDEX by_signature ON states(signature)",
            "CREATE TABLE steps (id INTEGER PRIMARY KEY, pre, action, post, reward, diagnosis, keys, why)",
            "CREATE INDEX by_pre ON steps(pre)",
            "CREATE TABLE vectors (ref INTEGER PRIMARY KEY, vector)",
            "CREATE VIRTUAL TABLE texts USING fts5(text, tokenize='porter unicode61')",
        ):
            self._connection.execute(statement)

    def add(self, step: Step) -> None:
        """Write two states with their texts and vectors, and the step, in one transaction."""
        run = self._connection.execute
        run("BEGIN IMMEDIATE")
        ids = []
        for state in (step.pre, step.post):
            columns = (state.signature, state.observation, state.location, state.task, state.feedback)
            ids.append(run("INSERT INTO states VALUES (NULL, ?, ?, ?, ?, ?)", columns).lastrowid)
            run("INSERT INTO texts(rowid, text) VALUES (?, ?)", (ids[-1], state_text(state)))
            run("INSERT INTO vectors VALUES (?, ?)", (ids[-1], self._vector))
        rest = (dumps(asdict(step.diagnosis)), dumps(step.keys), dumps(step.why.to_dict()))
        run("INSERT INTO steps VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)", (ids[0], step.action, ids[1], step.reward, *rest))
        run("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


# -- memory and disk ------------------------------------------------------------------------------


def _measure_memory_and_disk(folder: Path, steps: int, tell: Callable[[str], None]) -> list[Row]:
    """Measure the peak memory of recall, and the file size with and without vectors."""
    path = folder / "library.db"
    tell(f"building a library of {steps} steps ...")
    library, rooms, _ = build(path, steps, embedded=False)
    library.close()
    unembedded_mb = path.stat().st_size / 1e6
    tell("measuring memory in a new process ...")
    memory = call_in_new_process(recall_without_embedding, path, rooms.draw_state().observation)
    with ExperienceLibrary.open(path) as library:
        library.items.add_many(rooms.generate_items())
        library.admin.index()
    return [
        build_row("memory, nothing embedded", steps, memory["mb"], "MB", "<= 130"),
        build_row("disk, nothing embedded", steps, unembedded_mb, "MB", "<= 40"),
        build_row("disk, embedded", steps, path.stat().st_size / 1e6, "MB", "<= 40"),
    ]


def recall_without_embedding(path: str, text: str) -> Row:
    """Recall by situation and by words, and return the peak memory of this process in MB."""
    with ExperienceLibrary.open(path) as library:
        for step in library.episodes.get(library.episodes.find(limit=1)[0]["id"]).steps:
            # With k=1 the situation's own steps suffice; a larger k could search for more, and load faiss.
            assert library.recall(step.pre, k=1).path == "cluster"
        assert library.search(text, 5, how="text")
    assert "faiss" not in sys.modules
    return {"mb": _peak_memory_mb()}


def _peak_memory_mb() -> float:
    """Return the peak memory of this process in MB."""
    # Prefer VmHWM: `ru_maxrss` of a forked process starts at the peak of its parent.
    status = Path("/proc/self/status")
    if status.exists():
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# -- opening --------------------------------------------------------------------------------------


def _measure_opening(folder: Path, steps: int, tell: Callable[[str], None]) -> list[Row]:
    """Measure the time from opening a large library to the first recall, in new processes."""
    path = folder / "library.db"
    tell(f"building a library of {steps} steps ...")
    library, rooms, embedder = build(path, steps, tell=tell)
    library.close()
    state = rooms.draw_new_state()
    np.save(folder / "query.npy", embedder.embed([state_text(state)]))
    tell("opening it in new processes ...")
    query = json.dumps([state.observation, state.task, sorted({rooms.draw_action(state) for _ in range(20 * ACTIONS)})])
    rows = []
    for what, promise in (("from its files", 0.5), ("from the library alone", 20.0)):
        results = [call_in_new_process(first_recalls, path, query) for _ in range(3 if promise < 1 else 1)]
        for name in ("recall", "estimates"):
            seconds = statistics.median(result[name] for result in results)
            rows.append(build_row(f"open to first {name}, {what}", steps, seconds, "s", f"<= {promise:g}"))
        # Without its index files, the library has to rebuild them on opening.
        shutil.rmtree(f"{path}.index", ignore_errors=True)
    return rows


class _FixedEmbedder:
    """The library's embedder by name, with one precomputed vector for every text."""

    def __init__(self, file: Path) -> None:
        inner = open_embedder()
        self.name, self.dim, self.fingerprint = inner.name, inner.dim, inner.fingerprint
        self._vector: Vectors = np.load(file)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the precomputed vector for every text."""
        return np.repeat(self._vector, len(texts), axis=0)


def first_recalls(path: str, query: str) -> Row:
    """Measure opening and the first recall of a new situation, and the same with estimates.

    Args:
        path: file of the library; `query.npy` beside it holds the query's vector.
        query: JSON list of observation, task and actions.

    Returns:
        Seconds by kind of recall.
    """
    from hardwon.memory import State

    observation, task, actions = json.loads(query)
    state, embedder = State(observation, task=task), _FixedEmbedder(Path(path).with_name("query.npy"))
    calls: dict[str, dict[str, Any]] = {
        "recall": {"k": 5},
        "estimates": {"k": 0, "actions": dict.fromkeys(actions[:ACTIONS], "")},
    }
    seconds = {}
    for name, arguments in calls.items():
        start = time.perf_counter()
        with ExperienceLibrary.open(path, embedder=embedder) as library:
            assert library.recall(state, **arguments)
            seconds[name] = time.perf_counter() - start
    return seconds
