"""Measure replicas of a shared library: how they are filled, how far they lag behind writers, and how they recall.

The load comes from processes that offer a fixed number of steps per second, at random moments. Like the follower of a
writing host, each one gives its entries their positions as soon as it wrote them.

The lag of a step is the time from the return of the append of its episode until the return of the look at the log that
committed it in the replica. Both moments are noted by the threads that do the work: a thread that watches the replica
would compete with its follower.
"""

import random
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psycopg

from benchmarks.fixtures import EPISODE, Rooms
from benchmarks.harness.timing import time_ms
from hardwon.memory import ExperienceLibrary
from hardwon.memory.fleet.follower import Pace
from hardwon.memory.fleet.library import FleetLibrary
from hardwon.memory.fleet.log import Log

from .writers import make_payloads, start_processes

OFFER = 375
"""Steps per second that one writer offers while the lag is measured; eight of them offer 3,000."""
LOAD_S = 3.0
"""Seconds of that load at a time."""
LOADS = 5
"""Turns of load with each number of writers."""
RECALLS = 300
SAMPLE_S = 0.02
"""Seconds between two questions whether the replica has caught up after a turn."""
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
    """Times and sizes of filling a new replica."""

    log_s: float
    """Seconds from the log."""
    cpu_s: float
    """CPU time of this process meanwhile."""
    snapshot_s: float
    """Seconds from a snapshot."""
    log_bytes: int
    """Growth of the tables of the log, with their indexes."""
    replica_bytes: int
    snapshot_bytes: int


class Commit(NamedTuple):
    """An entry of a writer."""

    ref: int
    """Its id."""
    moment: float
    """When the append returned, on the clock of `time.monotonic`."""


class Look(NamedTuple):
    """The end of a look of a follower at the log that found entries."""

    ended: float
    position: int
    """Position of the replica afterwards."""


@dataclass
class Loads:
    """Figures of a replica while writers offer steps."""

    lags_ms: dict[int, list[float]]
    """Time of each entry from its commit until the replica held it, by the number of writers."""
    idle_ms: list[float] = field(default_factory=list)
    """Medians of recall while nobody writes."""
    busy_ms: list[float] = field(default_factory=list)
    """The same while most writers write."""
    still_ms: list[float] = field(default_factory=list)
    """The same from a copy of the replica: the follower computes in this process, but what is read does not change."""


def connect(url: str, folder: Path) -> FleetLibrary:
    """Open the library with a replica of its own."""
    library = ExperienceLibrary.open(url, embedder="hashing", replica=folder)
    assert isinstance(library, FleetLibrary)
    return library


def measure_filling(url: str, folder: Path, steps: int) -> Filled:
    """Write steps into the log, and fill new replicas from it and from a snapshot."""
    with psycopg.connect(url, autocommit=True) as server, connect(url, folder / "writer") as writer:
        (before,) = server.execute(_SIZE).fetchone() or (0,)
        episodes = list(Rooms(1).generate_episodes(steps, writer.episodes.keys))
        for at in range(0, len(episodes), 20):
            writer.record_many(episodes[at : at + 20])
        writer.admin.sync()
        (after,) = server.execute(_SIZE).fetchone() or (0,)
        cpu_s, began = time.process_time(), time.perf_counter()
        with connect(url, folder / "from-log") as reader:
            log_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
            ((replica_bytes,),) = reader._file.store.rows(_FILE)
        writer.admin.store_snapshot()
        (packed,) = server.execute("SELECT sum(length(content)) FROM hardwon.chunks").fetchone() or (0,)
        began = time.perf_counter()
        with connect(url, folder / "from-snapshot"):
            snapshot_s = time.perf_counter() - began
    return Filled(log_s, cpu_s, snapshot_s, after - before, replica_bytes, int(packed))


def measure_loads(url: str, folder: Path, counts: tuple[int, ...]) -> Loads:
    """Measure lag and recall of a replica while writers offer steps; the numbers of writers take turns."""
    loads, rooms = Loads({count: [] for count in counts}), Rooms(2)
    offer = partial(_offer, counts)
    with connect(url, folder / "reader") as reader, start_processes(offer, url, max(counts)) as pipes:
        reader._file.store.copy_to(folder / "copy.db")
        with closing(ExperienceLibrary.open(folder / "copy.db", read_only=True)) as copy:
            for _ in range(LOADS):
                # Other states each time: the result of a state that was asked before is kept.
                loads.idle_ms.append(_time_recall(reader, rooms))
                for count in counts:
                    with _noting_looks(reader) as looks:
                        loads.lags_ms[count] += _offer_together(reader, pipes[:count], looks)
                # In turns of their own: recall competes with the follower of its process.
                for library, times_ms in ((reader, loads.busy_ms), (copy, loads.still_ms)):
                    for pipe in pipes:
                        pipe.send(LOAD_S)
                    times_ms.append(_time_recall(library, rooms))
                    _settle(reader, [commit for pipe in pipes for commit in pipe.recv()], lambda: reader.admin.position)
    return loads


@contextmanager
def _noting_looks(library: FleetLibrary) -> Iterator[list[Look]]:
    """Yield a list that receives each look of the follower that finds entries."""
    looks: list[Look] = []
    follower, position = library._file.follower, library.admin.position
    inner = follower.catch_up

    def catch_up() -> int:
        nonlocal position
        before, position = position, inner()
        if position > before:
            looks.append(Look(time.monotonic(), position))
        return position

    follower.catch_up = catch_up  # type: ignore[method-assign]
    try:
        yield looks
    finally:
        del follower.catch_up


def _offer_together(library: FleetLibrary, pipes: Sequence[Connection], looks: list[Look]) -> list[float]:
    """Let processes write at the same time, and return the lags of their entries in ms."""
    for pipe in pipes:
        pipe.send(LOAD_S)
    commits = [commit for pipe in pipes for commit in pipe.recv()]
    places = _settle(library, commits, lambda: looks[-1].position if looks else 0)
    ends = [look.position for look in looks]
    return [1000 * max(0.0, looks[bisect_left(ends, places[ref])].ended - moment) for ref, moment in commits]


def _settle(library: FleetLibrary, commits: Sequence[Commit], reach: Callable[[], int]) -> dict[int, int]:
    """Wait until a replica has reached the positions of entries, and return these by id."""
    until = time.monotonic() + SETTLE_S
    places: dict[int, int] = {}
    while len(places) < len(commits) or reach() < max(places.values(), default=0):
        if time.monotonic() > until:
            raise TimeoutError(f"the replica did not hold everything {SETTLE_S:.0f} s after the writers ended")
        time.sleep(SAMPLE_S)
        places = dict(library._file.log.read(_PLACES, {"ids": [commit.ref for commit in commits]}))
    return places


def _time_recall(library: ExperienceLibrary, rooms: Rooms) -> float:
    """Return the median time of a recall in ms."""
    return median(time_ms(library.recall, state)[0] for state in [rooms.draw_state() for _ in range(RECALLS)])


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
    pipe.send(None)
    while (load_s := pipe.recv()) is not None:
        commits: list[Commit] = []
        due = ended = time.monotonic()
        ended += load_s
        while (due := due + chance.expovariate(OFFER / EPISODE)) < ended:
            time.sleep(max(0.0, due - time.monotonic()))
            number += 1
            (ref,) = log.append("episode", [(f"offer-{who}-{number}", payloads[number % len(payloads)])])
            commits.append(Commit(ref, time.monotonic()))
            written.set()
        pipe.send(commits)
    stopping.set()
    thread.join()
    log.close()
