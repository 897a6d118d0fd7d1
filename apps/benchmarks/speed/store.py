"""Writing, memory, disk, opening and tenants of a library, through the public calls alone.

    single     episodes of one step, each durable on return; beside it SQLite with the same rows
    batched    episodes of 50 steps, two or twenty in a transaction
    filed      the same, with the time of filing them, which the next read does otherwise
    memory     of a fresh process that recalls by situation and by words, and embeds nothing
    disk       of the same library, and of one that is embedded
    open       of a large library, to the first recall: from its files, and from the library alone
    tenants    hits of the right namespace, out of five

Single adds and the plain ones take turns, so that the ratio can be read on a busy machine. The plain
ones write a vector as well, which the library makes at its next search: vectors are derived.
Measured in opening is the store: the query's vector is known, and no embedder is loaded.
"""

import json
import resource
import shutil
import sqlite3
import statistics
import subprocess
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
from hardwon.memory import ExperienceLibrary, Item, Step, Trajectory
from hardwon.memory.retrieval.embedders import Vectors, open_embedder
from hardwon.memory.storage.episodes import dumps, state_text

SINGLES = 300
BATCHES = (2, 20)
"""Episodes of one transaction."""
ACTIONS = 20
"""Admissible actions of the recall that asks for estimates."""
TENANTS, EACH = 25, 20

Row = dict[str, Any]


def measure(steps: int, large: int, tell: Callable[[str], None]) -> list[Row]:
    """A row for every figure, with what is promised of it."""
    rows = []
    with TemporaryDirectory(prefix="hardwon-bench-") as folder:
        for part in (_writing, _weight, _opening, _tenants):
            at = Path(folder) / part.__name__
            at.mkdir()
            rows += part(at, large if part is _opening else steps, tell)
            shutil.rmtree(at)
    return rows


def _row(what: str, n: int, value: float, unit: str, promise: str) -> Row:
    return {"what": what, "n": n, "value": round(value, 3), "unit": unit, "promise": promise}


# -- writing --------------------------------------------------------------------------------------


def _writing(folder: Path, steps: int, tell: Callable[[str], None]) -> list[Row]:
    rooms = Rooms(0)
    batched = [_batched(folder / f"{batch}.db", rooms, steps, batch, tell) for batch in BATCHES]
    with ExperienceLibrary.open(folder / f"{BATCHES[0]}.db") as library:
        tell(f"writing {SINGLES} episodes of one step, each beside the plain rows ...")
        ref = library.trajectories(limit=1)[0]["id"]
        plain = _Plain(folder / "plain.db", library.embedder.embed(["a"]).shape[1])
        ours, parts = [], []
        for episode in rooms.episodes(SINGLES, library.keys):
            for step in episode.steps:
                single = Trajectory(episode.task, (step,), True, 1.0)
                ours.append(_seconds(library.record, single))
                parts.append(_seconds(plain.add, single.steps[0]))
        plain.close()
        filing_s = _seconds(library.segments, ref) / len(ours)
    single_s, plain_s = statistics.median(ours), statistics.median(parts)
    return [
        _row("single adds", SINGLES, 1 / single_s, "1/s", ""),
        _row("single adds, plain parts", SINGLES, 1 / plain_s, "1/s", ""),
        _row("single adds, of the plain parts", SINGLES, plain_s / single_s, "x", ">= 0.8"),
        _row("single adds, filed, of the plain parts", SINGLES, plain_s / (single_s + filing_s), "x", ""),
        *(
            _row(f"batched adds, {batch * EPISODE} a transaction{filed}", steps, rate, "steps/s", promise)
            for batch, rates in zip(BATCHES, batched, strict=True)
            for rate, filed, promise in zip(rates, ("", ", filed"), (">= 15000", ""), strict=True)
        ),
    ]


def _batched(path: Path, rooms: Rooms, steps: int, batch: int, tell: Callable[[str], None]) -> tuple[float, float]:
    """Steps a second, so many episodes a transaction, into a new library: acknowledged, and filed as well."""
    with ExperienceLibrary.open(path) as library:
        episodes = iter(list(rooms.episodes(steps, library.keys)))
        tell(f"writing {steps} steps, {batch} episodes at a time ...")
        began = time.perf_counter()
        while group := list(islice(episodes, batch)):
            library.record_many(group)
        acknowledged = time.perf_counter() - began
        assert library.episodes
        return steps / acknowledged, steps / (time.perf_counter() - began)


class _Plain:
    """The rows of a step in SQLite, durable on return, and nothing around them."""

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
        """Two states with their texts and vectors, and the step."""
        run = self._connection.execute
        run("BEGIN IMMEDIATE")
        ids = []
        for state in (step.pre, step.post):
            shown = (state.signature, state.observation, state.location, state.task, state.feedback)
            ids.append(run("INSERT INTO states VALUES (NULL, ?, ?, ?, ?, ?)", shown).lastrowid)
            run("INSERT INTO texts(rowid, text) VALUES (?, ?)", (ids[-1], state_text(state)))
            run("INSERT INTO vectors VALUES (?, ?)", (ids[-1], self._vector))
        rest = (dumps(asdict(step.diagnosis)), dumps(step.keys), dumps(dict(step.why)))
        run("INSERT INTO steps VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)", (ids[0], step.action, ids[1], step.reward, *rest))
        run("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


# -- memory and disk ------------------------------------------------------------------------------


def _weight(folder: Path, steps: int, tell: Callable[[str], None]) -> list[Row]:
    path = folder / "library.db"
    tell(f"building a library of {steps} steps ...")
    library, rooms, _ = build(path, steps, embedded=False)
    library.close()
    bare = path.stat().st_size / 1e6
    tell("weighing a fresh process ...")
    found = _fresh("weigh", path, rooms.state().observation)
    with ExperienceLibrary.open(path) as library:
        library.add_many(rooms.items())
        library.index()
    return [
        _row("memory, nothing embedded", steps, found["mb"], "MB", "<= 130"),
        _row("disk, nothing embedded", steps, bare, "MB", "<= 40"),
        _row("disk, embedded", steps, path.stat().st_size / 1e6, "MB", "<= 40"),
    ]


def weigh(path: str, text: str) -> Row:
    """Recalls by situation and by words; the process's largest memory."""
    with ExperienceLibrary.open(path) as library:
        for step in library.trajectory(library.trajectories(limit=1)[0]["id"]).steps:
            assert library.recall(step.pre, k=1).path == "cluster"  # more places than steps are filled from search
        assert library.search(text, 5, how="text")
    assert "faiss" not in sys.modules
    return {"mb": _largest_mb()}


def _largest_mb() -> float:
    """The largest memory that this process had; `getrusage` also counts what its parent had."""
    status = Path("/proc/self/status")
    if status.exists():
        told = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(told.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# -- opening --------------------------------------------------------------------------------------


def _opening(folder: Path, steps: int, tell: Callable[[str], None]) -> list[Row]:
    path = folder / "library.db"
    tell(f"building a library of {steps} steps ...")
    library, rooms, embedder = build(path, steps, tell=tell)
    library.close()
    state = rooms.unknown()
    np.save(folder / "query.npy", embedder.embed([state_text(state)]))
    tell("opening it in fresh processes ...")
    asked = json.dumps([state.observation, state.task, sorted({rooms.action(state) for _ in range(20 * ACTIONS)})])
    rows = []
    for what, promise in (("from its files", 0.5), ("from the library alone", 20.0)):
        found = [_fresh("first_recalls", path, asked) for _ in range(3 if promise < 1 else 1)]
        for name in ("recall", "estimates"):
            seconds = statistics.median(one[name] for one in found)
            rows.append(_row(f"open to first {name}, {what}", steps, seconds, "s", f"<= {promise:g}"))
        shutil.rmtree(f"{path}.index", ignore_errors=True)
    return rows


class _Known:
    """The library's embedder by name, which knows the vector of one query."""

    def __init__(self, file: Path) -> None:
        inner = open_embedder()
        self.name, self.dim, self.fingerprint = inner.name, inner.dim, inner.fingerprint
        self._vector: Vectors = np.load(file)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """The one vector, for every text."""
        return np.repeat(self._vector, len(texts), axis=0)


def first_recalls(path: str, asked: str) -> Row:
    """Seconds from opening to the first recall of an unknown situation, and to that of estimates, each by itself."""
    from hardwon.memory import State

    observation, task, actions = json.loads(asked)
    state, known = State(observation, task=task), _Known(Path(path).with_name("query.npy"))
    asks: dict[str, dict[str, Any]] = {
        "recall": {"k": 5},
        "estimates": {"k": 0, "actions": dict.fromkeys(actions[:ACTIONS], "")},
    }
    took = {}
    for name, arguments in asks.items():
        began = time.perf_counter()
        with ExperienceLibrary.open(path, embedder=known) as library:
            assert library.recall(state, **arguments)
            took[name] = time.perf_counter() - began
    return took


def _fresh(call: str, *arguments: object) -> Row:
    """What a function of this module gives in a process of its own."""
    code = f"import json, sys; from {__name__} import {call}; print(json.dumps({call}(*sys.argv[1:])))"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    found: Row = json.loads(answer.stdout.splitlines()[-1])
    return found


# -- tenants --------------------------------------------------------------------------------------


def _tenants(folder: Path, steps: int, tell: Callable[[str], None]) -> list[Row]:
    tell(f"{TENANTS} namespaces of {EACH} items, and one of {steps} steps beside one of {EACH} items ...")
    path = folder / "library.db"
    for tenant in range(TENANTS):
        _furnish(path, f"tenant {tenant}", EACH)
    many = statistics.mean(_right(path, f"tenant {tenant}") for tenant in range(TENANTS))
    library, _, _ = build(folder / "large.db", steps)
    library.close()
    _furnish(folder / "large.db", "small", EACH)
    return [
        _row(f"tenants, {TENANTS} of {EACH}", TENANTS * EACH, many, "of 5", "5"),
        _row("tenants, a small beside a large", steps, _right(folder / "large.db", "small"), "of 5", "5"),
    ]


def _furnish(path: Path, namespace: str, count: int) -> None:
    with ExperienceLibrary.open(path, namespace=namespace) as library:
        library.add_many(
            Item("insight", f"the wardrobe of {namespace} holds {n}", writer=namespace) for n in range(count)
        )


def _right(path: Path, namespace: str) -> int:
    """How many of five hits are of the namespace that was asked, at the least, by every way of searching."""
    with ExperienceLibrary.open(path, namespace=namespace) as library:
        found = [library.search("the wardrobe holds", 5, how=how) for how in ("hybrid", "dense", "text")]
    return min(sum(isinstance(hit.what, Item) and hit.what.writer == namespace for hit in hits) for hits in found)


def _seconds(call: Callable[[Any], object], argument: object) -> float:
    began = time.perf_counter()
    call(argument)
    return time.perf_counter() - began
