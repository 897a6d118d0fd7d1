"""Samplers of task instances: which instances an iteration plays, by what earlier ones showed.

    sampler = open_sampler("failures", {"boost": 0.35}, worlds, seed=0, most=16)
    worlds = sampler.draw(8)
    ...
    sampler.observe({world: rollouts, ...})      # at the end of an iteration

A resumed run must draw the same. So a sampler fixes the next draws when an iteration ends, and its state contains them.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from hardwon.memory import Trajectory
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.samples import Rollout

from .shuffled import Drawn, Task


class TaskSampler(Protocol):
    """Draws the task instances of a run."""

    def draw(self, number: int, without: Sequence[Task] = ()) -> list[Task]:
        """Return up to `number` distinct task instances that are not in `without`, which are those to be replaced."""
        ...

    def observe(self, groups: Mapping[Task, Sequence[Rollout]]) -> Mapping[str, float]:
        """Take in the groups of an iteration, fix the next draws, and return metrics."""
        ...

    def weigh(self, world: Task) -> float:
        """Return the factor of the advantages of an instance."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything that an exact resume needs."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        ...


class Uniform:
    """Draws each task instance once per epoch, in random order: the default."""

    def __init__(self, worlds: Sequence[Task], seed: int) -> None:
        self._drawn = Drawn(worlds, seed)

    def draw(self, number: int, without: Sequence[Task] = ()) -> list[Task]:
        """Return up to `number` distinct task instances that are not in `without`."""
        return self._drawn.draw(number, without)

    def observe(self, groups: Mapping[Task, Sequence[Rollout]]) -> Mapping[str, float]:
        """Learn nothing."""
        return {}

    def weigh(self, world: Task) -> float:
        """Return 1."""
        return 1.0

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the order."""
        return {"count": self._drawn.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position in the order."""
        self._drawn.count = int(state["count"])


class Weighted:
    """Draws by weights: a queue of fixed draws, filled up from the weights when an iteration ends."""

    def __init__(self, worlds: Sequence[Task], seed: int, most: int) -> None:
        """Create a sampler.

        Args:
            worlds: The task instances.
            seed: Seed of the draws.
            most: Largest number of instances that two iterations need, replacements included.
        """
        self.worlds = sorted(worlds)
        self._seed, self._most = seed, most
        self._count = 0
        self._queue: list[Task] = []
        self._fill()

    def get_weights(self) -> Mapping[Task, float]:
        """Return the weight of every instance; missing ones have weight 0."""
        return dict.fromkeys(self.worlds, 1.0)

    def learn(self, groups: Mapping[Task, Sequence[Rollout]]) -> None:
        """Change the weights by the groups of an iteration."""

    def draw(self, number: int, without: Sequence[Task] = ()) -> list[Task]:
        """Return up to `number` distinct task instances that are not in `without`."""
        excluded, drawn = {*without}, list[Task]()
        possible = sum(weight > 0 for world, weight in self.get_weights().items() if world not in excluded)
        while len(drawn) < min(number, possible + sum(w not in excluded for w in self._queue)):
            if not self._queue:
                candidates = {w: p for w, p in self.get_weights().items() if w not in excluded and p > 0}
                if not candidates:
                    break
                self._queue.append(self._choose(candidates))
            world = self._queue.pop(0)
            if world not in excluded:
                drawn.append(world)
                excluded.add(world)
        return drawn

    def observe(self, groups: Mapping[Task, Sequence[Rollout]]) -> Mapping[str, float]:
        """Take in the groups of an iteration, and fix the next draws."""
        self.learn(groups)
        self._fill()
        weights = [weight for weight in self.get_weights().values() if weight > 0]
        return {"sampler/weight_max": max(weights) / (sum(weights) or 1.0) * len(self.worlds)}

    def weigh(self, world: Task) -> float:
        """Return 1."""
        return 1.0

    def _fill(self) -> None:
        """Fix draws until there are enough for two iterations; no instance twice within one pass."""
        while len(self._queue) < self._most:
            recent = self._queue[-max(1, min(self._most, len(self.worlds)) // 2) :]
            weights = {world: weight for world, weight in self.get_weights().items() if weight > 0}
            fresh = {world: weight for world, weight in weights.items() if world not in recent}
            self._queue.append(self._choose(fresh or weights))

    def _choose(self, weights: Mapping[Task, float]) -> Task:
        chance = random.Random(f"{self._seed}:{self._count}")
        self._count += 1
        ordered = sorted(weights)
        return chance.choices(ordered, [weights[world] for world in ordered])[0]

    def state_dict(self) -> dict[str, Any]:
        """Return the fixed draws and their count."""
        return {"queue": [list(world) for world in self._queue], "count": self._count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the fixed draws and their count."""
        self._queue = [(str(fold), int(seed)) for fold, seed in state["queue"]]
        self._count = int(state["count"])


Reference = Callable[[str, int], Trajectory | None]
"""Returns an explored success of a task instance, by split and seed, or None."""


def open_sampler(
    settings: Mapping[str, Mapping[str, Any]],
    worlds: Sequence[Task],
    *,
    seed: int,
    most: int,
    reference: Reference = lambda task, seed: None,
) -> TaskSampler:
    """Return the sampler of the settings; `Uniform` if they name none.

    Args:
        settings: At most one name, with its settings.
        worlds: The task instances.
        seed: Seed of the draws.
        most: Largest number of instances that two iterations need, replacements included.
        reference: Returns an explored success of a task instance.

    Raises:
        UnknownName: There is no such sampler.
    """
    for name, own in settings.items():
        sampler: TaskSampler = PARTS.get("sampler", name)(worlds, seed, most, reference, **own)
        return sampler
    return Uniform(worlds, seed)


def list_outcomes(group: Sequence[Rollout]) -> list[float]:
    """Return the outcomes of the episodes of a group that count."""
    return [outcome for rollout in group if (outcome := rollout.outcome) is not None]
