"""Traits of an argument that works, as remedies say them, and whether a call has one.

In `search`, keep limit at 50 or less           search(limit=40)
In `book`, write day as "##.##.####" (...)      book(day="02.03.2027")
In `tail`, begin path with "/srv/logs/"         tail(path="/srv/logs/main.log")
In `tag`, include "triage" in labels            tag(labels=["ui", "triage"])
In `reset`, copy user from a result             reset(user="U-9310"), which a result had named
"""

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import lru_cache

from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.titles import NUMBER

_NAME, _VALUE = r"([\w.-]+)", r"(\S.*)"
# texts, as whoever imports this module seldom needs them: `re` compiles and keeps them at their first use
_TRAIT = (
    rf"copy {_NAME} from a result|include {_VALUE} in {_NAME}|use {_NAME}={_VALUE}|"
    rf"keep {_NAME} at ({NUMBER.pattern}) or (less|more)|"
    rf'write {_NAME} as "{_VALUE}" \([^()]*\)|(begin|end) {_NAME} with {_VALUE}'
)
_IN_TITLE = r"(?:^|\. )In `[^`]+`, (.*)$"
_FORM = r"[^\W\d_]{0,4}(?:\W|[TZ]){1,24}"
"""A form that may be said: letters that an id begins with, signs, and those of a time; others may be a result's."""
_CODE = r"[A-Z]{2,4}|[a-z]{2,3}"
_LIST = r"([\w.]+)=(\[[^\[\]]*\])"


def find_trait_clause(title: str) -> str:
    """Return what the title of a remedy says about the value of an argument; empty if it says nothing of the kind.

    Whether a value was copied cannot be seen in a call.
    """
    match = None if "\n" in title else re.search(_IN_TITLE, title)  # with lines, a search takes quadratic time
    return match[1] if match and re.fullmatch(_TRAIT, match[1]) and not match[1].startswith("copy ") else ""


def has_trait(clause: str, action: str, copied: Collection[str] = ()) -> bool:
    """Return whether a call does what a clause says. `copied` are the values that results had named."""
    match = re.fullmatch(_TRAIT, clause)
    if match is None:
        return False
    source, element, lists, constant, value, number, bound, side, written, form, end, ended, part = match.groups()
    name = source or lists or constant or number or written or ended
    text = read_texts(action).get(name, "")
    if source:
        return text.lower() in copied
    if lists:
        return _unquote(element) in read_list(action, name)
    if constant:
        return text == _unquote(value)
    if number:
        is_number = NUMBER.fullmatch(text) is not None
        return is_number and (float(text) <= float(bound) if side == "less" else float(text) >= float(bound))
    if written:
        return find_form(text) == form
    return text.startswith(_unquote(part)) if end == "begin" else text.endswith(_unquote(part))


@lru_cache(maxsize=8192)
def find_form(text: str) -> str:
    """Return the form of a value, with a sign for each digit or letter; empty if it has none that may be said."""
    if re.fullmatch(_CODE, text):
        return ("A" if text.isupper() else "a") * len(text)
    form = re.sub(r"\d", "#", text)
    return form if re.fullmatch(_FORM, form) and form.strip("#") else ""


def quote(value: str) -> str:
    """Return a value as a call has it."""
    is_bare = NUMBER.fullmatch(value) or value in ("true", "false", "null")
    return value if is_bare else json.dumps(value, ensure_ascii=False)


def _unquote(value: str) -> str:
    """Return a value without the quotes of a call."""
    with suppress(ValueError):
        return str(json.loads(value)) if value.startswith('"') else value
    return value


def read_list(action: str, name: str) -> tuple[str, ...]:
    """Return the texts of a list that a call has as an argument."""
    if f"{name}=[" not in action:  # most have none
        return ()
    listing = next((listing for argument, listing in re.findall(_LIST, action) if argument == name), "[]")
    with suppress(ValueError):
        return tuple(element for element in json.loads(listing) if isinstance(element, str))
    return ()


@lru_cache(maxsize=8192)
def read_texts(action: str) -> Mapping[str, str]:
    """Return the arguments of a call by name, as they are written."""
    values = {part.name: part.value for part in parse_action(action).parts if part.name and part.frame == "{}"}
    places = {name: re.search(re.escape(value), action, re.IGNORECASE) for name, value in values.items()}
    return {name: place[0] if place else values[name] for name, place in places.items()}
