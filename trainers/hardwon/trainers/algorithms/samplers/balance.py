"""The temperature of the rollouts, chosen by how many different successes it gives (B-STaR, arXiv:2412.17256).

    balance = Balance(start=1.0)
    balance.temperature                  # play an iteration with it
    balance.observe(rollouts)            # then compare it with the one before

Iterations alternate between the temperature that is kept and a neighbor of it. The better one of the two is kept.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.samples import Rollout


def score_balance(groups: Sequence[Sequence[Rollout]], right: int) -> float:
    """Return the mean over task instances of min(k / right, 1) k / n, with k different successes among n episodes.

    The first factor pays for exploration, the second one for exploitation. Episodes with the same actions are one
    success; those that failed for a technical reason do not count.
    """
    scores = []
    for group in groups:
        episodes = [rollout for rollout in group if not rollout.failed]
        successes = [rollout.trajectory for rollout in episodes if (rollout.outcome or 0.0) > 0]
        k = len({tuple(step.action for step in trajectory.steps) for trajectory in successes})
        scores.append(min(k / right, 1.0) * k / len(episodes) if episodes else 0.0)
    return fmean(scores) if scores else 0.0


class Balance:
    """Climbs from the temperature of the settings to the one with the best score, one step per two iterations."""

    LOW, HIGH = 0.5, 1.2
    """Lowest and highest temperature."""
    STEP = 0.05
    """Distance between two temperatures that are compared."""
    ENOUGH = 8
    """Different successes of a task instance that are enough."""

    def __init__(self, *, start: float) -> None:
        """Begin with a temperature.

        Raises:
            ConfigError: It is outside of the bounds.
        """
        if not self.LOW <= start <= self.HIGH:
            raise ConfigError(
                f"run.temperature is {start}, and run.balance goes from {self.LOW} to {self.HIGH}; begin in it."
            )
        self._kept, self._upward = start, True
        self._score: float | None = None
        """Score of the kept temperature in the last iteration; None if the next iteration plays it."""

    @property
    def temperature(self) -> float:
        """Return the temperature of the next iteration."""
        return self._kept if self._score is None else self._neighbor()

    def observe(self, groups: Sequence[Sequence[Rollout]]) -> dict[str, float]:
        """Take in the episodes of an iteration, by task instance; return its temperature and score."""
        temperature, score = self.temperature, score_balance(groups, self.ENOUGH)
        if self._score is None:
            self._score = score
        else:
            if score > self._score:
                self._kept = temperature
            else:
                self._upward = not self._upward
            self._score = None
        return {"balance/temperature": temperature, "balance/score": score, "balance/kept": self._kept}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"kept": self._kept, "upward": self._upward, "score": self._score}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self._kept, self._upward, self._score = state["kept"], state["upward"], state["score"]

    def _neighbor(self) -> float:
        """Return the temperature that is compared with the kept one: a step on, or back where that is out of bounds."""
        sign = 1.0 if self._upward else -1.0
        neighbor = self._kept + sign * self.STEP
        # half a step of tolerance: the bounds are reached in spite of rounding
        if not self.LOW - self.STEP / 2 <= neighbor <= self.HIGH + self.STEP / 2:
            neighbor = self._kept - sign * self.STEP
        return round(min(max(neighbor, self.LOW), self.HIGH), 6)
