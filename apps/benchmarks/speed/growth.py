"""Measure the cost and the benefit of a library as it grows with one game.

The episodic agent plays train worlds and learns into one library, which is copied at each size. With each copy, a
frozen agent plays the same test worlds with guardrails and without them; the differences in score and success are the
benefit. The cost is the median CPU time per step, frozen and learning. The copies take turns to measure it, so that
other load on the machine affects all sizes alike. In games that an exploring agent cannot win within an episode, only
the score is informative.
"""

import shutil
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from hardwon.memory import ExperienceLibrary
from hardwon.runtime import Agent, EpisodicPolicy
from hardwon.runtime.environments.textworld import SEEDS, TextWorldExpress

TESTED = 20
"""Test worlds per size."""
ROUNDS, FROZEN, LEARNING = 9, 4, 4
"""Turns per size, and frozen and learning episodes per turn."""


class EpisodeSummary(NamedTuple):
    """Cost and results of a series of episodes."""

    ms_per_step: float
    score: float
    success: float


def measure(game: str, sizes: Sequence[int], tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure a library of every size.

    Args:
        game: TextWorldExpress game to play.
        sizes: numbers of episodes to measure after.
        tell: function that receives lines of progress.

    Returns:
        One row per size: guardrails, scores, success rates, and CPU milliseconds per step, frozen and learning.
    """
    with TemporaryDirectory(prefix="hardwon-bench-") as folder:
        copies = _grow_libraries(Path(folder), game, sorted(sizes), tell)
        rows = [_measure_benefit(path, game, tell) for path in copies.values()]
        turns: dict[int, list[tuple[float, float]]] = {size: [] for size in copies}
        for turn in range(ROUNDS):
            tell(f"{game}: turn {turn + 1} of {ROUNDS} ...")
            # Alternate the direction, so that a steady drift of the machine's speed cancels out.
            for size in list(copies)[:: 1 if turn % 2 else -1]:
                turns[size].append(_measure_cost(copies[size], game, size + LEARNING * turn))
    for row, timed in zip(rows, turns.values(), strict=True):
        row["frozen_ms_per_step"] = round(median(frozen for frozen, _ in timed), 2)
        row["learning_ms_per_step"] = round(median(learning for _, learning in timed), 2)
    return rows


def _grow_libraries(folder: Path, game: str, sizes: Sequence[int], tell: Callable[[str], None]) -> dict[int, Path]:
    """Learn in one library, and return a copy of it at each size."""
    copies, start = {}, 0
    for size in sizes:
        tell(f"{game}: learning up to {size} episodes ...")
        with ExperienceLibrary.open(folder / "library.db") as library:
            _play(library, game, "train", range(start, size), learn=True)
        copies[size] = folder / f"{size}.db"
        _copy(folder / "library.db", copies[size])
        start = size
    return copies


def _copy(path: Path, to: Path) -> None:
    """Copy a database that no one is writing to, including the pages in its write-ahead log."""
    source, target = sqlite3.connect(path), sqlite3.connect(to)
    source.backup(target)
    source.close()
    target.close()


def _measure_benefit(path: Path, game: str, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return the size of a library, and a frozen agent's results with and without its guardrails."""
    tell(f"{game}: testing {path.stem} episodes ...")
    with ExperienceLibrary.open(path) as library:
        guarded = _play(library, game, "test", range(TESTED), learn=False)
        unguarded = _play(library, game, "test", range(TESTED), learn=False, guardrails=False)
        return {
            "game": game,
            "episodes": library.episodes,
            "guardrails": len(library.items(["guardrail"])),
            "retired": len(library.items(["guardrail"], status="retired")),
            "score": guarded.score,
            "success": guarded.success,
            "score_without": unguarded.score,
            "success_without": unguarded.success,
        }


def _measure_cost(path: Path, game: str, seed: int) -> tuple[float, float]:
    """Return CPU milliseconds per step, frozen and learning, on a temporary copy of a library."""
    copy = path.with_suffix(".turn")
    shutil.copy(path, copy)
    try:
        with ExperienceLibrary.open(copy) as library:
            library.index()
            # Untimed: the first episode and the first evolution after opening fill caches and scan all keys.
            _play(library, game, "test", range(1), learn=False)
            frozen = _play(library, game, "test", range(1, 1 + FROZEN), learn=False)
            _play(library, game, "train", range(seed, seed + 1), learn=True)
            library.evolve()
            learning = _play(library, game, "train", range(seed + 1, seed + 1 + LEARNING), learn=True)
    finally:
        # SQLite and the index leave files with the copy's name as a prefix.
        for leftover in path.parent.glob(f"{copy.name}*"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    return frozen.ms_per_step, learning.ms_per_step


def _play(
    library: ExperienceLibrary, game: str, fold: str, seeds: range, *, learn: bool, guardrails: bool = True
) -> EpisodeSummary:
    """Play episodes and summarize them; seeds beyond the number of worlds repeat earlier worlds."""
    agent = Agent(EpisodicPolicy(), library, TextWorldExpress(game), learn=learn, guardrails=guardrails)
    start = time.process_time()
    results = [agent.run(fold, seed % SEEDS) for seed in seeds]
    cpu_s = time.process_time() - start
    agent.close()
    steps = sum(len(result.trajectory.steps) for result in results)
    score = sum(result.score for result in results) / len(results)
    success = sum(bool(result.success) for result in results) / len(results)
    return EpisodeSummary(1000 * cpu_s / max(1, steps), round(score, 3), round(success, 3))
