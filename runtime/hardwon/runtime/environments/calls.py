"""Tool calls as text: `search(city="Rome", seats=2)` or `{"name": "search", "args": {...}}`.

Values are JSON or Python literals; code is never evaluated. Error messages tell a model how to correct the
call. All functions are pure.
"""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from langchain_core.tools import BaseTool
from pydantic import BaseModel, ValidationError

from hardwon.memory import State
from hardwon.runtime.llm.prompts import call_text

MAX_CHARS = 100_000
"""Longer actions are not parsed."""
MAX_DEPTH = 3
"""Maximum depth to which a signature spells out nested objects."""

_CALL = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*\((.*)\)\s*", re.DOTALL)
_KEYWORD = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*")
_COMMA = re.compile(r"\s*(,\s*|$)")
_JSON_NAMES = {"true": True, "false": False, "null": None}


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

    @property
    def text(self) -> str:
        """Return the call as an action."""
        return self.words or call_text(self.name, self.arguments)


def build_state(
    task: str, calls: Sequence[Call], feedback: str, shown_calls: int = 8, shown_chars: int = 2000
) -> State:
    """Return the state with the request and recent results; consecutive identical results appear once."""
    entries = (f"> {clip(call.text, shown_chars)}\n{call.result}" for call in reversed(calls))
    # Iterate from the end, so that only the calls on display are formatted.
    recent = [entry for entry, _ in islice(groupby(entries), shown_calls)][::-1]
    return State("\n\n".join([f"Request: {task}", *recent]), task=task, feedback=feedback)


def clip(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text, followed by the number of omitted characters."""
    return text if len(text) <= limit else f"{text[:limit]} ... ({len(text) - limit} more characters)"


def parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]] | None:
    """Return the name, positional and named arguments of a call; None if the text is not a call."""
    if len(text) > MAX_CHARS:
        return None
    try:
        # A model can nest so deeply that parsing raises RecursionError or MemoryError.
        return _parse_object(text) if text.lstrip().startswith("{") else _parse_call(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def _parse_object(text: str) -> tuple[str, list[Any], dict[str, Any]] | None:
    value = json.loads(text)
    arguments: Any = next((value[key] for key in ("args", "arguments") if key in value), {})
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    name = value.get("name")
    return (name, [], arguments) if isinstance(name, str) and isinstance(arguments, dict) else None


def _parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]] | None:
    match = _CALL.fullmatch(text)
    if match is None:
        return None
    name, inside = match[1], match[2]
    named = _parse_json_arguments(inside)
    if named is not None:
        return name, [], named
    # The parser alone does not run code, and `literal_eval` accepts nothing but literals.
    call = ast.parse(f"f({inside})", mode="eval").body
    # The text may close the parenthesis itself, as in `a) + g(b`; that is no longer one call.
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return None
    # `**{...}` is a keyword without a name.
    if any(keyword.arg is None for keyword in call.keywords):
        return None
    return (
        name,
        [_parse_literal(node) for node in call.args],
        {k.arg: _parse_literal(k.value) for k in call.keywords if k.arg},
    )


def _parse_json_arguments(inside: str) -> dict[str, Any] | None:
    """Parse `city="Rome", seats=2` with JSON values; None if some value is not JSON.

    JSON is tried first, because its escapes differ from those of Python.
    """
    named: dict[str, Any] = {}
    decoder, at, end = json.JSONDecoder(), 0, len(inside.rstrip())
    while at < end:
        keyword = _KEYWORD.match(inside, at)
        if keyword is None:
            return None
        try:
            named[keyword[1]], at = decoder.raw_decode(inside, keyword.end())
        except json.JSONDecodeError:
            return None
        comma = _COMMA.match(inside, at)
        if comma is None:
            return None
        at = comma.end()
    return named


def _parse_literal(node: ast.expr) -> Any:
    return ast.literal_eval(_JsonNames().visit(node))


class _JsonNames(ast.NodeTransformer):
    """Replaces the names `true`, `false` and `null` by their JSON values."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON_NAMES[node.id]) if node.id in _JSON_NAMES else node


def bind_arguments(tool: BaseTool, positional: list[Any], named: dict[str, Any]) -> tuple[dict[str, Any], str]:
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


def _validate(tool: BaseTool, arguments: dict[str, Any]) -> str:
    """Return the first type error of the values according to the tool's schema."""
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


def format_tool(tool: BaseTool) -> str:
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


def get_schema(tool: BaseTool) -> dict[str, Any]:
    """Return the JSON schema of the arguments, without those that the runtime injects."""
    schema = tool.tool_call_schema
    if isinstance(schema, dict):
        return schema
    return schema.model_json_schema() if issubclass(schema, BaseModel) else schema.schema()
