"""What a request may cost: the size of its body, and how many of them a second a caller may send."""

import time
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import problem

MAX_BODY_BYTES = 16 * 1024 * 1024
"""An episode of a thousand long observations has a few MiB."""
RATE = 1000.0
"""Requests a second that one caller may send in the long run."""
BURST_S = 2.0
"""Seconds of the rate that may come at once."""
CALLERS = 10_000
"""Callers whose rate is remembered at most."""


class Rates:
    """A bucket for every caller, filled at the rate and emptied by requests."""

    def __init__(self, rate: float = RATE) -> None:
        self.rate = rate
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait_s(self, caller: str, now: float | None = None) -> float:
        """0 where a request may come now, else how long until one may."""
        now = time.monotonic() if now is None else now
        left, at = self._buckets.get(caller, (self.rate * BURST_S, now))
        left = min(self.rate * BURST_S, left + (now - at) * self.rate)
        if caller not in self._buckets and len(self._buckets) >= CALLERS:
            self._buckets.clear()
        self._buckets[caller] = (left - 1 if left >= 1 else left, now)
        return 0.0 if left >= 1 else (1 - left) / self.rate


class BodyLimit:
    """Refuses a body that is too large: by what it says of itself, else when it has become so."""

    def __init__(self, app: ASGIApp, limit: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if told.isdigit() and int(told) > self._limit:
            await self._refuse(scope, receive, send)
            return
        read, begun = 0, False

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._limit:
                raise _TooLarge
            return message

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, limited, watched)
        except _TooLarge:
            if begun:
                raise
            await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        detail = (
            f"the body has more than {self._limit} bytes. Send it in parts; `hardwon serve --max-body` allows more."
        )
        await problem(413, detail, "ConfigError", scope["state"].get("request_id", ""))(scope, receive, send)


class _TooLarge(BaseException):
    """Out of a body that is read; no handler of the application catches it."""
