"""ScienceWorld: school science experiments in a text world, thirty tasks in many variations.

    environment = ScienceWorld("find-plant")
    state = environment.reset("train", seed=7)
    state, reward, done, info = environment.step("open door to hallway")

The simulator is a Java program from the package; each environment runs its own. Any text is an action. The list
of admissible actions is slow to compute, so it is off by default; policies that only choose need `choices=1`.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hardwon.memory import State
from hardwon.memory.errors import ConfigError, MissingExtra, UnknownName
from hardwon.runtime.interfaces.types import Info

from ._java import find_java

SIMPLIFICATIONS = "easy"
"""ScienceWorld's preset: open doors, no electrical actions, teleporting, and so on."""
_REFUSED = ("No known action matches", "I'm not sure how to do that", "Ambiguous request", "It's not clear")


class ScienceWorld:
    """A ScienceWorld task as an `Environment`."""

    def __init__(self, task: str = "find-plant", *, choices: bool = False) -> None:
        """Start a simulator for one task."""
        self._engine: Any = _start_simulator()
        names = self._engine.get_task_names()
        if task not in names:
            self.close()
            raise UnknownName.of("task", task, names)
        self.name, self.game = f"scienceworld/{task}", task
        self._choices = choices
        self._over = True

    def count_seeds(self, fold: str) -> int:
        """Return the number of variations in a fold."""
        return len(self._list_variations(fold))

    def _list_variations(self, fold: str) -> list[int]:
        # The lists are those of the loaded task. Loading ends a running episode, so counting seeds does too.
        self._engine.load(self.game, 0, SIMPLIFICATIONS)
        loaders = {
            "train": self._engine.get_variations_train,
            "dev": self._engine.get_variations_dev,
            "test": self._engine.get_variations_test,
        }
        if fold not in loaders:
            raise UnknownName.of("fold", fold, loaders)
        return list(loaders[fold]())

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin a variation of the task."""
        fold = task.strip().lower() or "train"
        variations = self._list_variations(fold)
        if not 0 <= seed < len(variations):
            raise ConfigError(f"seed {seed} is not in the {fold} fold; it has {len(variations)} variations, from 0.")
        self._engine.load(self.game, variations[seed], SIMPLIFICATIONS)
        _, info = self._engine.reset()
        self._task = info["taskDesc"].removeprefix("Task Description:").strip()
        self._score, self._over = 0.0, False
        return self._state(info, "")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Take an action."""
        if self._over:
            raise ConfigError("no episode is running in this environment; call reset first.")
        answer, _, done, status = self._engine.step(action)
        score = status["score"] / 100  # negative after an action that fails the task
        lost, success = score < 0, score >= 1.0
        reward, self._score = max(score, 0.0) - self._score, max(score, 0.0)
        self._over = bool(done) or lost or success
        info = Info(success=success, lost=lost, score=min(self._score, 1.0))
        if answer.startswith(_REFUSED):
            info["invalid"] = answer
        return self._state(status, answer), reward, self._over, info

    def admissible(self, state: State) -> list[str]:
        """Return the admissible actions, sorted; an empty list unless `choices` is set."""
        if not self._choices or self._over:
            return []
        actions = self._engine.get_valid_action_object_combinations_with_templates()
        return sorted({action["action"] for action in actions})

    def describe(self) -> str:
        """Return the syntax of all actions."""
        return "\n".join(["Actions have these forms:", *sorted(self._engine.get_possible_actions())])

    def clone(self) -> "ScienceWorld":
        """Return another environment of the same task, with its own simulator."""
        return ScienceWorld(self.game, choices=self._choices)

    def close(self) -> None:
        """End the simulator."""
        engine, self._engine, self._over = self._engine, None, True
        if engine is not None:
            with contextlib.suppress(Exception):  # the simulator may have died already
                engine.close()

    def _state(self, info: dict[str, Any], feedback: str) -> State:
        place = info["look"].partition("\n")[0]
        observation = f"{info['look'].strip()}\n{info['inv'].strip()}"
        return State(observation, location=place, task=self._task, feedback=feedback.strip())


def _start_simulator() -> Any:
    try:
        import scienceworld
    except ImportError as error:
        raise MissingExtra.of("scienceworld", "scienceworld") from error
    with _prefer_java():
        return scienceworld.ScienceWorldEnv(envStepLimit=1_000_000)  # the runtime limits steps


@contextlib.contextmanager
def _prefer_java() -> Iterator[None]:
    """Put our Java first on the `PATH` for a moment, because the package starts the first `java` it finds."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = f"{Path(find_java()).parent}{os.pathsep}{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before
