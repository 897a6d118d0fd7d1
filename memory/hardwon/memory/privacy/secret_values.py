"""Names of the secrets in lists and objects of plain values: facts, the meta of an episode, arguments of a tool.

{"name": "password", "value": "hunter2"}
["mysql", "--password", "hunter2"]
["password", "hunter2"]
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from hardwon.memory.patterns import compile_late

from .secret_fields import carries_text, label_of, names_field
from .secret_forms import is_value
from .secret_phrases import is_strong

_NAME = (
    r"(?:[a-z0-9]{1,20}[_-]){0,3}(?P<name>passw(?:or)?d|passphrase|passcode|pwd|pw|secret|token"
    r"|(?:api|access|auth|private|secret)[_-]?key"
)
_FLAG = compile_late(rf"--?{_NAME}|pass)\Z", re.I | re.A)
_WORD = compile_late(rf"{_NAME})\Z", re.I | re.A)
_WEAK = ("secret", "token")
"""Names that are ordinary words, too."""


def find_named(values: Mapping[Any, Any], name: str) -> list[tuple[str, str]]:
    """Return the keys of an object whose texts another key, or the object's own name, makes secrets, with the name."""
    labels, carriers = _roles(tuple(values))
    if not carriers:
        return []
    names = [label_of(values[key]) for key in labels if isinstance(values[key], str)]
    label = next(filter(None, names), "") or label_of(name)
    return [(key, label) for key in carriers if label and isinstance(values[key], str)]


@lru_cache(maxsize=2048)  # most objects have the keys of another one
def _roles(keys: tuple[Any, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the keys whose values say what a field is, and those whose values are its text."""
    texts = [key for key in keys if isinstance(key, str)]
    return tuple(filter(names_field, texts)), tuple(filter(carries_text, texts))


def find_neighbors(values: Sequence[Any]) -> list[tuple[int, str]]:
    """Return the places in a list of secrets that the element before them names, with the name."""
    return [
        (place, name)
        for place, before in enumerate(values[:-1], 1)
        if isinstance(before, str) and _name_in_list(before)[1] and (name := _beside(before, values[place]))
    ]


def _beside(before: str, value: Any) -> str:
    """Return the name of the secret if the first text names it and the second one is it, or ""."""
    if not isinstance(value, str) or value.startswith("-") or "[redacted:" in value:
        return ""
    is_flag, name = _name_in_list(before)
    if is_flag:
        return name if is_value(value, certain=True) else ""
    return name if (is_strong(value) if name.lower() in _WEAK else is_value(value)) else ""


@lru_cache(maxsize=2048)
def _name_in_list(text: str) -> tuple[bool, str]:
    """Return whether a text is a flag, and the name of the secret that it says, or ""."""
    if not 2 <= len(text) <= 60:
        return False, ""
    if match := _FLAG.match(text):
        return True, match["name"]
    match = _WORD.match(text)
    return False, match["name"] if match else ""
