"""Edit an item with fields from options or a form; every value is checked before anything is written."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hardwon.memory import Item
from hardwon.memory.errors import ConfigError, WrongType
from hardwon.memory.items import check_conditions
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
