"""Background: reading that goes on beside the rollouts, and is taken over at the end of an iteration.

Everything runs in the run's event loop, so a slow model costs the rollouts nothing, and with an
engine of this process the same run does the same in the same order. Whoever takes over either waits
for what is not done, so that a run can be repeated bit for bit, or leaves it for the next time. It
does not know what is read.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from hardwon.memory.errors import ConfigError

T = TypeVar("T")


class Background(Generic[T]):
    """Work under way, by a name each, in the order of asking."""

    def __init__(self) -> None:
        self._running: list[tuple[str, asyncio.Task[T]]] = []

    def submit(self, name: str, work: Coroutine[Any, Any, T]) -> None:
        """Begin; returns at once."""
        self._running.append((name, asyncio.get_running_loop().create_task(work)))

    async def finished(self, *, wait: bool) -> tuple[list[tuple[str, T]], list[str]]:
        """What is done, all of it if it is to be waited for; and what failed, in words.

        A failure costs its work, never the run; settings that cannot work are raised.
        """
        if wait and self._running:
            await asyncio.wait([task for _, task in self._running])
        done = [(name, task) for name, task in self._running if task.done()]
        self._running = [(name, task) for name, task in self._running if not task.done()]
        found, problems = [], []
        for name, task in done:
            error = None if task.cancelled() else task.exception()
            if isinstance(error, ConfigError):
                raise error
            if error is not None:
                problems.append(f"{name}: {type(error).__name__}: {error}")
            elif not task.cancelled():
                found.append((name, task.result()))
        return found, problems

    def under_way(self) -> list[str]:
        """The names of what is not taken over yet."""
        return [name for name, _ in self._running]
