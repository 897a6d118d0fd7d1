"""CRAFT-GUI (arXiv:2508.11360)."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.samplers.base import Reference, Weighted, list_outcomes
from hardwon.trainers.algorithms.samplers.shuffled import Task
from hardwon.trainers.algorithms.samples import Rollout


@PARTS.add(
    "sampler",
    "CRAFT-GUI",
    "arXiv:2508.11360",
    evidence="A",
    name="staged",
    reading="levels by the length of an explored success",
    unseen="the stages and the rule of advancement: success 0.7 over 2 iterations, and 0.2 as the share of old levels",
    example={"tasks.sampler.staged.bounds": "2, 4"},
)
class StagedSampler(Weighted):
    """Draws instances level by level, from short explored successes to long ones (arXiv:2508.11360).

    The next level opens at a success rate of `advance` over `over` iterations, or after `patience` iterations. Earlier
    levels keep the weight `old`. Instances without an explored success belong to the last level.
    """

    def __init__(
        self,
        worlds: Sequence[Task],
        seed: int,
        most: int,
        reference: Reference,
        *,
        bounds: str = "4, 8",
        advance: float = 0.7,
        over: int = 2,
        patience: int = 20,
        old: float = 0.2,
    ) -> None:
        limits = [int(part) for part in bounds.split(",") if part.strip()]
        if not limits or limits != sorted(limits) or not 0 <= old <= 1:
            raise ConfigError(f"bounds is {bounds!r} and old {old}; use rising lengths such as 4, 8 and 0 <= old <= 1.")
        self._levels = {world: find_level(_measure_path(reference, world), limits) for world in worlds}
        self._present = sorted({*self._levels.values()})
        self.level, self._advance, self._over, self._patience, self._old = 0, advance, over, patience, old
        self._rates: list[float] = []
        super().__init__(worlds, seed, most)

    def get_weights(self) -> Mapping[Task, float]:
        """Return 1 for the current level, `old` for earlier ones, and 0 for later ones."""
        current = self._present[self.level]
        return {
            world: 1.0 if level == current else self._old if level < current else 0.0
            for world, level in self._levels.items()
        }

    def learn(self, groups: Mapping[Task, Sequence[Rollout]]) -> None:
        """Open the next level if the current one is solved often enough, or after its patience."""
        current = self._present[self.level]
        outcomes = [
            o for world, group in groups.items() if self._levels[world] == current for o in list_outcomes(group)
        ]
        if outcomes:
            self._rates.append(fmean(outcome > 0 for outcome in outcomes))
        is_solved = len(self._rates) >= self._over and fmean(self._rates[-self._over :]) >= self._advance
        if (is_solved or len(self._rates) >= self._patience) and self.level + 1 < len(self._present):
            self.level, self._rates = self.level + 1, []
            # draws of the next two iterations that belong to the level before would delay the next one
            self._queue = []

    def observe(self, groups: Mapping[Task, Sequence[Rollout]]) -> Mapping[str, float]:
        """Take in the groups of an iteration, fix the next draws, and return the level."""
        return {**super().observe(groups), "sampler/level": float(self.level)}

    def state_dict(self) -> dict[str, Any]:
        """Return the draws, the level and its success rates."""
        return {**super().state_dict(), "level": self.level, "rates": self._rates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the draws, the level and its success rates."""
        super().load_state_dict(state)
        self.level, self._rates = int(state["level"]), [float(rate) for rate in state["rates"]]


def find_level(length: int | None, bounds: Sequence[int]) -> int:
    """Return the level of a length: the number of bounds below it. Without a length, it is the last level."""
    return len(bounds) if length is None else sum(length > bound for bound in bounds)


def _measure_path(reference: Reference, world: Task) -> int | None:
    """Return the length of an explored success of an instance, or None."""
    best = reference(*world)
    return None if best is None else len(best.steps)
