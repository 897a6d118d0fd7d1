"""An environment whose actions take their time: each waits before it acts, as one over a network does."""

import asyncio
from collections.abc import Callable
from typing import Any

from hardwon.memory import State
from hardwon.runtime.interfaces.types import Environment, Info


class Slow:
    """Any environment, awaited for `seconds(action)` before every action."""

    def __init__(self, inner: Environment, seconds: Callable[[str], float], *, without: str = "") -> None:
        """without: actions that begin so are not listed, where actions are listed."""
        self._inner, self._seconds, self._without = inner, seconds, without
        self.name = inner.name

    async def astep(self, action: str) -> tuple[State, float, bool, Info]:
        """Wait, then act."""
        await asyncio.sleep(self._seconds(action))
        return self._inner.step(action)

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """The same."""
        return asyncio.run(self.astep(action))

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin an episode."""
        return self._inner.reset(task, seed)

    def admissible(self, state: State) -> list[str]:
        """What can be done."""
        listed = self._inner.admissible(state)
        return [action for action in listed if not (self._without and action.startswith(self._without))]

    def clone(self) -> "Slow":
        """Another one."""
        return Slow(self._inner.clone(), self._seconds, without=self._without)

    def close(self) -> None:
        """Close it."""
        self._inner.close()

    def __getattr__(self, name: str) -> Any:
        """What else it can do: describe itself, take results that others had."""
        return getattr(self._inner, name)
