"""Measure replicas of a shared library: how they are filled, how far they lag behind writers, and how they recall.

The load comes from processes that offer a fixed number of steps per second, at random moments. Like the follower of a
writing host, each one gives its entries their positions a moment after it wrote them.
"""

import random
import statistics
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from benchmarks.fixtures import EPISODE, Rooms
from hardwon.memory import ExperienceLibrary
from hardwon.memory.fleet.follower import SOON_S
from hardwon.memory.fleet.library import FleetLibrary
from hardwon.memory.fleet.log import Log

from .simulation import LOAD_S, OFFER
from .writers import make_payloads, read_cpu_s, start_processes

LOADS = 5
"""Turns of load with each number of writers."""
RECALLS = 300
SAMPLE_S = 0.002
"""Seconds between two looks at the position of the replica."""
LOOKS, ROUNDS = (1, 8), 15
"""Numbers of entries that a measured look at the log applies, and the number of looks of each."""
OFFERED = 320
"""Episodes of a writer. They suffice for all turns: to apply an episode again costs two thirds of the first time."""
SETTLE_S = 60.0
"""Seconds until the replica must have caught up after a turn."""
_PLACES = "SELECT log_id, pos FROM hardwon.positions WHERE namespace = %(namespace)s AND log_id = ANY(%(ids)s)"
_FILE = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
_SIZE = "SELECT pg_total_relation_size('hardwon.log') + pg_total_relation_size('hardwon.positions')"


@dataclass
class Filled:
    """Times and rates of filling a new replica."""

    log_s: float
    """Seconds from the log."""
    cpu_s: float
    """CPU time of this process meanwhile."""
    server_s: float | None
    """CPU time of its session of the server; None if the server is on another machine."""
    snapshot_s: float
    """Seconds from a snapshot."""
    log_bytes: int
    """Growth of the tables of the log, with their indexes."""
    payload_bytes: int
    replica_bytes: int
    snapshot_bytes: int


@dataclass
class Loads:
    """Figures of a replica while writers offer steps."""

    lags_ms: dict[int, list[list[float]]] = field(default_factory=dict)
    """Time of each entry of each turn from its commit until the replica held it, by the number of writers."""
    loaded: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    """Number of entries and time in ms of each look at the log meanwhile, by the number of writers."""
    idle_ms: list[float] = field(default_factory=list)
    """Medians of recall while nobody writes."""
    busy_ms: list[float] = field(default_factory=list)
    """The same while most writers write."""
    still_ms: list[float] = field(default_factory=list)
    """The same from a copy of the replica: the follower computes in this process, but what is read does not change."""
    looks_ms: dict[int, list[float]] = field(default_factory=dict)
    """Times of looks at the log, by the number of entries that they apply."""
    server_ms: float | None = None
    """CPU time of the server for a look that finds one entry; None if the server is on another machine."""


def connect(url: str, folder: Path) -> FleetLibrary:
    """Open the library with a replica of its own."""
    library = ExperienceLibrary.open(url, embedder="hashing", replica=folder)
    assert isinstance(library, FleetLibrary)
    return library


def measure_filling(url: str, folder: Path, steps: int) -> Filled:
    """Write steps into the log, and fill new replicas from it and from a snapshot."""
    with psycopg.connect(url, autocommit=True) as server, connect(url, folder / "writer") as writer:
        (before,) = server.execute(_SIZE).fetchone() or (0,)
        episodes = list(Rooms(1).generate_episodes(steps, writer.keys))
        for at in range(0, len(episodes), 20):
            writer.record_many(episodes[at : at + 20])
        writer.sync()
        (after,) = server.execute(_SIZE).fetchone() or (0,)
        query = "SELECT sum(length(payload)) FROM hardwon.log WHERE namespace = %s"
        (payload,) = server.execute(query, (writer._log.number,)).fetchone() or (0,)
        cpu_s, began = time.process_time(), time.perf_counter()
        with connect(url, folder / "from-log") as reader:
            log_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
            server_s = read_cpu_s(reader._log.read("SELECT pg_backend_pid()")[0][0])
            ((replica_bytes,),) = reader._store.rows(_FILE)
        writer.store_snapshot()
        (packed,) = server.execute("SELECT sum(length(content)) FROM hardwon.chunks").fetchone() or (0,)
        began = time.perf_counter()
        with connect(url, folder / "from-snapshot"):
            snapshot_s = time.perf_counter() - began
    return Filled(log_s, cpu_s, server_s, snapshot_s, after - before, int(payload), replica_bytes, int(packed))


def measure_loads(url: str, folder: Path, counts: tuple[int, ...]) -> Loads:
    """Measure lag and recall of a replica while writers offer steps; the numbers of writers take turns."""
    loads, rooms = Loads({count: [] for count in counts}, {count: [] for count in counts}), Rooms(2)
    with connect(url, folder / "reader") as reader, start_processes(_offer, url, max(counts)) as pipes:
        reader._store.copy_to(folder / "copy.db")
        loads.looks_ms, loads.server_ms = _time_looks(url, reader)
        with closing(ExperienceLibrary.open(folder / "copy.db", read_only=True)) as copy:
            for _ in range(LOADS):
                # Other states each time: the result of a state that was asked before is kept.
                loads.idle_ms.append(_time_recall(reader, rooms))
                for count in counts:
                    watch = _Watch(reader)
                    with _timing_looks(reader) as looks:
                        loads.lags_ms[count].append(watch.finish(_offer_together(pipes[:count])))
                    loads.loaded[count] += looks
                # In turns of their own: recall competes with the follower of its process.
                for library, times_ms in ((reader, loads.busy_ms), (copy, loads.still_ms)):
                    for pipe in pipes:
                        pipe.send(LOAD_S)
                    times_ms.append(_time_recall(library, rooms))
                    _Watch(reader).finish([commit for pipe in pipes for commit in pipe.recv()])
    return loads


def _time_looks(url: str, library: FleetLibrary) -> tuple[dict[int, list[float]], float | None]:
    """Return the times in ms of looks at the log, by the number of new entries, and the CPU time of the server for one.

    The reader's connection serves its follower, too, so a look without entries may be part of that CPU time.
    """
    payloads, log = iter(make_payloads(ROUNDS * sum(LOOKS), 50)), Log(url, library.namespace)
    ((pid,),) = library._log.read("SELECT pg_backend_pid()")
    times_ms: dict[int, list[float]] = {count: [] for count in LOOKS}
    servers_ms: list[float | None] = []
    for turn in range(ROUNDS):
        for count in LOOKS:
            log.append("episode", [(f"look-{turn}-{count}-{n}", next(payloads)) for n in range(count)])
            began, server_s = time.perf_counter(), read_cpu_s(pid)
            library.sync()
            times_ms[count].append(1000 * (time.perf_counter() - began))
            ended_s = read_cpu_s(pid)
            servers_ms += [None if server_s is None or ended_s is None else 1000 * (ended_s - server_s)]
    log.close()
    known = [each for each in servers_ms[:: len(LOOKS)] if each is not None]
    return times_ms, statistics.median(known) if known else None


@contextmanager
def _timing_looks(library: FleetLibrary) -> Iterator[list[tuple[int, float]]]:
    """Yield a list that receives the number of entries and the time in ms of each look of the follower with entries."""
    looks: list[tuple[int, float]] = []
    follower, position = library._follower, library.position
    inner = follower.catch_up

    def catch_up() -> int:
        nonlocal position
        began, before = time.perf_counter(), position
        position = inner()
        if position > before:
            looks.append((position - before, 1000 * (time.perf_counter() - began)))
        return position

    follower.catch_up = catch_up  # type: ignore[method-assign]
    try:
        yield looks
    finally:
        del follower.catch_up


def _offer_together(pipes: Sequence[Connection]) -> list[tuple[int, float]]:
    """Let processes write at the same time; return the ids of their entries and the moments of the commits."""
    for pipe in pipes:
        pipe.send(LOAD_S)
    return [commit for pipe in pipes for commit in pipe.recv()]


def _time_recall(library: ExperienceLibrary, rooms: Rooms) -> float:
    """Return the median time of a recall in ms."""
    times = []
    for state in [rooms.draw_state() for _ in range(RECALLS)]:
        began = time.perf_counter()
        library.recall(state)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


class _Watch:
    """Notes when a replica reached each position."""

    def __init__(self, library: FleetLibrary) -> None:
        self._library = library
        self._positions = [library.position]
        self._moments = [time.monotonic()]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stopping.wait(SAMPLE_S):
            position = self._library.position
            if position != self._positions[-1]:
                self._moments.append(time.monotonic())
                self._positions.append(position)

    def finish(self, commits: list[tuple[int, float]]) -> list[float]:
        """Return the lag of each entry in ms, by its id and the moment of its commit."""
        until = time.monotonic() + SETTLE_S
        places: dict[int, int] = {}
        while len(places) < len(commits) and time.monotonic() < until:
            places = dict(self._library._log.read(_PLACES, {"ids": [ref for ref, _ in commits]}))
            time.sleep(SAMPLE_S)
        while self._positions[-1] < max(places.values(), default=0) and time.monotonic() < until:
            time.sleep(SAMPLE_S)
        self._stopping.set()
        self._thread.join()
        if len(places) < len(commits) or self._positions[-1] < max(places.values(), default=0):
            raise TimeoutError(f"the replica did not hold everything {SETTLE_S:.0f} s after the writers ended")
        reached = [self._moments[bisect_left(self._positions, places[ref])] for ref, _ in commits]
        return [1000 * max(0.0, at - moment) for at, (_, moment) in zip(reached, commits, strict=True)]


def _offer(url: str, who: int, pipe: Any) -> None:
    """Offer steps in a process of its own, until it is asked to end."""
    chance, payloads, number = random.Random(who), make_payloads(OFFERED, 100 + who), 0
    log, written, stopping = Log(url, "default"), threading.Event(), threading.Event()

    def give_positions() -> None:
        while not stopping.is_set():
            if written.wait(0.1):
                written.clear()
                time.sleep(SOON_S)
                log.assign()

    thread = threading.Thread(target=give_positions, daemon=True)
    thread.start()
    log.has("episode", "")  # opens the connection that writes
    pipe.send(None)
    while (load_s := pipe.recv()) is not None:
        commits: list[tuple[int, float]] = []
        due = ended = time.monotonic()
        ended += load_s
        while (due := due + chance.expovariate(OFFER / EPISODE)) < ended:
            time.sleep(max(0.0, due - time.monotonic()))
            number += 1
            (ref,) = log.append("episode", [(f"offer-{who}-{number}", payloads[number % OFFERED])])
            commits.append((ref, time.monotonic()))
            written.set()
        pipe.send(commits)
    stopping.set()
    thread.join()
    log.close()


def percentile(values: list[float], percent: float) -> float:
    """Return a percentile of measured values."""
    return float(np.percentile(values, percent))
