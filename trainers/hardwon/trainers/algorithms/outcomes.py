"""The outcome of an episode: what the credit of every role and the evaluation compare.

Most environments report whether the task was solved. Some report only a graded score, or only rewards: with
`credit.outcome: score` or `reward`, that figure takes the place of success everywhere.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from hardwon.memory import Trajectory

OutcomeKind = Literal["success", "score", "reward"]
"""success: 1 if the task was solved, else 0. score: the environment's own score at the end. reward: the sum of
the rewards."""


def measure_outcome(trajectory: Trajectory, outcome: OutcomeKind = "success") -> float | None:
    """Return the outcome of an episode, or None if the environment broke and the episode does not count."""
    if trajectory.success is None:
        return None
    if outcome == "score":
        return float(trajectory.score)
    return float(trajectory.total_reward) if outcome == "reward" else float(trajectory.success)


def mark_outcome(trajectory: Trajectory, outcome: OutcomeKind) -> Trajectory:
    """Return the episode with the measure of its outcome in its metadata, where a library finds it."""
    meta = trajectory.meta if outcome == "success" else {**trajectory.meta, "outcome": outcome}
    return replace(trajectory, meta=meta)


def name_outcome(trajectory: Trajectory, *, unknown: str = "unknown") -> str:
    """Return the outcome of an episode in words: `success`, `failure` or the unknown one, or `score 0.75` if graded."""
    return trajectory.grade or {True: "success", False: "failure", None: unknown}[trajectory.success]


def select_best(episodes: Sequence[Trajectory], outcome: OutcomeKind = "success") -> Trajectory | None:
    """Return the episode with the highest outcome above 0, the last one of several; None if there is none."""
    measured = [(measure_outcome(episode, outcome) or 0.0, n) for n, episode in enumerate(episodes)]
    value, best = max(measured, default=(0.0, 0))
    return episodes[best] if value > 0 else None
