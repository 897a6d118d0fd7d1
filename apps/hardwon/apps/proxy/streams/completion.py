"""Assemble the chunks of a chat stream to a completion, with every field of the message.

Servers number parallel calls differently: some send the index 0 for every call, or none. A new id begins a new call,
and so does a name after complete arguments.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ..dialect import read_arguments

_SET = ("id", "type", "role", "name", "index")
"""Fields that servers repeat; the others come in parts."""
_KEPT = ("id", "model", "usage", "prompt_token_ids", "error")
_CALLS = ("tool_calls", "function_call")


class CompletionBuilder:
    """Assembles the chunks of a stream to a response with one choice."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self.calls: list[dict[str, Any]] = []
        self._indexes: list[Any] = []
        """The index of each call."""
        self.is_ambiguous = False
        """Whether clients may tell the calls apart in another way than this class."""
        self._logprobs: list[Any] = []
        self._token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.has_choice = False

    def add(self, chunk: Any) -> None:
        """Add a chunk; what is no chunk is ignored. The request asks for one choice, so every choice is that one."""
        if not isinstance(chunk, Mapping):
            return
        self._fields |= {name: chunk[name] for name in _KEPT if chunk.get(name) is not None}
        for choice in list_parts(chunk.get("choices")):
            self.has_choice = True
            self._add_choice(choice)

    def _add_choice(self, choice: Mapping[str, Any]) -> None:
        for delta in iter_deltas(choice):
            merge(self._message, {name: part for name, part in delta.items() if name != "tool_calls"})
            for at, part in enumerate(list_parts(delta.get("tool_calls"))):
                self._add_call(part, at)
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, Mapping) and isinstance(logprobs.get("content"), list):
            self._logprobs += logprobs["content"]
        if isinstance(choice.get("token_ids"), list):
            self._token_ids += choice["token_ids"]
        if isinstance(choice.get("finish_reason"), str):
            self.finish_reason = choice["finish_reason"] or self.finish_reason

    def _add_call(self, part: Mapping[str, Any], at: int) -> None:
        index = part.get("index")
        has_index = isinstance(index, int) and not isinstance(index, bool)
        number: int = index if has_index else at  # type: ignore[assignment]
        match = self._find_call(part, number)
        if match is None:
            self.is_ambiguous = self.is_ambiguous or number in self._indexes
            match = {"id": None, "type": "function"}
            self.calls.append(match)
            self._indexes.append(number)
        self.is_ambiguous = self.is_ambiguous or not has_index
        merge(match, {name: value for name, value in part.items() if name != "index"})

    def _find_call(self, part: Mapping[str, Any], number: int) -> dict[str, Any] | None:
        """Return the call to which a part belongs, or None if it begins one."""
        same = [call for call, index in zip(self.calls, self._indexes, strict=True) if index == number]
        call_id, function = part.get("id"), part.get("function") or {}
        if not isinstance(function, Mapping):
            raise ValueError(f"the function of a call is {function!r:.40}")
        if call_id:
            match = [call for call in (same if function.get("name") else self.calls) if call["id"] == call_id]
            if not match and same and (same[-1]["id"] or function.get("name")):
                return None
            same = match or same
        return None if not same or _begins_next(same[-1].get("function") or {}, function) else same[-1]

    @property
    def has_error(self) -> bool:
        """Return whether the server wrote an error into the stream."""
        return "error" in self._fields

    @property
    def text(self) -> str:
        """The text so far."""
        content = self._message["content"]
        return content if isinstance(content, str) else ""

    def end(self, text: str) -> None:
        """Put a text in the place of the calls."""
        self._message["content"] = self.text + text
        self._message.pop("function_call", None)
        self.calls, self._indexes, self.finish_reason = [], [], "stop"

    def build(self, *, before: str = "") -> dict[str, Any]:
        """Return the response so far, in the form of one that was not streamed, with a text before its own."""
        message = dict(self._message)
        if before:
            message["content"] = before + self.text
        if self.calls:
            message["tool_calls"] = self.calls
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        if self._logprobs:
            choice["logprobs"] = {"content": self._logprobs}
        if self._token_ids:
            choice["token_ids"] = self._token_ids
        return {**self._fields, "choices": [choice]}


def _begins_next(before: Mapping[str, Any], function: Mapping[str, Any]) -> bool:
    """Return whether a part with the number of another call is the beginning of the next one."""
    name, arguments = function.get("name"), before.get("arguments")
    if not name or not before.get("name"):
        return False
    is_complete = bool(arguments) and read_arguments(arguments) is not None
    return name != before["name"] or (is_complete and bool(function.get("arguments")))


def iter_deltas(choice: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of a message in a choice."""
    for delta in (choice.get("delta"), choice.get("message")):
        if delta and not isinstance(delta, Mapping):
            raise ValueError(f"a part of a message is {delta!r:.40}")
        if delta:
            yield delta


def list_parts(value: Any) -> list[Mapping[str, Any]]:
    """Return choices or calls of a chunk; null is none."""
    if not value:
        return []
    if not isinstance(value, list) or not all(isinstance(part, Mapping) for part in value):
        raise ValueError(f"a list of parts is {value!r:.40}")
    return value


def has_calls(chunk: Any) -> bool:
    """Return whether a chunk has a part of a tool call, or ends a response that has one."""
    choices = list_parts(chunk.get("choices")) if isinstance(chunk, Mapping) else []
    return any(
        choice.get("finish_reason") in _CALLS
        or any(delta.get(name) for delta in iter_deltas(choice) for name in _CALLS)
        for choice in choices
    )


def merge(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add a part of a message to the parts before it: texts and lists grow, objects are merged."""
    for name, part in delta.items():
        before = message.get(name)
        if part is None or (before and part == ""):
            message.setdefault(name, None)
        elif name in _SET or before is None or type(before) is not type(part):
            message[name] = dict(part) if isinstance(part, dict) else part
        elif isinstance(part, str):
            message[name] = before + part
        elif isinstance(part, dict):
            merge(before, part)
        elif isinstance(part, list):
            message[name] = _merge_lists(before, part)
        else:
            message[name] = part


def _merge_lists(before: list[Any], parts: list[Any]) -> list[Any]:
    """Return a list with more entries; parts of an entry have its index."""
    merged = list(before)
    for part in parts:
        index = part.get("index") if isinstance(part, dict) else None
        same = [entry for entry in merged if isinstance(entry, dict) and entry.get("index") == index]
        if index is None or not same:
            merged.append(dict(part) if isinstance(part, dict) else part)
        else:
            merge(same[0], part)
    return merged
