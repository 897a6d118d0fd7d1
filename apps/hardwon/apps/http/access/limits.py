"""Limits of requests: the size of a body, and the rate of a caller."""

import time
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import problem

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Largest body in bytes. An episode of a thousand long observations has a few MiB."""
RATE = 1000.0
"""Sustained rate of one caller, in requests per second."""
BURST_S = 2.0
"""Size of a burst, in seconds of the rate."""


class Rates:
    """A token bucket per caller, refilled at the rate and drained by requests."""

    def __init__(self, rate: float = RATE) -> None:
        self.rate = rate
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait_s(self, caller: str, now: float | None = None) -> float:
        """Return 0 and count the request if it is allowed now, else the seconds until one is."""
        now = time.monotonic() if now is None else now
        left, at = self._buckets.get(caller, (self.rate * BURST_S, now))
        left = min(self.rate * BURST_S, left + (now - at) * self.rate)
        if caller not in self._buckets and len(self._buckets) >= 10_000:
            self._buckets.clear()  # bounds memory; at worst, callers get a full bucket early
        # A rejected request takes nothing from the bucket, so retries do not make the wait longer.
        self._buckets[caller] = (left - 1 if left >= 1 else left, now)
        return 0.0 if left >= 1 else (1 - left) / self.rate


class BodyLimit:
    """Rejects bodies that are too large, by their Content-Length or while they arrive."""

    def __init__(self, app: ASGIApp, limit: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        # Compared by its number of digits first: `int` refuses thousands of them.
        if length.isdigit() and (len(length) > 20 or int(length) > self._limit):
            await self._refuse(scope, receive, send)
            return
        # Counted on arrival as well, because a chunked body has no Content-Length.
        read, has_begun = 0, False

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._limit:
                raise _TooLarge
            return message

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, limited, watched)
        except _TooLarge:
            # A second response after the first has begun would break the protocol.
            if has_begun:
                raise
            await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        detail = f"the body has more than {self._limit} bytes. Send it in parts, or raise `hardwon serve --max-body`."
        await problem(413, detail, "ConfigError", scope["state"].get("request_id", ""))(scope, receive, send)


class _TooLarge(BaseException):
    """Aborts reading a body. Not an Exception, so no handler of the application catches it."""
