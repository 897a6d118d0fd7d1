"""RISE (arXiv:2407.18219)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from hardwon.trainers.algorithms.advantages import Advantages, Trace
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.composers.base import Composer, ComposerParts, EndedEpisode, has_succeeded
from hardwon.trainers.algorithms.composers.spec import Spec

from .blocks.accounts import write_account


@PARTS.add(
    "estimator",
    "RISE (targets)",
    "arXiv:2407.18219",
    evidence="C",
    composer="retry",
    reading="the target is the policy's own better attempt; a stronger model as the source of targets is not built",
    settings={"tasks.compose.retry": {}, "roles.policy.loss.kind": "imitation"},
    example={
        "environment.params": "numLocations=6, includeDoors=0, numDistractorItems=0",
        "environment.max_steps": 5,
        "tasks.compose.retry.attempts": 3,
    },
)
def rise(traces: Sequence[Trace], *, criterion: Literal["all", "better", "best", "success"] = "better") -> Advantages:
    """Weight the attempts that are targets by their outcome, and all others by 0 (RISE, arXiv:2407.18219).

    Use it with the composer `retry` and the loss kind imitation. An attempt with the same actions as an earlier target
    of its task instance is left out.

    Args:
        traces: Traces of any number of groups.
        criterion: Which attempts are targets: all, those better than the attempt before, the best of each episode, or
            those that succeeded.
    """
    by_id = {trace.id: trace for trace in traces}
    chains: dict[str, list[Trace]] = {}
    for trace in by_id.values():
        chains.setdefault(_find_first(trace, by_id), []).append(trace)
    best = {max(chain, key=lambda attempt: attempt.outcome).id for chain in chains.values()}
    seen: set[object] = set()
    weights: Advantages = {}
    for trace in by_id.values():
        before = by_id.get(trace.parent)
        chosen = {
            "all": True,
            "better": before is not None and trace.outcome > before.outcome,
            "best": trace.id in best,
            "success": trace.outcome > 0,
        }[criterion]
        key = trace.group, trace.arm, tuple(turn.action for turn in trace.turns)
        weights[trace.id] = [trace.outcome if chosen and key not in seen else 0.0] * len(trace.turns)
        seen |= {key} if chosen else set()
    return weights


def _find_first(trace: Trace, by_id: dict[str, Trace]) -> str:
    """Return the id of the first attempt that a trace goes back to."""
    seen = {trace.id}
    while trace.parent in by_id and trace.parent not in seen:
        seen.add(trace.parent)
        trace = by_id[trace.parent]
    return trace.id


@PARTS.add(
    "composer",
    "RISE",
    "arXiv:2407.18219",
    evidence="C",
    name="retry",
    method="rise",
    reading="attempts of equal number are compared; the next attempt reads a short account of the failed steps",
)
class Retry(Composer):
    """Gives every failed episode another attempt that reads an account of the one before (RISE, arXiv:2407.18219).

    With the estimator `rise` and the loss kind imitation, attempts that are better than the one before are targets,
    weighted by their outcome. With others, attempts of the same number are compared. The success of first attempts and
    that within all attempts are reported apart (`compose/success`).
    """

    acted = "retries"

    def __init__(self, parts: ComposerParts, *, attempts: int = 2) -> None:
        """Create the composer.

        Args:
            parts: Its objects.
            attempts: Most attempts of an episode, the first one included.
        """
        super().__init__(parts)
        self._attempts = attempts

    @property
    def budget(self) -> float:
        """Return the number of attempts."""
        return float(self._attempts)

    def more(self, done: Sequence[EndedEpisode]) -> list[Spec]:
        """Return another attempt of the episodes that failed in the last round."""
        retried = {episode.spec.parent for episode in done if episode.spec.label}
        following: list[Spec] = []
        for spec, rollout in done:
            number = int(spec.label.removeprefix("try ")) if spec.label else 1
            if rollout.failed or has_succeeded(rollout) or number >= self._attempts or spec.session in retried:
                continue
            note = write_account(rollout.trajectory)
            if not note:
                continue
            following.append(replace(spec, note=note, label=f"try {number + 1}", parent=spec.session))
            self.counts["retries"] += 1
        return following
