"""HAR (arXiv:2511.09127)."""

from collections.abc import Sequence
from dataclasses import replace

from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.composers.base import (
    Composer,
    ComposerParts,
    EndedEpisode,
    group_played,
    has_succeeded,
    list_solution,
)
from hardwon.trainers.algorithms.composers.spec import Spec

from .blocks.accounts import write_account


@PARTS.add(
    "composer",
    "HAR",
    "arXiv:2511.09127",
    evidence="C N",
    name="reflected",
    method="har",
    reading="without a teacher the note is the diagnosis; the shaper `lookback` has the share of the judge",
    example={
        "environment.params": "numLocations=6, includeDoors=0, numDistractorItems=0",
        "environment.max_steps": 5,
        "tasks.compose.reflected.rounds": 10,
        "arms.control": 3,
        "run.groups": 8,
    },
)
class Reflected(Composer):
    """Plays a failed group again with a reflection on one of its failures, for the first iterations of a run (HAR).

    arXiv:2511.09127.
    The note has at most three lines with own wrong actions and never names an action of the solution. After `rounds`
    iterations all episodes are plain.
    """

    acted = "reflected_groups"

    def __init__(self, parts: ComposerParts, *, rounds: int = 10) -> None:
        """Create the composer.

        Args:
            parts: Its objects.
            rounds: Iterations of the run with reflections.
        """
        super().__init__(parts)
        self._rounds = rounds

    @property
    def budget(self) -> float:
        """Return 2: every group may be played twice."""
        return 2.0

    def more(self, done: Sequence[EndedEpisode]) -> list[Spec]:
        """Return the groups in which all failed, with a reflection."""
        if self.iteration >= self._rounds:
            return []
        following: list[Spec] = []
        for played in group_played(done).values():
            finished = [episode for episode in played if not episode.rollout.failed]
            if any(episode.spec.label or has_succeeded(episode.rollout) for episode in played) or not finished:
                continue
            spec, rollout = finished[0]
            if note := write_account(rollout.trajectory, list_solution(self.parts, spec)):
                following += [replace(episode.spec, note=note, label="reflected") for episode in played]
                self.counts["reflected_groups"] += 1
        return following
