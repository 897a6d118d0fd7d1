"""Measure a shared library on an empty PostgreSQL database, next to bare INSERTs of the same bytes.

    appends    appends per second of 1, 4 and 8 processes, each durable on return, and their share of bare INSERTs
    lag        time from the commit of an episode on one replica until another replica holds it
    recall     median recall of a known situation while the replica is idle, and while it applies others' writes
    bootstrap  steps per second with which a new replica is filled from the log

Appends and bare INSERTs alternate, so that their ratio is meaningful on a busy machine.
"""

import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psycopg

from benchmarks.fixtures import EPISODE, Rooms
from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.memory.fleet.entries import pack_episode_entry
from hardwon.memory.fleet.library import FleetLibrary
from hardwon.memory.fleet.log import Log, list_namespaces
from hardwon.memory.upkeep.write_buffer import redact_and_pack

WRITERS = (1, 4, 8)
ROUNDS = 3
EACH = 100
"""Appends of one process in one round."""
LAGS = 60
"""Episodes of which the lag is measured."""
RECALLS = 300

Row = dict[str, Any]


def measure(url: str, steps: int, tell: Callable[[str], None]) -> list[Row]:
    """Measure every figure of a shared library.

    Args:
        url: Address of a database without a library.
        steps: Number of steps with which a new replica is filled.
        tell: Receives lines of progress.

    Raises:
        ConfigError: The database holds a library.
    """
    with psycopg.connect(url) as connection:
        if connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'hardwon'").fetchone():
            raise ConfigError(f"the database holds a library ({', '.join(list_namespaces(url))}). Give an empty one.")
    with TemporaryDirectory(prefix="hardwon-bench-") as folder:
        rows = []
        for writers in WRITERS:
            tell(f"  {writers} writers ...")
            rows += _measure_appends(url, writers)
        tell(f"  {steps:,} steps ...")
        rows += _measure_replicas(url, Path(folder), steps)
    return rows


def _row(what: str, n: int, value: float, unit: str, promise: str) -> Row:
    return {"what": what, "n": n, "value": round(value, 3), "unit": unit, "promise": promise}


# -- appends --------------------------------------------------------------------------------------


def _make_payloads(count: int, seed: int) -> list[bytes]:
    episodes = Rooms(seed).generate_episodes(count * EPISODE, lambda state, action: ("*", action))
    return [pack_episode_entry(redact_and_pack(episode)[1], lambda ids: {}) for episode in episodes]


def _measure_appends(url: str, writers: int) -> list[Row]:
    rates: dict[str, list[float]] = {"bare": [], "log": []}
    for number in range(ROUNDS):
        for how in ("bare", "log") if number % 2 else ("log", "bare"):
            rates[how].append(_run_writers(url, writers, how, f"{writers}-{number}"))
    share = statistics.median(log / bare for log, bare in zip(rates["log"], rates["bare"], strict=True))
    return [
        _row("appends", writers, statistics.median(rates["log"]), "per second", ""),
        _row("appends beside bare INSERTs", writers, share, "x", ">= 0.7"),
    ]


def _run_writers(url: str, writers: int, how: str, name: str) -> float:
    """Return the writes per second of several processes."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(writers + 1)
    arguments = [(url, how, f"{name}-{who}", who, barrier) for who in range(writers)]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS bare (id bigserial PRIMARY KEY, key text UNIQUE, payload bytea)")
    Log(url, "appends").close()
    processes = [context.Process(target=_write, args=each) for each in arguments]
    for process in processes:
        process.start()
    barrier.wait(120)
    began = time.perf_counter()
    barrier.wait(600)
    took_s = time.perf_counter() - began
    for process in processes:
        process.join()
    return writers * EACH / took_s


def _write(url: str, how: str, name: str, seed: int, barrier: Any) -> None:
    """Write in a process of its own."""
    payloads = _make_payloads(EACH, seed)
    insert = "INSERT INTO bare(key, payload) VALUES (%s, %s)"
    with psycopg.connect(url, autocommit=True) as connection:
        log = Log(url, "appends")
        log.has("episode", "")  # opens the connection that writes
        barrier.wait(120)
        for number, payload in enumerate(payloads):
            if how == "bare":
                connection.execute(insert, (f"{name}-{number}", payload))
            else:
                log.append("episode", [(f"{name}-{number}", payload)])
        barrier.wait(600)
        log.close()


# -- replicas -------------------------------------------------------------------------------------


def _connect(url: str, folder: Path) -> FleetLibrary:
    library = ExperienceLibrary.open(url, embedder="hashing", replica=folder)
    assert isinstance(library, FleetLibrary)
    return library


def _measure_replicas(url: str, folder: Path, steps: int) -> list[Row]:
    rooms = Rooms(1)
    with _connect(url, folder / "writer") as writer:
        episodes = list(rooms.generate_episodes(steps, writer.keys))
        for at in range(0, len(episodes), 20):
            writer.record_many(episodes[at : at + 20])
        writer.sync()
        began = time.perf_counter()
        with _connect(url, folder / "reader") as reader:
            took_s = time.perf_counter() - began
            # Other states each time: the result of a state that was asked before is kept.
            idle_ms = _time_recall(reader, [rooms.draw_state() for _ in range(RECALLS)])
            states = [rooms.draw_state() for _ in range(RECALLS)]
            lags_ms, busy_ms, rate = _measure_under_load(writer, reader, rooms, states)
    return [
        _row("bootstrap from the log", steps, steps / took_s, "steps per second", ">= 1667"),
        _row("lag, median", LAGS, float(np.percentile(lags_ms, 50)), "ms", ""),
        _row("lag, 99th percentile", LAGS, float(np.percentile(lags_ms, 99)), "ms", ""),
        _row("recall, idle", RECALLS, idle_ms, "ms", ""),
        _row(f"recall beside {rate:.0f} steps/s, of idle", RECALLS, busy_ms / idle_ms, "x", "<= 1.3"),
    ]


def _time_recall(library: FleetLibrary, states: list[Any]) -> float:
    times = []
    for state in states:
        began = time.perf_counter()
        library.recall(state)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def _measure_under_load(
    writer: FleetLibrary, reader: FleetLibrary, rooms: Rooms, states: list[Any]
) -> tuple[list[float], float, float]:
    """Return the lags and the median recall in ms while another thread writes, and the steps per second written."""
    episodes = list(rooms.generate_episodes(LAGS * EPISODE, writer.keys))
    lags_ms: list[float] = []
    began = time.perf_counter()

    def write() -> None:
        lags_ms.extend(_measure_lag(writer, reader, episode) for episode in episodes)

    thread = threading.Thread(target=write)
    thread.start()
    busy_ms = _time_recall(reader, states)
    thread.join()
    return lags_ms, busy_ms, LAGS * EPISODE / (time.perf_counter() - began)


def _measure_lag(writer: FleetLibrary, reader: FleetLibrary, episode: Trajectory) -> float:
    before = reader.position
    writer.record(episode)
    committed = time.perf_counter()
    while reader.position <= before:
        time.sleep(0.001)
    return 1000 * (time.perf_counter() - committed)
