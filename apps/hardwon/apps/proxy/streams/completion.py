"""Assemble the chunks of a chat stream to a completion, with every field of the message.

Servers number parallel calls differently: some send the index 0 for every call, or none. A new id begins a new call,
and so does a name after complete arguments. Names may come in parts.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ..dialect import read_arguments

_SET = ("id", "type", "role", "name", "index", "format")
"""Fields that servers repeat; the others come in parts."""
_IN_PARTS = ("text", "thinking", "reasoning", "reasoning.text")
"""Types of entries without an index that come in parts, up to the signature."""
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
        self._is_numbered = True
        self._is_joined = False
        """Whether a call has a name in parts, which clients may take for its name one by one."""
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
        number: int | str = index if isinstance(index, int | str) and not isinstance(index, bool) else at
        match = self._find_call(part, number)
        if match is None:
            self._is_numbered = self._is_numbered and number not in self._indexes
            match = {"id": None, "type": "function"}
            self.calls.append(match)
            self._indexes.append(number)
        self._is_numbered = self._is_numbered and has_index
        merge(match, {name: value for name, value in self._join_name(match, part).items() if name != "index"})

    def _join_name(self, call: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a part of a call with the whole name so far; some servers repeat the name with every part."""
        before, name = _get_function(call).get("name"), _get_function(part).get("name")
        if not (isinstance(before, str) and isinstance(name, str) and before and name) or name == before:
            return part
        self._is_joined = True
        kind = "custom" if part.get("custom") else "function"
        return {**part, kind: {**part[kind], "name": name if name.startswith(before) else before + name}}

    @property
    def is_ambiguous(self) -> bool:
        """Whether clients may tell the calls apart, or read their names, in another way than this class."""
        return self._is_joined or (not self._is_numbered and len(self.calls) > 1)

    def _find_call(self, part: Mapping[str, Any], number: int | str) -> dict[str, Any] | None:
        """Return the call to which a part belongs, or None if it begins one."""
        same = [call for call, index in zip(self.calls, self._indexes, strict=True) if index == number]
        call_id, function = part.get("id"), _get_function(part)
        if call_id:
            is_placed = function.get("name") and part.get("index") is not None
            match = [call for call in (same if is_placed else self.calls) if call["id"] == call_id]
            if not match and same and (same[-1]["id"] or function.get("name")):
                return None
            same = match or same
        return None if not same or _begins_next(same[-1], part) else same[-1]

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


def _get_function(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function") or call.get("custom") or {}
    if not isinstance(function, Mapping):
        raise ValueError(f"the function of a call is {function!r:.40}")
    return function


def _begins_next(call: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    """Return whether a part with the number of another call is the beginning of the next one."""
    before, function = _get_function(call), _get_function(part)
    name, arguments = function.get("name"), before.get("arguments")
    if not name or not before.get("name"):
        return False
    if name == before["name"]:
        return bool(arguments) and read_arguments(arguments) is not None and bool(function.get("arguments"))
    # A name comes in parts before the arguments, in parts that repeat the id of the call or have none.
    is_same = part["id"] == call["id"] if part.get("id") else "type" not in part
    return bool(arguments) or not is_same


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
        elif {type(before), type(part)} == {str, list}:  # a content of blocks, and one of text
            message[name] = _merge_lists(*(_as_blocks(value) for value in (before, part)))
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


def _as_blocks(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [{"type": "text", "text": value}] if value else []


def _merge_lists(before: list[Any], parts: list[Any]) -> list[Any]:
    """Return a list with more entries; parts of an entry have its index, or follow it and have its type."""
    merged = list(before)
    for part in parts:
        same = next(iter(_list_beginnings(merged, part)), None)
        if same is None:
            merged.append(dict(part) if isinstance(part, dict) else part)
        else:
            merge(same, part)
    return merged


def _list_beginnings(entries: list[Any], part: Any) -> list[Any]:
    """Return the entries of which a value may be a further part."""
    if not isinstance(part, dict):
        return []
    last = entries[-1:] if part.get("type") in _IN_PARTS else []
    candidates = last if (index := part.get("index")) is None else entries
    return [
        entry for entry in candidates
        if isinstance(entry, dict) and entry.get("index") == index and part.get("type") in (None, entry.get("type"))
        and not (index is None and entry.get("signature"))
    ]  # fmt: skip
