"""Compute the figures of the overview: growth, success by arm, harm, latency.

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
from hardwon.apps.render.plot import NAMES
from hardwon.apps.shared.lists import sort_episodes
from hardwon.memory import ExperienceLibrary
from hardwon.memory.storage.clock import parse_time
from hardwon.memory.upkeep.figures import item_figures

Row = Mapping[str, Any]
WITHOUT_MEMORY = frozenset({"control", "random", "empty"})
"""Arms in which the agent does not use the library."""
_GROUPS = {
    **{name: words.replace("library", "memory") for name, words in NAMES.items()},
    "control": "without memory",
    "retrieved": "with memory",
    "withheld": "without advice, drawn at random",
    "random": "random actions",
    "empty": "with an empty memory",
}
SAMPLE = 40
"""Number of recalls that are timed for the overview."""


def name_group(arm: str) -> str:
    """Return the words for an arm: `without memory`, `memory, every step`; an unknown arm is named as it is."""
    return _GROUPS.get(arm, arm or "-")


def overview(library: ExperienceLibrary, *, by_time: bool | None = None) -> dict[str, Any]:
    """Return the figures of the first page."""
    recorded = library.episodes.find()[::-1]
    counted = [row for row in recorded if row["success"] is not None]
    items = library.admin.query(item_figures)
    if by_time is None:
        oldest, newest = (_parse_ms(recorded[at]["recorded_at"]) for at in (0, -1)) if recorded else (0, 0)
        by_time = newest - oldest >= 3_600_000  # an hour
    return {
        "by_time": by_time,
        "episodes": len(recorded),
        "excluded": len(recorded) - len(counted),
        "succeeded": sum(row["success"] for row in counted),
        "steps": sum(row["n_steps"] for row in recorded),
        "items": items.by_status.get("active", {}),
        "quarantined": sum(items.by_status.get("quarantined", {}).values()),
        "blocked": items.blocked,
        "growth": date_points(growth(recorded, items.in_use), recorded, by_time=by_time),
        "success": {
            name_group(arm): date_points(rolling(rows), counted, by_time=by_time)
            for arm, rows in _by_arm(counted).items()
        },
        "spending": spending(counted),
        "arms": arms(counted),
        "harm": harm(counted),
        "tested": experiment(library),
        "advice": library.admin.stats()["advice"]["says"],
        "newest": sort_episodes(recorded[::-1])[:5],
    }


def growth(recorded: Sequence[Row], in_use: Sequence[tuple[str, int]]) -> list[list[int]]:
    """Return [episodes, items] points: the number of items in use at the time of an episode.

    The last point has the items in use now: those learned from the last episode are admitted after it.
    """
    times = [_parse_ms(at) for at, _ in in_use]
    points = [
        [at, _find_count(in_use, bisect_right(times, _parse_ms(recorded[at - 1]["recorded_at"])))]
        for at in _spread(len(recorded))
    ]
    if points:
        points[-1][1] = _find_count(in_use, len(in_use))
    return points


def _find_count(in_use: Sequence[tuple[str, int]], changes: int) -> int:
    """Return the number of items in use after so many changes."""
    return in_use[changes - 1][1] if changes else 0


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


def date_points(points: list[Any], rows: Sequence[Row], *, by_time: bool) -> list[Any]:
    """Return points whose episode number is replaced by the time at which it was recorded, in milliseconds.

    Of several episodes of one second, only the last point is left: a line between them would be vertical, or nothing.
    """
    if not by_time:
        return points
    return [list(point) for point in {_parse_ms(rows[int(at) - 1]["recorded_at"]): y for at, y in points}.items()]


def _parse_ms(at: str) -> int:
    return (parse_time(at) or 0) // 10**6


SPENT = {"tokens": "tokens", "cost_usd": "US dollars", "n_steps": "steps"}
"""What an episode costs, with its unit."""


def spending(counted: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the mean cost of an episode with and without memory, and what memory saved in all episodes with it.

    Only tasks that were played both ways count, because easy tasks would otherwise look like savings. A kind of cost
    without records is left out.
    """
    both = {row["task"] for row in counted if row["arm"] in WITHOUT_MEMORY} & {
        row["task"] for row in counted if row["arm"] not in WITHOUT_MEMORY
    }
    rows = []
    for name, unit in SPENT.items():
        spent: dict[bool, list[float]] = {True: [], False: []}
        for row in counted:
            value = _read_cost(row, name)
            if row["task"] in both and value is not None:
                spent[row["arm"] not in WITHOUT_MEMORY].append(value)
        if spent[True] and spent[False]:
            with_memory, without = (sum(values) / len(values) for values in (spent[True], spent[False]))
            saved = (without - with_memory) * len(spent[True])
            rows.append({"unit": unit, "with": with_memory, "without": without, "saved": saved, "n": len(spent[True])})
    return rows


def _read_cost(row: Row, name: str) -> float | None:
    """Return what an episode cost; None if it was not recorded."""
    meta = row.get("meta") or {}
    if name == "tokens":
        parts = [meta.get(part) for part in ("prompt_tokens", "completion_tokens")]
        numbers = [float(part) for part in parts if isinstance(part, int | float)]
        return sum(numbers) if numbers else None
    value = row["n_steps"] if name == "n_steps" else meta.get(name)
    return float(value) if isinstance(value, int | float) and (value or name != "cost_usd") else None


def _spread(n: int) -> list[int]:
    """Return at most 200 integers from 1 to n, evenly spaced, with n as the last one."""
    return sorted({max(1, round(at)) for at in np.linspace(1, n, min(n, 200))}) if n else []


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
        step.pre for row in library.episodes.find(limit=SAMPLE) for step in library.episodes.get(row["id"]).steps[::3]
    )
    took = []
    for state in islice(states, SAMPLE):
        began = time.perf_counter()
        library.recall(state)
        took.append(time.perf_counter() - began)
    return percentiles(took[1:])  # the first recall also loads the caches


def percentiles(seconds: Sequence[float]) -> dict[str, Any]:
    """Return the count, the median and the 99th percentile, in milliseconds."""
    if not seconds:
        return {"n": 0, "p50_ms": None, "p99_ms": None}
    p50, p99 = np.percentile(np.asarray(seconds) * 1000, (50, 99))
    return {"n": len(seconds), "p50_ms": float(p50), "p99_ms": float(p99)}
