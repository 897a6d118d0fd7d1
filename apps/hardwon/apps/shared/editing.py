"""Edit an item with fields from options, a JSON file or an editor; every value is checked before anything is written.

Text written in an editor is never lost: if it is rejected, it stays in a file that the message names.
"""

import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hardwon.memory import Item
from hardwon.memory.errors import ConfigError, WrongType
from hardwon.memory.items import check_conditions
from hardwon.memory.upkeep.text_files import read_text
from hardwon.memory.validation import check_item

FIELDS = (
    "title", "body", "when_to_use", "when_not_to_use", "condition", "forbids", "granularity", "steps", "verify",
    "repairs", "scope", "signatures", "locations", "tags", "score", "confidence", "ttl",
)  # fmt: skip
"""Editable fields. The others are evidence or history, or have their own command."""


def check_changes(item: Item, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Check changes of an item and convert each value to the type of its field."""
    if unknown := [name for name in changes if name not in FIELDS]:
        raise ConfigError(
            f"the field {unknown[0]!r} of an item cannot be edited; editable fields: {', '.join(FIELDS)}."
        )
    try:
        edited = replace(item, **changes)
        check_item(edited)
        check_conditions(edited)
    except WrongType as error:
        raise ConfigError(str(error)) from error
    except RecursionError as error:
        raise ConfigError("a condition is nested too deeply. Write a flatter one.") from error
    return {name: getattr(edited, name) for name in changes}


def parse_fields(text: str, where: str) -> dict[str, Any]:
    """Parse a JSON object of fields."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is {text.strip()[:40]!r}; write a JSON object of fields and values.")
    return value


def read_fields(path: Path) -> dict[str, Any]:
    """Read the fields from a JSON file."""
    try:
        return parse_fields(read_text(path), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}). Give a file with a JSON object.") from error


def edit_fields(item: Item) -> dict[str, Any]:
    """Open an item in $VISUAL or $EDITOR and return the changed fields; empty if the file is unchanged."""
    # Compared as JSON, because that is the form in which the editor returns the fields.
    before = {name: value for name, value in json.loads(json.dumps(asdict(item))).items() if name in FIELDS}
    handle, name = tempfile.mkstemp(prefix="hardwon-edit-", suffix=".json")
    path = Path(name)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(json.dumps({name: before[name] for name in FIELDS}, indent=2, ensure_ascii=False) + "\n")
    try:
        _run_editor(path)
        after = read_fields(path)
        changes = check_changes(
            item, {name: value for name, value in after.items() if name not in before or value != before[name]}
        )
    except ConfigError as error:
        raise ConfigError(f"{error} Nothing is changed; your text is kept, for --from {path}") from error
    path.unlink()
    return changes


def _run_editor(path: Path) -> None:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        exit_code = subprocess.run([*shlex.split(editor), str(path)], check=False).returncode
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the editor {editor!r} cannot be started ({error}). Set EDITOR to another editor."
        ) from error
    if exit_code:
        raise ConfigError(f"the editor {editor!r} exited with code {exit_code}.")
