"""Describe the differences between the APIs in which clients hold conversations.

A dialect reads requests and responses as plain messages, and writes experience and refusals in the form of its API.
"""

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hardwon.apps.importers.messages import LoggedMessage

from .conversations import ModelCall, ModelRequest


@dataclass(frozen=True, slots=True)
class UpstreamAnswer:
    """A model's answer: a whole response, or one assembled from a stream."""

    value: Mapping[str, Any]
    """The response in the form of one that was not streamed."""
    messages: tuple[LoggedMessage, ...]
    """Its plain messages: the calls, and the results of tools that the server runs itself."""
    finish: str
    """"stop" for a whole answer; otherwise why it was cut."""
    kept_as: tuple[str, ...] = ()
    """Ids under which the server may keep the conversation up to this answer."""

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls that the client has to run, with id, name, args, and why they cannot be read, or an empty text."""
        answered = [message["answers"] for message in self.messages if message["role"] == "tool"]
        return [
            {
                "id": as_id(call["id"]),
                "name": call["name"],
                "args": call["arguments"],
                "unreadable": call.get("unreadable", ""),
            }
            for message in self.messages
            for call in message["calls"]
            if call["id"] not in answered
        ]


def find_request(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the position of the request of a person: the last message of the user, or else the first.

    Some frameworks send results as messages of the user, after a message with calls.
    """
    positions = [at for at, message in enumerate(messages) if message.get("role") == "user"]
    if not positions:
        return 0
    is_result = positions[-1] and messages[positions[-1] - 1].get("tool_calls")
    return positions[0 if is_result else -1]


def as_id(value: Any) -> str | None:
    """Return the id of a call; servers may write another value than a text."""
    return value if isinstance(value, str | None) else json.dumps(value)


def explain_unreadable(name: Any, arguments: Any) -> str:
    """Return why nobody can say what a call does; empty if it is clear."""
    if not name or not isinstance(name, str):
        return "it names no tool"
    return "" if read_arguments(arguments) is not None else "its arguments are no JSON object"


def read_arguments(arguments: Any) -> dict[str, Any] | None:
    """Return the arguments of a call, or None if readers may understand them differently."""
    if isinstance(arguments, Mapping):
        return dict(arguments)
    if arguments is None or (isinstance(arguments, str) and arguments.strip() in ("", "null")):
        return {}
    try:
        value = json.loads(arguments, object_pairs_hook=_read_object) if isinstance(arguments, str) else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a name stands twice")
    return value


class ReadOnce:
    """Reads messages of requests as plain ones: for a part that repeats an earlier request, the same objects."""

    def __init__(self, read: Callable[[Any], Iterable[LoggedMessage]]) -> None:
        """Read conversations with a function that returns one message of an API as plain ones."""
        self._read = read
        self._lock = threading.Lock()
        self._entries: list[tuple[Sequence[Any], tuple[LoggedMessage, ...]]] = []
        """Messages as they came and as plain ones, the conversation last used first."""

    def __call__(self, messages: Sequence[Any]) -> tuple[LoggedMessage, ...]:
        """Return the plain messages of a request."""
        with self._lock:
            beginnings = [entry for entry in self._entries if messages[: len(entry[0])] == entry[0]]
        old, plain = longest = max(beginnings, key=lambda entry: len(entry[0]), default=((), ()))
        plain = (*plain, *(part for message in messages[len(old) :] for part in self._read(message)))
        with self._lock:
            rest = [entry for entry in self._entries if entry is not longest]
            self._entries = [(list(messages), plain), *rest[:63]]
        return plain


class StreamReader(Protocol):
    """Follows the stream of one exchange; after a refusal a second response continues the first one."""

    held: list[bytes]
    """Events that wait until the guardrails have ruled on the calls in them."""

    def begin(self) -> None:
        """Begin with a response; the events held of the last one are dropped."""
        ...

    def add(self, event: bytes, chunk: Any, *, holds: bool) -> list[bytes]:
        """Add an event with its JSON value, and return the events to pass on now."""
        ...

    @property
    def is_over(self) -> bool:
        """Return whether the model has finished its answer."""
        ...

    @property
    def is_cut(self) -> bool:
        """Return whether the last event stands within an answer, and none ended it, not even with an error."""
        ...

    def read_response(self) -> UpstreamAnswer | None:
        """Return the current response, or None if it has an unknown format."""
        ...

    def read_answer(self) -> UpstreamAnswer | None:
        """Return the answer that the client sees: it includes the parts passed on before a refusal."""
        ...

    def release(self) -> list[bytes]:
        """Return the events held, in which every reader finds the calls on which the guardrails have ruled."""
        ...

    def end(self, text: str) -> list[bytes]:
        """Return the events that end the stream with a text in the place of the calls held."""
        ...


class Dialect(Protocol):
    """One API."""

    def prepare(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request as the server should get it, without experience."""
        ...

    def is_conversation(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request can use experience."""
        ...

    def can_call(self, body: Mapping[str, Any]) -> bool:
        """Return whether the response to a request may have calls of tools."""
        ...

    def read_request(self, body: Mapping[str, Any]) -> ModelRequest:
        """Return the messages of a request."""
        ...

    def add_experience(self, body: Mapping[str, Any], turn: ModelCall, place: str) -> dict[str, Any]:
        """Return the request with warnings below the answers of tools, and with the hint."""
        ...

    def add_refusals(self, body: Mapping[str, Any], answer: UpstreamAnswer, texts: Sequence[str]) -> dict[str, Any]:
        """Return a request that repeats a call of the model, with answers to the calls of its last response."""
        ...

    def parse(self, data: bytes) -> UpstreamAnswer | None:
        """Return a response that was not streamed, or None if it has an unknown format."""
        ...

    def end(self, answer: UpstreamAnswer, text: str) -> UpstreamAnswer:
        """Return the answer with a text in the place of its calls."""
        ...

    def open_reader(self) -> StreamReader:
        """Return a reader for the stream of one exchange."""
        ...
