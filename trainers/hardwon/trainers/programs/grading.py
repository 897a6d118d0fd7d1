"""Grade the episodes of a program with a function of your own."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardwon.memory.errors import ConfigError, HardwonError, UnknownName

from .run import read_outcome


class RewardFailed(HardwonError, RuntimeError):
    """A reward function raised an error, or returned no number."""


@dataclass(frozen=True, slots=True)
class FinishedEpisode:
    """A finished episode, as a reward function reads it."""

    task: str
    """Split of the task instance, or the task of a recorded episode."""
    seed: int
    input: Any
    """The line of `program.inputs`; None without them."""
    messages: tuple[dict[str, Any], ...]
    """The messages of the last model call and its answer: role, text, calls (id, name, arguments), answers (id)."""
    output: str = ""
    """The end of what the program printed."""
    reported: float | None = None
    """The outcome that the program reported, or that the library has; None if there is none."""


Reward = Callable[[FinishedEpisode], Any]


def open_reward(name: str) -> Reward:
    """Import a reward function, `MODULE:CALLABLE`, from the current folder or an installed module."""
    module, _, attribute = name.partition(":")
    if (folder := str(Path.cwd())) not in sys.path and "" not in sys.path:
        sys.path.append(folder)
    try:
        reward: Any = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # importing runs the user's code, which can raise anything
        raise UnknownName(
            f"program.reward {name!r} cannot be imported from {folder}: {type(error).__name__}: {error}. Give "
            "MODULE:CALLABLE of a file in the current folder, or of an installed module."
        ) from error
    if not callable(reward):
        raise ConfigError(f"program.reward {name!r} is {type(reward).__name__}; give a function.")
    return reward  # type: ignore[no-any-return]


def call_reward(reward: Reward, episode: FinishedEpisode) -> float | None:
    """Return the outcome that a reward function gives; None if it gives none."""
    try:
        outcome = reward(episode)
        return None if outcome is None else read_outcome(outcome)
    except Exception as error:
        raise RewardFailed(f"program.reward: {type(error).__name__}: {error}") from error
