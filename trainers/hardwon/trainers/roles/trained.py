"""Base of the roles beside the policy: samples that wait for an update, and a stage 1.

A role that is built on this one says what it collects, when that is enough, and what stage 1 teaches it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.imitation import WarmStart
from hardwon.trainers.algorithms.samples import Rollout, Sample, pack_samples
from hardwon.trainers.gating.deciding import Decider

from .base import LearningRole, Parts, row_of
from .supervised_stage import SupervisedStage

CreditedSamples = tuple[Sequence[Sample], Mapping[str, Sequence[float]]]
"""Samples, and their advantages by trace."""


class TrainedRole(LearningRole):
    """A role that learns from samples of its own."""

    def __init__(self, parts: Parts, name: str, learning: WarmStart | None, decider: Decider | None = None) -> None:
        """Create a role that answers with one of two words or, without a decider, with a text."""
        super().__init__(parts, name)
        self.supervised = SupervisedStage(parts, name, decider, learning)
        self._waiting: list[CreditedSamples] = []
        """Samples since the last update."""

    async def report_accuracy(self) -> str:
        """Return in words what stage 1 has taught it."""
        return await self.supervised.describe()

    def wants(self, rollouts: Sequence[Rollout]) -> bool:
        """Return False: no group is worth more than another."""
        return False

    def collect(self, rollouts: Sequence[Rollout]) -> None:
        """Take nothing from the rollouts."""

    def update(self) -> dict[str, float]:
        """Run one optimizer step on what waits, and drop it: later samples come from new weights."""
        waiting, self._waiting = self._waiting, []
        sequences = [sequence for rows, advantages in waiting for sequence in pack_samples(rows, advantages)]
        metrics = self._learner.step(sequences, self._parts.config.loss)
        return {**metrics, "lr": self._learner.lr, "samples": float(count_samples(waiting))}

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizer state, and what waits for an update."""
        waiting = [([asdict(row) for row in rows], dict(credit)) for rows, credit in self._waiting]
        return {**super().state_dict(), "samples": waiting}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        if "samples" not in state:
            raise ConfigError(
                f"the checkpoint has roles.{self.name} of an earlier version of hardwon; go on with that version, or "
                "begin another run with warmstart.run."
            )
        super().load_state_dict(state)
        self._waiting = [([row_of(row) for row in rows], dict(credit)) for rows, credit in state["samples"]]


def count_samples(waiting: Sequence[CreditedSamples]) -> int:
    """Return the number of samples."""
    return sum(len(rows) for rows, _ in waiting)
