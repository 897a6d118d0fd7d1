"""How long a connection may take: whoever sends or reads too slowly is cut off, so that few cannot keep out the others.

A server has a limited number of connections. A client that sends a header a minute, or opens a stream and never reads
it, would hold one for ever. The time begins with the first byte that is waited for, and grows with what came.
"""

from asyncio import BaseTransport, TimerHandle
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEADERS_S = 20.0
"""For all headers of a request, from the opening of the connection or the first byte of the next request."""
BODY_S = 20.0
"""For a body to begin; every `BYTES_A_SECOND` of it allow one second more."""
BYTES_A_SECOND = 1000.0
READ_S = 30.0
"""For a client to read what waits for it, while its buffers are full."""

_Protocol: Any = AutoHTTPProtocol


class PatientProtocol(_Protocol):  # type: ignore[misc]
    """uvicorn's protocol of HTTP, with limits of time. A connection that exceeds one is cut off without an answer."""

    headers_s, body_s, read_s = HEADERS_S, BODY_S, READ_S

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._sending: TimerHandle | None = None
        self._reading: TimerHandle | None = None
        self._until = 0.0

    def connection_made(self, transport: BaseTransport) -> None:
        """A client is there: its headers are waited for."""
        super().connection_made(transport)
        self._allow(self.headers_s)

    def data_received(self, data: bytes) -> None:
        """Something came. See whether more of the request is waited for, and for how long."""
        before = self.cycle
        waited = self._sending is not None
        super().data_received(data)
        if self.transport.is_closing() or self.transport.get_protocol() is not self:  # a WebSocket has its own limits
            self._stop()
        elif self.cycle is None or (self.cycle is before and before.response_complete):
            if not waited:
                self._allow(self.headers_s)
        elif self.cycle.more_body:
            if self.cycle is not before:
                self._allow(self.body_s)
            self._until += len(data) / BYTES_A_SECOND
        else:
            self._stop()

    def connection_lost(self, error: Exception | None) -> None:
        """The client went."""
        self._stop()
        self._resume()
        super().connection_lost(error)

    def pause_writing(self) -> None:
        """The client does not read what it was sent."""
        super().pause_writing()
        if self._reading is None:
            self._reading = self.loop.call_later(self.read_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads again."""
        self._resume()
        super().resume_writing()

    def _allow(self, seconds: float) -> None:
        self._stop()
        self._until = self.loop.time() + seconds
        self._sending = self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """The time is over, unless what came in the meantime prolonged it."""
        left = self._until - self.loop.time()
        if left > 0.01:
            self._sending = self.loop.call_later(left, self._look)
        else:
            self._sending = None
            self.transport.abort()

    def _stop(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _resume(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
