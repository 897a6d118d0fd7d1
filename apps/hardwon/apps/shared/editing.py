"""Editing an item: its fields from options, from a file of JSON, or from an editor; checked before anything is written.

What was written in an editor is never lost: where it cannot be used, it is kept in a file and named.
"""

import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_type_hints

from hardwon.memory import Item
from hardwon.memory.errors import ConfigError
from hardwon.memory.items import check_conditions

FIELDS = (
    "title", "body", "when_to_use", "when_not_to_use", "condition", "forbids", "granularity", "steps", "verify",
    "repairs", "scope", "signatures", "locations", "tags", "score", "confidence", "ttl",
)  # fmt: skip
"""What a person may write; the rest is evidence, history, or has a command of its own."""


def checked(item: Item, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes, each of its field's type, which fit the item. Raises ConfigError for one that does not."""
    from pydantic import TypeAdapter, ValidationError

    hints = get_type_hints(Item)
    good: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in FIELDS:
            raise ConfigError(f"{name!r} of an item cannot be edited; these can: {', '.join(FIELDS)}.")
        try:
            good[name] = TypeAdapter(hints[name]).validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            said = error.errors()[0]["msg"]
            raise ConfigError(f"{name} is {json.dumps(value)[:80]}: {said}.") from error
    try:
        check_conditions(replace(item, **good))
    except RecursionError as error:
        raise ConfigError("a condition has too many conditions inside one another. Write a flatter one.") from error
    return good


def parsed(text: str, where: str) -> dict[str, Any]:
    """The fields in a JSON object. Raises ConfigError that says where it is not one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is {text.strip()[:40]!r}; write a JSON object of fields and values.")
    return value


def read(path: Path) -> dict[str, Any]:
    """The fields in a file of JSON."""
    try:
        return parsed(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}). Give a file with a JSON object.") from error


def in_editor(item: Item) -> dict[str, Any]:
    """The fields that a person changed in $VISUAL or $EDITOR; none where the file was left as it was."""
    before = {name: value for name, value in json.loads(json.dumps(asdict(item))).items() if name in FIELDS}
    handle, name = tempfile.mkstemp(prefix="hardwon-edit-", suffix=".json")
    path = Path(name)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(json.dumps({name: before[name] for name in FIELDS}, indent=2, ensure_ascii=False) + "\n")
    try:
        _run_editor(path)
        after = read(path)
        changes = checked(
            item, {name: value for name, value in after.items() if name not in before or value != before[name]}
        )
    except ConfigError as error:
        raise ConfigError(f"{error} Nothing is changed; what you wrote is kept, for --from {path}") from error
    path.unlink()
    return changes


def _run_editor(path: Path) -> None:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        ended = subprocess.run([*shlex.split(editor), str(path)], check=False).returncode
    except (OSError, ValueError) as error:
        raise ConfigError(f"the editor {editor!r} cannot be started ({error}). Set EDITOR to one that can.") from error
    if ended:
        raise ConfigError(f"the editor {editor!r} ended with code {ended}.")
