"""Environments of hardwon for TRL's GRPOTrainer, and environments of TRL for hardwon.

    trainer = GRPOTrainer(model, environment_factory=build_trl_factory("textworld", game="coin"), train_dataset=rows)
    agent = Agent(policy, library, open_trl_environment(EchoEnv, rows))

TRL calls `reset` with the columns of a row, offers the other public methods to the model as tools, and reads the reward
from `get_reward`. Neither direction imports TRL.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.runtime.environments import open_environment
from hardwon.runtime.environments.tools.environment import ToolEnvironment

from .text_episode import TextEpisode

DatasetRow = Mapping[str, Any]


class HardwonEnv:
    """An environment of hardwon in the form that TRL's `environment_factory` returns."""

    def __init__(self, name: str, *, game: str | None = None, params: str = "", max_steps: int = 50) -> None:
        self._episode = TextEpisode(open_environment(name, game=game, params=params), max_steps=max_steps)

    def reset(self, *, task: str = "", seed: int = 0, **columns: Any) -> str:
        """Begin an episode, and return the rules and the first observation."""
        first = self._episode.begin(str(task), int(seed))
        return f"\n\n{self._episode.rules}\n\nCall the tool `act` with each action.\n\n{first}"

    def act(self, action: str) -> str:
        """Take an action in the environment, and return what happens."""
        if self._episode.is_over:
            return "The episode is over. Answer without a tool."
        text = self._episode.answer(str(action))
        return f"{text}\n\nThe episode is over." if self._episode.is_over else text

    def get_reward(self) -> float:
        """Return the score of the episode so far."""
        return self._episode.score


def build_trl_factory(
    name: str, *, game: str | None = None, params: str = "", max_steps: int = 50
) -> Callable[[], HardwonEnv]:
    """Return an `environment_factory` for TRL. Dataset rows need the columns `prompt`, `task` and `seed`.

    Args:
        name: Name of an environment, or `MODULE:CLASS`.
        game: A game of the environment.
        params: Parameters of the environment.
        max_steps: Steps after which an episode ends.
    """
    return lambda: HardwonEnv(name, game=game, params=params, max_steps=max_steps)


def open_trl_environment(factory: Callable[[], Any], rows: Sequence[DatasetRow]) -> ToolEnvironment:
    """Return an environment whose episodes are those of a TRL environment; `finish` ends them."""
    if not rows:
        raise ConfigError("there are no rows; pass those of the dataset, such as [{'prompt': 'Say hello.'}].")
    running: dict[str, Any] = {}

    def open_tools(task: str, seed: int) -> list[Callable[..., Any]]:
        instance, row = factory(), rows[seed % len(rows)]
        if not hasattr(instance, "get_reward"):
            raise ConfigError(f"{type(instance).__name__} has no get_reward; define it for the outcome.")
        instance.reset(**row)
        running["instance"] = instance
        names = [name for name, _ in inspect.getmembers(type(instance), inspect.isfunction)]
        return [getattr(instance, name) for name in names if name not in ("reset", "get_reward") and name[0] != "_"]

    return ToolEnvironment(open_tools, lambda *_: float(running["instance"].get_reward()), name="trl")
