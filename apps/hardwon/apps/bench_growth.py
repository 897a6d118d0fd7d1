"""`hardwon bench growth`: what a step costs, and what it brings, as one library of one game grows.

The episodic agent plays train worlds and learns, in one library. At each size a frozen twin plays test
worlds: its CPU time a step is what recall, values and guardrails cost; its score and wins are what they bring.
Where an agent that has to try things out cannot win within the steps of an episode, the score alone tells.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hardwon.memory import ExperienceLibrary
from hardwon.runtime import Agent, EpisodicPolicy
from hardwon.runtime.environments.textworld import SEEDS, TextWorldExpress

TESTED = 20
"""Test worlds played at each size."""


def measure(game: str, sizes: Sequence[int], tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for every size: guardrails, CPU milliseconds a step while learning and frozen, and wins."""
    rows = []
    with TemporaryDirectory(prefix="hardwon-bench-") as folder:  # noqa: SIM117
        with ExperienceLibrary.open(Path(folder) / "library.db") as library:
            begun = 0
            for size in sorted(sizes):
                tell(f"{game}: learning up to {size} episodes ...")
                learning, _, _ = _played(library, game, "train", range(begun, size), learn=True)
                begun = size
                frozen, score, won = _played(library, game, "test", range(TESTED), learn=False)
                rows.append(
                    {
                        "game": game,
                        "episodes": library.episodes,
                        "guardrails": len(library.items(["guardrail"])),
                        "learning_ms_per_step": learning,
                        "frozen_ms_per_step": frozen,
                        "score": score,
                        "success": won,
                    }
                )
    return rows


def _played(
    library: ExperienceLibrary, game: str, fold: str, seeds: range, *, learn: bool
) -> tuple[float, float, float]:
    """Return CPU milliseconds a step over the last episodes, the mean score of all, and the share that were won.

    Where a fold has fewer worlds than there are episodes, its worlds come again.
    """
    agent = Agent(EpisodicPolicy(), library, TextWorldExpress(game), learn=learn)
    results, steps = [], 0
    began = time.process_time()
    for seed in seeds:
        if seed == seeds[-1] + 1 - min(len(seeds), 50):
            began, steps = time.process_time(), 0
        results.append(agent.run(fold, seed % SEEDS))
        steps += len(results[-1].trajectory.steps)
    spent = time.process_time() - began
    agent.close()
    score = sum(one.score for one in results) / len(results)
    won = sum(bool(one.success) for one in results) / len(results)
    return round(1000 * spent / max(1, steps), 2), round(score, 3), round(won, 3)
