"""Exploration: episodes of random actions, of the agent without a model, or of known solutions, before training.

They provide the examples of a warm start, the vocabulary of a word tokenizer, and the path that the arm
`experience` shows. Exploration is deterministic per task instance, so nothing needs to be saved.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.memory.learning.skill_mining import without_circles
from hardwon.memory.situations.scripts import FULL_STOPS
from hardwon.runtime import Agent, Environment, EpisodicPolicy, RandomPolicy, open_environment
from hardwon.runtime.environments import count_seeds
from hardwon.runtime.llm.prompts import clean
from hardwon.trainers.algorithms.outcomes import OutcomeKind, mark_outcome, measure_outcome, select_best
from hardwon.trainers.algorithms.samplers.shuffled import Task as Task
from hardwon.trainers.checkpoint import Tell
from hardwon.trainers.config.program import PROGRAM
from hardwon.trainers.config.schema import EnvironmentConfig, ExploreConfig, TaskInstances, TrainConfig
from hardwon.trainers.console import EpisodeCount
from hardwon.trainers.programs.environment import ProgramEnvironment
from hardwon.trainers.prompting.compact import compact

from .archive import Path, explore_archive
from .curiosity import CuriousPolicy
from .paths import Demonstrations

_SENTENCE = re.compile(rf"(?<=[.!?])\s+|(?<=[{FULL_STOPS}])|\n")


class Explorer:
    """Explores task instances, each at most once."""

    def __init__(
        self,
        environment: Environment,
        config: ExploreConfig,
        *,
        outcome: OutcomeKind = "success",
        is_compact: bool = True,
        tell: Tell = lambda _: None,
    ) -> None:
        self._config, self._tell, self._is_compact = config, tell, is_compact
        self._outcome: OutcomeKind = outcome
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

    def trajectories(self, worlds: TaskInstances) -> list[Trajectory]:
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
        worlds, steps = self._config.worlds.all, self._config.steps
        played = learn_by_playing(
            self._library, self._environment, worlds, steps, outcome=self._outcome, tell=self._tell
        )
        self._episodes |= {world: (episode,) for world, episode in zip(worlds, played, strict=True)}

    def experience(self, world: Task) -> str | None:
        """Return the path of the best episode of a task instance as text, or None if no episode is worth it."""
        best = self.source(*world)
        return None if best is None else way(best, self._outcome, is_compact=self._is_compact)

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
    outcome: OutcomeKind = "success",
    tell: Tell = lambda _: None,
) -> list[Trajectory]:
    """Let the agent without a model play each task instance once and record its episodes in the library.

    The agent learns from one episode to the next, so that later ones try what earlier ones left untried.
    """
    count = _count_explored(worlds, tell)
    played: list[Trajectory] = []
    marks: Any = _MarkingLibrary(library, outcome)
    with closing(Agent(EpisodicPolicy(), marks, environment.clone(), arm="step", max_steps=steps)) as agent:
        for split, seed in worlds:
            episode = agent.run(split, seed, thread_id=f"explore/{split}#{seed}").trajectory
            played.append(mark_outcome(episode, outcome))
            count()
    return played


class _MarkingLibrary:
    """A library that records each episode with the measure of its outcome."""

    def __init__(self, library: ExperienceLibrary, outcome: OutcomeKind) -> None:
        self._library = library
        self._outcome: OutcomeKind = outcome

    def record(self, trajectory: Trajectory) -> str:
        """Record an episode."""
        return self._library.record(mark_outcome(trajectory, self._outcome))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)


def way(trajectory: Trajectory, outcome: OutcomeKind = "success", *, is_compact: bool = True) -> str | None:
    """Return an episode's path without loops: `kitchen : move east . hall : take coin .`; None without an outcome."""
    if (measure_outcome(trajectory, outcome) or 0.0) <= 0:
        return None
    steps = without_circles([step for step in trajectory.steps if step.action and step.diagnosis.success])
    named = ((step.pre.location or place(step.pre.observation, is_compact=is_compact), step.action) for step in steps)
    return " ".join(f"{where} : {action} ." for where, action in named) or None


def place(observation: str, *, is_compact: bool = True) -> str:
    """Return the first thing that an observation names.

    Content words are all that a tiny base knows. Others read the first sentence as it is, because content words lose
    negations and all languages but English.
    """
    if is_compact:
        return compact(observation).partition(" .")[0]
    first = next(filter(None, map(str.strip, _SENTENCE.split(observation))), "")
    return " ".join(clean(first.rstrip(f".{FULL_STOPS}"), 120).split())


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


def check_seeds(environment: Environment, config: TrainConfig) -> None:
    """Check that an environment has the task instances of the settings, before any is played.

    An environment without `count_seeds` is not checked.
    """
    lacking, existing = list[str](), dict[str, int]()
    for name, worlds in _list_played(config).items():
        fold, last = worlds.all[-1]
        fold = fold.strip().lower() or "train"
        count = count_seeds(environment, fold)
        if count is not None and last >= count and _is_refused(environment, worlds.all[-1]):
            lacking.append(f"{name}.seeds is {worlds.seeds}")
            existing[fold] = count
    if lacking:
        seeds = " and ".join(
            f"0-{count - 1} in {fold}" if count else f"none in {fold}" for fold, count in existing.items()
        )
        raise ConfigError(
            f"{environment.name} has fewer task instances than the settings name: {', '.join(lacking)}. Its seeds are "
            f"{seeds}; choose ranges within them, and for tasks.eval one that no other setting shares."
        )


def _list_played(config: TrainConfig) -> dict[str, TaskInstances]:
    """Return the task instances that a run plays, by setting."""
    played = {"tasks.train": config.tasks.train}
    if config.eval.every:
        played["tasks.eval"] = config.tasks.eval
    if config.warmstart is not None or config.model.is_compact or len(config.roles) > 1:
        played["explore.worlds"] = config.explore.worlds
    return played | {f"library.explored.{name}": worlds for name, worlds in config.library.explored.items()}


def _is_refused(environment: Environment, world: Task) -> bool:
    """Return whether an environment refuses a task instance; some know seeds beyond their count by another number."""
    try:
        environment.reset(*world)
    except ConfigError:
        return True
    return False
