"""Format validation errors of arguments as sentences, for HTTP callers and for models that call MCP tools."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

SHOWN = 80
"""Largest number of characters of a value in a message."""


def sentence(error: Mapping[str, Any]) -> str:
    """Return a sentence for one pydantic error: the field, the rule, and the value that was sent."""
    place = ".".join(str(part)[:SHOWN] for part in error["loc"]) or "the request"
    words = str(error["msg"]).rstrip(".")
    if error["type"] in ("missing", "missing_argument"):
        return f"{place}: it is required. Send it."
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{place}: there is no such field. Leave it out."
    # ascii() keeps control characters and terminal escapes of the caller out of logs.
    seen = ascii(error.get("input"))
    seen = seen if len(seen) <= SHOWN else f"{seen[:SHOWN]}..."
    return f"{place}: {words[:1].lower()}{words[1:]}. You sent {seen}."


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
    """Return a sentence about an argument that was ignored, with the most similar name or all accepted ones."""
    similar = difflib.get_close_matches(place.rpartition(".")[2], accepted, n=1)
    takes = f"There are: {', '.join(accepted)}." if accepted else "There are no arguments."
    return f"Ignored {place[:SHOWN]!r}. {f'Did you mean {similar[0]!r}?' if similar else takes}"
