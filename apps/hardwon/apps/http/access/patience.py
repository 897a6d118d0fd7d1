"""Time limits of connections: clients that send or read too slowly are disconnected.

A server has a limited number of connections. A client that sends one header per minute, or opens a stream and never
reads it, would hold one forever. The time starts with the first byte awaited, and grows with the data received.
"""

from asyncio import BaseTransport, TimerHandle
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

# uvicorn selects the class at import (httptools or h11), so type checkers cannot use it as a base.
_Protocol: Any = AutoHTTPProtocol


class PatientProtocol(_Protocol):  # type: ignore[misc]
    """uvicorn's HTTP protocol with time limits. A connection that exceeds one is closed without a response."""

    # Seconds in which a client must read while its buffers are full.
    headers_s, body_s, read_s = 20.0, 20.0, 30.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._sending: TimerHandle | None = None
        self._reading: TimerHandle | None = None
        self._until = 0.0

    def connection_made(self, transport: BaseTransport) -> None:
        """Start the time limit of the headers."""
        super().connection_made(transport)
        self._allow(self.headers_s)

    def data_received(self, data: bytes) -> None:
        """Process data, and set the limit for the rest of the request."""
        # uvicorn creates a new `cycle` when the headers of a request are complete.
        before = self.cycle
        waited = self._sending is not None
        super().data_received(data)
        protocol = self.transport.get_protocol()
        if self.transport.is_closing() or protocol is not self:  # a WebSocket has its own limits
            self._stop()
            # uvicorn answers no request that the parser of WebSockets refuses, and could not shut down before it ends.
            if getattr(getattr(protocol, "conn", None), "handshake_exc", None):
                self.transport.close()
        elif self.cycle is None or (self.cycle is before and before.response_complete):
            # Not renewed by further bytes, or a client that sends its headers one by one could stay forever.
            if not waited:
                self._allow(self.headers_s)
        elif self.cycle.more_body:
            if self.cycle is not before:
                self._allow(self.body_s)
            # Moves only the deadline; the running timer reads it when it fires, so packets set no timers.
            self._until += len(data) / 1000.0
        else:
            self._stop()

    def eof_received(self) -> bool:
        """Return whether a client that ended its side of the connection still gets the answer to its last request."""
        cycle = self.cycle
        if cycle is None or cycle.more_body or cycle.response_started:
            return False
        if not getattr(self, "pipeline", None):
            cycle.keep_alive = False  # the connection ends with this answer
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel the timers."""
        self._stop()
        self._resume()
        super().connection_lost(error)

    def pause_writing(self) -> None:
        """Start the time limit of a client that does not read."""
        super().pause_writing()
        if self._reading is None:
            # `abort`, because `close` would wait until the client has read the buffered data.
            self._reading = self.loop.call_later(self.read_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the time limit of reading."""
        self._resume()
        super().resume_writing()

    def _allow(self, seconds: float) -> None:
        self._stop()
        self._until = self.loop.time() + seconds
        self._sending = self.loop.call_later(seconds, self._check_deadline)

    def _check_deadline(self) -> None:
        """Close the connection, unless data received in the meantime moved the deadline."""
        left = self._until - self.loop.time()
        if left > 0.01:
            self._sending = self.loop.call_later(left, self._check_deadline)
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
