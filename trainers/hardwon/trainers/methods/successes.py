"""A composer that replays stored successes where a whole group failed."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean, pstdev
from typing import Any

from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.composers.base import (
    Composer,
    ComposerParts,
    EndedEpisode,
    group_played,
    has_succeeded,
)
from hardwon.trainers.algorithms.samples import Rollout, Sample

COPY = "copy of "
"""Beginning of the id of a copy."""


@PARTS.add(
    "composer",
    "ARPO (replay of successes)",
    "arXiv:2505.16282",
    evidence="C",
    name="successes",
    reading="the copy keeps the log-probabilities of its own sampling, where the authors compute them anew",
    example={
        "environment.params": "numLocations=5, includeDoors=0, numDistractorItems=0",
        "environment.max_steps": 4,
        "tasks.train.seeds": "300-307",
        "arms.control": 2,
        "run.groups": 8,
    },
)
class Successes(Composer):
    """Puts a stored success in the place of one episode where a whole group failed (ARPO for GUI, arXiv:2505.16282).

    Each task instance and arm keeps its last `size` successes. Where the outcomes of a group have a standard deviation
    below `spread` and a mean below `mean`, its first episode is replaced by a random stored one. A copy is not stored
    again.
    """

    acted = "replaced"

    def __init__(self, parts: ComposerParts, *, size: int = 8, spread: float = 0.05, mean: float = 0.2) -> None:
        """Create the composer.

        Args:
            parts: Its objects.
            size: Successes that are kept per task instance and arm.
            spread: Standard deviation of outcomes below which a group has no signal.
            mean: Mean outcome below which a group counts as failed.
        """
        super().__init__(parts)
        self._size, self._spread, self._mean = size, spread, mean
        self._kept: dict[str, list[Rollout]] = {}

    def finish(self, done: Sequence[EndedEpisode]) -> list[Rollout]:
        """Return the rollouts, with a stored success in place of one of each group that failed."""
        kept: list[Rollout] = []
        for (group, arm), played in group_played(done).items():
            own = [item.rollout for item in played]
            outcomes = [item.outcome for item in own if item.outcome is not None]
            stored = self._kept.get(f"{group}/{arm}", [])
            if stored and outcomes and pstdev(outcomes) < self._spread and fmean(outcomes) < self._mean:
                chance = random.Random(f"{self.parts.seed}/{played[0].spec.session}/replay")
                own[0] = make_copy(chance.choice(stored), played[0].spec.session)
                self.counts["replaced"] += 1
            kept += own
        return kept

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Store the successes that are no copies."""
        for rollout in rollouts:
            if has_succeeded(rollout) and not rollout.label and not rollout.start and rollout.rows:
                key = f"{rollout.group}/{rollout.trajectory.arm}"
                self._kept[key] = [*self._kept.get(key, []), rollout][-self._size :]

    def state_dict(self) -> dict[str, Any]:
        """Return the stored successes: their actions, and their samples."""
        return {
            key: [
                {
                    "id": item.trajectory.id,
                    "group": item.group,
                    "arm": item.trajectory.arm,
                    "actions": [step.action for step in item.trajectory.steps],
                    "rows": [asdict(row) for row in item.rows],
                    "measure": item.measure,
                }
                for item in stored
            ]
            for key, stored in self._kept.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the stored successes by taking their actions again."""
        self._kept = {key: [kept for item in stored if (kept := self._restore(item))] for key, stored in state.items()}

    def _restore(self, item: Mapping[str, Any]) -> Rollout | None:
        """Return a stored success, or None if its actions lead elsewhere now."""
        task, _, seed = item["group"].rpartition("#")
        walked = self.parts.walk(task, int(seed), item["actions"])
        if walked is None or len(walked.steps) != len(item["actions"]):
            return None
        rows = tuple(Sample(**{name: _freeze(value) for name, value in row.items()}) for row in item["rows"])
        trajectory = replace(walked, id=item["id"], arm=item["arm"])
        return Rollout(trajectory, rows, item["group"], measure=item["measure"])


def make_copy(rollout: Rollout, session: str) -> Rollout:
    """Return a copy of a stored success that stands for an episode of this session."""
    name = f"{COPY}{rollout.trajectory.id} for {session}"
    rows = tuple(replace(row, trace=name) for row in rollout.rows)
    # a label without a root: compared with the group, and neither reported nor stored as an episode of its own
    return replace(rollout, trajectory=replace(rollout.trajectory, id=name), rows=rows, label="replayed")


def _freeze(value: Any) -> Any:
    """Return lists as tuples, as samples have them."""
    return tuple(map(_freeze, value)) if isinstance(value, list | tuple) else value
