"""Paths: actions of a task instance that are played again, so that each has its states, and checked.

    demonstrations = Demonstrations(environment, ("explored", "gold"), explorer.source)
    trajectory = demonstrations.find("train", 7)         # a success, or None

A path of the environment (gold), of exploration or of a file counts only if playing it again solves the task. Actions
that are not admissible, such as those of a gold path that only show something, are left out.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.memory.errors import ConfigError, EnvironmentFailure, PolicyFailure
from hardwon.memory.upkeep.text_files import read_text
from hardwon.runtime import Agent, Environment
from hardwon.runtime.interfaces.types import Context, Decision
from hardwon.trainers.algorithms.outcomes import OutcomeKind, measure_outcome
from hardwon.trainers.algorithms.samplers.shuffled import Task

Find = Callable[[str, int], Trajectory | None]


class PathPolicy:
    """Takes the given actions in turn, and leaves out those that are not admissible."""

    name = "path"
    reads: Literal["values", "text"] = "values"

    def __init__(self) -> None:
        self.actions: list[str] = []
        self.listed: list[tuple[str, ...]] = []
        """The actions that were listed at each decision."""

    def decide(self, context: Context) -> Decision:
        """Return the next action."""
        while self.actions:
            action = self.actions.pop(0)
            if not context.actions or action in context.actions:
                self.listed.append(context.actions)
                return Decision(action)
        raise PolicyFailure("the path has ended.")

    async def adecide(self, context: Context) -> Decision:
        """Return the next action; see `decide`."""
        return self.decide(context)


class Demonstrations:
    """Finds a success of a task instance, each at most once."""

    def __init__(
        self, environment: Environment, origins: Sequence[str], explored: Find, *, outcome: OutcomeKind = "success"
    ) -> None:
        """Create a finder."""
        self._environment, self._origins, self._explored = environment, origins, explored
        self._outcome: OutcomeKind = outcome
        self._policy = PathPolicy()
        self._agent: Agent | None = None
        self._paths: dict[Task, Trajectory | None] = {}
        self.counts: Counter[str] = Counter()
        """Demonstrations by origin."""

    def find(self, task: str, seed: int) -> Trajectory | None:
        """Return a success of a task instance from the first origin that has one, or None."""
        if (task, seed) not in self._paths:
            self._paths[task, seed] = self._find(task, seed)
        return self._paths[task, seed]

    def _find(self, task: str, seed: int) -> Trajectory | None:
        for origin in self._origins:
            actions = self._list_actions(origin, task, seed)
            trajectory = self.walk(task, seed, actions) if actions else None
            if trajectory is not None and (measure_outcome(trajectory, self._outcome) or 0.0) > 0:
                self.counts[origin] += 1
                return trajectory
        self.counts["none"] += 1
        return None

    def walk(self, task: str, seed: int, actions: Sequence[str]) -> Trajectory | None:
        """Return the steps of these actions as an episode, or None if the environment breaks."""
        if self._agent is None:
            self._agent = Agent(
                self._policy,
                ExperienceLibrary.open(":memory:"),
                self._environment.clone(),
                arm="control",
                learn=False,
                guardrails=False,
                max_steps=1_000_000,
                retries=0,
            )
        self._policy.actions, self._policy.listed = list(actions), []
        trajectory = self._agent.run(task, seed, thread_id=f"path/{task}#{seed}").trajectory
        if trajectory.success is None and trajectory.ending != "policy_error":
            return None
        # the steps at the end without an action only tell that the path has ended
        moves = (step for step in trajectory.steps if step.action)
        # the agent records no lists, and a prompt that is made of the episode shows them
        steps = tuple(replace(step, admissible=listed) for step, listed in zip(moves, self._policy.listed, strict=True))
        return replace(trajectory, steps=steps, success=bool(trajectory.success), id="")

    def _list_actions(self, origin: str, task: str, seed: int) -> Sequence[str]:
        """Return the actions of an origin for a task instance; none if it has none."""
        if origin == "explored":
            best = self._explored(task, seed)
            return [step.action for step in best.steps if step.action] if best is not None else []
        if origin == "gold":
            return self._read_gold(task, seed)
        return read_paths(origin).get((task, seed), ())

    def _read_gold(self, task: str, seed: int) -> Sequence[str]:
        """Return the environment's own solution."""
        environment: Any = self._environment.clone()
        try:
            environment.reset(task, seed)
            path: Sequence[str] = environment.gold_path()
            return path
        except EnvironmentFailure:
            return []
        finally:
            environment.close()

    def close(self) -> None:
        """Close the environment."""
        if self._agent is not None:
            self._agent.close()
            self._agent.library.close()
            self._agent = None


def check_origins(environment: Environment, origins: Sequence[str], setting: str = "tasks.demonstrations") -> None:
    """Check that every origin of demonstrations exists."""
    for origin in origins:
        if origin == "gold" and not hasattr(environment, "gold_path"):
            instead = "explored, or a file" if setting.startswith("tasks") else "episodic"
            raise ConfigError(
                f"{setting} names gold, and {environment.name} has no gold_path(), which returns a solution of its "
                f"running episode. Use {instead}, or write it."
            )
        if origin not in ("explored", "gold"):
            read_paths(origin)


def read_paths(file: str) -> dict[Task, tuple[str, ...]]:
    """Return the actions by task instance of a JSON file."""
    try:
        listed = json.loads(read_text(file))
        return {(str(entry["task"]), int(entry["seed"])): tuple(map(str, entry["actions"])) for entry in listed}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"demonstrations of {file} cannot be read: {type(error).__name__}: {error}. Give explored, gold, or a JSON "
            'file with a list such as [{"task": "train", "seed": 7, "actions": ["take coin"]}].'
        ) from error
