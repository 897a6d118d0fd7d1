"""Curricula: samplers that choose task instances by failures, value, level or success."""

import random
import re
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.samples import Rollout

from .base import SAMPLERS, Reference, Uniform, Weighted, list_outcomes
from .shuffled import Task

_WORD = re.compile(r"[a-z0-9]+")


def compare_texts(first: str, second: str) -> float:
    """Return the share of words that two texts have in common, from 0 to 1."""
    words, more = {*_WORD.findall(first.lower())}, {*_WORD.findall(second.lower())}
    return len(words & more) / len(words | more) if words | more else 0.0


def _describe_failure(group: Sequence[Rollout]) -> str:
    """Return the task of a failed episode and the words of its last refused step."""
    for rollout in group:
        steps = rollout.trajectory.steps
        if steps and not rollout.failed and (rollout.outcome or 0.0) <= 0:
            evidence = next((s.diagnosis.evidence for s in reversed(steps) if not s.diagnosis.success), "")
            return f"{steps[0].pre.task} {steps[-1].action} {evidence}"
    return ""


@SAMPLERS.add(
    "Role-Agent (curriculum)",
    "Role-Agent: prediction of observations and a failure curriculum",
    evidence="C N",
    name="failures",
    reading="weights fall on success (x decay, own); in the authors' code they never fall, and sampling concentrates",
)
class FailureSampler(Weighted):
    """Draws instances that failed, and those whose failures were similar, more often (Role-Agent).

    A failed instance gains `self_boost`. The `nearest` most similar earlier failures of other instances gain
    `boost` x similarity. A success multiplies the weight by `decay`, but not below 1.
    """

    def __init__(
        self,
        worlds: Sequence[Task],
        seed: int,
        most: int,
        reference: Reference,
        *,
        boost: float = 0.35,
        self_boost: float = 0.15,
        nearest: int = 3,
        kept: int = 512,
        decay: float = 0.9,
    ) -> None:
        self._weights: dict[Task, float] = {}
        self._boost, self._self_boost, self._nearest, self._decay = boost, self_boost, nearest, decay
        self._failures: deque[tuple[Task, str]] = deque(maxlen=kept)
        super().__init__(worlds, seed, most)

    def get_weights(self) -> Mapping[Task, float]:
        """Return 1 for every instance, changed by its failures and successes."""
        return {world: self._weights.get(world, 1.0) for world in self.worlds}

    def learn(self, groups: Mapping[Task, Sequence[Rollout]]) -> None:
        """Raise the weights of failures, and lower those of successes."""
        for world, group in sorted(groups.items()):
            outcomes = list_outcomes(group)
            if outcomes and max(outcomes) > 0:
                self._weights[world] = max(1.0, self._weights.get(world, 1.0) * self._decay)
            elif outcomes:
                self.fail(world, _describe_failure(group))

    def fail(self, world: Task, text: str) -> None:
        """Take in the failure of an instance, with its description."""
        self._weights[world] = self._weights.get(world, 1.0) + self._self_boost
        similar = [(compare_texts(text, earlier), at) for at, earlier in self._failures if at != world]
        best: dict[Task, float] = {}
        for similarity, at in similar:
            best[at] = max(similarity, best.get(at, 0.0))
        for at in sorted(best, key=lambda at: (-best[at], at))[: self._nearest]:
            self._weights[at] = self._weights.get(at, 1.0) + self._boost * best[at]
        self._failures.append((world, text))

    def state_dict(self) -> dict[str, Any]:
        """Return the draws, the weights and the failures."""
        weights = [[*world, weight] for world, weight in self._weights.items()]
        failures = [[*world, text] for world, text in self._failures]
        return {**super().state_dict(), "weights": weights, "failures": failures}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the draws, the weights and the failures."""
        super().load_state_dict(state)
        self._weights = {(str(fold), int(seed)): float(weight) for fold, seed, weight in state["weights"]}
        self._failures.clear()
        self._failures.extend(((str(fold), int(seed)), str(text)) for fold, seed, text in state["failures"])


@SAMPLERS.add(
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


@SAMPLERS.add(
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


@SAMPLERS.add(
    "Demystifying agentic reasoning (medium success)",
    "arXiv:2510.11701",
    evidence="C",
    name="informative",
    reading="the paper selects a set before training; here weights follow success while training (own)",
)
class InformativeSampler(Weighted):
    """Draws instances of medium success more often: the weight is 4 p (1 - p), and `floor` at least.

    arXiv:2510.11701.

    p is the moving mean of an instance's success rate. It starts at 0.5, so an instance that was not played yet has the
    largest weight. With a floor above 0, an instance of success 0 neither starves the others nor is it lost.
    """

    def __init__(
        self,
        worlds: Sequence[Task],
        seed: int,
        most: int,
        reference: Reference,
        *,
        floor: float = 0.1,
        rate: float = 0.5,
    ) -> None:
        if not 0 < floor <= 1 or not 0 < rate <= 1:
            raise ConfigError(f"floor is {floor} and rate {rate}; use values above 0 and up to 1.")
        self._success: dict[Task, float] = {}
        self._floor, self._rate = floor, rate
        super().__init__(worlds, seed, most)

    def get_weights(self) -> Mapping[Task, float]:
        """Return 4 p (1 - p) of every instance, and `floor` at least."""
        success = ((world, self._success.get(world, 0.5)) for world in self.worlds)
        return {world: max(self._floor, 4 * p * (1 - p)) for world, p in success}

    def learn(self, groups: Mapping[Task, Sequence[Rollout]]) -> None:
        """Take in the success rates of the groups."""
        for world, group in groups.items():
            if outcomes := list_outcomes(group):
                rate = fmean(outcome > 0 for outcome in outcomes)
                self._success[world] = (1 - self._rate) * self._success.get(world, 0.5) + self._rate * rate

    def state_dict(self) -> dict[str, Any]:
        """Return the draws and the success rates."""
        return {**super().state_dict(), "success": [[*world, p] for world, p in self._success.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the draws and the success rates."""
        super().load_state_dict(state)
        self._success = {(str(fold), int(seed)): float(p) for fold, seed, p in state["success"]}
