"""Measure replicas of a shared library: how they are filled, how far they lag behind writers, and how they recall.

The load comes from processes that offer a fixed number of steps per second, at random moments. Like the follower of a
writing host, each one gives its entries their positions as soon as it wrote them.

The lag of a step is the time from the return of the append of its episode until the return of the look at the log that
committed it in the replica. Both moments are noted by the threads that do the work: a thread that watches the replica
would compete with its follower.
"""

import random
import statistics
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psycopg

from benchmarks.fixtures import EPISODE, Rooms
from hardwon.memory import ExperienceLibrary
from hardwon.memory.fleet.follower import Pace
from hardwon.memory.fleet.library import FleetLibrary
from hardwon.memory.fleet.log import Log

from .simulation import LOAD_S, OFFER
from .writers import make_payloads, read_cpu_s, start_processes

LOADS = 5
"""Turns of load with each number of writers."""
RECALLS = 300
SAMPLE_S = 0.02
"""Seconds between two questions whether the replica has caught up after a turn."""
LOOKS, ROUNDS = (1, 4, 8), 6
"""Numbers of entries that a measured look at the log applies, and the number of looks of each in a turn."""
OFFERED = 130
"""Episodes of a writer for each way in which it takes part in the turns: none is offered twice, because to apply an
episode again costs two thirds of the first time."""
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


class Commit(NamedTuple):
    """An entry of a writer."""

    ref: int
    """Its id."""
    moment: float
    """When the append returned, on the clock of `time.monotonic`."""


class Look(NamedTuple):
    """A look of a follower at the log that found entries."""

    begun: float
    ended: float
    position: int
    """Position of the replica afterwards."""
    entries: int


@dataclass
class Turn:
    """Measurements of one turn of load."""

    lags_ms: list[float]
    """Time of each entry from its commit until the replica held it."""
    calls_ms: list[float]
    """Time of each entry from its commit until the look began that found it."""
    looks: list[Look]
    hosts_ms: float | None
    """CPU time of a writing host and its sessions of the server for an entry; None if the server is elsewhere."""


@dataclass
class Loads:
    """Figures of a replica while writers offer steps."""

    turns: dict[int, list[Turn]] = field(default_factory=dict)
    """Turns of load, by the number of writers."""
    idle_ms: list[float] = field(default_factory=list)
    """Medians of recall while nobody writes."""
    busy_ms: list[float] = field(default_factory=list)
    """The same while most writers write."""
    still_ms: list[float] = field(default_factory=list)
    """The same from a copy of the replica: the follower computes in this process, but what is read does not change."""
    looks_ms: dict[int, list[float]] = field(default_factory=dict)
    """Times of looks at the log while nobody writes, by the number of entries that they apply."""
    servers_ms: list[float] = field(default_factory=list)
    """CPU times of the server for looks that find one entry; empty if the server is on another machine."""


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
    loads, rooms, idle = Loads({count: [] for count in counts}), Rooms(2), _Idle(url)
    offer = partial(_offer, counts)
    with connect(url, folder / "reader") as reader, start_processes(offer, url, max(counts)) as pipes:
        reader._store.copy_to(folder / "copy.db")
        with closing(ExperienceLibrary.open(folder / "copy.db", read_only=True)) as copy, closing(idle):
            for _ in range(LOADS):
                # Other states each time: the result of a state that was asked before is kept.
                loads.idle_ms.append(_time_recall(reader, rooms))
                idle.time_looks(reader, loads)
                for count in counts:
                    with _noting_looks(reader) as looks:
                        loads.turns[count].append(_offer_together(reader, pipes[:count], looks))
                # In turns of their own: recall competes with the follower of its process.
                for library, times_ms in ((reader, loads.busy_ms), (copy, loads.still_ms)):
                    for pipe in pipes:
                        pipe.send(LOAD_S)
                    times_ms.append(_time_recall(library, rooms))
                    _settle(reader, [commit for pipe in pipes for commit in pipe.recv()[0]], lambda: reader.position)
    return loads


class _Idle:
    """Looks at the log while nobody writes."""

    def __init__(self, url: str) -> None:
        self._log = Log(url, "default")
        self._payloads = iter(make_payloads(LOADS * ROUNDS * sum(LOOKS), 50))
        self._number = 0

    def time_looks(self, library: FleetLibrary, loads: Loads) -> None:
        """Note the times of looks by the number of entries, and the CPU times of the server for looks of one entry.

        The reader's connection serves its follower, too, so a look without entries may be part of that CPU time.
        """
        ((pid,),) = library._log.read("SELECT pg_backend_pid()")
        for _ in range(ROUNDS):
            for count in LOOKS:
                self._number += 1
                rows = [(f"look-{self._number}-{n}", next(self._payloads)) for n in range(count)]
                self._log.append("episode", rows)
                began, server_s = time.perf_counter(), read_cpu_s(pid)
                library.sync()
                loads.looks_ms.setdefault(count, []).append(1000 * (time.perf_counter() - began))
                ended_s = read_cpu_s(pid)
                if count == LOOKS[0] and server_s is not None and ended_s is not None:
                    loads.servers_ms.append(1000 * (ended_s - server_s))

    def close(self) -> None:
        self._log.close()


@contextmanager
def _noting_looks(library: FleetLibrary) -> Iterator[list[Look]]:
    """Yield a list that receives each look of the follower that finds entries."""
    looks: list[Look] = []
    follower, position = library._follower, library.position
    inner = follower.catch_up

    def catch_up() -> int:
        nonlocal position
        begun, before = time.monotonic(), position
        position = inner()
        if position > before:
            looks.append(Look(begun, time.monotonic(), position, position - before))
        return position

    follower.catch_up = catch_up  # type: ignore[method-assign]
    try:
        yield looks
    finally:
        del follower.catch_up


def _offer_together(library: FleetLibrary, pipes: Sequence[Connection], looks: list[Look]) -> Turn:
    """Let processes write at the same time, and return what a replica did."""
    for pipe in pipes:
        pipe.send(LOAD_S)
    answers = [pipe.recv() for pipe in pipes]
    commits = [commit for written, _ in answers for commit in written]
    places = _settle(library, commits, lambda: looks[-1].position if looks else 0)
    ends = [look.position for look in looks]
    found = [(moment, looks[bisect_left(ends, places[ref])]) for ref, moment in commits]
    spent = [cpu_s for _, cpu_s in answers]
    return Turn(
        [1000 * max(0.0, look.ended - moment) for moment, look in found],
        [1000 * max(0.0, look.begun - moment) for moment, look in found],
        list(looks),
        None if None in spent else 1000 * sum(spent) / max(1, len(commits)),
    )


def _settle(library: FleetLibrary, commits: Sequence[Commit], reach: Callable[[], int]) -> dict[int, int]:
    """Wait until a replica has reached the positions of entries, and return these by id."""
    until = time.monotonic() + SETTLE_S
    places: dict[int, int] = {}
    while len(places) < len(commits) or reach() < max(places.values(), default=0):
        if time.monotonic() > until:
            raise TimeoutError(f"the replica did not hold everything {SETTLE_S:.0f} s after the writers ended")
        time.sleep(SAMPLE_S)
        places = dict(library._log.read(_PLACES, {"ids": [commit.ref for commit in commits]}))
    return places


def _time_recall(library: ExperienceLibrary, rooms: Rooms) -> float:
    """Return the median time of a recall in ms."""
    times = []
    for state in [rooms.draw_state() for _ in range(RECALLS)]:
        began = time.perf_counter()
        library.recall(state)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def count_ways(counts: Sequence[int], who: int) -> int:
    """Return in how many turns of a cycle a writer takes part; see `measure_loads`."""
    return sum(who < count for count in counts) + 2


def _offer(counts: Sequence[int], url: str, who: int, pipe: Any) -> None:
    """Offer steps in a process of its own, until it is asked to end."""
    chance, payloads, number = random.Random(who), make_payloads(OFFERED * count_ways(counts, who), 100 + who), 0
    log, written, stopping = Log(url, "default"), threading.Event(), threading.Event()

    def give_positions() -> None:
        pace = Pace()
        while not stopping.is_set():
            if written.wait(0.1):
                time.sleep(pace.remaining_s())
                written.clear()
                log.assign()
                pace.begin()

    thread = threading.Thread(target=give_positions, daemon=True)
    thread.start()
    pids = [each("SELECT pg_backend_pid()")[0][0] for each in (log.read, log.write)]
    pipe.send(None)
    while (load_s := pipe.recv()) is not None:
        commits: list[Commit] = []
        before_s = _read_host_s(pids)
        due = ended = time.monotonic()
        ended += load_s
        while (due := due + chance.expovariate(OFFER / EPISODE)) < ended:
            time.sleep(max(0.0, due - time.monotonic()))
            number += 1
            (ref,) = log.append("episode", [(f"offer-{who}-{number}", payloads[number % len(payloads)])])
            commits.append(Commit(ref, time.monotonic()))
            written.set()
        after_s = _read_host_s(pids)
        pipe.send((commits, None if after_s is None or before_s is None else after_s - before_s))
    stopping.set()
    thread.join()
    log.close()


def _read_host_s(pids: Sequence[int]) -> float | None:
    """Return the CPU time of this process and of its sessions of the server; None if these are on another machine."""
    sessions = [read_cpu_s(pid) for pid in pids]
    return None if None in sessions else time.process_time() + sum(each or 0.0 for each in sessions)


def percentile(values: list[float], percent: float) -> float:
    """Return a percentile of measured values."""
    return float(np.percentile(values, percent))
