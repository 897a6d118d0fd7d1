"""Tool calls as text: `search(city="Rome", seats=2)` or `{"name": "search", "args": {...}}`.

Values are JSON or Python literals; code is never evaluated. All functions are pure.
"""

import ast
import json
import re
from typing import Any

_CALL = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*\((.*)\)\s*", re.DOTALL)
_KEYWORD = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*")
_COMMA = re.compile(r"\s*(,\s*|$)")
_JSON_NAMES = {"true": True, "false": False, "null": None}


def parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]] | None:
    """Return the name, positional and named arguments of a call; None if the text is not a call."""
    if len(text) > 100_000:
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
