"""Exploration from an archive of states: return to one by replay, and go on from there (Go-Explore, arXiv:2405.15143).

    paths = explore_archive(environment, ("train", 7), trials=125, ...)     # the last one may solve the task

The paper's model picks the state and the action. Here no model is needed: the state that was chosen least often is
next, the newest of those first, and then an action that was not tried there.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from hardwon.runtime import Environment
from hardwon.trainers.algorithms.samplers.shuffled import Task

Path = tuple[str, ...]


@dataclass(slots=True)
class Archive:
    """The shortest known path to every state, and how often each was chosen."""

    paths: dict[str, Path] = field(default_factory=dict)
    chosen: Counter[str] = field(default_factory=Counter)

    def add(self, state: str, path: Path) -> None:
        """Keep a path to a state if it is the first or the shortest."""
        if state not in self.paths or len(path) < len(self.paths[state]):
            self.paths[state] = path

    def choose(self) -> str:
        """Return the state that was chosen least often, the newest of several, and count the choice."""
        order = {state: number for number, state in enumerate(self.paths)}
        state = min(self.paths, key=lambda name: (self.chosen[name], -order[name]))
        self.chosen[state] += 1
        return state


def explore_archive(
    environment: Environment,
    world: Task,
    *,
    trials: int,
    steps: int,
    seed: int,
    solves: Callable[[Path], bool],
) -> list[Path]:
    """Return the longest path without an end that was found, and after it one that solves the task, if any."""
    archive, tried = Archive(), dict[str, set[str]]()
    chance = random.Random(f"{seed}/{world}")
    archive.add(environment.reset(*world).signature, ())
    for _ in range(trials):
        name = archive.choose()
        path, state = archive.paths[name], environment.reset(*world)
        for action in path:
            state = environment.step(action)[0]
        actions = sorted(environment.admissible(state))
        untried = [action for action in actions if action not in tried.setdefault(name, set())]
        if not actions or len(path) >= steps:
            continue
        action = chance.choice(untried or actions)
        tried[name].add(action)
        state, _, is_over, _ = environment.step(action)
        if is_over and solves((*path, action)):
            return [max(archive.paths.values(), key=len), (*path, action)]
        if not is_over:
            archive.add(state.signature, (*path, action))
    return [max(archive.paths.values(), key=len)]
