"""The sampler of DECS: solved instances are drawn less often, by how needless their turns still are."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.samplers.base import Reference, Weighted
from hardwon.trainers.algorithms.samplers.shuffled import Task
from hardwon.trainers.algorithms.samples import Rollout

MOST, LEAST = 0.99, 0.01
"""Bounds of the weight of a solved instance: below that of others, and never 0, so that none is lost."""


def move_share(kappa: float, change: float, step: float) -> float:
    """Return kappa + step x change of the needed share, within the values that give a weight in [0, 1)."""
    return min(0.5, max(0.0, kappa + step * change))


def compute_weight(kappa: float) -> float:
    """Return kappa / (1 - kappa), the weight of a solved instance, within its bounds."""
    return min(MOST, max(LEAST, kappa / (1 - kappa)))


@PARTS.add(
    "sampler",
    "DECS (curriculum)",
    "arXiv:2509.25827",
    evidence="C",
    needs=("redundant",),
    name="share",
    method="decs-share",
    reading="the share of solved instances that is kept is their weight in the draws; its start 0.3 and its floor 0.01 "
    "are own",
    settings={"roles.policy.credit.name": "decs"},
)
class ShareSampler(Weighted):
    """Draws instances that every episode solved with the weight kappa / (1 - kappa), and others with 1.

    This is the curriculum of DECS (arXiv:2509.25827).

    kappa moves by `step` x the change of the needed share: the mean share of turns of successes that are not needless.
    Needless turns of failures do nothing.
    """

    def __init__(
        self,
        worlds: Sequence[Task],
        seed: int,
        most: int,
        reference: Reference,
        *,
        step: float = 0.2,
        start: float = 0.3,
    ) -> None:
        self._solved: set[Task] = set()
        self._kappa, self._step = start, step
        self._needed: float | None = None
        super().__init__(worlds, seed, most)

    def get_weights(self) -> Mapping[Task, float]:
        """Return the weight of every instance."""
        return {world: compute_weight(self._kappa) if world in self._solved else 1.0 for world in self.worlds}

    def learn(self, groups: Mapping[Task, Sequence[Rollout]]) -> None:
        """Take in which instances are solved, and how the needed share has changed."""
        for world, group in groups.items():
            outcomes = [rollout.outcome for rollout in group if rollout.outcome is not None]
            if outcomes:
                (self._solved.add if min(outcomes) > 0 else self._solved.discard)(world)
        needed = measure_needed([rollout for group in groups.values() for rollout in group])
        if needed is not None:
            if self._needed is not None:
                self._kappa = move_share(self._kappa, needed - self._needed, self._step)
            self._needed = needed

    def observe(self, groups: Mapping[Task, Sequence[Rollout]]) -> Mapping[str, float]:
        """Take in the groups of an iteration, fix the next draws, and return the share of solved instances."""
        metrics = super().observe(groups)
        needed = {} if self._needed is None else {"sampler/needed_share": self._needed}
        return {**metrics, **needed, "sampler/solved": float(len(self._solved)), "sampler/kappa": self._kappa}

    def state_dict(self) -> dict[str, Any]:
        """Return the draws, the solved instances and kappa."""
        solved = [list(world) for world in sorted(self._solved)]
        return {**super().state_dict(), "solved": solved, "kappa": self._kappa, "needed": self._needed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the draws, the solved instances and kappa."""
        super().load_state_dict(state)
        self._solved = {(str(fold), int(seed)) for fold, seed in state["solved"]}
        self._kappa, self._needed = float(state["kappa"]), state["needed"]


def measure_needed(rollouts: Sequence[Rollout]) -> float | None:
    """Return the mean share of turns of the successes that are not needless; None if nothing is known."""
    shares = []
    for rollout in rollouts:
        values = [value for value in rollout.signals.turns.get("redundant", ()) if value is not None]
        if values and (rollout.outcome or 0.0) > 0:
            shares.append(1 - fmean(values))
    return fmean(shares) if shares else None
