"""Exploration: episodes of random actions, before anything is learnt.

They are where a warm start finds its examples, a tokenizer its words, and an arm the experience it
is shown: the way that an earlier episode of the same world took. The same world is always explored
the same way, so nothing of it needs to be kept.
"""

from collections.abc import Iterable, Sequence

from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.memory.learning.skill_mining import without_circles
from hardwon.runtime import Agent, Environment, RandomPolicy, open_environment
from hardwon.trainers.config.schema import EnvironmentConfig, ExploreConfig, Worlds

from .transcript import compact

Task = tuple[str, int]
"""Fold and seed of a world."""


class Explorer:
    """Explores worlds, each once."""

    def __init__(self, environment: Environment, config: ExploreConfig) -> None:
        self._config = config
        self._library = ExperienceLibrary.open(":memory:")
        self._agents = [
            Agent(
                RandomPolicy(),
                self._library,
                environment.clone(),
                arm="control",
                learn=False,
                guardrails=False,
                max_steps=config.steps,
                seed=number,
            )
            for number in range(config.tries)
        ]
        self._known: dict[Task, tuple[Trajectory, ...]] = {}

    def trajectories(self, worlds: Worlds) -> list[Trajectory]:
        """Every episode of these worlds."""
        return [trajectory for world in worlds.all for trajectory in self.explored(world)]

    def explored(self, world: Task) -> tuple[Trajectory, ...]:
        """The episodes of one world; the last one succeeded if any did."""
        if world not in self._known:
            found: list[Trajectory] = []
            for number, agent in enumerate(self._agents):
                fold, seed = world
                found.append(agent.run(fold, seed, thread_id=f"explore/{fold}#{seed}/{number}").trajectory)
                if found[-1].success:
                    break
            self._known[world] = tuple(found)
        return self._known[world]

    def experience(self, world: Task) -> str | None:
        """The way to success in this world as text, or None where none was found."""
        return way(self.explored(world)[-1])

    def source(self, task: str, seed: int) -> Trajectory | None:
        """The episode of this world that succeeded, or None."""
        last = self.explored((task, seed))[-1]
        return last if last.success else None

    def close(self) -> None:
        """Close the environments."""
        for agent in self._agents:
            agent.close()
        self._library.close()


def way(trajectory: Trajectory) -> str | None:
    """Where a successful episode went, without its circles: `kitchen : move east . hall : take coin .`"""
    if not trajectory.success:
        return None
    steps = without_circles([step for step in trajectory.steps if step.action and step.diagnosis.success])
    return " ".join(f"{step.pre.location or place(step.pre.observation)} : {step.action} ." for step in steps) or None


def place(observation: str) -> str:
    """The first thing that an observation names."""
    return compact(observation).partition(" .")[0]


def words(trajectories: Iterable[Trajectory], more: Sequence[str] = ()) -> list[str]:
    """Every text that a policy may be shown of these episodes, or say."""
    texts = {*more}
    for trajectory in trajectories:
        texts.add(way(trajectory) or "")
        for step in trajectory.steps:
            shown = (step.pre.task, step.pre.observation, step.pre.feedback, step.post.observation, step.post.feedback)
            texts.update(shown, (step.action,))
    return sorted(texts)


def open_world(config: EnvironmentConfig) -> Environment:
    """Return the environment of the settings; `MODULE:CLASS` is one of your own."""
    return open_environment(config.name, game=config.game, params=config.params)
