"""Measure the cost and the benefit of a library as it grows with one game.

The episodic agent plays train worlds and learns into one library, which is copied at each size. With each copy, a
frozen agent plays the same test worlds with guardrails and without them; the differences in score and success are the
benefit. The cost is the median CPU time per step, frozen and learning. The copies take turns to measure it, so that
other load on the machine affects all sizes alike. In games that an exploring agent cannot win within an episode, only
the score is informative.

Every result is reported and stored as soon as it is measured. An interrupted measurement continues in its folder.
"""

import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError
from hardwon.runtime import Agent, EpisodicPolicy
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


class Progress:
    """The results so far, in a file of the folder."""

    def __init__(self, folder: Path, plan: dict[str, Any]) -> None:
        """Read the results of an earlier, interrupted measurement.

        Args:
            folder: Folder of the measurement.
            plan: What is measured.

        Raises:
            ConfigError: The folder holds another measurement.
        """
        self._path = folder / "growth.json"
        self._kept: dict[str, Any] = {"plan": plan, "benefits": {}, "turns": {}}
        if self._path.exists():
            self._kept |= json.loads(self._path.read_text(encoding="utf-8"))
            if self._kept["plan"] != plan:
                raise ConfigError(
                    f"{folder} holds the measurement {self._kept['plan']}, not {plan}. Use another --out."
                )

    def benefit(self, size: int, measured: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the benefit at a size; it is measured once."""
        if str(size) not in self._kept["benefits"]:
            self._kept["benefits"][str(size)] = measured()
            self._write()
        benefit: dict[str, Any] = self._kept["benefits"][str(size)]
        return benefit

    def turns(self, size: int) -> list[tuple[float, float]]:
        """Return the costs at a size so far: CPU milliseconds per step, frozen and learning."""
        turns: list[tuple[float, float]] = self._kept["turns"].get(str(size), [])
        return turns

    def add_turn(self, size: int, cost: tuple[float, float]) -> None:
        """Add a cost at a size."""
        self._kept["turns"].setdefault(str(size), []).append(cost)
        self._write()

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._kept), encoding="utf-8")
        new.replace(self._path)


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
        progress = Progress(folder, {"game": game, "sizes": sizes, "tested": TESTED})
        benefits = []
        for size in sizes:
            copy = _grow(folder, game, size, tell)
            benefits.append(progress.benefit(size, partial(_measure_benefit, copy, game)))
            tell(f"{game}, {size} episodes: {benefits[-1]}")
        for turn in range(ROUNDS):
            # Alternate the direction, so that a steady drift of the machine's speed cancels out.
            for size in sizes[:: 1 if turn % 2 else -1]:
                if len(progress.turns(size)) <= turn:
                    cost = _measure_cost(_path_of(folder, size), game, size + LEARNING * turn)
                    progress.add_turn(size, cost)
            tell(f"{game}, after turn {turn + 1} of {ROUNDS}: {[_cost_of(progress, size) for size in sizes]}")
        return [{**row, **_cost_of(progress, size)} for row, size in zip(benefits, sizes, strict=True)]


def _cost_of(progress: Progress, size: int) -> dict[str, float]:
    """Return the median costs at a size so far."""
    frozen, learning = zip(*progress.turns(size), strict=True)
    return {"frozen_ms_per_step": round(median(frozen), 2), "learning_ms_per_step": round(median(learning), 2)}


def _path_of(folder: Path, size: int) -> Path:
    """Return the path of the copy of a size."""
    return folder / f"{size}.db"


def _grow(folder: Path, game: str, size: int, tell: Callable[[str], None]) -> Path:
    """Learn up to a size in the library of the folder, and return a copy of it; both may exist already."""
    copy = _path_of(folder, size)
    if not copy.exists():
        tell(f"{game}: learning up to {size} episodes ...")
        with ExperienceLibrary.open(folder / "library.db") as library:
            _play(library, game, "train", range(library.episodes, size), learn=True)
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
    if not results:  # an interrupted measurement that had learned enough
        return EpisodeSummary(0.0, 0.0, 0.0)
    steps = sum(len(result.trajectory.steps) for result in results)
    score = sum(result.score for result in results) / len(results)
    success = sum(bool(result.success) for result in results) / len(results)
    return EpisodeSummary(1000 * cpu_s / max(1, steps), round(score, 3), round(success, 3))
