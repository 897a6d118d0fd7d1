"""Follow the stream of a response, and join the responses that follow a refused call to one stream for the client.

A stream keeps the id of its first response, because clients reject another one. `Aliases` knows the id under which the
server keeps the joined answer.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from ..dialect import UpstreamAnswer
from ..events import format_event
from .stream_items import StreamedItems, is_client_call, list_items

_BEGINNINGS = ("response.created", "response.queued", "response.in_progress")
_ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


class Aliases:
    """The server's ids of answers that clients know under another id. A restart loses them."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, str] = OrderedDict()

    def add(self, name: str, server_id: str) -> None:
        """Note the server's id of an answer."""
        self._ids[name] = server_id
        while len(self._ids) > 4096:
            self._ids.popitem(last=False)

    def resolve(self, name: Any) -> Any:
        """Return the server's id of an answer."""
        return self._ids.get(name, name) if isinstance(name, str) else name


class ResponseReader:
    """Reads the events of a stream, and of the responses that continue it.

    While calls are held, reasoning is held too until the item after it begins: the API accepts no reasoning without the
    call to which it led.
    """

    def __init__(
        self,
        read: Callable[[Any], UpstreamAnswer | None],
        make_message: Callable[[str], dict[str, Any]],
        aliases: Aliases,
    ) -> None:
        self.held: list[bytes] = []
        self._read, self._make_message, self._aliases = read, make_message, aliases
        self._first_id = ""
        self._carried: list[Any] = []
        """Items that the client has of responses whose calls were refused."""
        self._sequence = 0
        self._items = StreamedItems()
        self._held_from: int | None = None
        """Number of the first item whose events are held."""
        self._has_call = self._continues = self._has_error = False
        self._begun = False
        self._last = ""
        """Type of the last event."""
        self._response: dict[str, Any] = {}
        """The response as its last event describes it."""

    def begin(self) -> None:
        """Begin with a response."""
        if self._begun:
            self._carried += self._list_passed()
            self._continues = True
        self._begun, self._has_call, self._held_from, self._last = True, False, None, ""
        self._items, self._response, self.held = StreamedItems(), {}, []

    def add(self, event: bytes, chunk: Any, *, holds: bool) -> list[bytes]:
        """Add an event, and return the events to pass on now."""
        if not isinstance(chunk, Mapping):
            return self._pass_on(event)
        self._last = kind = chunk["type"] if isinstance(chunk.get("type"), str) else ""
        self._has_error = self._has_error or kind == "error"
        if kind in (*_BEGINNINGS, *_ENDS) and isinstance(chunk.get("response"), Mapping):
            self._response = dict(chunk["response"])
            self._first_id = self._first_id or str(self._response.get("id") or "")
        number = self._items.add(kind, chunk)
        before = self._decide(kind, number) if holds else []
        event = self._rewrite(event, chunk)
        return [*before, *self._pass_on(event)] if event else before

    def _pass_on(self, event: bytes) -> list[bytes]:
        if self._held_from is None:
            return [event]
        self.held.append(event)
        return []

    def _decide(self, kind: str, number: int | None) -> list[bytes]:
        """Begin to hold events, or return the held ones if no call follows the reasoning."""
        item = None if number is None else self._items.list_all()[number]
        output = self._response.get("output") if kind in _ENDS else None
        if is_client_call(item) or any(is_client_call(entry) for entry in list_items(output)):
            self._has_call = True
        if self._has_call or (number is not None and isinstance(item, Mapping) and item.get("type") == "reasoning"):
            at = len(self._items.list_all()) if number is None else number
            self._held_from = at if self._held_from is None else self._held_from
            return []
        if kind != "response.output_item.added" and kind not in _ENDS:
            return []
        events, self.held, self._held_from = self.held, [], None
        return events

    def _rewrite(self, event: bytes, chunk: Mapping[str, Any]) -> bytes:
        """Return an event as part of the first stream, or nothing if it repeats the beginning of a response."""
        number = chunk.get("sequence_number")
        if not self._continues:
            self._sequence = max(self._sequence, number if isinstance(number, int) else 0)
            return event
        if chunk.get("type") in _BEGINNINGS:
            return b""
        self._sequence += 1
        value = {**chunk, "sequence_number": self._sequence}
        if isinstance(chunk.get("output_index"), int):
            value["output_index"] = chunk["output_index"] + len(self._carried)
        if chunk.get("type") in _ENDS:
            output = [*self._carried, *self._build()["output"]]
            value["response"] = {**self._response, "id": self._first_id, "output": output}
        return format_event(value, str(chunk.get("type")))

    def _list_passed(self) -> list[Any]:
        """Return the items of the current response that the client has."""
        return self._items.list_all()[: self._held_from]

    @property
    def is_over(self) -> bool:
        """Return whether the model has finished its answer."""
        return self._response.get("status") in ("completed", "incomplete")

    @property
    def is_cut(self) -> bool:
        """Return whether the last event is one within an answer, and none ended it, not even with an error."""
        within = self._last.startswith("response.") and self._last not in _ENDS
        return within and self._response.get("status") in ("queued", "in_progress") and not self._has_error

    def _build(self) -> dict[str, Any]:
        # Some servers leave the output out of the last event, or calls that they streamed.
        output = list_items(self._response.get("output"))
        kept = self._items.list_calls_beside(output) if output else self._items.list_all()
        return {**self._response, "output": [*output, *kept]}

    def read_response(self) -> UpstreamAnswer | None:
        """Return the current response."""
        return self._read(self._build())

    def read_answer(self) -> UpstreamAnswer | None:
        """Return the answer that the client sees."""
        value = self._build()
        if self._continues:
            self._aliases.add(self._first_id, str(value.get("id") or ""))
        return self._read({**value, "output": [*self._carried, *value["output"]]})

    def release(self) -> list[bytes]:
        """Return the events held."""
        return self.held

    def end(self, text: str) -> list[bytes]:
        """Return the events that end the stream with a text in the place of the calls held."""
        passed, item = self._list_passed(), self._make_message(text)
        self._response |= {"status": "completed", "output": [*passed, item]}
        part, at = item["content"][0], len(self._carried) + len(passed)
        place = {"output_index": at, "item_id": item["id"], "content_index": 0}
        response = {**self._response, "id": self._first_id, "output": [*self._carried, *passed, item]}
        begun = {**item, "status": "in_progress", "content": []}
        values: list[dict[str, Any]] = [
            {"type": "response.output_item.added", "output_index": at, "item": begun},
            {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
            {"type": "response.output_text.delta", **place, "delta": text, "logprobs": []},
            {"type": "response.output_text.done", **place, "text": text, "logprobs": []},
            {"type": "response.content_part.done", **place, "part": part},
            {"type": "response.output_item.done", "output_index": at, "item": item},
            {"type": "response.completed", "response": response},
        ]
        first = self._sequence + 1
        return [
            format_event({**value, "sequence_number": first + number}, value["type"])
            for number, value in enumerate(values)
        ]
