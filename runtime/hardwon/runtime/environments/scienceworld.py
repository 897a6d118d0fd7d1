"""ScienceWorld: experiments of school science in a text world, thirty tasks in many variations.

    environment = ScienceWorld("find-plant")
    state = environment.reset("train", seed=7)
    state, reward, done, info = environment.step("open door to hallway")

The simulator is a Java program of the package; each environment runs one. Any text is an action: the
list of what makes sense is slow to make, so a policy that only chooses asks for it with `choices=1`.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hardwon.memory import State
from hardwon.memory.errors import ConfigError, MissingExtra, UnknownName
from hardwon.runtime.interfaces.types import Info

from ._java import java

SIMPLIFICATIONS = "easy"
"""ScienceWorld's own: doors open, no electrical action, teleporting, and so on."""
_REFUSED = ("No known action matches", "I'm not sure how to do that", "Ambiguous request", "It's not clear")


class ScienceWorld:
    """One task, as an `Environment`."""

    def __init__(self, task: str = "find-plant", *, choices: bool = False) -> None:
        """`choices`: say what can be done at every step; some 100 actions, in a third of a second.

        Raises `MissingExtra` without the package, `UnknownName` for a task that does not exist.
        """
        self._engine: Any = _started()
        known = self._engine.get_task_names()
        if task not in known:
            self.close()
            raise UnknownName.of("task", task, known)
        self.name, self.game = f"scienceworld/{task}", task
        self._choices = choices
        self._over = True

    def count_seeds(self, fold: str) -> int:
        """Return how many variations a fold has."""
        return len(self._variations(fold))

    def _variations(self, fold: str) -> list[int]:
        self._engine.load(self.game, 0, SIMPLIFICATIONS)
        of = {
            "train": self._engine.get_variations_train,
            "dev": self._engine.get_variations_dev,
            "test": self._engine.get_variations_test,
        }
        if fold not in of:
            raise UnknownName.of("fold", fold, of)
        return list(of[fold]())

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin variation number `seed` of the fold `task`: train (the default), dev or test.

        Raises `UnknownName` for another fold, `ConfigError` for a seed out of range.
        """
        fold = task.strip().lower() or "train"
        variations = self._variations(fold)
        if not 0 <= seed < len(variations):
            raise ConfigError(f"seed {seed} is not in the {fold} fold; it has {len(variations)} variations, from 0.")
        self._engine.load(self.game, variations[seed], SIMPLIFICATIONS)
        _, info = self._engine.reset()
        self._task = info["taskDesc"].removeprefix("Task Description:").strip()
        self._score, self._over = 0.0, False
        return self._state(info, "")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Take an action; the reward is what it added to the score, which is of the engine and in [0, 1].

        Raises `ConfigError` when no episode runs.
        """
        if self._over:
            raise ConfigError("no episode is running in this environment; call reset first.")
        answer, _, done, told = self._engine.step(action)
        score = told["score"] / 100
        lost, success = score < 0, score >= 1.0
        reward, self._score = max(score, 0.0) - self._score, max(score, 0.0)
        self._over = bool(done) or lost or success
        info = Info(success=success, lost=lost, score=min(self._score, 1.0))
        if answer.startswith(_REFUSED):
            info["invalid"] = answer
        return self._state(told, answer), reward, self._over, info

    def admissible(self, state: State) -> list[str]:
        """What makes sense here, sorted; empty unless `choices` were asked for."""
        if not self._choices or self._over:
            return []
        found = self._engine.get_valid_action_object_combinations_with_templates()
        return sorted({action["action"] for action in found})

    def describe(self) -> str:
        """The forms that actions have."""
        return "\n".join(["Actions have these forms:", *sorted(self._engine.get_possible_actions())])

    def clone(self) -> "ScienceWorld":
        """Another environment of the same task, with a simulator of its own."""
        return ScienceWorld(self.game, choices=self._choices)

    def close(self) -> None:
        """End the simulator."""
        engine, self._engine, self._over = self._engine, None, True
        if engine is not None:
            with contextlib.suppress(Exception):  # it may have died already
                engine.close()

    def _state(self, info: dict[str, Any], feedback: str) -> State:
        place = info["look"].partition("\n")[0]
        shown = f"{info['look'].strip()}\n{info['inv'].strip()}"
        return State(shown, location=place, task=self._task, feedback=feedback.strip())


def _started() -> Any:
    try:
        import scienceworld
    except ImportError as error:
        raise MissingExtra.of("scienceworld", "scienceworld") from error
    with _java_first():
        return scienceworld.ScienceWorldEnv(envStepLimit=1_000_000)


@contextlib.contextmanager
def _java_first() -> Iterator[None]:
    """The package starts whatever `java` is first on the path: that the extra's Java is, for a moment."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = f"{Path(java()).parent}{os.pathsep}{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before
