"""Composers that branch off their own episodes: a branch keeps the first turns of its parent and decides anew.

The branch points are chosen when the parent has ended. That has the distribution of branching online as long as the
decision at a turn reads only the turns up to it, which holds for ARPO, AEPO and the rounds of a tree; APPO reads the
whole trace, as its paper does.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pstdev
from typing import NamedTuple

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.samples import Rollout

from .base import COMPOSERS, Composer, ComposerParts, EndedEpisode, branch_off, group_played, group_specs
from .spec import Spec


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
        if not 0 < begun <= 1 or beam < 1:
            raise ConfigError(f"begun is {begun} and beam {beam}; use a share above 0, at most 1, and 1 or more.")
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


@COMPOSERS.add(
    "ARPO (branching)",
    "arXiv:2507.19849",
    evidence="C",
    name="arpo",
    method="arpo",
    needs=("entropy",),
    tree=True,
    reading="entropy per free token of the next turn, by the log of its choices; a branch redraws that turn",
)
class Arpo(EntropyBranching):
    """Branches where the policy became less certain, with half of the group begun (ARPO, arXiv:2507.19849)."""


@COMPOSERS.add(
    "AEPO (rollout)",
    "arXiv:2510.14545",
    evidence="N",
    name="aepo",
    needs=("entropy",),
    tree=True,
    reading="the entropies that divide the budget are those of the last iteration",
    unseen="the shape of the penalty of consecutive branches: n / (n + 1)",
)
class Aepo(EntropyBranching):
    """Divides the budget by entropies, and penalizes consecutive branches (AEPO, arXiv:2510.14545).

    m = k sigmoid(sensitivity (H_root - mean H_tool)) of k episodes are begun, where H_root is the entropy of first
    turns and H_tool that of later ones. The probability of a branch, see `arpo`, is multiplied by 1 - n / (n + 1) after
    n consecutive branch points on the path.
    """

    def __init__(
        self,
        parts: ComposerParts,
        *,
        beam: int = 2,
        probability: float = 0.5,
        weight: float = 0.2,
        sensitivity: float = 1.0,
    ) -> None:
        """Create the composer.

        Args:
            parts: Its objects.
            beam: Most branches of one episode.
            probability: Probability of a branch where the entropy is that of the first turn.
            weight: Change of the probability with the entropy.
            sensitivity: How strongly the gap of the entropies divides the budget.
        """
        super().__init__(parts, beam=beam, probability=probability, weight=weight)
        self._sensitivity = sensitivity
        self._gap = 0.0

    def share_begun(self, gap: float) -> float:
        """Return the share of the episodes that is begun at a gap between root and later entropies."""
        return 1 / (1 + math.exp(-self._sensitivity * gap))

    def begin(self, specs: Sequence[Spec], iteration: int = 0) -> list[Spec]:
        """Return the episodes that are begun."""
        self._begun = self.share_begun(self._gap)
        return super().begin(specs, iteration)

    def choose_points(self, parent: EndedEpisode) -> list[int]:
        """Return the steps whose turns are redrawn; a run of branch points makes the next one less likely."""
        turns = list_turns(parent.rollout)
        points: list[int] = []
        run = 0
        for step, value in turns[1:]:
            chance = self.measure(value - turns[0].entropy) * (1 - run / (run + 1))
            run = run + 1 if self.draw(parent, step) < chance else 0
            points += [step] if run else []
        return points

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Measure the gap between the entropies of first and of later turns."""
        turns = [list_turns(rollout) for rollout in rollouts if not rollout.start]
        first = [own[0].entropy for own in turns if own]
        later = [turn.entropy for own in turns for turn in own[1:]]
        if first:
            self._gap = fmean(first) - (fmean(later) if later else 0.0)

    def state_dict(self) -> dict[str, float]:
        """Return the gap."""
        return {"gap": self._gap}

    def load_state_dict(self, state: object) -> None:
        """Restore the gap."""
        self._gap = float(state["gap"])  # type: ignore[index]


@COMPOSERS.add(
    "APPO (branching)",
    "arXiv:2606.12384",
    evidence="C",
    name="appo",
    needs=("entropy",),
    tree=True,
    reading="with one update per batch the likelihood gain is 1, so the score is the entropy alone; at turns",
)
class Appo(Branching):
    """Branches at the turns with the highest score of an episode (APPO, arXiv:2606.12384).

    The score is z(H) z(O). O, the likelihood gain of what follows, is 1 where the policy that branches is the one that
    played, as here, so the turns with z(H) > 0 are ranked by entropy. The whole trace is read: branch points are chosen
    with hindsight. The first turn counts too.
    """

    def choose_points(self, parent: EndedEpisode) -> list[int]:
        """Return the steps with the highest entropies above the mean."""
        turns = list_turns(parent.rollout)
        values = [turn.entropy for turn in turns]
        if len(turns) < 2 or pstdev(values) == 0:
            return []
        above = [turn for turn in turns if turn.entropy > fmean(values)]
        return [turn.step for turn in sorted(above, key=lambda turn: (-turn.entropy, turn.step))]


@COMPOSERS.add(
    "TreePS-RAG (tree)",
    "arXiv:2601.06922",
    evidence="N A",
    name="tree",
    tree=True,
    reading="siblings with equal actions are one child, in place of pruning by similarity; branch points are uniform",
)
class TreeComposer(Branching):
    """Grows a tree: in every round, each leaf gets one sibling at a random turn (TreePS-RAG, arXiv:2601.06922)."""

    def __init__(self, parts: ComposerParts, *, begun: float = 0.34, depth: int = 2) -> None:
        """Create the composer.

        Args:
            parts: Its objects.
            begun: Share of a group that begins at the start.
            depth: Most branches between a leaf and its root.
        """
        super().__init__(parts, begun=begun, beam=1)
        if depth < 1:
            raise ConfigError(f"depth is {depth}; use 1 or more.")
        self._depth = depth
        self._depths: dict[str, int] = {}

    def begin(self, specs: Sequence[Spec], iteration: int = 0) -> list[Spec]:
        """Return the roots."""
        self._depths.clear()
        return super().begin(specs, iteration)

    def choose_points(self, parent: EndedEpisode) -> list[int]:
        """Return one random turn of the episode after its own start, as long as the tree is not too deep."""
        depth = self._depths.get(parent.spec.parent, 0) + bool(parent.spec.parent)
        self._depths[parent.spec.session] = depth
        steps = list_steps(parent.rollout)
        if depth >= self._depth or not steps:
            return []
        chance = random.Random(f"{self.parts.seed}/{parent.spec.session}/tree")
        return [chance.choice(steps)]


@COMPOSERS.add(
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
