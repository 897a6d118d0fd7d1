"""Composers that begin episodes in the middle of a demonstration."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, variance
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.memory.records import Step
from hardwon.trainers.algorithms.samples import Rollout

from .base import COMPOSERS, Composer, ComposerParts, EndedEpisode, group_specs
from .spec import Spec

DECAY = 0.5
"""Weight of the newest group in the running success rate of a length of prefixes."""


def parse_shares(shares: str) -> tuple[float, ...]:
    """Return shares that are written as `0.25, 0.5, 0.75`.

    Raises:
        ConfigError: They are not numbers above 0 and below 1 in rising order.
    """
    try:
        values = tuple(float(part) for part in shares.split(","))
    except ValueError:
        values = ()
    if not values or list(values) != sorted({*values}) or not all(0 < value < 1 for value in values):
        raise ConfigError(f"shares is {shares!r}; write numbers above 0 and below 1 in rising order, as 0.25, 0.5.")
    return values


Prefix = tuple[Step, ...]
"""The steps that an episode begins with; empty for a plain beginning."""


def give_prefixes(specs: Sequence[Spec], choose: Callable[[str, str, Spec], Prefix], label: str) -> list[Spec]:
    """Return the episodes, all those of a group with the same prefix.

    Args:
        specs: The episodes.
        choose: Returns the prefix of a group, given its task instance, its arm and its first episode.
        label: Label of the episodes that have a prefix.
    """
    begun: list[Spec] = []
    for (group, arm), own in group_specs(specs).items():
        prefix = choose(group, arm, own[0])
        begun += [replace(spec, prefix=prefix, label=label) for spec in own] if prefix else own
    return begun


@COMPOSERS.add(
    "PrefixRL",
    "arXiv:2601.18795",
    evidence="N P",
    name="prefixed",
    demonstrations=True,
    reading="the share of the demonstration is that of the grid whose newest success rate is nearest to a half",
    settings={"tasks.demonstrations": ["gold"]},
    example={
        "environment.game": "cookingworld",
        "environment.params": "numLocations=3, numIngredients=2, numDistractorItems=0, includeDoors=0",
        "environment.max_steps": 24,
        "tasks.compose.prefixed.shares": "0.5, 0.75, 0.9",
        "model.tiny.context": 3072,
        "warmstart.examples.failures": True,
        "run.groups": 3,
    },
)
class Prefixed(Composer):
    """Begins some groups with the first part of a demonstration, and learns from what the policy does after it.

    arXiv:2601.18795 (PrefixRL).
    In a share `groups` of the groups, all episodes begin with the first ceil(f n) of the n steps of the demonstration.
    f is the share of `shares` whose success rate, a moving mean over all task instances, is nearest to 1/2; shares that
    were not tried come first. With `falling`, f goes from the largest share to 0 over that many iterations instead.
    Prefixed episodes are compared only with those of the same prefix, and nothing of the prefix is trained.
    """

    acted = "prefixed_groups"

    def __init__(
        self,
        parts: ComposerParts,
        *,
        shares: str = "0.25, 0.5, 0.75",
        groups: float = 0.5,
        falling: int = 0,
    ) -> None:
        """Create the composer.

        Args:
            parts: Its objects.
            shares: Shares of a demonstration that a prefix can have, in rising order.
            groups: Share of the groups that begin with a prefix; 1 for all.
            falling: Iterations over which the share falls to 0; 0 lets it follow the success.
        """
        super().__init__(parts)
        if not 0 < groups <= 1:
            raise ConfigError(f"groups is {groups}; use a share above 0, at most 1.")
        self._shares, self._groups, self._falling = parse_shares(shares), groups, falling
        self._rates: dict[float, float] = {}
        self._given: dict[str, float] = {}

    def choose_share(self, iteration: int) -> float:
        """Return the share of a demonstration that prefixes have now; 0 for none."""
        if self._falling:
            left = max(0.0, 1 - iteration / self._falling)
            return max((share for share in self._shares if share <= self._shares[-1] * left + 1e-9), default=0.0)
        # the longest untried share comes first: it is the easiest to succeed from
        untried = [share for share in self._shares if share not in self._rates]
        if untried:
            return untried[-1]
        return min(self._shares, key=lambda share: (abs(self._rates[share] - 0.5), share))

    def begin(self, specs: Sequence[Spec], iteration: int = 0) -> list[Spec]:
        """Return the episodes; those of some groups begin with a prefix."""
        share = self.choose_share(iteration)

        def choose_prefix(group: str, arm: str, first: Spec) -> Prefix:
            chance = random.Random(f"{self.parts.seed}/{first.salt}/{group}")
            chosen = share > 0 and chance.random() < self._groups
            path = self.parts.demonstrate(first.task, first.seed) if chosen else None
            keep = 0 if path is None else min(math.ceil(share * len(path.steps)), len(path.steps) - 1)
            if path is None or keep < 1:
                self.counts["without_prefix"] += 1
                return ()
            self._given[f"{group}/{arm}"] = share
            self.counts["prefixed_groups"] += 1
            self.counts["prefix_steps"] += keep
            return path.steps[:keep]

        return give_prefixes(specs, choose_prefix, "prefix")

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Move the success rate of the share that was given."""
        outcomes: dict[float, list[float]] = {}
        for rollout in rollouts:
            share = self._given.get(f"{rollout.group}/{rollout.trajectory.arm}")
            if rollout.start and share is not None and rollout.outcome is not None:
                outcomes.setdefault(share, []).append(float(rollout.outcome > 0))
        for share, values in outcomes.items():
            newest = sum(values) / len(values)
            before = self._rates.get(share, newest)
            self._rates[share] = (1 - DECAY) * before + DECAY * newest
        self._given.clear()

    def drain_metrics(self) -> dict[str, float]:
        """Return the counts, and the success rate of every share."""
        rates = {f"compose/success_at_{share:g}": rate for share, rate in sorted(self._rates.items())}
        return {**super().drain_metrics(), **rates}

    def state_dict(self) -> dict[str, Any]:
        """Return the success rates."""
        return {"rates": [[share, rate] for share, rate in sorted(self._rates.items())]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the success rates."""
        self._rates = {float(share): float(rate) for share, rate in state["rates"]}


@COMPOSERS.add(
    "ExIt (task spaces)",
    "arXiv:2509.04575",
    evidence="A F",
    name="starts",
    method="exit",
    reading="a start is drawn among those of the drawn task instance (own)",
    unseen="the authors' own sizes and probabilities: those of a port",
    example={
        "environment.params": "numLocations=5, includeDoors=0, numDistractorItems=0",
        "environment.max_steps": 6,
        "tasks.train.seeds": "300-305",
        "tasks.compose.starts.first": 8,
        "tasks.compose.starts.probability": 1.0,
    },
)
class Starts(Composer):
    """Begins groups with partial histories of earlier episodes from which most can be learned (ExIt, arXiv:2509.04575).

    The priority of a start is the variance of the outcomes of the group that was begun there. Once there are `first`
    starts, a group begins with one of its task instance with probability `probability`, drawn by
    softmax(priority / kappa). Its episodes are credited by the improvement max(0, (new - old) / (1 - old)) over the
    score at the start. New starts are cut from the episodes of an iteration; the lowest priority is dropped first.
    """

    acted = "started_groups"

    def __init__(
        self,
        parts: ComposerParts,
        *,
        size: int = 512,
        first: int = 128,
        probability: float = 0.5,
        kappa: float = 1.0,
    ) -> None:
        """Create the composer.

        Args:
            parts: Its objects.
            size: Most starts that are kept.
            first: Starts before which every episode is plain.
            probability: Probability that a group begins with a start.
            kappa: Temperature of the draw.
        """
        super().__init__(parts)
        if not 1 <= first <= size or not 0 < probability <= 1 or kappa <= 0:
            raise ConfigError(
                f"size is {size}, first {first}, probability {probability} and kappa {kappa}; use 1 <= first <= size, "
                "a probability above 0 and at most 1, and a kappa above 0."
            )
        self._size, self._first, self._probability, self._kappa = size, first, probability, kappa
        self._priorities: dict[tuple[str, tuple[str, ...]], float] = {}
        """Priority by task instance and actions."""
        self._scores: dict[tuple[str, tuple[str, ...]], float] = {}

    def list_probabilities(self, priorities: Sequence[float]) -> list[float]:
        """Return the probability of each start."""
        shares = [math.exp(priority / self._kappa) for priority in priorities]
        return [share / sum(shares) for share in shares]

    def begin(self, specs: Sequence[Spec], iteration: int = 0) -> list[Spec]:
        """Return the episodes; those of some groups begin in the middle of an earlier one."""
        return give_prefixes(specs, self._choose_start, "start")

    def _choose_start(self, group: str, arm: str, first: Spec) -> Prefix:
        """Return the steps to a start of a group's task instance, or none for a plain beginning."""
        chance = random.Random(f"{self.parts.seed}/{first.salt}/{group}/{arm}/starts")
        starts = sorted(key for key in self._priorities if key[0] == group)
        is_ready = len(self._priorities) >= self._first and bool(starts)
        if not is_ready or chance.random() >= self._probability:
            return ()
        probabilities = self.list_probabilities([self._priorities[key] for key in starts])
        (key,) = chance.choices(starts, probabilities)
        walked = self.parts.walk(first.task, first.seed, key[1])
        if walked is None or len(walked.steps) != len(key[1]) or walked.success or walked.score >= 1:
            # the environment does not lead back there, or nothing is left to improve
            del self._priorities[key]
            return ()
        self._scores[key] = walked.score
        self.counts["started_groups"] += 1
        return walked.steps

    def finish(self, done: Sequence[EndedEpisode]) -> list[Rollout]:
        """Return the rollouts, those with a start credited by their improvement."""
        return [self._credit(episode.spec, episode.rollout) for episode in done]

    def _credit(self, spec: Spec, rollout: Rollout) -> Rollout:
        if spec.label != "start" or rollout.outcome is None:
            return rollout
        old = self._scores.get((spec.group, tuple(step.action for step in spec.prefix)), 0.0)
        return replace(rollout, bonus=measure_improvement(old, rollout.outcome) - rollout.outcome)

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Set the priorities of the starts that were played, and cut new ones from the episodes."""
        groups: dict[tuple[str, tuple[str, ...]], list[Rollout]] = {}
        for rollout in rollouts:
            if rollout.outcome is not None and rollout.label in ("", "start"):
                actions = tuple(step.action for step in rollout.trajectory.steps)
                groups.setdefault((rollout.group, actions[: rollout.start]), []).append(rollout)
        for key, group in groups.items():
            outcomes = [rollout.outcome or 0.0 for rollout in group]
            priority = variance(outcomes) if len(outcomes) > 1 else 0.0
            if key[1]:
                self._priorities[key] = priority
            if fmean(outcomes) < 1:
                for rollout in group:
                    self._add_start(rollout, priority)
        worst_first = sorted(self._priorities, key=lambda key: (self._priorities[key], key))
        for key in worst_first[: max(0, len(self._priorities) - self._size)]:
            del self._priorities[key]

    def _add_start(self, rollout: Rollout, priority: float) -> None:
        """Add the first steps of an episode, up to a random one of its own, with the priority of its group."""
        actions = tuple(step.action for step in rollout.trajectory.steps)
        last = len(actions) - 1
        if last > rollout.start and all(actions):
            keep = random.Random(f"{self.parts.seed}/{rollout.trajectory.id}/cut").randint(rollout.start + 1, last)
            self._priorities.setdefault((rollout.group, actions[:keep]), priority)

    def state_dict(self) -> dict[str, Any]:
        """Return the starts with their priorities."""
        return {"starts": [[group, list(actions), p] for (group, actions), p in sorted(self._priorities.items())]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the starts."""
        self._priorities = {(str(group), tuple(actions)): float(p) for group, actions, p in state["starts"]}


def measure_improvement(old: float, new: float) -> float:
    """Return max(0, (new - old) / (1 - old)), the share of what was left that an episode improved.

    Raises:
        ValueError: Nothing was left to improve.
    """
    if old >= 1:
        raise ValueError(f"the old score is {old}, so nothing is left to improve.")
    return max(0.0, (new - old) / (1 - old))
