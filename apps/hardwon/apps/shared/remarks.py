"""Remarks on a command: arguments of a shell tool that say why it runs or how long, not what it does."""

from collections.abc import Mapping
from typing import Any

_REMARKS = ("description", "justification", "timeout", "timeout_ms", "run_in_background")


def drop_remarks(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call without remarks on its command, so that equal commands are the same action."""
    dropped = _REMARKS if "command" in arguments else ()
    return {name: value for name, value in arguments.items() if name not in dropped}
