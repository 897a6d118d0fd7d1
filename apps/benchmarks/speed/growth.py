"""`hardwon bench growth`: what a step costs, and what it brings, as one library of one game grows.

The episodic agent plays train worlds and learns, in one library, which is copied at each size. A frozen twin then
plays the same test worlds with each copy, with guardrails and without: its score and wins are what they bring. Last,
the copies take turns, so that a busy machine slows all of them alike: of each the median CPU time a step is given,
frozen and learning. Where an agent that has to try things out cannot win within the steps of an episode, the score
alone tells.
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
"""Test worlds played at each size."""
ROUNDS, FROZEN, LEARNING = 9, 4, 4
"""Turns of each size, and the episodes of a turn."""


class Played(NamedTuple):
    """What some episodes cost and brought."""

    ms_per_step: float
    score: float
    success: float


def measure(game: str, sizes: Sequence[int], tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for every size: guardrails, scores and wins, CPU milliseconds a step while learning and frozen."""
    with TemporaryDirectory(prefix="hardwon-bench-") as folder:
        copies = _grown(Path(folder), game, sorted(sizes), tell)
        rows = [_worth(path, game, tell) for path in copies.values()]
        turns: dict[int, list[tuple[float, float]]] = {size: [] for size in copies}
        for turn in range(ROUNDS):
            tell(f"{game}: turn {turn + 1} of {ROUNDS} ...")
            for size in list(copies)[:: 1 if turn % 2 else -1]:
                turns[size].append(_turn(copies[size], game, size + LEARNING * turn))
    for row, timed in zip(rows, turns.values(), strict=True):
        row["frozen_ms_per_step"] = round(median(frozen for frozen, _ in timed), 2)
        row["learning_ms_per_step"] = round(median(learning for _, learning in timed), 2)
    return rows


def _grown(folder: Path, game: str, sizes: Sequence[int], tell: Callable[[str], None]) -> dict[int, Path]:
    """Return copies of one library at these sizes."""
    copies, begun = {}, 0
    for size in sizes:
        tell(f"{game}: learning up to {size} episodes ...")
        with ExperienceLibrary.open(folder / "library.db") as library:
            _played(library, game, "train", range(begun, size), learn=True)
        copies[size] = folder / f"{size}.db"
        _copy(folder / "library.db", copies[size])
        begun = size
    return copies


def _copy(path: Path, to: Path) -> None:
    """Copy a library that nobody writes, with what its log still holds."""
    source, target = sqlite3.connect(path), sqlite3.connect(to)
    source.backup(target)
    source.close()
    target.close()


def _worth(path: Path, game: str, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return what a library holds, and what a frozen agent reaches with and without its guardrails."""
    tell(f"{game}: testing {path.stem} episodes ...")
    with ExperienceLibrary.open(path) as library:
        used = _played(library, game, "test", range(TESTED), learn=False)
        unused = _played(library, game, "test", range(TESTED), learn=False, guardrails=False)
        return {
            "game": game,
            "episodes": library.episodes,
            "guardrails": len(library.items(["guardrail"])),
            "retired": len(library.items(["guardrail"], status="retired")),
            "score": used.score,
            "success": used.success,
            "score_without": unused.score,
            "success_without": unused.success,
        }


def _turn(path: Path, game: str, seed: int) -> tuple[float, float]:
    """Return CPU milliseconds a step frozen and learning, on a copy that is thrown away."""
    copy = path.with_suffix(".turn")
    shutil.copy(path, copy)
    try:
        with ExperienceLibrary.open(copy) as library:
            library.index()
            _played(library, game, "test", range(1), learn=False)  # what is read once is read
            frozen = _played(library, game, "test", range(1, 1 + FROZEN), learn=False)
            _played(library, game, "train", range(seed, seed + 1), learn=True)
            library.evolve()  # after opening it looks at all keys once
            learning = _played(library, game, "train", range(seed + 1, seed + 1 + LEARNING), learn=True)
    finally:
        for left in path.parent.glob(f"{copy.name}*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    return frozen.ms_per_step, learning.ms_per_step


def _played(
    library: ExperienceLibrary, game: str, fold: str, seeds: range, *, learn: bool, guardrails: bool = True
) -> Played:
    """Play episodes; where a fold has fewer worlds than there are episodes, its worlds come again."""
    agent = Agent(EpisodicPolicy(), library, TextWorldExpress(game), learn=learn, guardrails=guardrails)
    began = time.process_time()
    results = [agent.run(fold, seed % SEEDS) for seed in seeds]
    spent = time.process_time() - began
    agent.close()
    steps = sum(len(one.trajectory.steps) for one in results)
    score = sum(one.score for one in results) / len(results)
    won = sum(bool(one.success) for one in results) / len(results)
    return Played(1000 * spent / max(1, steps), round(score, 3), round(won, 3))
