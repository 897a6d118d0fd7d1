"""Compute the figures of the overview and the map: growth, success by arm, harm, latency, map points.

All figures are computed from the library on every request; nothing is cached.
"""

import json
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hardwon.apps.experiment import interval
from hardwon.memory import ExperienceLibrary

from . import places

WITHOUT_MEMORY = frozenset({"control", "random", "empty"})
"""Arms in which the agent does not use the library."""
POINTS = 200
"""Largest number of points of a curve."""
SAMPLE = 40
"""Number of recalls that are timed for the overview."""
SITUATIONS = 300
"""Largest number of situations on the map; the most frequent are shown."""

Row = Mapping[str, Any]


def overview(library: ExperienceLibrary) -> dict[str, Any]:
    """Return the figures of the first page."""
    recorded = library.trajectories()[::-1]
    counted = [row for row in recorded if row["success"] is not None]
    items = library.item_figures()
    return {
        "episodes": len(recorded),
        "excluded": len(recorded) - len(counted),
        "succeeded": sum(row["success"] for row in counted),
        "steps": sum(row["n_steps"] for row in recorded),
        "items": items.by_status.get("active", {}),
        "quarantined": sum(items.by_status.get("quarantined", {}).values()),
        "blocked": items.blocked,
        "growth": growth(recorded, items.created_at),
        "success": {arm: rolling(rows) for arm, rows in _by_arm(counted).items()},
        "arms": arms(counted),
        "harm": harm(counted),
        "tested": experiment(library),
        "shown": {mode: {"episodes": n, "success": mean} for mode, (n, mean) in items.shown.items()},
        "newest": recorded[::-1][:5],
    }


def growth(recorded: Sequence[Row], born: Sequence[str]) -> list[list[int]]:
    """Return [episodes, items] points: the number of items created by the time of an episode."""
    points = _spread(len(recorded))
    return [[at, bisect_right(born, recorded[at - 1]["recorded_at"])] for at in points]


def rolling(rows: Sequence[tuple[int, bool]]) -> list[list[float]]:
    """Return [episode number, share] points: the share of successes in a moving window.

    The window is the larger of 10 episodes and 5 % of all episodes.
    """
    window = max(10, len(rows) // 20)
    # Prefix sums, so that every window is one subtraction.
    won = np.cumsum([0, *(success for _, success in rows)])
    return [
        [rows[at - 1][0], round(float(won[at] - won[max(0, at - window)]) / min(at, window), 4)]
        for at in _spread(len(rows))
        if at >= min(10, len(rows))
    ]


def _spread(n: int) -> list[int]:
    """Return at most POINTS integers from 1 to n, evenly spaced, with n as the last one."""
    return sorted({max(1, round(at)) for at in np.linspace(1, n, min(n, POINTS))}) if n else []


def _by_arm(counted: Sequence[Row]) -> dict[str, list[tuple[int, bool]]]:
    outcomes: dict[str, list[tuple[int, bool]]] = {}
    for number, row in enumerate(counted, 1):
        outcomes.setdefault(row["arm"], []).append((number, bool(row["success"])))
    return outcomes


def arms(counted: Sequence[Row]) -> list[dict[str, Any]]:
    """Return for every arm the episodes, the successes, their share with a 95% Wilson interval, and its memory."""
    rows = []
    for arm, outcomes in sorted(_by_arm(counted).items()):
        won, n = sum(success for _, success in outcomes), len(outcomes)
        low, high = interval([won / n], n)
        rows.append({"arm": arm, "memory": arm not in WITHOUT_MEMORY, "episodes": n, "succeeded": won})
        rows[-1] |= {"share": won / n, "low": low, "high": high}
    return rows


def harm(counted: Sequence[Row]) -> dict[str, Any]:
    """Return how often memory changed the outcome of a task instance (task and seed) played with and without memory.

    A task instance counts as solved without memory if more than half of those episodes succeeded. Harm is the share of
    episodes with memory that failed where going without had succeeded.
    """
    without: dict[Any, list[bool]] = {}
    for row in counted:
        if row["arm"] in WITHOUT_MEMORY:
            without.setdefault((row["task"], row["seed"]), []).append(bool(row["success"]))
    pairs = [
        (sum(without[world]) * 2 > len(without[world]), bool(row["success"]))
        for row in counted
        if row["arm"] not in WITHOUT_MEMORY and (world := (row["task"], row["seed"])) in without
    ]
    harmed, helped = sum(b and not m for b, m in pairs), sum(m and not b for b, m in pairs)
    share = harmed / len(pairs) if pairs else None
    return {"pairs": len(pairs), "harmed": harmed, "helped": helped, "share": share}


def experiment(library: ExperienceLibrary) -> list[dict[str, Any]]:
    """Return the test results of the `hardwon run` that created the library, by arm; empty if there are none."""
    try:
        result = json.loads(Path(library.path).with_name("result.json").read_text(encoding="utf-8"))
        # Only the names, because the folder may have been moved since the experiment.
        if Path(result["library"]).name != Path(library.path).name:
            return []
        return [{"arm": arm, **figures} for arm, figures in result["arms"].items()]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []


def latency(library: ExperienceLibrary) -> dict[str, Any]:
    """Measure recall now, in situations of the newest episodes; see `percentiles`."""
    states = (
        step.pre for row in library.trajectories(limit=SAMPLE) for step in library.trajectory(row["id"]).steps[::3]
    )
    took = []
    for state in islice(states, SAMPLE):
        began = time.perf_counter()
        library.recall(state)
        took.append(time.perf_counter() - began)
    return percentiles(took[1:])  # the first recall also loads the caches


def percentiles(seconds: Sequence[float]) -> dict[str, Any]:
    """Return the count, the median and the 99th percentile, in milliseconds.

    Args:
        seconds: Durations in seconds.
    """
    if not seconds:
        return {"n": 0, "p50_ms": None, "p99_ms": None}
    p50, p99 = np.percentile(np.asarray(seconds) * 1000, (50, 99))
    return {"n": len(seconds), "p50_ms": float(p50), "p99_ms": float(p99)}


def situations(
    library: ExperienceLibrary, limit: int = SITUATIONS
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the most frequent situations, and the points of their map; see `places`."""
    rows = library.clusters(limit)
    return rows, places.points(library, rows)
