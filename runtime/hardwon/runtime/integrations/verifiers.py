# mypy: disable-error-code="misc"
"""Environments of hardwon as a taskset of verifiers 0.4 or newer.

    from hardwon.runtime.integrations.verifiers import HardwonTaskset, HardwonVerifiersEnv     # in games.py
    $ vf-eval games --env.taskset.environment textworld --env.taskset.game coin

The task is the first turn of an episode. The environment is stepped beside the harness: each answer of the model is an
action, and the next observation comes back as the turn of the user. The score is the reward.

The package is optional, so type checkers see its classes as Any.
"""

from collections.abc import Iterator
from contextlib import closing

import verifiers.v1 as vf

from hardwon.runtime.environments import open_environment

from .text_episode import TextEpisode


class HardwonConfig(vf.TasksetConfig):
    """Which environment is played, and which task instances."""

    environment: str = "textworld"
    """Name of an environment, or MODULE:CLASS."""
    game: str | None = None
    params: str = ""
    split: str = "train"
    seeds: int = 100
    """Number of task instances, from seed 0 on."""
    max_steps: int = 50


class HardwonData(vf.TaskData):
    """One task instance, with what opens its environment."""

    environment: str
    game: str | None = None
    params: str = ""
    split: str = ""
    seed: int = 0
    max_steps: int = 50


class HardwonTask(vf.Task[HardwonData, vf.State, vf.TaskConfig]):
    """A task instance; its reward comes from the environment."""


class HardwonEnvConfig(vf.EnvConfig):
    """The only seat of the game."""

    player: vf.AgentConfig = vf.AgentConfig()


class HardwonVerifiersEnv(vf.Env[HardwonEnvConfig]):
    """Plays an environment of hardwon with the model's answers."""

    async def run(self, task: HardwonTask, agents: vf.Agents) -> None:
        """Play one episode and record its score."""
        data = task.data
        with closing(open_episode(data.environment, data.game, data.params, data.max_steps)) as episode:
            episode.begin(data.split, data.seed)
            async with agents.player.interaction(task) as interaction:
                segment = await interaction.turn()
                while not segment.terminated:
                    text = episode.answer(segment.last_reply)
                    if episode.is_over:
                        break
                    segment = await interaction.turn(text)
            interaction.trace.record_reward("score", episode.score, 1.0)


class HardwonTaskset(vf.Taskset[HardwonTask, HardwonConfig]):
    """The task instances of an environment of hardwon."""

    def load(self) -> Iterator[HardwonTask]:
        """Yield the task instances."""
        config = self.config
        kept = {name: getattr(config, name) for name in ("environment", "game", "params", "split", "max_steps")}
        with closing(open_episode(config.environment, config.game, config.params, config.max_steps)) as episode:
            for seed in range(config.seeds):
                first = episode.begin(config.split, seed)
                name = f"{config.environment}#{seed}"
                data = HardwonData(name=name, prompt=first, system_prompt=episode.rules, seed=seed, **kept)
                yield HardwonTask(data, config.task)


def open_episode(name: str, game: str | None, params: str, max_steps: int) -> TextEpisode:
    """Return an episode of an environment that has not begun."""
    return TextEpisode(open_environment(name, game=game, params=params), max_steps=max_steps)


__all__ = ["HardwonTaskset", "HardwonVerifiersEnv"]
