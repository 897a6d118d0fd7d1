"""Background tasks that run beside the rollouts and are collected at the end of an iteration.

They run in the event loop of the training run, so a slow model does not delay the rollouts. The caller
either waits for all tasks, which makes a run reproducible, or leaves unfinished ones for later.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from hardwon.memory.errors import ConfigError

T = TypeVar("T")


class Background(Generic[T]):
    """Named tasks in order of submission."""

    def __init__(self) -> None:
        self._running: list[tuple[str, asyncio.Task[T]]] = []

    def submit(self, name: str, work: Coroutine[Any, Any, T]) -> None:
        """Start a task and return at once."""
        self._running.append((name, asyncio.get_running_loop().create_task(work)))

    async def finished(self, *, wait: bool) -> tuple[list[tuple[str, T]], list[str]]:
        """Return the results of the finished tasks by name, and the failures as texts.

        A failed task does not stop the run.
        """
        if wait and self._running:
            # unlike gather, wait does not raise, so a failed task cannot hide the other results
            await asyncio.wait([task for _, task in self._running])
        # in order of submission, not of completion: the library must not depend on timing
        done = [(name, task) for name, task in self._running if task.done()]
        self._running = [(name, task) for name, task in self._running if not task.done()]
        results, problems = [], []
        for name, task in done:
            error = None if task.cancelled() else task.exception()
            if isinstance(error, ConfigError):
                raise error
            if error is not None:
                problems.append(f"{name}: {type(error).__name__}: {error}")
            elif not task.cancelled():
                results.append((name, task.result()))
        return results, problems

    def under_way(self) -> list[str]:
        """Return the names of the tasks that have not been collected."""
        return [name for name, _ in self._running]
