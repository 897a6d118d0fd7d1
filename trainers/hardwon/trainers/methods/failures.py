"""Role-Agent (curriculum): the paper has no identifier."""

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.samplers.base import Reference, Weighted, list_outcomes
from hardwon.trainers.algorithms.samplers.shuffled import Task
from hardwon.trainers.algorithms.samples import Rollout

_WORD = re.compile(r"[a-z0-9]+")


def compare_texts(first: str, second: str) -> float:
    """Return the share of words that two texts have in common, from 0 to 1."""
    words, more = {*_WORD.findall(first.lower())}, {*_WORD.findall(second.lower())}
    return len(words & more) / len(words | more) if words | more else 0.0


def _describe_failure(group: Sequence[Rollout]) -> str:
    """Return the task of a failed episode and the words of its last refused step."""
    for rollout in group:
        steps = rollout.trajectory.steps
        if steps and not rollout.failed and (rollout.outcome or 0.0) <= 0:
            evidence = next((s.diagnosis.evidence for s in reversed(steps) if not s.diagnosis.success), "")
            return f"{steps[0].pre.task} {steps[-1].action} {evidence}"
    return ""


@PARTS.add(
    "sampler",
    "Role-Agent (curriculum)",
    "Role-Agent: prediction of observations and a failure curriculum",
    evidence="C N",
    name="failures",
    reading="weights fall on success (x decay, own); in the authors' code they never fall, and sampling concentrates",
)
class FailureSampler(Weighted):
    """Draws instances that failed, and those whose failures were similar, more often (Role-Agent).

    A failed instance gains `self_boost`. The `nearest` most similar earlier failures of other instances gain
    `boost` x similarity. A success multiplies the weight by `decay`, but not below 1.
    """

    def __init__(
        self,
        worlds: Sequence[Task],
        seed: int,
        most: int,
        reference: Reference,
        *,
        boost: float = 0.35,
        self_boost: float = 0.15,
        nearest: int = 3,
        kept: int = 512,
        decay: float = 0.9,
    ) -> None:
        self._weights: dict[Task, float] = {}
        self._boost, self._self_boost, self._nearest, self._decay = boost, self_boost, nearest, decay
        self._failures: deque[tuple[Task, str]] = deque(maxlen=kept)
        super().__init__(worlds, seed, most)

    def get_weights(self) -> Mapping[Task, float]:
        """Return 1 for every instance, changed by its failures and successes."""
        return {world: self._weights.get(world, 1.0) for world in self.worlds}

    def learn(self, groups: Mapping[Task, Sequence[Rollout]]) -> None:
        """Raise the weights of failures, and lower those of successes."""
        for world, group in sorted(groups.items()):
            outcomes = list_outcomes(group)
            if outcomes and max(outcomes) > 0:
                self._weights[world] = max(1.0, self._weights.get(world, 1.0) * self._decay)
            elif outcomes:
                self.fail(world, _describe_failure(group))

    def fail(self, world: Task, text: str) -> None:
        """Take in the failure of an instance, with its description."""
        self._weights[world] = self._weights.get(world, 1.0) + self._self_boost
        similar = [(compare_texts(text, earlier), at) for at, earlier in self._failures if at != world]
        best: dict[Task, float] = {}
        for similarity, at in similar:
            best[at] = max(similarity, best.get(at, 0.0))
        for at in sorted(best, key=lambda at: (-best[at], at))[: self._nearest]:
            self._weights[at] = self._weights.get(at, 1.0) + self._boost * best[at]
        self._failures.append((world, text))

    def state_dict(self) -> dict[str, Any]:
        """Return the draws, the weights and the failures."""
        weights = [[*world, weight] for world, weight in self._weights.items()]
        failures = [[*world, text] for world, text in self._failures]
        return {**super().state_dict(), "weights": weights, "failures": failures}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the draws, the weights and the failures."""
        super().load_state_dict(state)
        self._weights = {(str(fold), int(seed)): float(weight) for fold, seed, weight in state["weights"]}
        self._failures.clear()
        self._failures.extend(((str(fold), int(seed)), str(text)) for fold, seed, text in state["failures"])
