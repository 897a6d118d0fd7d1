"""Collect the output items of a stream of the Responses API, and tell those apart that have equal indexes or none."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..dialect import read_arguments

CLIENT_CALLS = ("function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call")
"""Types of items that the client runs."""
_BEGUN, _DONE = "response.output_item.added", "response.output_item.done"
_IN_PARTS = {"function_call_arguments": "arguments", "custom_tool_call_input": "input"}
"""Fields of calls that come in parts, by the name in the type of their events."""


@dataclass
class _StreamItem:
    index: Any
    item: Mapping[str, Any]
    parts: str = ""
    is_done: bool = False


class StreamedItems:
    """The items of a response, in the order in which they began."""

    def __init__(self) -> None:
        self._entries: list[_StreamItem] = []

    def add(self, kind: str, chunk: Mapping[str, Any]) -> int | None:
        """Add an event, and return the number of the item that it begins, continues or ends."""
        if kind in (_BEGUN, _DONE):
            return self._add_item(kind, chunk)
        _, _, event = kind.partition(".")
        name, _, state = event.partition(".")
        if name not in _IN_PARTS:
            return None
        entry = self._find(chunk.get("item_id"), chunk.get("output_index"))
        if entry is None:
            kind_of_call = name.rpartition("_")[0]
            item = {"type": kind_of_call, "id": chunk.get("item_id"), "call_id": chunk.get("item_id")}
            entry = self._append(_StreamItem(chunk.get("output_index"), item))
        part = chunk.get(_IN_PARTS[name] if state == "done" else "delta")
        if not isinstance(part, str):
            raise ValueError(f"a part of a call is {part!r:.40}")
        entry.parts = part if state == "done" else entry.parts + part
        return self._entries.index(entry)

    def _add_item(self, kind: str, chunk: Mapping[str, Any]) -> int | None:
        items = list_items([chunk["item"]] if chunk.get("item") else None)
        if not items:
            return None
        (item,), index = items, chunk.get("output_index")
        entry = self._find(item.get("id"), index if kind == _DONE else None, item.get("type"))
        if entry is None:
            entry = self._append(_StreamItem(index, item))
        entry.item, entry.is_done = item, kind == _DONE
        field = next((name for name in _IN_PARTS.values() if item.get(name)), "")
        if entry.is_done and entry.parts and field and not _is_equal(entry.parts, item[field]):
            raise ValueError(f"a call has other {field} than its parts")
        return self._entries.index(entry)

    def _append(self, entry: _StreamItem) -> _StreamItem:
        self._entries.append(entry)
        return entry

    def _find(self, name: Any, index: Any, kind: Any = None) -> _StreamItem | None:
        """Return an item by its id, or the last one with an index that may be it."""
        if name and (match := [entry for entry in self._entries if entry.item.get("id") == name]):
            return match[-1]
        for entry in reversed(self._entries if index is not None else ()):
            fits = kind in (None, entry.item.get("type")) and not (name and entry.item.get("id"))
            if entry.index == index and not entry.is_done and fits:
                return entry
        return None

    def list_all(self) -> list[dict[str, Any]]:
        """Return the items; the parts of a call stand in for what the item itself leaves out."""
        return [_fill(entry) for entry in self._entries]

    def list_calls_beside(self, output: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the calls of the client that an output leaves out or changes."""
        same = [(item.get("call_id"), item.get("arguments", item.get("input"))) for item in output]
        begun = [call_id for call_id, _ in same]
        return [
            _fill(entry)
            for entry in self._entries
            if is_client_call(item := _fill(entry))
            and (item.get("call_id"), item.get("arguments", item.get("input"))) not in same
            and not (item.get("call_id") in begun and not (entry.is_done or entry.parts))
        ]


def _fill(entry: _StreamItem) -> dict[str, Any]:
    field = "input" if entry.item.get("type") == "custom_tool_call" else "arguments"
    return {**entry.item, field: entry.parts} if entry.parts and not entry.item.get(field) else dict(entry.item)


def _is_equal(parts: str, given: Any) -> bool:
    read = read_arguments(parts)
    return parts == given or (read is not None and read == read_arguments(given))


def is_client_call(item: Any) -> bool:
    """Return whether an item is a call that the client runs."""
    return isinstance(item, Mapping) and item.get("type") in CLIENT_CALLS


def list_items(value: Any) -> list[Mapping[str, Any]]:
    """Return the items of an output; null is none."""
    if not value:
        return []
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise ValueError(f"an output is {value!r:.40}")
    odd = next((item for item in value if item.get("call_id") and not isinstance(item.get("type"), str)), None)
    if odd is not None:
        raise ValueError(f"a call has the type {odd.get('type')!r:.40}")
    return value
