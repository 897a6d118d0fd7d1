"""What all requests of the proxy share: the library behind threads, the log of conversations, the upstream server."""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from hardwon.runtime.integrations.recording import REMIND_S
from hardwon.runtime.integrations.tool_episode import BEFORE_CALL_S

from .conversations import ConversationLog, ProxySettings
from .forwarding import Headers
from .library_access import LibraryAccess

logger = logging.getLogger("hardwon.proxy")

THREADS = 4
_T = TypeVar("_T")


@dataclass
class LibraryWorker:
    """Runs blocking library calls in threads, and gives up on those that fail or take too long."""

    patience_s: float = BEFORE_CALL_S
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(THREADS, "hardwon-proxy"))
    _late: set[Future[Any]] = field(default_factory=set)
    """Calls that nobody waits for any more."""
    _reported_at: dict[str, float] = field(default_factory=dict)

    async def try_call(
        self, what: str, work: Callable[..., _T], *args: Any, undo: Callable[[_T], None] | None = None
    ) -> _T | None:
        """Return the result of `work`, or None after a log line if it fails or takes too long."""
        self._late = {future for future in self._late if not future.done()}
        if len(self._late) >= THREADS:
            self._report_late(what)
            return None
        future = self._pool.submit(work, *args)
        waiter = asyncio.wrap_future(future)
        # asyncio reports an exception that nobody reads; this one is logged below, or came too late to matter.
        waiter.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        done, _ = await asyncio.wait([waiter], timeout=self.patience_s)
        if not done:
            self._report_late(what)
            self._late.add(future)
            if undo is not None:
                future.add_done_callback(lambda late: late.exception() or undo(late.result()))
            return None
        try:
            return future.result()
        except Exception as error:
            logger.warning("%s is skipped: %s: %s", what, type(error).__name__, error)
            return None

    def _report_late(self, what: str) -> None:
        """Log that something is skipped, once and not with every request."""
        now = time.monotonic()
        if now - self._reported_at.get(what, -REMIND_S) >= REMIND_S:
            self._reported_at[what] = now
            logger.warning("%s is skipped: the library did not answer in %g s", what, self.patience_s)

    def submit(self, what: str, work: Callable[..., Any], *args: Any) -> None:
        """Run `work` behind the request; a failure becomes a log line."""

        def run() -> None:
            try:
                work(*args)
            except Exception as error:
                logger.warning("%s failed: %s: %s", what, type(error).__name__, error)

        self._pool.submit(run)

    def close(self) -> None:
        """Finish the work that was submitted."""
        self._pool.shutdown(wait=True)


class Backend:
    """The parts of a proxy that its handlers and exchanges use."""

    def __init__(
        self,
        access: LibraryAccess,
        settings: ProxySettings,
        timeout_s: float,
        patience_s: float,
    ) -> None:
        self.access, self.settings, self.worker = access, settings, LibraryWorker(patience_s)
        self.log = ConversationLog(access, settings)
        self.client = httpx.AsyncClient(timeout=httpx.Timeout(timeout_s, connect=10.0), follow_redirects=False)

    def close(self) -> None:
        """Record the conversations in progress, and close the library."""
        self.worker.submit("recording the open conversations", self.log.close)
        self.worker.close()
        self.access.close()

    async def send(self, method: str, url: httpx.URL, headers: Headers, data: bytes) -> httpx.Response:
        """Send a request, and return the response before its body is read."""
        # Not `build_request`, which would add headers of its own, and cookies of other clients.
        extensions = {"timeout": self.client.timeout.as_dict()}
        request = httpx.Request(method, url, headers=headers, content=data, extensions=extensions)
        return await self.client.send(request, stream=True)
