"""Measure the cost and the benefit of a library as it grows with one game.

The episodic agent plays train worlds and learns into one library, which is copied at each size. With each copy, a
frozen agent plays the same test worlds with guardrails and without them; the differences in score and success are the
benefit. The cost is the median CPU time per step, frozen and learning. The copies take turns to measure it, so that
other load on the machine affects all sizes alike. In games that an exploring agent cannot win within an episode, only
the score is informative.

Every result is reported and stored as soon as it is measured. An interrupted measurement continues in its folder.
"""

import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.harness.results import Results
from benchmarks.harness.timing import time_cpu_s
from hardwon.memory import ExperienceLibrary
from hardwon.runtime import Agent, EpisodicPolicy
from hardwon.runtime.agent import Result
from hardwon.runtime.environments.textworld import SEEDS, TextWorldExpress

TESTED = 20
"""Test worlds per size."""
ROUNDS, FROZEN, LEARNING = 5, 4, 4
"""Turns per size, and frozen and learning episodes per turn."""


class EpisodeSummary(NamedTuple):
    """Cost and results of a series of episodes."""

    ms_per_step: float
    score: float
    success: float


def measure(
    game: str, sizes: Sequence[int], tell: Callable[[str], None], out: Path | None = None
) -> list[dict[str, Any]]:
    """Measure a library of every size.

    Args:
        game: TextWorldExpress game to play.
        sizes: numbers of episodes to measure after.
        tell: function that receives lines of progress, with every result.
        out: Folder of the libraries and results, in which an interrupted measurement continues; None for a temporary
            one.

    Returns:
        One row per size: guardrails, scores, success rates, and CPU milliseconds per step, frozen and learning.

    Raises:
        ConfigError: The folder holds another measurement.
    """
    sizes = sorted(sizes)
    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(TemporaryDirectory(prefix="hardwon-bench-")))
        folder.mkdir(parents=True, exist_ok=True)
        results = Results(folder / "growth.jsonl", {"game": game, "sizes": sizes, "tested": TESTED})
        benefits = []
        for size in sizes:
            copy = _grow(folder, game, size, tell)
            if not results.find(what="benefit", size=size):
                results.add({"what": "benefit", "size": size, "figures": _measure_benefit(copy, game)})
            benefits.append(results.find(what="benefit", size=size)[0]["figures"])
            tell(f"{game}, {size} episodes: {benefits[-1]}")
        for turn in range(ROUNDS):
            # Alternate the direction, so that a steady drift of the machine's speed cancels out.
            for size in sizes[:: 1 if turn % 2 else -1]:
                if not results.find(what="cost", size=size, turn=turn):
                    cost = _measure_cost(_path_of(folder, size), game, size + LEARNING * turn)
                    results.add({"what": "cost", "size": size, "turn": turn, **cost})
            tell(f"{game}, after turn {turn + 1} of {ROUNDS}: {[_cost_of(results, size) for size in sizes]}")
        return [{**row, **_cost_of(results, size)} for row, size in zip(benefits, sizes, strict=True)]


def _cost_of(results: Results, size: int) -> dict[str, float]:
    """Return the median costs at a size so far."""
    turns = results.find(what="cost", size=size)
    return {
        name: round(median(turn[name] for turn in turns), 2) for name in ("frozen_ms_per_step", "learning_ms_per_step")
    }


def _path_of(folder: Path, size: int) -> Path:
    """Return the path of the copy of a size."""
    return folder / f"{size}.db"


def _grow(folder: Path, game: str, size: int, tell: Callable[[str], None]) -> Path:
    """Learn up to a size in the library of the folder, and return a copy of it; both may exist already."""
    copy = _path_of(folder, size)
    if not copy.exists():
        tell(f"{game}: learning up to {size} episodes ...")
        with ExperienceLibrary.open(folder / "library.db") as library:
            _play(library, game, "train", range(library.episodes.count(), size), learn=True)
        unfinished = copy.with_suffix(".new")
        unfinished.unlink(missing_ok=True)
        _copy(folder / "library.db", unfinished)
        unfinished.rename(copy)
    return copy


def _copy(path: Path, to: Path) -> None:
    """Copy a database that no one is writing to, including the pages in its write-ahead log."""
    source, target = sqlite3.connect(path), sqlite3.connect(to)
    source.backup(target)
    source.close()
    target.close()


def _measure_benefit(path: Path, game: str) -> dict[str, Any]:
    """Return the size of a library, and a frozen agent's results with and without its guardrails."""
    with ExperienceLibrary.open(path) as library:
        guarded = _play(library, game, "test", range(TESTED), learn=False)
        unguarded = _play(library, game, "test", range(TESTED), learn=False, guardrails=False)
        return {
            "game": game,
            "episodes": library.episodes.count(),
            "guardrails": len(library.items.find(["guardrail"])),
            "retired": len(library.items.find(["guardrail"], status="retired")),
            "score": guarded.score,
            "success": guarded.success,
            "score_without": unguarded.score,
            "success_without": unguarded.success,
        }


def _measure_cost(path: Path, game: str, seed: int) -> dict[str, float]:
    """Return CPU milliseconds per step, frozen and learning, on a temporary copy of a library."""
    copy = path.with_suffix(".turn")
    shutil.copy(path, copy)
    try:
        with ExperienceLibrary.open(copy) as library:
            library.admin.index()
            # Untimed: the first episode and the first evolution after opening fill caches.
            _play(library, game, "test", range(1), learn=False)
            frozen = _play(library, game, "test", range(1, 1 + FROZEN), learn=False)
            _play(library, game, "train", range(seed, seed + 1), learn=True)
            library.evolve()
            learning = _play(library, game, "train", range(seed + 1, seed + 1 + LEARNING), learn=True)
    finally:
        # SQLite and the index leave files with the copy's name as a prefix.
        for leftover in path.parent.glob(f"{copy.name}*"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    return {"frozen_ms_per_step": frozen.ms_per_step, "learning_ms_per_step": learning.ms_per_step}


def _play(
    library: ExperienceLibrary, game: str, fold: str, seeds: range, *, learn: bool, guardrails: bool = True
) -> EpisodeSummary:
    """Play episodes and summarize them; seeds beyond the number of worlds repeat earlier worlds."""
    agent = Agent(EpisodicPolicy(), library, TextWorldExpress(game), learn=learn, guardrails=guardrails)
    results: list[Result] = []
    cpu_s = time_cpu_s(lambda: results.extend(agent.run(fold, seed % SEEDS) for seed in seeds))
    agent.close()
    if not results:  # an interrupted measurement that had learned enough
        return EpisodeSummary(0.0, 0.0, 0.0)
    steps = sum(len(result.trajectory.steps) for result in results)
    score = sum(result.score for result in results) / len(results)
    success = sum(bool(result.success) for result in results) / len(results)
    return EpisodeSummary(1000 * cpu_s / max(1, steps), round(score, 3), round(success, 3))
