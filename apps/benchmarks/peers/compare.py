"""Ours beside other memories, in one run: the same texts, the same vectors, one thread, a process each.

Only the store is timed: every system's embedder is a look-up of vectors that were made beforehand. The
plain parts (SQLite, FAISS, FTS5) run first and last, so that a machine that changed its speed meanwhile
is seen, and every figure is also given as a ratio to theirs. Each system runs in a virtual environment
of its own; one that does not install or dies is reported as that. What is asked of each is in `peers`.
"""

import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.fixtures import Rooms
from hardwon.memory.errors import UnknownName
from hardwon.memory.retrieval.embedders import Vectors, open_embedder

from .environments import NotInstalled, python_of
from .processes import Phase, ScriptDied
from .report import AGAIN, Row, figure, ratios_of

K = 5
TENANTS, PER_TENANT = 25, 20
WRITES = 80
"""Texts that each of two processes adds to one memory."""
SLICE = 20
"""Single adds, or searches, that a system does before the plain parts do theirs."""
SEARCH_S = 2.0
"""Seconds that searches by vector are timed for at least: a core may be slow for a tenth of one."""
BATCH = 100
KILLS = 10
"""Whether one loses something is chance: it must meet a write."""
KILL_AFTER = (50, 250)
"""Writes acknowledged before the process is killed: at least, at most."""
TERMS = 4
"""Words of a query that the plain parts look up: its rarest."""
TIE = 1e-5
"""Cosines nearer than this are equal."""
START_S = 120.0
"""What a phase may take beyond its caps: imports, opening, closing."""
Tell = Callable[[str], None]


@dataclass(frozen=True)
class System:
    """One memory: its script in `peers`, the script's variant, and the environment that it runs in."""

    script: str
    variant: str = ""
    environment: str = ""
    """"" is the environment that runs the benchmark."""


PARTS = {"parts": System("parts"), "parts + fts5": System("parts", "fts5")}
SYSTEMS: dict[str, System] = {
    "ours": System("ours"),
    "langgraph": System("langgraph_sqlite", environment="langgraph"),
    "chromadb": System("chroma", environment="chromadb"),
    "mem0-faiss": System("mem0_local", "faiss", "mem0"),
    "mem0-qdrant": System("mem0_local", "qdrant", "mem0"),
}


@dataclass(frozen=True)
class Data:
    """Texts and vectors in one order: n to be held, then queries, then those for tenants and faults."""

    folder: Path
    vectors: Vectors
    n: int
    queries: int

    @property
    def spare(self) -> int:
        """The first row for tenants and faults."""
        return self.n + self.queries

    def agreement(self, query: int, found: Sequence[int], among: Sequence[int] | range) -> float:
        """Part of the exact answer, by cosine, that was found; of equally near texts any will do."""
        cosines = self.vectors[list(among) if not isinstance(among, range) else slice(among.start, among.stop)]
        cosines = cosines @ self.vectors[query]
        asked = min(K, len(cosines))
        least = np.partition(cosines, -asked)[-asked] - TIE
        right = {row for row in found if row in among and self.vectors[row] @ self.vectors[query] >= least}
        return len(right) / asked


def names(only: str) -> list[str]:
    """The systems asked for. Raises UnknownName."""
    wanted = [name.strip() for name in only.split(",") if name.strip()] or ["parts", *SYSTEMS]
    for name in wanted:
        if name not in ("parts", *SYSTEMS):
            raise UnknownName.of("system", name, ("parts", *SYSTEMS))
    return wanted


def measure(
    n: int, queries: int, only: Sequence[str], cap_s: float, cache: Path, embedder: str | None, tell: Tell
) -> list[Row]:
    """A row for every system, the plain parts first and last."""
    with TemporaryDirectory(prefix="hardwon-peers-") as folder:
        data = make_data(Path(folder) / "data", n, queries, embedder, tell)
        parts = PARTS if "parts" in only else {}
        bench = Bench(data, cap_s, cache, bool(parts), tell)
        rows = [bench.row(name, system, whole=name == "parts") for name, system in parts.items()]
        rows += [bench.row(name, SYSTEMS[name]) for name in only if name != "parts"]
        rows += [bench.row(name + AGAIN, system, whole=False) for name, system in parts.items()]
    for row in rows:
        row["ratios"] = ratios_of(row, rows)
    return rows


def make_data(folder: Path, n: int, queries: int, embedder: str | None, tell: Tell) -> Data:
    """Distinct observations and their vectors, as files that every script reads."""
    folder.mkdir()
    rooms = Rooms(0)
    texts: dict[str, None] = {}
    while len(texts) < n + queries + TENANTS * PER_TENANT:
        texts[rooms.draw_state().observation] = None
    tell(f"embedding {len(texts)} texts ...")
    vectors = open_embedder(embedder).embed(list(texts))
    words = [sorted(set(re.findall(r"[a-z]{3,}", text.lower()))) for text in texts]
    seen = Counter(word for found in words for word in found)
    lines = [
        {"text": text, "terms": " OR ".join(f'"{word}"' for word in sorted(found, key=lambda word: seen[word])[:TERMS])}
        for text, found in zip(texts, words, strict=True)
    ]
    (folder / "texts.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    np.save(folder / "vectors.npy", vectors)
    return Data(folder, vectors, n, queries)


# -- one system -------------------------------------------------------------------------------------


class Measured:
    """The phases of one system, each in a folder of its own."""

    def __init__(self, system: System, python: Path, data: Data, cap_s: float, folder: Path, beside: bool) -> None:
        self._system, self._python = system, python
        self._data, self._cap_s, self._folder, self._beside = data, cap_s, folder, beside
        self._random = random.Random(f"{system.script} {system.variant}")

    def _start(self, phase: str, where: str, *arguments: Any, parts: bool = False) -> Phase:
        system, python = (PARTS["parts"], Path(sys.executable)) if parts else (self._system, self._python)
        script, folder, limit_s = (system.script, system.variant), self._folder / where, START_S + 3 * self._cap_s
        return Phase(python, script, phase, folder, self._data.folder, arguments, limit_s)

    @contextmanager
    def _in_turn(self, phase: str, *arguments: Any) -> Iterator[list[Phase]]:
        """A phase that waits to be told how much to add; beside it the plain parts', ready as well."""
        with ExitStack() as started:
            phases = [started.enter_context(self._start(phase, phase, *arguments))]
            if self._beside:
                phases.append(started.enter_context(self._start(phase, f"parts-{phase}", *arguments, parts=True)))
            for each in phases:
                each.until("ready")
            yield phases

    def _add(self, phases: Sequence[Phase], size: int, name: str) -> tuple[int, Row]:
        """Adds until the cap, each in turn: what a commit costs changes by the minute. How many, and figures."""
        added, spent = 0, np.zeros((len(phases), 2))
        while added < self._data.n and spent[0, 0] < self._cap_s:
            now = min(size, self._data.n - added)
            for phase, sums in zip(phases, spent, strict=True):
                phase.go(now)
                sums += phase.until("slice")
            added += now
        figures: Row = {}
        for prefix, (wall_s, cpu_s) in zip((name, f"beside_{name}"), spent, strict=False):
            figures |= {f"{prefix}_per_s": figure(added / wall_s), f"{prefix}_cpu_ms": figure(1000 * cpu_s / added)}
        return added, figures

    def adds(self) -> Row:
        """Durable adds one by one."""
        with self._in_turn("single") as phases:
            added, figures = self._add(phases, SLICE, "add")
        return {"added": added, **figures}

    def searches(self) -> Row:
        """Adds in batches, then searches of what is held."""
        data = self._data
        with self._in_turn("load", data.n, data.queries) as phases:
            held, figures = self._add(phases, BATCH, "batch")
            timed, found = self._search(phases)
            phases[0].go(0)
            told = phases[0].told()
        agreed = [data.agreement(data.n + nth, rows, range(held)) for nth, rows in enumerate(found)]
        for prefix, times in zip(("dense", "beside_dense"), timed, strict=False):
            figures |= _times(prefix, times)
        return {
            **figures,
            "held": held,
            "first_search_ms": figure(told["first_search_ms"]),
            "agreement": round(float(np.mean(agreed)), 4),
            **(_times("hybrid", told["hybrid"]) if "hybrid" in told else {}),
            "import_s": round(told["import_s"], 2),
            "rss_mb": round(told["rss_mb"]),
            "rss_before_mb": round(told["rss_before_mb"]),
            "disk_mb": round(_size_mb(self._folder / "load"), 1),
        }

    def _search(self, phases: Sequence[Phase]) -> tuple[list[list[Any]], list[Any]]:
        """Searches, each in turn as with adds: milliseconds of each, and what the first found for every query."""
        timed: list[list[Any]] = [[] for _ in phases]
        found: list[Any] = []
        for phase in phases:
            phase.go(0)
            phase.until("first_search_ms")
            phase.stay_on_one_core()
        while len(found) < self._data.queries or sum(wall_ms for wall_ms, _ in timed[0]) < 1000 * SEARCH_S:
            for phase, times in zip(phases, timed, strict=True):
                phase.go(SLICE)
                times += phase.until("dense")
            found += phases[0].last("found")
        return timed, found[: self._data.queries]

    def tenants(self) -> Row:
        """Searches inside a tenant that are short of results, or show another's."""
        data, count = self._data, TENANTS * PER_TENANT
        asked = [data.n + nth % data.queries for nth in range(8 * TENANTS)]
        with self._start("tenants", "tenants", TENANTS, data.spare, count, asked) as phase:
            found = phase.told()["found"]
        own = [range(data.spare + nth % TENANTS, data.spare + count, TENANTS) for nth in range(len(asked))]
        agreed = [data.agreement(query, rows, list(mine)) for query, rows, mine in zip(asked, found, own, strict=True)]
        return {
            "tenant_queries": len(asked),
            "tenant_short": sum(len(rows) < K for rows in found),
            "tenant_foreign": sum(any(row not in mine for row in rows) for rows, mine in zip(found, own, strict=True)),
            "tenant_agreement": round(float(np.mean(agreed)), 4),
        }

    def kill(self) -> Row:
        """kill -9 while adding, several times: how many acknowledged writes a search no longer finds."""
        added, lost, lossy, errors = 0, 0, 0, []
        for nth in range(KILLS):
            rows = self._added_until_killed(f"kill{nth}")
            missing, why = self._lost(f"kill{nth}", rows)
            added, lost, lossy = added + len(rows), lost + missing, lossy + bool(missing)
            errors += [f"after kill -9, {why}"] if why else []
        figures = {"kill_added": added, "kill_lost": lost, "kills": KILLS, "kills_with_loss": lossy}
        return figures | _noted("kill", errors)

    def _added_until_killed(self, where: str) -> list[int]:
        wanted, added = self._random.randint(*KILL_AFTER), []
        with self._start("adding", where, self._data.spare, TENANTS * PER_TENANT) as phase:
            phase.until("ready")
            phase.go()
            for event in phase.events():
                added.append(event["added"])
                if len(added) == wanted:
                    break
            time.sleep(self._random.uniform(0, 0.02))
            phase.kill()
            with suppress(ScriptDied):  # what it had acknowledged meanwhile
                added += [event["added"] for event in phase.events()]
        return added

    def writers(self) -> Row:
        """Two processes add at once: how many acknowledged writes are found, and whether one was refused."""
        added: list[int] = []
        first = self._data.spare
        with self._start("adding", "writers", first, WRITES) as one:
            refused = [_refusal(one)]  # it is open before the other comes: making the files is not what is asked
            with self._start("adding", "writers", first + WRITES, WRITES) as other:
                refused.append(_refusal(other))
                for phase in (each for each, why in zip((one, other), refused, strict=True) if not why):
                    phase.go()
                refused += [_take(phase, added) for phase in (one, other)]
        lost, why = self._lost("writers", added)
        errors = [word for word in (*refused, why) if word]
        return {"writers_added": len(added), "writers_kept": len(added) - lost} | _noted("writers", errors)

    def _lost(self, where: str, added: Sequence[int]) -> tuple[int, str]:
        """How many of these rows a new process does not find; all of them when it cannot even look."""
        try:
            with self._start("find", where, list(added)) as phase:
                return len(set(added) - set(phase.told()["found"])), ""
        except ScriptDied as died:
            return len(added), str(died)


@dataclass(frozen=True)
class Bench:
    """What is the same for all systems of one run."""

    data: Data
    cap_s: float
    cache: Path
    beside: bool
    """Time the plain parts' adds in turn with each system's."""
    tell: Tell

    def row(self, name: str, system: System, whole: bool = True) -> Row:
        """All figures of one system, or as many as there are; `whole` with tenants and faults."""
        row: Row = {"system": name, "n": self.data.n}
        try:
            python = python_of(system.environment, self.cache, self.tell)
        except NotInstalled as error:
            self.tell(f"{name}: {error}")
            return {**row, "error": str(error)}
        errors = []
        with TemporaryDirectory(prefix="hardwon-peer-") as folder:
            beside = self.beside and system not in PARTS.values()
            measured = Measured(system, python, self.data, self.cap_s, Path(folder), beside)
            phases = [measured.adds, measured.searches]
            phases += [measured.tenants, measured.kill, measured.writers] if whole else []
            for phase in phases:
                self.tell(f"{name}: {phase.__name__} ...")
                try:
                    row |= phase()
                except ScriptDied as died:
                    errors.append(str(died))
        return row | ({"error": "; ".join(dict.fromkeys(errors))} if errors else {})


def _refusal(phase: Phase) -> str:
    """Why it did not come so far as to wait for its start; "" if it did."""
    try:
        phase.until("ready")
    except ScriptDied as died:
        return str(died)
    return ""


def _take(phase: Phase, added: list[int]) -> str:
    """Notes what it acknowledges to the end; why it came to no good end, or ""."""
    try:
        added.extend(event["added"] for event in phase.events())
    except ScriptDied as died:
        return str(died)
    return ""


def _noted(what: str, errors: Iterable[str]) -> Row:
    told = "; ".join(dict.fromkeys(errors))
    return {f"{what}_error": told} if told else {}


def _times(path: str, timed: Sequence[Sequence[float]]) -> Row:
    walls, cpus = np.array(timed).T
    return {
        f"{path}_p50_ms": figure(np.median(walls)),
        f"{path}_p99_ms": figure(np.percentile(walls, 99)),
        f"{path}_cpu_ms": figure(np.median(cpus)),
    }


def _size_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
