"""Calls of tools as text: `search(city="Rome", seats=2)` or `{"name": "search", "args": {...}}`.

Values are JSON or Python literals; nothing is ever evaluated. What is wrong with a call is said in
words that a model can act on. Pure functions of a tool's schema and a text.
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
"""Longer actions are not read."""
MAX_DEPTH = 3
"""How deep the form of a call spells out objects within objects."""

_CALL = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*\((.*)\)\s*", re.DOTALL)
_KEYWORD = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*")
_COMMA = re.compile(r"\s*(,\s*|$)")
_JSON_NAMES = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was made."""

    name: str
    arguments: Mapping[str, Any]
    result: str
    """As it was shown: long results are clipped."""
    error: str = ""
    """What the tool raised; "" when it worked."""
    words: str = ""
    """The action as it was told, where that is no call."""

    @property
    def text(self) -> str:
        """The call as an action."""
        return self.words or call_text(self.name, self.arguments)


def build_state(
    task: str, calls: Sequence[Call], feedback: str, shown_calls: int = 8, shown_chars: int = 2000
) -> State:
    """The request and the last results; a call repeated at once with the same result is shown once."""
    entries = (f"> {clip(call.text, shown_chars)}\n{call.result}" for call in reversed(calls))  # the last ones only
    shown = [entry for entry, _ in islice(groupby(entries), shown_calls)][::-1]
    return State("\n\n".join([f"Request: {task}", *shown]), task=task, feedback=feedback)


def clip(text: str, limit: int) -> str:
    """At most so many characters of a text, and how many were left out."""
    return text if len(text) <= limit else f"{text[:limit]} ... ({len(text) - limit} more characters)"


def parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]] | None:
    """Name, positional and named arguments of a call; None when the text is not one."""
    if len(text) > MAX_CHARS:
        return None
    try:
        return _parse_object(text) if text.lstrip().startswith("{") else _parse_call(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def _parse_object(text: str) -> tuple[str, list[Any], dict[str, Any]] | None:
    given = json.loads(text)
    arguments: Any = next((given[key] for key in ("args", "arguments") if key in given), {})
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    name = given.get("name")
    return (name, [], arguments) if isinstance(name, str) and isinstance(arguments, dict) else None


def _parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]] | None:
    match = _CALL.fullmatch(text)
    if match is None:
        return None
    name, inside = match[1], match[2]
    named = _parse_json_arguments(inside)
    if named is not None:
        return name, [], named
    call = ast.parse(f"f({inside})", mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return None
    if any(keyword.arg is None for keyword in call.keywords):
        return None
    return name, [_value(node) for node in call.args], {k.arg: _value(k.value) for k in call.keywords if k.arg}


def _parse_json_arguments(inside: str) -> dict[str, Any] | None:
    """`city="Rome", seats=2` with JSON values, whose escapes are not Python's; None when they are something else."""
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


def _value(node: ast.expr) -> Any:
    return ast.literal_eval(_JsonNames().visit(node))


class _JsonNames(ast.NodeTransformer):
    """Reads `true`, `false` and `null` as what they mean in JSON."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON_NAMES[node.id]) if node.id in _JSON_NAMES else node


def bind_arguments(tool: BaseTool, positional: list[Any], named: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The arguments by name, and what is wrong with them for this tool, "" when nothing is."""
    schema = _schema(tool)
    known, required = list(schema.get("properties", {})), schema.get("required", [])
    if len(positional) > len(known):
        return named, f"it takes {len(known)} arguments, not {len(positional)}"
    arguments = {**dict(zip(known, positional, strict=False)), **named}
    if len(arguments) < len(positional) + len(named):
        return named, "an argument is given twice"
    unknown = [name for name in arguments if name not in known]
    if unknown and not schema.get("additionalProperties"):
        return arguments, f"it has no argument {unknown[0]!r}"
    missing = [name for name in required if name not in arguments]
    if missing:
        return arguments, f"the argument {missing[0]!r} is missing"
    return arguments, _invalid(tool, arguments)


def _invalid(tool: BaseTool, arguments: dict[str, Any]) -> str:
    """What the tool's own types say of the values."""
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
    """`search(city: string, seats: integer = 2): Find a table.` and a line for each argument that is explained."""
    schema = _schema(tool)
    told = [
        f"    {name}: {of['description']}"
        for name, of in schema.get("properties", {}).items()
        if isinstance(of, dict) and of.get("description")
    ]
    listed = _fields_form(schema, schema.get("$defs", {}))
    return "\n".join([f"{tool.name}({listed}): {' '.join(tool.description.split())}", *told])


def _fields_form(schema: Mapping[str, Any], defined: Mapping[str, Any], depth: int = 0) -> str:
    required = schema.get("required", [])
    return ", ".join(
        f"{name}: {_type_form(of, defined, depth)}"
        + ("" if name in required else f" = {json.dumps(of.get('default'), default=str)}")
        for name, of in schema.get("properties", {}).items()
    )


def _type_form(schema: Mapping[str, Any], defined: Mapping[str, Any], depth: int) -> str:
    """The type of a value in a few words; objects down to `MAX_DEPTH`, for they may hold themselves."""
    if "$ref" in schema:
        schema = defined.get(schema["$ref"].rpartition("/")[2], {})
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(_type_form(option, defined, depth) for option in schema["anyOf"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type_form(schema.get('items', {}), defined, depth)}"
    if kind == "object" and "properties" in schema and depth < MAX_DEPTH:
        return f"{{{_fields_form(schema, defined, depth + 1)}}}"
    return " | ".join(kind) if isinstance(kind, list) else str(kind)


def _schema(tool: BaseTool) -> dict[str, Any]:
    """The JSON schema of what a caller gives; arguments that the runtime injects are not in it."""
    schema = tool.tool_call_schema
    if isinstance(schema, dict):
        return schema
    return schema.model_json_schema() if issubclass(schema, BaseModel) else schema.schema()
