"""Read tool calls in sampled text, in the forms that chat models write."""

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

_BLOCK = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_FENCE = re.compile(r"\A```(?:json)?(.*)```\Z", re.DOTALL)


def split_calls(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the text without its tool calls, and the calls in OpenAI's form.

    A call is JSON with a name and arguments: within `<tool_call>` marks, or the whole text. Marks around anything else
    stay text.
    """
    blocks = list(_BLOCK.finditer(text))
    calls = [call for block in blocks for call in _read_calls(block[1])]
    if calls:
        return _BLOCK.sub("", text).strip(), calls
    calls = [] if blocks else list(_read_calls(_unwrap(text)))
    return ("" if calls else text), calls


def _unwrap(text: str) -> str:
    fenced = _FENCE.match(text.strip())
    return fenced[1] if fenced else text


def _read_calls(text: str) -> Iterator[dict[str, Any]]:
    """Yield the calls of a JSON text: one object, or a list of objects."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    for entry in value if isinstance(value, list) else [value]:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            return
        arguments = entry.get("arguments", entry.get("parameters"))
        if not isinstance(arguments, Mapping):
            return
        function = {"name": entry["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}
        yield {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}
