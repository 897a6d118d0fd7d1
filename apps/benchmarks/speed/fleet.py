"""Measure a shared library on an empty PostgreSQL database, next to bare INSERTs of the same bytes.

    appends    appends per second of 1, 4 and 8 processes, each durable on return, and their share of bare INSERTs
    lag        time from the commit of a step by 1, 4 and 8 processes until a replica holds it, over all steps
    recall     median recall of a known situation while the replica is idle, and while it applies others' writes
    filling    steps per second with which a new replica is filled, and the bytes of log, replica and snapshot

Everything that is compared takes turns, so that ratios are meaningful on a busy machine. `hardwon bench scale` takes
these figures as its input.
"""

import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

from benchmarks.fixtures import EPISODE
from hardwon.memory.errors import ConfigError
from hardwon.memory.fleet.places import list_namespaces

from .replicas import Filled, Loads, Turn, measure_filling, measure_loads, percentile
from .writers import How, Turns, measure_turns

WRITERS = (1, 4, 8)
CYCLES = 40
"""Turns of each number of writers and each way to write."""
NAMES: dict[How, str] = {"log": "appends", "bare": "bare INSERTs"}

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
        tell(f"  {', '.join(map(str, WRITERS))} writers in turns ...")
        rows = _list_appends(measure_turns(url, WRITERS, CYCLES))
        tell(f"  {steps:,} steps ...")
        rows += _list_filling(measure_filling(url, Path(folder), steps), steps)
        tell("  a replica under load ...")
        rows += _list_loads(measure_loads(url, Path(folder), WRITERS))
    return rows


def _row(what: str, n: int, value: float, unit: str, promise: str = "") -> Row:
    return {"what": what, "n": n, "value": round(value, 4), "unit": unit, "promise": promise}


def _list_appends(measured: dict[tuple[How, int], Turns]) -> list[Row]:
    rows = [_row("cores", len(os.sched_getaffinity(0)), len(os.sched_getaffinity(0)), "cores")]
    for writers in WRITERS:
        log, bare = measured["log", writers], measured["bare", writers]
        share = statistics.median(one / other for one, other in zip(log.rates, bare.rates, strict=True))
        rows.append(_row("appends beside bare INSERTs", writers, share, "x", ">= 0.7"))
        for turns, name in ((log, NAMES["log"]), (bare, NAMES["bare"])):
            rows.append(_row(name, writers, turns.rate, "per second"))
            rows.append(_row(f"{name}, median time", writers, turns.time_ms(50), "ms"))
            rows.append(_row(f"{name}, 99th percentile", writers, turns.time_ms(99), "ms"))
            rows.append(_row(f"{name}, CPU time of the client", writers, turns.client_ms, "ms"))
            if turns.server_ms is not None:
                rows.append(_row(f"{name}, CPU time of the server", writers, turns.server_ms, "ms"))
    return rows


def _list_filling(filled: Filled, steps: int) -> list[Row]:
    rows = [
        _row("bootstrap from the log", steps, steps / filled.log_s, "steps per second", ">= 1667"),
        _row("bootstrap from a snapshot", steps, steps / filled.snapshot_s, "steps per second", ">= 10000"),
        _row("CPU time to apply a step", steps, 1000 * filled.cpu_s / steps, "ms"),
        _row("bytes of a step in the log", steps, filled.log_bytes / steps, "bytes"),
        _row("bytes of a step on the wire", steps, filled.payload_bytes / steps, "bytes"),
        _row("bytes of a step in the replica", steps, filled.replica_bytes / steps, "bytes"),
        _row("bytes of a step in the snapshot", steps, filled.snapshot_bytes / steps, "bytes"),
        _row("steps of an entry", EPISODE, EPISODE, "steps"),
    ]
    if filled.server_s is not None:
        rows.append(_row("CPU time of the server to send a step", steps, 1000 * filled.server_s / steps, "ms"))
    return rows


def _list_looks(name: str, writers: int, turns: Sequence[Turn]) -> list[Row]:
    looks = [look for turn in turns for look in turn.looks]
    entries = statistics.mean(look.entries for look in looks)
    took_ms = 1000 * statistics.mean(look.ended - look.begun for look in looks)
    return [_row(f"entries of a {name}", writers, entries, "entries"), _row(name, writers, took_ms, "ms")]


def _list_loads(loads: Loads) -> list[Row]:
    rows = []
    for writers, turns in loads.turns.items():
        lags_ms = [ms for turn in turns for ms in turn.lags_ms]
        rows.append(_row("lag, median", writers, percentile(lags_ms, 50), "ms"))
        rows.append(_row("lag, 99th percentile", writers, percentile(lags_ms, 99), "ms"))
        calls_ms = [ms for turn in turns for ms in turn.calls_ms]
        rows.append(_row("commit until a look begins, median", writers, percentile(calls_ms, 50), "ms"))
        rows += _list_looks("look under load", writers, turns)
        if hosts_ms := [turn.hosts_ms for turn in turns if turn.hosts_ms is not None]:
            rows.append(_row("CPU time of a writing host for an entry", writers, statistics.mean(hosts_ms), "ms"))
    rows += [_row("look that applies entries", n, statistics.mean(ms), "ms") for n, ms in loads.looks_ms.items()]
    if loads.servers_ms:
        rows.append(_row("CPU time of the server for a look", 1, statistics.median(loads.servers_ms), "ms"))
    share, still = (
        statistics.median(ms / idle for ms, idle in zip(times_ms, loads.idle_ms, strict=True))
        for times_ms in (loads.busy_ms, loads.still_ms)
    )
    return [
        *rows,
        _row("recall, idle", len(loads.idle_ms), statistics.median(loads.idle_ms), "ms"),
        _row("recall under load, of idle", len(loads.busy_ms), share, "x", "<= 1.3"),
        _row("recall from a copy that nobody writes, under load, of idle", len(loads.still_ms), still, "x"),
    ]
