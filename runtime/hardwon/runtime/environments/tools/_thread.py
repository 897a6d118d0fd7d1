"""Where tools run: a thread of its own, with one event loop for all calls of asynchronous tools."""

import asyncio
import weakref
from typing import Any

from langchain_core.tools import BaseTool

from hardwon.runtime.environments._worker import NotInTime, Worker

GRACE_S = 1.0
"""How much longer than its time an asynchronous tool gets to be cancelled in."""


class ToolThread:
    """Invokes tools one after the other. A tool that does not come back is left behind with its thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begin()

    def invoke(self, tool: BaseTool, request: dict[str, Any], timeout_s: float | None) -> Any:
        """What the tool returns or raises. Raises `NotInTime` when it takes longer than `timeout_s`."""
        only_async = getattr(tool, "func", tool) is None
        grace = GRACE_S if only_async else 0.0
        runners = self._runners

        def call() -> Any:
            if not only_async:
                return tool.invoke(request)
            if not runners:  # one loop for all calls: clients that tools hold are bound to the loop they began in
                runners.append(asyncio.Runner())
            return runners[0].run(_awaited(tool, request, timeout_s))

        try:
            return self._worker.run(call, None if timeout_s is None else timeout_s + grace)
        except (NotInTime, KeyboardInterrupt):
            self.close()
            raise

    def close(self) -> None:
        """Let the thread end when it can, without waiting; the next call begins a new one."""
        self._release()
        self._begin()

    def _begin(self) -> None:
        self._worker = Worker(self._name)
        self._runners: list[asyncio.Runner] = []
        self._release = weakref.finalize(self, _end, self._worker, self._runners)
        self._release.atexit = False


def _end(worker: Worker, runners: list[asyncio.Runner]) -> None:
    worker.end(runners[0].close if runners else None)


async def _awaited(tool: BaseTool, request: dict[str, Any], timeout_s: float | None) -> Any:
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            return await tool.ainvoke(request)
    except TimeoutError:
        if limit.expired():
            raise NotInTime from None
        raise
