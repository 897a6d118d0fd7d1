"""VSPO (arXiv:2512.07478)."""

import random
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.samplers.base import Reference, Uniform, list_outcomes
from hardwon.trainers.algorithms.samplers.shuffled import Task
from hardwon.trainers.algorithms.samples import Rollout


@PARTS.add(
    "sampler",
    "VSPO",
    "arXiv:2512.07478",
    evidence="N",
    name="value",
    unseen="the rule that shrinks repeated advantages, (1 + times repeated)^-1/2, and whether sigma is std or variance "
    "(std)",
    example={"run.rerolls": 2},
)
class ValueSampler(Uniform):
    """Replaces groups without a signal by instances drawn by their value V = (R_max - mean) std (arXiv:2512.07478).

    V is that of an instance's last group. Advantages of an instance that comes back are multiplied by
    (1 + times repeated)^-1/2; without it, value sampling was worse than none. Where all V are 0, replacements are
    fresh instances.
    """

    def __init__(
        self, worlds: Sequence[Task], seed: int, most: int, reference: Reference, *, largest: float = 1.0
    ) -> None:
        super().__init__(worlds, seed)
        self._seed, self._largest = seed, largest
        self._values: dict[Task, float] = {}
        self._repeated: dict[Task, int] = {}
        self._replaced = 0

    def draw(self, number: int, without: Sequence[Task] = ()) -> list[Task]:
        """Return fresh instances, or for replacements those drawn by value."""
        if not without:
            return super().draw(number)
        excluded, drawn = {*without}, list[Task]()
        while len(drawn) < number:
            candidates = {world: v for world, v in self._values.items() if v > 0 and world not in excluded}
            if not candidates:
                break
            ordered = sorted(candidates)
            chance = random.Random(f"{self._seed}:value:{self._replaced}")
            world = chance.choices(ordered, [candidates[key] for key in ordered])[0]
            self._replaced += 1
            self._repeated[world] = self._repeated.get(world, 0) + 1
            drawn.append(world)
            excluded.add(world)
        return [*drawn, *super().draw(number - len(drawn), [*excluded])] if len(drawn) < number else drawn

    def observe(self, groups: Mapping[Task, Sequence[Rollout]]) -> Mapping[str, float]:
        """Take in the values of the groups of an iteration."""
        for world, group in groups.items():
            self._values[world] = measure_value(list_outcomes(group), self._largest)
        return {"sampler/value": fmean(self._values.values()) if self._values else 0.0}

    def weigh(self, world: Task) -> float:
        """Return (1 + times repeated)^-1/2."""
        return float((1 + self._repeated.get(world, 0)) ** -0.5)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the values and the repetitions."""
        return {
            **super().state_dict(),
            "values": [[*world, value] for world, value in self._values.items()],
            "repeated": [[*world, times] for world, times in self._repeated.items()],
            "replaced": self._replaced,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position, the values and the repetitions."""
        super().load_state_dict(state)
        self._values = {(str(fold), int(seed)): float(value) for fold, seed, value in state["values"]}
        self._repeated = {(str(fold), int(seed)): int(times) for fold, seed, times in state["repeated"]}
        self._replaced = int(state["replaced"])


def measure_value(outcomes: Sequence[float], largest: float = 1.0) -> float:
    """Return (largest - mean) x std of the outcomes of a group; 0 for fewer than two."""
    return max(0.0, largest - fmean(outcomes)) * stdev(outcomes) if len(outcomes) > 1 else 0.0
