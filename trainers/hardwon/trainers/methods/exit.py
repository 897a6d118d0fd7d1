"""ExIt (task spaces, arXiv:2509.04575)."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, variance
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.composers.base import Composer, ComposerParts, EndedEpisode
from hardwon.trainers.algorithms.composers.spec import Spec
from hardwon.trainers.algorithms.samples import Rollout

from .blocks.prefixes import Prefix, give_prefixes


@PARTS.add(
    "composer",
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
