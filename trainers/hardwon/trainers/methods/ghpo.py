"""GHPO (arXiv:2507.10628)."""

import math
from collections.abc import Sequence
from dataclasses import replace

from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.composers.base import (
    Composer,
    ComposerParts,
    EndedEpisode,
    group_played,
    has_succeeded,
)
from hardwon.trainers.algorithms.composers.spec import Spec
from hardwon.trainers.algorithms.samples import Rollout

from .blocks.prefixes import parse_shares


def write_hint(actions: Sequence[str]) -> str:
    """Return a note that tells the first actions of a solution."""
    return f"hint : {' . '.join(actions)} ."


@PARTS.add(
    "composer",
    "GHPO",
    "arXiv:2507.10628",
    evidence="C",
    name="hinted",
    method="ghpo",
    demonstrations=True,
    reading="the reference is a demonstration, and a hint tells the first ceil(f n) of its actions; told and not done",
    settings={"tasks.demonstrations": ["explored", "gold"]},
    example={
        "environment.params": "numLocations=6, includeDoors=0, numDistractorItems=0",
        "environment.max_steps": 5,
        "arms.control": 3,
        "run.groups": 8,
    },
)
class Hinted(Composer):
    """Plays a group in which all failed again, with more and more of a solution in the prompt (GHPO, arXiv:2507.10628).

    The levels are those of `shares`. The first level at which some episode succeeds is the last one and is trained on,
    on its own prompts. The plain episodes stay as they are. An evaluation shows no hint.
    """

    acted = "hinted_groups"

    def __init__(self, parts: ComposerParts, *, shares: str = "0.25, 0.5, 0.75", start: int = 0) -> None:
        """Create the composer.

        Args:
            parts: Its objects.
            shares: Share of the solution that each level tells.
            start: Finished iterations before which nothing is hinted.
        """
        super().__init__(parts)
        self._shares, self._start = parse_shares(shares), start

    @property
    def budget(self) -> float:
        """Return the most episodes of a group, as a multiple: itself, and once per level."""
        return 1.0 + len(self._shares)

    def more(self, done: Sequence[EndedEpisode]) -> list[Spec]:
        """Return the groups in which nobody has succeeded so far, at their next level."""
        if self.iteration < self._start:
            return []
        following: list[Spec] = []
        for played in group_played(done).values():
            plain = [episode.spec for episode in played if not episode.spec.label]
            level = len(played) // len(plain) - 1
            if level >= len(self._shares) or any(has_succeeded(episode.rollout) for episode in played):
                continue
            path = self.parts.demonstrate(plain[0].task, plain[0].seed)
            if path is None or not path.steps:
                self.counts["without_hint"] += not level
                continue
            share = self._shares[level]
            note = write_hint([step.action for step in path.steps[: math.ceil(share * len(path.steps))]])
            following += [replace(spec, note=note, label=f"hint {share:g}") for spec in plain]
            self.counts["hinted_groups"] += 1
        return following

    def finish(self, done: Sequence[EndedEpisode]) -> list[Rollout]:
        """Return the plain episodes, and those of the last level of each group."""
        kept: list[Rollout] = []
        for played in group_played(done).values():
            last = played[-1].spec.label
            kept += [episode.rollout for episode in played if not episode.spec.label or episode.spec.label == last]
        return kept
