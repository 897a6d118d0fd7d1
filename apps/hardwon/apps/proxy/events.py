"""Read and write streams of server-sent events."""

import json
from collections.abc import AsyncIterator
from typing import Any

Event = tuple[bytes, Any]
"""The bytes of one server-sent event, and its JSON value; None if it has none."""


async def iter_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    """Yield the events of a stream as soon as each is complete.

    The last event may lack its blank line, which is added. Half an event, of a server that died, is left out: a client
    would read the next event as a part of it.
    """
    waiting = b""
    async for chunk in chunks:
        waiting += chunk
        while (end := _find_end(waiting)) is not None:
            event, waiting = waiting[:end], waiting[end:]
            yield event, parse_event(event)
    if (value := parse_event(waiting)) is not None or is_end_mark(waiting):
        yield waiting.rstrip() + b"\n\n", value


def _find_end(data: bytes) -> int | None:
    """Return the end of the first event, after its blank line; None if it is not complete."""
    ends = [at + len(mark) for mark in (b"\n\n", b"\r\n\r\n", b"\r\r") if (at := data.find(mark)) >= 0]
    return min(ends, default=None)


def is_end_mark(event: bytes) -> bool:
    """Return whether an event is the last one of a stream of chat completions."""
    return event.strip() == b"data: [DONE]"


def parse_event(event: bytes) -> Any:
    """Return the JSON value of an event, or None for comments and the end mark."""
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    try:
        return json.loads(b"\n".join(lines)) if lines else None
    except ValueError:  # "[DONE]"
        return None


def format_event(value: Any, name: str = "") -> bytes:
    """Return a value as a server-sent event, with a name if its API names events."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"
