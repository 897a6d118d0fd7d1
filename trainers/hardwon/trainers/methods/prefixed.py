"""PrefixRL (arXiv:2601.18795)."""

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.composers.base import Composer, ComposerParts
from hardwon.trainers.algorithms.composers.spec import Spec
from hardwon.trainers.algorithms.samples import Rollout

from .blocks.prefixes import Prefix, give_prefixes, parse_shares


@PARTS.add(
    "composer",
    "PrefixRL",
    "arXiv:2601.18795",
    evidence="N P",
    name="prefixed",
    demonstrations=True,
    partial=True,
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
            self._rates[share] = 0.5 * before + 0.5 * newest
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
