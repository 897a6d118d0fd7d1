"""Measure a shared library on an empty PostgreSQL database, next to bare INSERTs of the same bytes.

    appends    appends per second of 1, 4 and 8 processes, each durable on return, and their share of bare INSERTs
    lag        time from the commit of a step by 1, 4 and 8 processes until a replica holds it, over all steps
    recall     median recall of a known situation while the replica is idle, and while it applies others' writes
    filling    steps per second with which a new replica is filled, and the bytes of log, replica and snapshot

Everything that is compared takes turns, so that ratios are meaningful on a busy machine.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import psycopg

from benchmarks.harness.tables import Row, build_row
from hardwon.memory.errors import ConfigError
from hardwon.memory.fleet.places import list_namespaces

from .replicas import Filled, Loads, measure_filling, measure_loads
from .writers import How, Turns, measure_turns

WRITERS = (1, 4, 8)
CYCLES = 40
"""Turns of each number of writers and each way to write."""
NAMES: dict[How, str] = {"log": "appends", "bare": "bare INSERTs"}


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


def _list_appends(measured: dict[tuple[How, int], Turns]) -> list[Row]:
    rows = []
    for writers in WRITERS:
        log, bare = measured["log", writers], measured["bare", writers]
        share = median(one / other for one, other in zip(log.rates, bare.rates, strict=True))
        rows.append(build_row("appends beside bare INSERTs", writers, share, "x", ">= 0.7"))
        for how, name in NAMES.items():
            turns = measured[how, writers]
            rows.append(build_row(name, writers, median(turns.rates), "per second"))
            for percent, label in ((50, "median time"), (99, "99th percentile")):
                rows.append(build_row(f"{name}, {label}", writers, _percentile(turns.times_ms, percent), "ms"))
    return rows


def _percentile(values: list[float], percent: float) -> float:
    return float(np.percentile(values, percent))


def _list_filling(filled: Filled, steps: int) -> list[Row]:
    return [
        build_row("bootstrap from the log", steps, steps / filled.log_s, "steps per second", ">= 1667"),
        build_row("bootstrap from a snapshot", steps, steps / filled.snapshot_s, "steps per second", ">= 10000"),
        build_row("CPU time to apply a step", steps, 1000 * filled.cpu_s / steps, "ms"),
        build_row("bytes of a step in the log", steps, filled.log_bytes / steps, "bytes"),
        build_row("bytes of a step in the replica", steps, filled.replica_bytes / steps, "bytes"),
        build_row("bytes of a step in the snapshot", steps, filled.snapshot_bytes / steps, "bytes"),
    ]


def _list_loads(loads: Loads) -> list[Row]:
    rows = [
        build_row(f"lag, {label}", writers, _percentile(lags_ms, percent), "ms")
        for writers, lags_ms in loads.lags_ms.items()
        for percent, label in ((50, "median"), (99, "99th percentile"))
    ]
    share, still = (
        median(ms / idle for ms, idle in zip(times_ms, loads.idle_ms, strict=True))
        for times_ms in (loads.busy_ms, loads.still_ms)
    )
    return [
        *rows,
        build_row("recall, idle", len(loads.idle_ms), median(loads.idle_ms), "ms"),
        build_row("recall under load, of idle", len(loads.busy_ms), share, "x", "<= 1.3"),
        build_row("recall from a copy that nobody writes, under load, of idle", len(loads.still_ms), still, "x"),
    ]
