"""Read copies of responses, while their bytes go on to the client or wait for a ruling."""

import logging
from collections.abc import Callable
from typing import Any

import httpx

from ..dialect import StreamReader, UpstreamAnswer
from ..events import EventBuffer, has_data, is_end_mark, may_call, parse_event
from ..forwarding import decode_body

logger = logging.getLogger("hardwon.proxy")

LARGEST = 64 * 2**20
"""Number of bytes of a body, or of one event, that are read; a larger one passes unread."""


class StreamCopy:
    """The events of one response, as far as a reader understands them."""

    def __init__(self, reader: StreamReader, *, holds: bool = False) -> None:
        """Read a response."""
        self._reader, self._holds = reader, holds
        self._buffer = EventBuffer()
        self._is_empty = True
        self._is_odd = False
        """Whether the last event was not understood."""
        self.has_failed = False
        """Whether any event was not understood that may have a call."""
        reader.begin()

    def add(self, data: bytes) -> list[bytes]:
        """Add bytes, and return the events to pass on."""
        if len(self._buffer) > LARGEST:
            self.has_failed = True
            return []
        return [passed for event in self._buffer.split(data) for passed in self._read(event)]

    def finish(self) -> list[bytes]:
        """Read the last event, which may lack its blank line, and return the events to pass on."""
        rest = self._buffer.event
        is_cut = has_data(rest) and parse_event(rest) is None and not is_end_mark(rest)
        return [] if is_cut or not rest else self._read(rest)

    def close(self) -> bytes:
        """Return the blank line that the last event lacks, for what follows it."""
        return b"\n\n" if self._buffer.event else b""

    def _read(self, event: bytes) -> list[bytes]:
        value, is_data = parse_event(event), has_data(event)
        self._is_empty = self._is_empty and not is_data
        if is_data:
            self._is_odd = value is None and not is_end_mark(event)
        try:
            if value is None and may_call(event, value):
                raise ValueError("it is no JSON")
            passed = self._reader.add(event, value, holds=self._holds)
        except Exception as error:  # whatever a server sends costs the client no answer
            self._is_odd = True
            if may_call(event, value):
                if not self.has_failed:
                    why = f"{type(error).__name__}: {error}"
                    logger.warning("an event of the upstream server is not understood: %s", why)
                self.has_failed = True
            passed = self._reader.add(event, None, holds=self._holds)
        return [] if self.has_failed else passed

    @property
    def is_over(self) -> bool:
        """Return whether the model has finished its answer."""
        return self._reader.is_over

    @property
    def is_cut(self) -> bool:
        """Return whether the stream ended before the answer did."""
        return self._is_empty or (self._reader.is_cut and not self._is_odd)

    def read_response(self) -> UpstreamAnswer | None:
        """Return the current response, or None if it is not understood."""
        return try_read(self._reader.read_response)

    def read_answer(self) -> UpstreamAnswer | None:
        """Return the answer that the client sees, or None if it is not understood."""
        return try_read(self._reader.read_answer)


class BodyCopy:
    """A response that is not a stream; it is read when all of it is there."""

    is_over = has_failed = False
    """Whether an answer was read; one that is not understood is None."""

    def __init__(self, response: httpx.Response, parse: Callable[[bytes], UpstreamAnswer | None]) -> None:
        self._response, self._parse = response, parse
        self._data = bytearray()
        self._answer: UpstreamAnswer | None = None

    def add(self, data: bytes) -> None:
        """Add bytes."""
        if len(self._data) <= LARGEST:
            self._data += data

    def finish(self) -> None:
        """Read the answer."""
        self._answer = try_read(self._parse, decode_body(self._response, bytes(self._data)))
        self.is_over = self._answer is not None

    def read_answer(self) -> UpstreamAnswer | None:
        """Return the answer, or None if it is not understood."""
        return self._answer


def try_read(read: Callable[..., UpstreamAnswer | None], *args: Any) -> UpstreamAnswer | None:
    """Return an answer, or None after a log line if it is not understood."""
    try:
        return read(*args)
    except Exception as error:
        logger.warning("an answer of the upstream server is not understood: %s: %s", type(error).__name__, error)
        return None
