"""Wrap an environment so that each action waits first, like a call over a network."""

import asyncio
from collections.abc import Callable
from typing import Any

from hardwon.memory import State
from hardwon.runtime.interfaces.types import Environment, Info


class Slow:
    """An environment that waits `seconds(action)` before each action."""

    def __init__(self, inner: Environment, seconds: Callable[[str], float], *, without: str = "") -> None:
        """Wrap an environment.

        Args:
            inner: The environment.
            seconds: Returns the delay of an action in seconds.
            without: Actions with this prefix are removed from the admissible actions; empty to keep all.
        """
        self._inner, self._seconds, self._without = inner, seconds, without
        self.name = inner.name

    async def astep(self, action: str) -> tuple[State, float, bool, Info]:
        """Wait, then run the action."""
        await asyncio.sleep(self._seconds(action))
        return self._inner.step(action)

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Run `astep` synchronously."""
        return asyncio.run(self.astep(action))

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Start an episode."""
        return self._inner.reset(task, seed)

    def admissible(self, state: State) -> list[str]:
        """Return the admissible actions, without those that start with `without`."""
        listed = self._inner.admissible(state)
        return [action for action in listed if not (self._without and action.startswith(self._without))]

    def clone(self) -> "Slow":
        """Return a clone with the same delays."""
        return Slow(self._inner.clone(), self._seconds, without=self._without)

    def close(self) -> None:
        """Close the inner environment."""
        self._inner.close()

    def __getattr__(self, name: str) -> Any:
        """Forward all other attributes, such as the tool descriptions, to the inner environment."""
        return getattr(self._inner, name)
