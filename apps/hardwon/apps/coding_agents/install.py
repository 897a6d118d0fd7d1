"""Add hooks to the settings of a coding agent, and take them out again."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.memory.upkeep.text_files import read_text

from ..shared.contained_files import write_file

MARK = "hardwon.apps.coding_agents.hook"
"""Part of the command by which our own hooks are recognized."""
_EVENTS: Mapping[str, tuple[str, ...]] = {
    "claude-code": (
        "SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure", "Stop",
        "SubagentStop", "SessionEnd",
    ),
    "codex": ("SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop"),
    "cursor": (
        "sessionStart", "beforeSubmitPrompt", "preToolUse", "postToolUse", "postToolUseFailure", "stop", "sessionEnd",
    ),
}  # fmt: skip
_FILES: Mapping[str, str] = {
    "claude-code": ".claude/settings.json",
    "codex": ".codex/hooks.json",
    "cursor": ".cursor/hooks.json",
}


def find_settings(agent: str, *, project: bool) -> Path:
    """Return the file with the hooks of an agent, for this user or for the project in the current folder."""
    return (Path.cwd() if project else Path.home()) / _FILES[agent]


def format_command(agent: str, options: list[str]) -> str:
    """Return the shell command of a hook; it names this Python, because agents start hooks without your shell."""
    return shlex.join([sys.executable, "-m", MARK, agent, *options])


def install_hooks(agent: str, settings: Path, command: str) -> None:
    """Add our hooks to a file of settings, in the place of those that an earlier call added."""
    value = _read(settings)
    hooks = _without_ours(value.get("hooks") or {}, settings)
    for event in _EVENTS[agent]:
        entry: dict[str, Any] = {"command": command}
        if agent != "cursor":
            handler = {"type": "command", "command": command, "timeout": 30}
            matcher = {"matcher": "*"} if "ToolUse" in event else {}
            entry = {**matcher, "hooks": [handler]}
        hooks[event] = [*hooks.get(event, []), entry]
    version = {"version": 1} if agent == "cursor" else {}
    _write(settings, {**version, **value, "hooks": hooks})


def uninstall_hooks(settings: Path) -> bool:
    """Take our hooks out of a file of settings, and return whether there were any."""
    if not settings.exists():
        return False
    value = _read(settings)
    before = value.get("hooks") or {}
    hooks = _without_ours(before, settings)
    if hooks == before:
        return False
    _write(settings, {name: part for name, part in {**value, "hooks": hooks}.items() if part != {}})
    return True


def _read(settings: Path) -> dict[str, Any]:
    if not settings.exists():
        return {}
    try:
        value = json.loads(read_text(settings) or "{}")
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{settings} is not JSON ({error}). Correct it, or move it away.") from error
    if not isinstance(value, dict) or not isinstance(value.get("hooks") or {}, dict):
        raise ConfigError(f"{settings} has no object of hooks. Correct it, or move it away.")
    return value


def _without_ours(hooks: Mapping[str, Any], settings: Path) -> dict[str, Any]:
    if not all(isinstance(entries, list) for entries in hooks.values()):
        raise ConfigError(f"{settings}: the hooks of an event are not a list. Correct the file, or move it away.")
    kept = {event: [entry for entry in entries if MARK not in json.dumps(entry)] for event, entries in hooks.items()}
    return {event: entries for event, entries in kept.items() if entries or not hooks[event]}


def _write(settings: Path, value: Mapping[str, Any]) -> None:
    """Write the settings in one step, so that an agent never reads half a file; the one without hooks stays beside."""
    if settings.exists() and MARK not in read_text(settings):
        write_file(settings.parent, f"{settings.name}.before-hardwon", settings.read_bytes())
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    # the escape of a lone surrogate in JSON, too
    write_file(settings.parent, settings.name, text.encode(errors="backslashreplace"))
