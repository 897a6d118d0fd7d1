"""What is wrong with an argument, as a sentence: for programs over HTTP and for models over MCP."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

SHOWN = 80
"""Characters of a value that a message shows."""


def sentence(error: Mapping[str, Any]) -> str:
    """Return what one of pydantic's errors says: the place, the rule, and the value seen there."""
    place = ".".join(str(part)[:SHOWN] for part in error["loc"]) or "the whole"
    words = str(error["msg"]).rstrip(".")
    if error["type"] in ("missing", "missing_argument"):
        return f"{place}: it is required. Send it."
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{place}: there is no such field. Leave it out."
    seen = ascii(error.get("input"))
    seen = seen if len(seen) <= SHOWN else f"{seen[:SHOWN]}..."
    return f"{place}: {words[:1].lower()}{words[1:]}. You sent {seen}."


def unknown_arguments(tool: str, given: Iterable[str], known: Iterable[str]) -> str:
    """Return a sentence that names the arguments that a tool does not have, and those that it has; "" for none."""
    names = list(known)
    wrong = [name for name in given if name not in names]
    if not wrong:
        return ""
    near = [close[0] for name in wrong if (close := difflib.get_close_matches(name, names, n=1))]
    hint = f" Did you mean {' and '.join(map(repr, near))}?" if near else ""
    told = ", ".join(repr(name[:SHOWN]) for name in wrong[:5])
    takes = f"It takes: {', '.join(names)}." if names else "It takes no arguments."
    return f"{tool} has no argument {told}.{hint} {takes}"
