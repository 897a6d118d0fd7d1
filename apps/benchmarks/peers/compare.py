"""Comparison of hardwon with other memories in one run: same texts, same vectors, one thread, one process each.

Only the store is timed: every system's embedder looks up precomputed vectors. The baseline (SQLite, FAISS, FTS5) runs
first and last, so a change of the machine's speed during the run is visible, and every figure is also given as a ratio
to the baseline. Each system runs in its own virtual environment. A system that fails to install or crashes is
reported with its error. The package docstring of `peers` describes the protocol.
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
"""Texts that each of two processes adds to the same memory."""
SLICE = 20
"""Number of single adds or searches before it is the baseline's turn."""
SEARCH_S = 2.0
"""Minimum seconds of timed vector searches; a core can be slow for a tenth of a second."""
BATCH = 100
KILLS = 10
"""Number of kills. A single kill proves little, because it must coincide with a write to lose anything."""
KILL_AFTER = (50, 250)
"""Minimum and maximum number of acknowledged writes before the process is killed."""
TERMS = 4
"""Number of words, the rarest of the text, in a full-text query of the baseline."""
TIE = 1e-5
"""Cosines that differ by less are equal."""
START_S = 120.0
"""Seconds allowed per phase in addition to its caps, for imports, opening and closing."""
Tell = Callable[[str], None]


@dataclass(frozen=True)
class System:
    """One memory: its script in `peers`, the script's variant, and its virtual environment."""

    script: str
    variant: str = ""
    environment: str = ""
    """Key of `environments.REQUIREMENTS`; "" is the environment that runs the benchmark."""


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
    """Texts and vectors in one order: n to store, then queries, then spare rows for tenants and fault tests."""

    folder: Path
    vectors: Vectors
    n: int
    queries: int

    @property
    def spare(self) -> int:
        """Return the first row for tenants and fault tests."""
        return self.n + self.queries

    def agreement(self, query: int, answers: Sequence[int], among: Sequence[int] | range) -> float:
        """Return the share of the exact top K by cosine that was found; ties count as equal.

        Args:
            query: Row of the query.
            answers: Rows that the system returned.
            among: Rows that were searched.

        Returns:
            A share between 0 and 1.
        """
        cosines = self.vectors[list(among) if not isinstance(among, range) else slice(among.start, among.stop)]
        cosines = cosines @ self.vectors[query]
        # Every row at least as close as the K-th best is correct, so ties cannot count against a system.
        count = min(K, len(cosines))
        least = np.partition(cosines, -count)[-count] - TIE
        right = {row for row in answers if row in among and self.vectors[row] @ self.vectors[query] >= least}
        return len(right) / count


def names(only: str) -> list[str]:
    """Parse the comma-separated systems to measure; an empty string selects all.

    Raises:
        UnknownName: If a system does not exist.
    """
    wanted = [name.strip() for name in only.split(",") if name.strip()] or ["parts", *SYSTEMS]
    for name in wanted:
        if name not in ("parts", *SYSTEMS):
            raise UnknownName.of("system", name, ("parts", *SYSTEMS))
    return wanted


def measure(
    n: int, queries: int, only: Sequence[str], cap_s: float, cache: Path, embedder: str | None, tell: Tell
) -> list[Row]:
    """Return a row for every system, with the baseline measured first and last.

    Args:
        n: Number of texts that each memory stores.
        queries: Number of distinct queries.
        only: Names of the systems.
        cap_s: Maximum seconds for adding texts, per system.
        cache: Folder of the virtual environments.
        embedder: Embedder that computes the vectors, or None for the default.
        tell: Receives progress messages.
    """
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
    """Generate distinct observations and write their texts and vectors to files that every script reads."""
    folder.mkdir()
    rooms = Rooms(0)
    texts: dict[str, None] = {}
    while len(texts) < n + queries + TENANTS * PER_TENANT:
        texts[rooms.draw_state().observation] = None
    tell(f"embedding {len(texts)} texts ...")
    vectors = open_embedder(embedder).embed(list(texts))
    words = [sorted(set(re.findall(r"[a-z]{3,}", text.lower()))) for text in texts]
    counts = Counter(word for text_words in words for word in text_words)
    lines = [
        {
            "text": text,
            "terms": " OR ".join(f'"{word}"' for word in sorted(text_words, key=lambda word: counts[word])[:TERMS]),
        }
        for text, text_words in zip(texts, words, strict=True)
    ]
    (folder / "texts.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    np.save(folder / "vectors.npy", vectors)
    return Data(folder, vectors, n, queries)


# -- one system -------------------------------------------------------------------------------------


class Measured:
    """The measured phases of one system, each in its own folder."""

    def __init__(self, system: System, python: Path, data: Data, cap_s: float, folder: Path, beside: bool) -> None:
        self._system, self._python = system, python
        self._data, self._cap_s, self._folder, self._beside = data, cap_s, folder, beside
        self._random = random.Random(f"{system.script} {system.variant}")

    def _start(self, phase: str, where: str, *arguments: Any, parts: bool = False) -> Phase:
        system, python = (PARTS["parts"], Path(sys.executable)) if parts else (self._system, self._python)
        script, folder, limit_s = (system.script, system.variant), self._folder / where, START_S + 3 * self._cap_s
        return Phase(python, script, phase, folder, self._data.folder, arguments, limit_s)

    @contextmanager
    def _open_in_turn(self, phase: str, *arguments: Any) -> Iterator[list[Phase]]:
        """Start a phase that waits for slice sizes, and the same phase of the baseline beside it."""
        with ExitStack() as started:
            phases = [started.enter_context(self._start(phase, phase, *arguments))]
            if self._beside:
                phases.append(started.enter_context(self._start(phase, f"parts-{phase}", *arguments, parts=True)))
            for started_phase in phases:
                started_phase.until("ready")
            yield phases

    def _add(self, phases: Sequence[Phase], size: int, name: str) -> tuple[int, Row]:
        """Add slices, alternating between the phases, until the time cap.

        Systems alternate because the cost of a commit changes by the minute.

        Returns:
            The number of texts added, and the figures.
        """
        added, spent = 0, np.zeros((len(phases), 2))
        while added < self._data.n and spent[0, 0] < self._cap_s:
            count = min(size, self._data.n - added)
            for phase, sums in zip(phases, spent, strict=True):
                phase.go(count)
                sums += phase.until("slice")
            added += count
        figures: Row = {}
        for prefix, (wall_s, cpu_s) in zip((name, f"beside_{name}"), spent, strict=False):
            figures |= {f"{prefix}_per_s": figure(added / wall_s), f"{prefix}_cpu_ms": figure(1000 * cpu_s / added)}
        return added, figures

    def measure_adds(self) -> Row:
        """Measure durable adds, one text per call."""
        with self._open_in_turn("single") as phases:
            added, figures = self._add(phases, SLICE, "add")
        return {"added": added, **figures}

    def measure_searches(self) -> Row:
        """Measure batch adds, then searches over the stored texts."""
        data = self._data
        with self._open_in_turn("load", data.n, data.queries) as phases:
            held, figures = self._add(phases, BATCH, "batch")
            timed, answers = self._search(phases)
            phases[0].go(0)  # ends the searches
            events = phases[0].read_all()
        agreed = [data.agreement(data.n + nth, rows, range(held)) for nth, rows in enumerate(answers)]
        for prefix, times in zip(("dense", "beside_dense"), timed, strict=False):
            figures |= _summarize_times(prefix, times)
        return {
            **figures,
            "held": held,
            "first_search_ms": figure(events["first_search_ms"]),
            "agreement": round(float(np.mean(agreed)), 4),
            **(_summarize_times("hybrid", events["hybrid"]) if "hybrid" in events else {}),
            "import_s": round(events["import_s"], 2),
            "rss_mb": round(events["rss_mb"]),
            "rss_before_mb": round(events["rss_before_mb"]),
            "disk_mb": round(_measure_size_mb(self._folder / "load"), 1),
        }

    def _search(self, phases: Sequence[Phase]) -> tuple[list[list[Any]], list[Any]]:
        """Search, alternating between the phases.

        Returns:
            Wall-clock and CPU milliseconds of each search per phase, and the rows that the first phase found per query.
        """
        timed: list[list[Any]] = [[] for _ in phases]
        answers: list[Any] = []
        for phase in phases:
            phase.go(0)
            phase.until("first_search_ms")
            phase.stay_on_one_core()  # cores differ in speed, so both phases must use the same one
        while len(answers) < self._data.queries or sum(wall_ms for wall_ms, _ in timed[0]) < 1000 * SEARCH_S:
            for phase, times in zip(phases, timed, strict=True):
                phase.go(SLICE)
                times += phase.until("dense")
            answers += phases[0].get_last("found")
        return timed, answers[: self._data.queries]

    def measure_tenants(self) -> Row:
        """Count searches within a tenant that return fewer than K results or another tenant's texts."""
        data, count = self._data, TENANTS * PER_TENANT
        queries = [data.n + nth % data.queries for nth in range(8 * TENANTS)]
        with self._start("tenants", "tenants", TENANTS, data.spare, count, queries) as phase:
            answers = phase.read_all()["found"]
        owned_rows = [range(data.spare + nth % TENANTS, data.spare + count, TENANTS) for nth in range(len(queries))]
        agreed = [
            data.agreement(query, rows, list(owned))
            for query, rows, owned in zip(queries, answers, owned_rows, strict=True)
        ]
        return {
            "tenant_queries": len(queries),
            "tenant_short": sum(len(rows) < K for rows in answers),
            "tenant_foreign": sum(
                any(row not in owned for row in rows) for rows, owned in zip(answers, owned_rows, strict=True)
            ),
            "tenant_agreement": round(float(np.mean(agreed)), 4),
        }

    def measure_kills(self) -> Row:
        """Count the acknowledged writes that a search no longer finds after `kill -9`, over several kills."""
        added, lost, lossy, errors = 0, 0, 0, []
        for nth in range(KILLS):
            rows = self._add_until_killed(f"kill{nth}")
            missing, why = self._count_lost(f"kill{nth}", rows)
            added, lost, lossy = added + len(rows), lost + missing, lossy + bool(missing)
            errors += [f"after kill -9, {why}"] if why else []
        figures = {"kill_added": added, "kill_lost": lost, "kills": KILLS, "kills_with_loss": lossy}
        return figures | _join_errors("kill", errors)

    def _add_until_killed(self, where: str) -> list[int]:
        """Kill the process at a random time while it adds; return the acknowledged rows."""
        wanted, added = self._random.randint(*KILL_AFTER), []
        with self._start("adding", where, self._data.spare, TENANTS * PER_TENANT) as phase:
            phase.until("ready")
            phase.go()
            for event in phase.events():
                added.append(event["added"])
                if len(added) == wanted:
                    break
            # A random delay spreads the kill over all stages of a write.
            time.sleep(self._random.uniform(0, 0.02))
            phase.kill()
            with suppress(ScriptDied):  # collect the acknowledgments that were still in the pipe
                added += [event["added"] for event in phase.events()]
        return added

    def measure_writers(self) -> Row:
        """Count the acknowledged writes of two concurrent processes that are found afterwards."""
        added: list[int] = []
        first = self._data.spare
        with self._start("adding", "writers", first, WRITES) as first_phase:
            # The first writer creates the files before the second starts: concurrent creation is not measured.
            refused = [_wait_until_ready(first_phase)]
            with self._start("adding", "writers", first + WRITES, WRITES) as second_phase:
                refused.append(_wait_until_ready(second_phase))
                ready = zip((first_phase, second_phase), refused, strict=True)
                for phase in [phase for phase, why in ready if not why]:
                    phase.go()
                refused += [_collect_added(phase, added) for phase in (first_phase, second_phase)]
        lost, why = self._count_lost("writers", added)
        errors = [error for error in (*refused, why) if error]
        return {"writers_added": len(added), "writers_kept": len(added) - lost} | _join_errors("writers", errors)

    def _count_lost(self, where: str, added: Sequence[int]) -> tuple[int, str]:
        """Return how many rows a new process fails to find, and its error; all rows if it cannot search."""
        try:
            with self._start("find", where, list(added)) as phase:
                return len(set(added) - set(phase.read_all()["found"])), ""
        except ScriptDied as died:
            return len(added), str(died)


@dataclass(frozen=True)
class Bench:
    """The settings that all systems of one run share."""

    data: Data
    cap_s: float
    cache: Path
    beside: bool
    """Whether to time the baseline in turn with each system."""
    tell: Tell

    def row(self, name: str, system: System, whole: bool = True) -> Row:
        """Measure one system.

        Args:
            name: Name of the system in the row.
            system: The system to run.
            whole: Whether to run the tenant and fault phases too.

        Returns:
            All figures that could be measured, and "error" if a phase failed.
        """
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
            phases = [measured.measure_adds, measured.measure_searches]
            phases += [measured.measure_tenants, measured.measure_kills, measured.measure_writers] if whole else []
            for phase in phases:
                self.tell(f"{name}: {phase.__name__.replace('_', ' ')} ...")
                try:
                    row |= phase()
                except ScriptDied as died:
                    errors.append(str(died))
        return row | ({"error": "; ".join(dict.fromkeys(errors))} if errors else {})


def _wait_until_ready(phase: Phase) -> str:
    """Wait until the phase is ready; return its error if it fails before that, else ""."""
    try:
        phase.until("ready")
    except ScriptDied as died:
        return str(died)
    return ""


def _collect_added(phase: Phase, added: list[int]) -> str:
    """Append the acknowledged rows until the phase ends; return its error, or ""."""
    try:
        added.extend(event["added"] for event in phase.events())
    except ScriptDied as died:
        return str(died)
    return ""


def _join_errors(what: str, errors: Iterable[str]) -> Row:
    text = "; ".join(dict.fromkeys(errors))
    return {f"{what}_error": text} if text else {}


def _summarize_times(path: str, timed: Sequence[Sequence[float]]) -> Row:
    walls, cpus = np.array(timed).T
    return {
        f"{path}_p50_ms": figure(np.median(walls)),
        f"{path}_p99_ms": figure(np.percentile(walls, 99)),
        f"{path}_cpu_ms": figure(np.median(cpus)),
    }


def _measure_size_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
