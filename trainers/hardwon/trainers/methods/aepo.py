"""AEPO (arXiv:2510.14545)."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from hardwon.trainers.algorithms.advantages import Advantages, Trace
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.composers.base import ComposerParts, EndedEpisode
from hardwon.trainers.algorithms.composers.spec import Spec
from hardwon.trainers.algorithms.samples import Rollout

from .arpo import arpo
from .blocks.branching import EntropyBranching, list_turns


@PARTS.add(
    "estimator",
    "AEPO (credit)",
    "arXiv:2510.14545",
    evidence="F",
    needs=("entropy",),
    tree=True,
    reading="entropies of turns in place of tokens; the factor is clamped at 0, below which the sign would flip",
    settings={"tasks.compose.aepo": {}, "roles.policy.loss.kind": "aepo"},
)
def aepo(traces: Sequence[Trace], *, weight: float = 0.2) -> Advantages:
    """Scale the advantages of `arpo` by 1 + weight z(H), with z over all turns of the batch (AEPO, arXiv:2510.14545).

    Uncertain turns learn more. Where all entropies are equal, or only one is measured, the factor is 1.
    """
    entropies = {trace.id: trace.read_signal("entropy") for trace in traces}
    measured = [value for values in entropies.values() for value in values if value is not None]
    mean, spread = (fmean(measured), stdev(measured)) if len(measured) > 1 else (0.0, 0.0)
    advantages = arpo(traces, std=True)
    for name, values in entropies.items():
        factors = [
            1.0 if value is None or not spread else max(0.0, 1 + weight * (value - mean) / spread) for value in values
        ]
        advantages[name] = [factor * value for factor, value in zip(factors, advantages[name], strict=True)]
    return advantages


@PARTS.add(
    "composer",
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
