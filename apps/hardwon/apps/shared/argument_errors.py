"""Format validation errors of arguments as sentences, for HTTP callers and for models that call MCP tools."""

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

SHOWN = 80
"""Largest number of characters of a value in a message."""


def sentence(error: Mapping[str, Any], schema: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return a sentence for one pydantic error: the field, the rule, and the value that was sent.

    `schema` is the JSON schema of the request, which has the fields that may be meant.
    """
    place = ".".join(str(part)[:SHOWN] for part in error["loc"]) or "the request"
    words = str(error["msg"]).rstrip(".")
    if error["type"] in ("missing", "missing_argument"):
        parts = ", ".join(list_fields(schema, error["loc"][1:]))
        return f"{place}: it is required. Send it{parts and f', an object with: {parts}'}."
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        accepted = list_fields(schema, error["loc"][1:-1])  # the first part is `body`
        return f"{place}: there is no such field. {_suggest(str(error['loc'][-1]), accepted) or 'Leave it out.'}"
    if isinstance(error.get("input"), bytes):  # FastAPI parses nothing else, and curl says that it is a form
        return f"{place}: it is not read as JSON. Send the header `Content-Type: application/json`."
    # ascii() keeps control characters and terminal escapes of the caller out of logs.
    seen = ascii(error.get("input"))
    seen = seen if len(seen) <= SHOWN else f"{seen[:SHOWN]}..."
    return f"{place}: {words[:1].lower()}{words[1:]}. You sent {seen}."


def list_fields(schema: Mapping[str, Any], place: Sequence[str | int] = ()) -> list[str]:
    """Return the names of the fields that a schema has at a place within it; empty if it does not say."""
    defined = schema.get("$defs", {})
    for part in (*place, None):
        options = schema.get("anyOf", ()) or [schema]  # of `State | None`, the one that has fields
        schemas = (defined.get(each.get("$ref", "").rpartition("/")[2], each) for each in options)
        schema = next((each for each in schemas if "properties" in each or "items" in each), {})
        if part is not None:
            schema = schema.get("items", {}) if isinstance(part, int) else schema.get("properties", {}).get(part, {})
    return list(schema.get("properties", ()))


def split_arguments(given: Any, schema: Mapping[str, Any], within: str = "") -> tuple[Any, list[str]]:
    """Return arguments without nulls and without names that a schema lacks, and a sentence for each such name.

    Some clients send null for what they do not give, or add arguments of their own to every call.
    """
    defined = schema.get("$defs", {})
    if "$ref" in schema:
        schema = {**defined.get(schema["$ref"].rpartition("/")[2], {}), "$defs": defined}
    if isinstance(given, list):
        split = [
            split_arguments(part, {**schema.get("items", {}), "$defs": defined}, f"{within}.{n}")
            for n, part in enumerate(given)
        ]
        return [part for part, _ in split], [word for _, words in split for word in words]
    if not isinstance(given, Mapping) or "properties" not in schema:
        return given, []
    kept: dict[str, Any] = {}
    words: list[str] = []
    for name, value in given.items():
        if name not in schema["properties"]:
            words.append(_describe_unknown(f"{within}.{name}".lstrip("."), list(schema["properties"])))
        elif value is not None:
            part = {**schema["properties"][name], "$defs": defined}
            kept[name], inner = split_arguments(value, part, f"{within}.{name}".lstrip("."))
            words += inner
    return kept, words


def _describe_unknown(place: str, accepted: Sequence[str]) -> str:
    """Return a sentence about an argument that was ignored."""
    meant = _suggest(place.rpartition(".")[2], accepted) or "There are no arguments."
    return f"Ignored {place[:SHOWN]!r}. {meant}"


def _suggest(name: str, accepted: Sequence[str]) -> str:
    """Return a sentence with the most similar accepted name, else with all; empty if there are none."""
    similar = difflib.get_close_matches(name[:SHOWN], accepted, n=1)
    return f"Did you mean {similar[0]!r}?" if similar else f"There are: {', '.join(accepted)}." if accepted else ""
