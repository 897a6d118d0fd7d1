"""A clock for what mostly waits: an event loop whose time is the waits that were asked for and our own processor time.

    run_counted(team.arun(task))            # a minute of waiting takes no time at all, and counts as a minute

When nothing is left to do until a timer is due, time is put forward instead of waiting. So seconds do not
depend on what else the machine is doing, and are those of a quiet one. What would be done in a thread is
done at once; the disk's time does not count.
"""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Puts the loop's time forward where others would sleep."""

    loop: "CountingLoop | None" = None

    def select(self, timeout: float | None = None) -> list[Any]:
        """What is ready; until a timer is due nothing else will be."""
        if self.loop is None or timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self.loop.skipped += timeout
        return ready


class CountingLoop(asyncio.SelectorEventLoop):
    """See the module's docstring."""

    def __init__(self) -> None:
        self.skipped = 0.0
        """Seconds that were not waited for."""
        selector = _Selector()
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        """Seconds: of waiting and of this process at work."""
        return time.process_time() + self.skipped

    def run_in_executor(self, executor: Executor | None, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """At once, in this thread: nothing goes on beside the clock."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run_counted(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns, in a loop of its own that counts instead of waiting."""
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        return runner.run(work)
