"""Grade the episodes of a program with a function of your own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hardwon.memory.errors import HardwonError

from .run import read_outcome


class RewardFailed(HardwonError, RuntimeError):
    """A reward function raised an error, or returned no number."""


@dataclass(frozen=True, slots=True)
class FinishedEpisode:
    """A finished episode, as a reward function reads it."""

    task: str
    """Split of the task instance."""
    seed: int
    input: Any
    """The line of `program.inputs`; None without them."""
    messages: tuple[dict[str, Any], ...]
    """The messages of the last model call and its answer: role, text, calls (id, name, arguments), answers (id)."""
    output: str = ""
    """The end of what the program printed."""
    reported: float | None = None
    """The outcome that the program reported; None if there is none."""


Reward = Callable[[FinishedEpisode], Any]


def call_reward(reward: Reward, episode: FinishedEpisode) -> float | None:
    """Return the outcome that a reward function gives; None if it gives none."""
    try:
        outcome = reward(episode)
        return None if outcome is None else read_outcome(outcome)
    except Exception as error:
        raise RewardFailed(f"program.reward: {type(error).__name__}: {error}") from error
