"""SCOPE (recycling failures, arXiv:2602.24110)."""

from collections.abc import Sequence
from dataclasses import replace

from hardwon.memory import Step
from hardwon.memory.situations.familiarity import place
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


@PARTS.add(
    "composer",
    "SCOPE (recycling failures)",
    "arXiv:2602.24110",
    evidence="A N",
    name="repair",
    demonstrations=True,
    needs=("steps",),
    reading="the corrected step is a demonstration's in that situation, and not trained",
    unseen="the bound below which a step is wrong: 0.5",
    settings={"tasks.demonstrations": ["explored", "gold"]},
    example={
        "environment.params": "numLocations=6, includeDoors=0, numDistractorItems=0",
        "environment.max_steps": 5,
        "roles.policy.sources.steps.judge": "examples.methods.judge:RuleJudge",
        "roles.policy.sources.steps.votes": 1,
    },
)
class Repair(Composer):
    """Goes on from the first wrong step of a failure, with a corrected step in its place (SCOPE, arXiv:2602.24110).

    The steps before the first turn whose score is below `bound` are kept, the wrong one is replaced by what a
    demonstration does in the same situation, and the policy goes on from there. Successes are never read.
    """

    acted = "repaired"

    def __init__(self, parts: ComposerParts, *, bound: float = 0.5, copies: int = 2) -> None:
        """Create the composer.

        Args:
            parts: Its objects.
            bound: Score below which a step is wrong.
            copies: Episodes that go on from one repair; at least 2, to be compared with each other.
        """
        super().__init__(parts)
        self._bound, self._copies = bound, copies

    @property
    def budget(self) -> float:
        """Return 2: as many repaired episodes as plain ones."""
        return 2.0

    def find_wrong(self, rollout: Rollout) -> int | None:
        """Return the number of the first step whose score is below the bound; None if there is none."""
        steps = list(dict.fromkeys(row.turn for row in rollout.rows if row.role == "policy"))
        scores = rollout.signals.turns.get("steps", ())
        pairs = zip(steps, scores, strict=False)
        return next((step for step, score in pairs if score is not None and score < self._bound), None)

    def more(self, done: Sequence[EndedEpisode]) -> list[Spec]:
        """Return episodes that go on from the repaired failures."""
        following: list[Spec] = []
        for played in group_played(done).values():
            if any(episode.spec.label for episode in played):
                continue
            number, seen = len(played), set[tuple[str, ...]]()
            for spec, rollout in played:
                if rollout.failed or has_succeeded(rollout):
                    continue
                prefix = self._repair(spec, rollout)
                actions = tuple(step.action for step in prefix or ())
                if not prefix or actions in seen:
                    continue
                seen.add(actions)
                following += [
                    replace(spec, copy=number + n, prefix=prefix, label="repaired") for n in range(self._copies)
                ]
                number += self._copies
                self.counts["repaired"] += 1
        return following

    def _repair(self, spec: Spec, rollout: Rollout) -> tuple[Step, ...] | None:
        """Return the kept steps with the corrected one; None without a wrong step or a correction."""
        wrong, path = self.find_wrong(rollout), self.parts.demonstrate(spec.task, spec.seed)
        if wrong is None or path is None:
            return None
        steps = rollout.trajectory.steps
        situation, wrong_action = place(steps[wrong].pre), steps[wrong].action
        better = next(
            (step.action for step in path.steps if place(step.pre) == situation and step.action != wrong_action), None
        )
        if better is None:
            return None
        walked = self.parts.walk(spec.task, spec.seed, [*(step.action for step in steps[:wrong]), better])
        if walked is None or len(walked.steps) != wrong + 1 or walked.success:
            return None
        return walked.steps
