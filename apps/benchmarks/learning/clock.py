"""Virtual clock for workloads that mostly wait: an event loop that advances time instead of sleeping.

    run_counted(team.arun(task))            # a one-minute wait returns at once and counts as one minute

The loop's time is the skipped waits plus the CPU time of this process, so measured seconds do not depend on the load
of the machine. If no callback is ready, time jumps to the next timer. Executor work runs inline; disk waits do not
count.
"""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Selector that advances the loop's time instead of sleeping."""

    loop: "CountingLoop | None" = None

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return the ready events; if there are none, advance the time by `timeout`."""
        if self.loop is None or timeout is None or timeout <= 0:
            return super().select(timeout)
        # Nothing can become ready before the timer is due, because executor work runs inline.
        ready = super().select(0)
        if not ready:
            self.loop.skipped += timeout
        return ready


class CountingLoop(asyncio.SelectorEventLoop):
    """Event loop with the virtual clock of this module."""

    def __init__(self) -> None:
        self.skipped = 0.0
        """Seconds of waiting that were skipped."""
        selector = _Selector()
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        """Return the skipped waits plus the CPU time of this process, in seconds."""
        return time.process_time() + self.skipped

    def run_in_executor(self, executor: Executor | None, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Run the function inline, so that no work proceeds outside the virtual clock."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run_counted(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new event loop with a virtual clock and return its result."""
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        return runner.run(work)
