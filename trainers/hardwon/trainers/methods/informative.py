"""Demystifying agentic reasoning (medium success, arXiv:2510.11701)."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.samplers.base import Reference, Weighted, list_outcomes
from hardwon.trainers.algorithms.samplers.shuffled import Task
from hardwon.trainers.algorithms.samples import Rollout


@PARTS.add(
    "sampler",
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
