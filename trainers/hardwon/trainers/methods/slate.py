"""SLATE (arXiv:2602.23440)."""

import random
from collections.abc import Sequence

from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.composers.base import (
    Composer,
    ComposerParts,
    EndedEpisode,
    branch_off,
    group_played,
    group_specs,
)
from hardwon.trainers.algorithms.composers.spec import Spec

from .blocks.branching import list_steps


@PARTS.add(
    "composer",
    "SLATE",
    "arXiv:2602.23440",
    evidence="A N",
    name="steps",
    method="slate",
    reading="a candidate earns the reward of its one step",
    unseen="which candidate goes on: one at random",
    settings={"roles.policy.credit.outcome": "reward"},
    example={
        "environment.game": "cookingworld",
        "environment.params": "numLocations=2, numIngredients=1, numDistractorItems=0, includeDoors=0",
        "environment.max_steps": 12,
        "model.tiny.context": 2048,
        "warmstart.examples.failures": True,
        "run.groups": 8,
    },
)
class Steps(Composer):
    """Plays candidates of the next step alone, from a shared prefix (SLATE, arXiv:2602.23440).

    One whole episode is played per group. At a random turn of it, all other episodes of the group take one step more
    and end. They are compared with each other by the reward of that step (`credit.outcome: reward`) or what a source
    gives, and the variance of the gradient falls because nothing else differs.
    """

    acted = "steps"

    def __init__(self, parts: ComposerParts) -> None:
        super().__init__(parts)
        self._plain: dict[tuple[str, str], list[Spec]] = {}

    def begin(self, specs: Sequence[Spec], iteration: int = 0) -> list[Spec]:
        """Return one episode per group."""
        self._plain = group_specs(specs)
        return [own[0] for own in self._plain.values()]

    def more(self, done: Sequence[EndedEpisode]) -> list[Spec]:
        """Return the candidates of one step of every group."""
        following: list[Spec] = []
        for key, played in group_played(done).items():
            parent, left = played[0], len(self._plain[key]) - 1
            steps = list_steps(parent.rollout)
            if len(played) > 1 or parent.rollout.failed or not steps:
                continue
            keep = random.Random(f"{self.parts.seed}/{parent.spec.session}/steps").choice(steps)
            own = [branch_off(parent, keep, 1 + n, label="step", max_steps=keep + 1) for n in range(left)]
            self.counts["steps"] += len(own)
            following += own
        return following
