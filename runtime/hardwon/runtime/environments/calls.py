"""Tool calls of LangChain tools: their states, their arguments, and the signatures of tools.

`hardwon.runtime.llm.calls` parses their text. Error messages tell a model how to correct the call. All functions are
pure.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from hardwon.memory import State
from hardwon.runtime.llm.calls import parse_call as parse_call
from hardwon.runtime.llm.prompts import call_text

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

MAX_DEPTH = 3
"""Maximum depth to which a signature spells out nested objects."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call with its result."""

    name: str
    arguments: Mapping[str, Any]
    result: str
    """The result as text; long results are clipped."""
    error: str = ""
    """The error; "" if the call succeeded."""
    words: str = ""
    """The original text of an action that is not a call."""
    _text: str = field(default="", init=False, repr=False, compare=False)

    @property
    def text(self) -> str:
        """Return the call as an action; it is written once, because every later state shows it."""
        if not self._text:
            object.__setattr__(self, "_text", self.words or call_text(self.name, self.arguments))
        return self._text


def build_state(
    task: str, calls: Sequence[Call], feedback: str, shown_calls: int = 8, shown_chars: int = 2000
) -> State:
    """Return the state with the request and recent results; consecutive identical results appear once."""
    # Iterate from the end, so that only the calls on display are formatted, and equal ones once.
    entries = (f"> {clip(call.text, shown_chars)}\n{call.result}" for call, _ in groupby(reversed(calls)))
    recent = [entry for entry, _ in islice(groupby(entries), shown_calls)][::-1]
    return State("\n\n".join([f"Request: {task}", *recent]), task=task, feedback=feedback)


def clip(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text, followed by the number of omitted characters."""
    return text if len(text) <= limit else f"{text[:limit]} ... ({len(text) - limit} more characters)"


def bind_arguments(tool: "BaseTool", positional: list[Any], named: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return all arguments by name, and what is wrong with them for this tool; "" if nothing is."""
    schema = get_schema(tool)
    names, required = list(schema.get("properties", {})), schema.get("required", [])
    if len(positional) > len(names):
        return named, f"it takes {len(names)} arguments, not {len(positional)}"
    arguments = {**dict(zip(names, positional, strict=False)), **named}
    if len(arguments) < len(positional) + len(named):
        return named, "an argument is given twice"
    unknown = [name for name in arguments if name not in names]
    if unknown and not schema.get("additionalProperties"):
        return arguments, f"it has no argument {unknown[0]!r}"
    missing = [name for name in required if name not in arguments]
    if missing:
        return arguments, f"the argument {missing[0]!r} is missing"
    return arguments, _validate(tool, arguments)


def _validate(tool: "BaseTool", arguments: dict[str, Any]) -> str:
    """Return the first type error of the values according to the tool's schema."""
    from pydantic import BaseModel, ValidationError

    model = tool.tool_call_schema
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return ""
    try:
        model.model_validate(arguments)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        return f"argument {where!r} is {first['input']!r}: {first['msg']}"
    return ""


def format_tool(tool: "BaseTool") -> str:
    """Return a tool's signature and purpose, with a line per described argument.

    For example, `search(city: string, seats: integer = 2): Find a table.`
    """
    schema = get_schema(tool)
    descriptions = [
        f"    {name}: {field['description']}"
        for name, field in schema.get("properties", {}).items()
        if isinstance(field, dict) and field.get("description")
    ]
    listed = _format_fields(schema, schema.get("$defs", {}))
    return "\n".join([f"{tool.name}({listed}): {' '.join(tool.description.split())}", *descriptions])


def _format_fields(schema: Mapping[str, Any], defined: Mapping[str, Any], depth: int = 0) -> str:
    required = schema.get("required", [])
    return ", ".join(
        f"{name}: {_format_type(field, defined, depth)}"
        + ("" if name in required else f" = {json.dumps(field.get('default'), default=str)}")
        for name, field in schema.get("properties", {}).items()
    )


def _format_type(schema: Mapping[str, Any], defined: Mapping[str, Any], depth: int) -> str:
    """Return a short name of a type; nesting stops at `MAX_DEPTH`, because types can be recursive."""
    if "$ref" in schema:
        schema = defined.get(schema["$ref"].rpartition("/")[2], {})
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(_format_type(option, defined, depth) for option in schema["anyOf"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_format_type(schema.get('items', {}), defined, depth)}"
    if kind == "object" and "properties" in schema and depth < MAX_DEPTH:
        return f"{{{_format_fields(schema, defined, depth + 1)}}}"
    return " | ".join(kind) if isinstance(kind, list) else str(kind)


def get_schema(tool: "BaseTool") -> dict[str, Any]:
    """Return the JSON schema of the arguments, without those that the runtime injects."""
    from pydantic import BaseModel

    schema = tool.tool_call_schema
    if isinstance(schema, dict):
        return schema
    return schema.model_json_schema() if issubclass(schema, BaseModel) else schema.schema()
