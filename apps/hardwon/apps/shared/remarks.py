"""What coding agents add to commands and requests: remarks on a command, and texts under the role of the user.

This module imports nothing but the standard library: hooks import it before every tool call.
"""

import re
from collections.abc import Mapping
from typing import Any

_REMARKS = (
    "description", "justification", "timeout", "timeout_ms", "run_in_background", "yield_time_ms", "max_output_tokens",
)  # fmt: skip
"""Arguments of a shell tool that say why a command runs or how long, not what it does."""
_NO_REQUEST = (
    "<command-name>", "<command-message>", "<local-command", "<bash-", "<system-reminder>", "<task-notification>",
    "[Request interrupted", "Caveat: The messages below were generated",
)  # fmt: skip
"""Prefixes of texts with the role `user` that are not requests of a person."""
_COMMAND = re.compile(
    r"\s*<command-message>[^<]*</command-message>\s*<command-name>(/[^<]*)</command-name>"
    r"(?:\s*<command-args>(.*)</command-args>)?\s*\Z",
    re.DOTALL,
)
"""A command of a person for the model. One that the program runs itself begins with its name."""


def is_own_tool(name: str) -> bool:
    """Return whether a tool is Claude Code's own: `Bash`, but not a server's, such as `mcp__shop__refund`."""
    return name[:1].isupper()


def drop_remarks(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call without remarks on its command, so that equal commands are the same action."""
    dropped = _REMARKS if {"command", "cmd"} & {*arguments} else ()
    return {name: value for name, value in arguments.items() if name not in dropped}


def read_request(text: str) -> str:
    """Return the request of a person in a text with the role `user`, as the person wrote it; empty if it is none."""
    if command := _COMMAND.match(text):
        return " ".join(filter(None, (command[1], (command[2] or "").strip())))
    return "" if text.lstrip().startswith(_NO_REQUEST) or not text.strip() else text
