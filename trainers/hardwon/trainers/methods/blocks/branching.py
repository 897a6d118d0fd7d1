"""Composers that branch off their own episodes: a branch keeps the first turns of its parent and decides anew.

The branch points are chosen when the parent has ended. That has the distribution of branching online as long as the
decision at a turn reads only the turns up to it, which holds for ARPO, AEPO and the rounds of a tree; APPO reads the
whole trace, as its paper does.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hardwon.trainers.algorithms.composers.base import (
    Composer,
    ComposerParts,
    EndedEpisode,
    branch_off,
    group_played,
    group_specs,
)
from hardwon.trainers.algorithms.composers.spec import Spec
from hardwon.trainers.algorithms.samples import Rollout


class UncertainTurn(NamedTuple):
    """A turn of the policy in a played episode, with the entropy of its choices."""

    step: int
    entropy: float


def list_steps(rollout: Rollout) -> list[int]:
    """Return the numbers of the steps at which the policy of an episode chose, in order."""
    return list(dict.fromkeys(row.turn for row in rollout.rows if row.role == "policy"))


def list_turns(rollout: Rollout) -> list[UncertainTurn]:
    """Return the turns of an episode whose entropy is known, in order."""
    steps = list_steps(rollout)
    values = rollout.signals.turns.get("entropy", ())
    return [UncertainTurn(step, value) for step, value in zip(steps, values, strict=False) if value is not None]


class Branching(Composer):
    """Begins with part of a group's episodes; the others branch off these while the budget lasts."""

    acted = "branches"

    def __init__(self, parts: ComposerParts, *, begun: float = 0.5, beam: int = 2) -> None:
        super().__init__(parts)
        self._begun, self._beam = begun, beam
        self._sizes: Counter[tuple[str, str]] = Counter()
        self._plain: dict[tuple[str, str], list[Spec]] = {}
        self._branched: set[str] = set()

    def begin(self, specs: Sequence[Spec], iteration: int = 0) -> list[Spec]:
        """Return the first part of every group; the rest is kept for branches."""
        self._branched.clear()
        self._plain = group_specs(specs)
        self._sizes = Counter({key: len(own) for key, own in self._plain.items()})
        chosen = {key: max(1, round(self._begun * len(own))) for key, own in self._plain.items()}
        return [spec for key, own in self._plain.items() for spec in own[: chosen[key]]]

    def more(self, done: Sequence[EndedEpisode]) -> list[Spec]:
        """Return the branches of the episodes of the last round, or fresh episodes for what is left."""
        following: list[Spec] = []
        for key, played in group_played(done).items():
            left = self._sizes[key] - len(played)
            new = [episode for episode in played if episode.spec.session not in self._branched]
            self._branched |= {episode.spec.session for episode in new}
            own: list[Spec] = []
            for parent in new:
                if parent.rollout.failed or len(own) >= left:
                    continue
                for keep in self.choose_points(parent)[: self._beam]:
                    if len(own) < left:
                        own.append(branch_off(parent, keep, len(played) + len(own)))
            self.counts["branches"] += len(own)
            self.counts["branch_turns"] += sum(len(spec.prefix) for spec in own)
            if not own:
                # slots that no branch took are filled by fresh episodes
                base = self._plain[key][0]
                own = [replace(base, copy=len(played) + n) for n in range(left)]
                self.counts["fresh"] += len(own)
            following += own
        return following

    def choose_points(self, parent: EndedEpisode) -> list[int]:
        """Return the numbers of steps that branches of an episode keep."""
        raise NotImplementedError

    def draw(self, parent: EndedEpisode, step: int) -> float:
        """Return the chance of a branch at a step, a number in [0, 1) that depends on the steps up to it alone."""
        actions = "/".join(episode.action for episode in parent.rollout.trajectory.steps[:step])
        return random.Random(f"{self.parts.seed}/{parent.spec.session}/{step}/{actions}").random()


class EntropyBranching(Branching):
    """Branches where the policy became less certain after an observation (ARPO, arXiv:2507.19849).

    A turn t > 0 is redrawn with probability clip(probability + weight dH_t) to [0, 1], where dH_t is the entropy of
    turn t minus that of the first turn. Half of a group is begun; each episode gives at most `beam` branches. With
    weight 0 it is a coin. What follows a branch point in the parent does not change it.
    """

    def __init__(
        self,
        parts: ComposerParts,
        *,
        begun: float = 0.5,
        beam: int = 2,
        probability: float = 0.5,
        weight: float = 0.2,
    ) -> None:
        """Create the composer.

        Args:
            parts: Its objects.
            begun: Share of a group that begins at the start; the others are branches.
            beam: Most branches of one episode.
            probability: Probability of a branch where the entropy is that of the first turn.
            weight: Change of the probability with the entropy.
        """
        super().__init__(parts, begun=begun, beam=beam)
        self._probability, self._weight = probability, weight

    def measure(self, change: float) -> float:
        """Return the probability of a branch where the entropy has changed so much."""
        return min(1.0, max(0.0, self._probability + self._weight * change))

    def choose_points(self, parent: EndedEpisode) -> list[int]:
        """Return the steps whose turns are redrawn."""
        turns = list_turns(parent.rollout)
        if not turns:
            return []
        first = turns[0].entropy
        return [step for step, value in turns[1:] if self.draw(parent, step) < self.measure(value - first)]
