"""Read responses of the chat completions API: whole ones, and streams of server-sent events.

A stream is assembled to the same form as a whole response, while its bytes go on to the client.
"""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

Event = tuple[bytes, Any]
"""The bytes of one server-sent event, and its JSON value; None if it has none."""


async def iter_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    """Yield the events of a stream as soon as each is complete, and the bytes that remain at its end."""
    waiting = b""
    async for chunk in chunks:
        waiting += chunk
        while (end := _find_end(waiting)) is not None:
            event, waiting = waiting[:end], waiting[end:]
            yield event, parse_event(event)
    if waiting:
        yield waiting, parse_event(waiting)


def _find_end(data: bytes) -> int | None:
    """Return the end of the first event, after its blank line; None if it is not complete."""
    ends = [at + len(mark) for mark in (b"\n\n", b"\r\n\r\n", b"\r\r") if (at := data.find(mark)) >= 0]
    return min(ends, default=None)


def parse_event(event: bytes) -> Any:
    """Return the JSON value of an event, or None for comments and the end mark."""
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    try:
        return json.loads(b"\n".join(lines)) if lines else None
    except ValueError:  # "[DONE]"
        return None


def format_event(value: Any) -> bytes:
    """Return a value as a server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


class CompletionBuilder:
    """Assembles the chunks of a stream to a response with one choice."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._calls: dict[int, dict[str, Any]] = {}
        self._logprobs: list[Any] = []
        self._token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.has_choice = False

    def add(self, chunk: Any) -> None:
        """Add a chunk; what is not a chunk of the first choice is ignored."""
        if not isinstance(chunk, Mapping):
            return
        for name in ("id", "model", "usage", "prompt_token_ids", "error"):
            if chunk.get(name) is not None:
                self._fields[name] = chunk[name]
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) == 0:
                self.has_choice = True
                self._add_choice(choice)

    def _add_choice(self, choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta") or choice.get("message") or {}
        for name in ("content", "refusal", "reasoning_content"):
            if isinstance(delta.get(name), str):
                self._message[name] = (self._message.get(name) or "") + delta[name]
        for at, part in enumerate(delta.get("tool_calls") or ()):
            self._add_call(part, at)
        self._logprobs += (choice.get("logprobs") or {}).get("content") or ()
        self._token_ids += choice.get("token_ids") or ()
        self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _add_call(self, part: Mapping[str, Any], at: int) -> None:
        call = self._calls.setdefault(int(part.get("index", at)), {"function": {"name": "", "arguments": ""}})
        function = part.get("function") or {}
        call["id"] = part.get("id") or call.get("id")
        call["type"] = part.get("type") or call.get("type") or "function"
        # Some servers repeat the whole name in every chunk; none splits it.
        call["function"]["name"] = function.get("name") or call["function"]["name"]
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            call["function"]["arguments"] += arguments
        elif arguments is not None:
            call["function"]["arguments"] = arguments

    def build(self) -> dict[str, Any]:
        """Return the response so far, in the form of one that was not streamed."""
        message = dict(self._message)
        if self._calls:
            message["tool_calls"] = [self._calls[at] for at in sorted(self._calls)]
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        if self._logprobs:
            choice["logprobs"] = {"content": self._logprobs}
        if self._token_ids:
            choice["token_ids"] = self._token_ids
        return {**self._fields, "choices": [choice]}


def has_calls(chunk: Any) -> bool:
    """Return whether a chunk has a part of a tool call, or ends a response that has one."""
    choices = chunk.get("choices") or () if isinstance(chunk, Mapping) else ()
    return any(
        (choice.get("delta") or {}).get("tool_calls") or choice.get("finish_reason") == "tool_calls"
        for choice in choices
    )


def drop_role(event: bytes, chunk: Any) -> bytes:
    """Return an event of a response that continues another one: clients join the deltas, and the role came already."""
    choices = chunk.get("choices") or () if isinstance(chunk, Mapping) else ()
    if not any("role" in (choice.get("delta") or {}) for choice in choices):
        return event
    kept = [
        {**choice, "delta": {name: part for name, part in (choice.get("delta") or {}).items() if name != "role"}}
        for choice in choices
    ]
    return format_event({**chunk, "choices": kept})
