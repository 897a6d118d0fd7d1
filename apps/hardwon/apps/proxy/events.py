"""Read and write streams of server-sent events."""

import codecs
import json
import re
from typing import Any

from .json_text import load

_OF_CALLS = re.compile(r'"(?:\w*_call|tool_calls|call_id|arguments)"')
"""Names and types in the JSON of calls."""
_BLANK_LINE = re.compile(rb"\n\r?\n|\r\r\n?")


class EventBuffer:
    """Collects the bytes of a stream, and cuts them into events."""

    def __init__(self) -> None:
        self._event = bytearray()
        """The bytes since the last complete event."""

    def split(self, data: bytes) -> list[bytes]:
        """Add bytes, and return the events that are complete."""
        searched = max(len(self._event) - 3, 0)
        self._event += data
        events, at = [], 0
        for match in _BLANK_LINE.finditer(self._event, searched):
            events.append(bytes(self._event[at : match.end()]))
            at = match.end()
        del self._event[:at]
        return events

    def __len__(self) -> int:
        """Return the number of bytes of the last event."""
        return len(self._event)

    @property
    def event(self) -> bytes:
        """The last event, whose blank line is missing."""
        return bytes(self._event)


def is_end_mark(event: bytes) -> bool:
    """Return whether an event is the last one of a stream of chat completions."""
    return event.strip() == b"data: [DONE]"


def has_data(event: bytes) -> bool:
    """Return whether an event has data, and is not a comment."""
    return any(line.startswith(b"data:") for line in _split_lines(event))


def may_call(event: bytes, value: Any) -> bool:
    """Return whether an event that is not understood mentions a call in its value, or in lines that have none."""
    if value is not None:
        return _OF_CALLS.search(json.dumps(value)) is not None
    return any(b"_call" in line and not line.startswith((b":", b"event:")) for line in _split_lines(event))


def _split_lines(event: bytes) -> list[bytes]:
    """Return the lines of an event; a stream may begin with a byte order mark."""
    return event.removeprefix(codecs.BOM_UTF8).splitlines()


def parse_event(event: bytes) -> Any:
    """Return the JSON value of an event, or None for comments, the end mark and everything else."""
    lines = [line[5:].strip() for line in _split_lines(event) if line.startswith(b"data:")]
    try:
        return load(b"\n".join(lines)) if lines else None
    except ValueError:  # "[DONE]"
        return None


def format_event(value: Any, name: str = "") -> bytes:
    """Return a value as a server-sent event, with a name if its API names events."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass") + b"\n\n"
