"""Format validation errors of arguments as sentences, for HTTP callers and for models that call MCP tools."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

SHOWN = 80
"""Largest number of characters of a value in a message."""


def sentence(error: Mapping[str, Any]) -> str:
    """Return a sentence for one pydantic error: the field, the rule, and the value that was sent.

    Args:
        error: One element of `ValidationError.errors()`.
    """
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


def unknown_arguments(tool: str, given: Iterable[str], accepted: Iterable[str]) -> str:
    """Return a sentence that lists unknown arguments and the valid ones; an empty string if all are valid.

    Args:
        tool: Name of the tool.
        given: Names of the arguments that were sent.
        accepted: Names of the arguments that the tool accepts.
    """
    names = list(accepted)
    wrong = [name for name in given if name not in names]
    if not wrong:
        return ""
    similar = [close[0] for name in wrong if (close := difflib.get_close_matches(name, names, n=1))]
    hint = f" Did you mean {' and '.join(map(repr, similar))}?" if similar else ""
    listed = ", ".join(repr(name[:SHOWN]) for name in wrong[:5])
    takes = f"It takes: {', '.join(names)}." if names else "It takes no arguments."
    return f"{tool} has no argument {listed}.{hint} {takes}"
