"""A thread for running tools, with one event loop for all calls of asynchronous tools."""

import asyncio
import weakref
from typing import Any

from langchain_core.tools import BaseTool

from hardwon.runtime.environments._worker import NotInTime, Worker


class ToolThread:
    """Runs tools one after another; a tool that hangs is abandoned together with its thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begin()

    def invoke(self, tool: BaseTool, request: dict[str, Any], timeout_s: float | None) -> Any:
        """Run a tool and return its result."""
        # A tool made from a coroutine has `func` None; a BaseTool without `func` counts as synchronous.
        only_async = getattr(tool, "func", tool) is None
        # Seconds beyond the timeout that an asynchronous tool has for handling its cancellation.
        grace = 1.0 if only_async else 0.0
        # Bound now: after a timeout, `close` makes a new list, which the abandoned call must not touch.
        runners = self._runners

        def call() -> Any:
            if not only_async:
                return tool.invoke(request)
            if not runners:  # clients inside tools are bound to the loop in which they were created, so keep one loop
                runners.append(asyncio.Runner())
            return runners[0].run(_invoke_async(tool, request, timeout_s))

        try:
            return self._worker.run(call, None if timeout_s is None else timeout_s + grace)
        except (NotInTime, KeyboardInterrupt):
            self.close()
            raise

    def close(self) -> None:
        """Stop the thread without waiting for it; the next call starts a new one."""
        self._release()
        self._begin()

    def _begin(self) -> None:
        self._worker = Worker(self._name)
        self._runners: list[asyncio.Runner] = []
        self._release = weakref.finalize(self, _end, self._worker, self._runners)
        self._release.atexit = False  # do not wait for a hanging tool when the interpreter exits


def _end(worker: Worker, runners: list[asyncio.Runner]) -> None:
    worker.end(runners[0].close if runners else None)


async def _invoke_async(tool: BaseTool, request: dict[str, Any], timeout_s: float | None) -> Any:
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            return await tool.ainvoke(request)
    except TimeoutError:
        if limit.expired():
            raise NotInTime from None
        raise
