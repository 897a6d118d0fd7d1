"""Exploration: episodes of random actions, of the agent without a model, or of known solutions, before training.

They provide the examples of a warm start, the vocabulary of a word tokenizer, and the path that the arm
`experience` shows. Exploration is deterministic per task instance, so nothing needs to be saved.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace

from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.memory.learning.skill_mining import without_circles
from hardwon.runtime import Agent, Environment, EpisodicPolicy, RandomPolicy, open_environment
from hardwon.trainers.algorithms.outcomes import Outcome, mark_outcome, measure_outcome, select_best
from hardwon.trainers.algorithms.samplers.shuffled import Task as Task
from hardwon.trainers.config.program import PROGRAM
from hardwon.trainers.config.schema import EnvironmentConfig, ExploreConfig, Worlds
from hardwon.trainers.console import EpisodeCount
from hardwon.trainers.programs.environment import ProgramEnvironment
from hardwon.trainers.prompting.compact import compact

from .archive import Path, explore_archive
from .curiosity import CuriousPolicy
from .paths import Demonstrations

Tell = Callable[[str], None]
"""Receives a line of progress now and then."""


class Explorer:
    """Explores task instances, each at most once."""

    def __init__(
        self,
        environment: Environment,
        config: ExploreConfig,
        *,
        outcome: Outcome = "success",
        tell: Tell = lambda _: None,
    ) -> None:
        self._config, self._tell = config, tell
        self._outcome: Outcome = outcome
        self._environment = environment
        self._library = ExperienceLibrary.open(":memory:")
        learns = config.policy == "episodic"
        self._curious = CuriousPolicy() if config.policy == "curious" else None
        self._agents = [
            Agent(
                EpisodicPolicy() if learns else self._curious or RandomPolicy(),
                self._library,
                environment.clone(),
                arm="step" if learns else "control",
                learn=False,
                guardrails=False,
                max_steps=config.steps,
                seed=number,
            )
            for number in range(0 if config.policy in ("archive", "gold") else config.tries)
        ]
        self._episodes: dict[Task, tuple[Trajectory, ...]] = {}
        origins = ("gold",) * (config.policy == "gold")
        self._paths = Demonstrations(environment, origins, lambda *_: None, outcome=outcome)

    @property
    def tasks(self) -> list[Task]:
        """Return the task instances that were explored so far."""
        return [*self._episodes]

    def trajectories(self, worlds: Worlds) -> list[Trajectory]:
        """Return all exploring episodes of some task instances."""
        count = _count_explored(worlds.all, self._tell)
        episodes: list[Trajectory] = []
        for world in worlds.all:
            episodes += self.explored(world)
            count()
        return episodes

    def explored(self, world: Task) -> tuple[Trajectory, ...]:
        """Return the episodes of one task instance. Only the last one can have solved the task."""
        if self._config.policy == "episodic" and not self._episodes:
            self._learn()
        if world not in self._episodes and self._config.policy == "archive":
            self._episodes[world] = self._search(world)
        if world not in self._episodes and self._config.policy == "gold":
            solved = self._paths.find(*world)
            fold, seed = world
            solutions = () if solved is None else (replace(solved, id=f"explore/{fold}#{seed}/0"),)
            self._episodes[world] = tuple(mark_outcome(solution, self._outcome) for solution in solutions)
        if world not in self._episodes:
            episodes: list[Trajectory] = []
            if self._curious is not None:  # what was tried in another instance depends on the order of asking
                self._curious.forget()
            for number, agent in enumerate(self._agents):
                fold, seed = world
                played = agent.run(fold, seed, thread_id=f"explore/{fold}#{seed}/{number}").trajectory
                episodes.append(mark_outcome(played, self._outcome))
                if episodes[-1].outcome == 1.0:  # a graded one of less can still be improved
                    break
            self._episodes[world] = tuple(episodes)
        return self._episodes[world]

    def _search(self, world: Task) -> tuple[Trajectory, ...]:
        """Return the episodes of an archive of states (Go-Explore), played again from the start."""

        def solves(path: Path) -> bool:
            walked = self._paths.walk(*world, path)
            return walked is not None and (measure_outcome(walked, self._outcome) or 0.0) > 0

        with closing(self._environment.clone()) as environment:
            trials, steps = self._config.tries, self._config.steps
            paths = explore_archive(environment, world, trials=trials, steps=steps, seed=0, solves=solves)
        walks = (self._paths.walk(*world, path) for path in paths)
        fold, seed = world
        return tuple(
            mark_outcome(replace(walked, id=f"explore/{fold}#{seed}/{number}"), self._outcome)
            for number, walked in enumerate(walks)
            if walked is not None
        )

    def _learn(self) -> None:
        """Play the instances of the settings in order, and learn from each, so that exploring stays deterministic."""
        worlds = self._config.worlds.all
        played = learn_by_playing(self._library, self._environment, worlds, self._config.steps, tell=self._tell)
        episodes = (mark_outcome(episode, self._outcome) for episode in played)
        self._episodes |= {world: (episode,) for world, episode in zip(worlds, episodes, strict=True)}

    def experience(self, world: Task) -> str | None:
        """Return the path of the best episode of a task instance as text, or None if no episode is worth it."""
        best = self.source(*world)
        return None if best is None else way(best, self._outcome)

    def source(self, task: str, seed: int) -> Trajectory | None:
        """Return the episode of a task instance with the best outcome above 0, or None."""
        return select_best(self.explored((task, seed)), self._outcome)

    def close(self) -> None:
        """Close the environments."""
        for agent in self._agents:
            agent.close()
        self._paths.close()
        self._library.close()


def _count_explored(worlds: Sequence[Task], tell: Tell) -> EpisodeCount:
    """Return a count of explored task instances, which is told now and then."""
    return EpisodeCount(len(worlds), tell, text="explored {} of {} task instances")


def learn_by_playing(
    library: ExperienceLibrary,
    environment: Environment,
    worlds: Sequence[Task],
    steps: int,
    *,
    tell: Tell = lambda _: None,
) -> list[Trajectory]:
    """Let the agent without a model play each task instance once and record its episodes in the library.

    The agent learns from one episode to the next, so that later ones try what earlier ones left untried.

    Args:
        library: Library to learn into.
        environment: The environment; the agent works on a clone.
        worlds: Task instances, by split and seed, in order.
        steps: Largest number of steps of an episode.
        tell: Receives a line of progress now and then.

    Returns:
        The episodes, in order.
    """
    count = _count_explored(worlds, tell)
    played: list[Trajectory] = []
    with closing(Agent(EpisodicPolicy(), library, environment.clone(), arm="step", max_steps=steps)) as agent:
        for split, seed in worlds:
            played.append(agent.run(split, seed, thread_id=f"explore/{split}#{seed}").trajectory)
            count()
    return played


def way(trajectory: Trajectory, outcome: Outcome = "success") -> str | None:
    """Return an episode's path without loops: `kitchen : move east . hall : take coin .`; None without an outcome."""
    if (measure_outcome(trajectory, outcome) or 0.0) <= 0:
        return None
    steps = without_circles([step for step in trajectory.steps if step.action and step.diagnosis.success])
    return " ".join(f"{step.pre.location or place(step.pre.observation)} : {step.action} ." for step in steps) or None


def place(observation: str) -> str:
    """Return the first thing that an observation names."""
    return compact(observation).partition(" .")[0]


def words(trajectories: Iterable[Trajectory], more: Sequence[str] = ()) -> list[str]:
    """Return every text of the episodes that a policy may read or write."""
    texts = {*more}
    for trajectory in trajectories:
        texts.add(way(trajectory) or "")
        for step in trajectory.steps:
            visible = (
                step.pre.task,
                step.pre.observation,
                step.pre.feedback,
                step.post.observation,
                step.post.feedback,
            )
            texts.update(visible, (step.action,))
    return sorted(texts)


def open_world(config: EnvironmentConfig) -> Environment:
    """Return the environment of the settings; `MODULE:CLASS` opens your own, and a program stands for itself."""
    if config.name == PROGRAM:
        return ProgramEnvironment()
    return open_environment(config.name, game=config.game, params=config.params)
