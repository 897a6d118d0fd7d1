"""The library's keys and conditions in words a person reads.

`put map in box | tried 1 to new | 1:T,inventory 2:T | inventory T | 1: ; 2: empty | 1: reads; 2: -`
is filed under: `put map in box`; tried once here, which led to a state visited once; map is named by
the task and in the inventory; and so on. The forms of keys are those of `hardwon.memory.situations.keys`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .keys import ANY_SAID, GUARD_MARK, SAID, parse_action

_TRIES = {"0": "not tried here before", "1": "tried once here", "2": "tried twice or more here"}
_FOLLOWS = {
    "new": "which led to a state visited once",
    "seen": "which led to a state visited two or three times",
    "stale": "which led to a state visited four times or more",
}
_COUNTS = re.compile(r"tried (\d) to (\w+)")
_NUMBERED = re.compile(r"(\d+): ?(.*)")
_WORD_OF = re.compile(r"(\d+) (\S+)")
_MARKS = {
    "T": "named by the task",
    "told": "in the notes with this verb",
    "other": "in the notes, but not with this verb",
    "unnamed": "not in the notes",
}
_TASK_WORD = "a word of the task"
PARTS = {
    1: (),
    2: ("counts",),  # or a word told of an argument: `1 grill`
    3: ("flags", "told"),
    4: ("counts", "flags", "listed"),
    6: ("counts", "flags", "listed", "shown", "told"),
}
"""What follows the pattern in a key with so many parts."""


def key_words(key: str, action: str = "") -> list[str]:
    """What a key says, a phrase each, the action first; `action` gives its arguments their names."""
    if key == "*":
        return ["any action"]
    if key == ANY_SAID:
        return ["any action that the text names"]
    if key.startswith(GUARD_MARK):
        pattern, _, condition = key.removeprefix(GUARD_MARK).partition(" @ ")
        operator, _, operand = condition.partition(" ")
        return [f"`{pattern}`", condition_words({operator: operand}, pattern)]
    pattern, *parts = key.split(" | ")
    names = parse_action(action or pattern).slots
    said = [f"`{pattern}`"]
    for kind, part in zip(PARTS.get(len(parts) + 1, ()), parts, strict=False):
        said += _SAYERS[kind](part, names)
    return said


def condition_words(condition: Mapping[str, Any] | None, pattern: str = "") -> str:
    """A guardrail's condition as a clause that follows "when"."""
    if not condition:
        return "always"
    operator, operand = next(iter(condition.items()))
    names = parse_action(pattern).slots
    match operator:
        case "all" | "any":
            joint = " and " if operator == "all" else " or "
            return joint.join(f"({condition_words(part, pattern)})" for part in operand)
        case "not":
            return f"not ({condition_words(operand, pattern)})"
        case "around":
            return "; ".join(_shown(operand, names)) or "wherever it is"
        case "told":
            return "; ".join(_told(operand, names)) or "whatever was told"
        case "mark":
            number, _, mark = operand.partition(" ")
            return f"{_name(number, names)} is {_mark(mark)}"
        case "again":
            return "it has just failed and nothing was done since"
        case "text":
            return f'the text says "{operand}"'
        case "fact":
            return ", ".join(f"{name} is {value}" for name, value in operand.items())
        case "signature":
            return f"the situation is {operand}"
    return json.dumps(condition, ensure_ascii=False)


def _counts(part: str, names: Sequence[str]) -> list[str]:
    known = _COUNTS.fullmatch(part)
    if known is None:
        return _told(part, names)
    follows = _FOLLOWS.get(known[2])
    return [f"{_TRIES.get(known[1], part)}, {follows}" if follows else _TRIES.get(known[1], part)]


def _flags(part: str, names: Sequence[str]) -> list[str]:
    said = []
    for flag in part.split():
        number, _, marks = flag.partition(":")
        if marks:
            said.append(f"{_name(number, names)} is {_and([_mark(mark) for mark in marks.split(',')])}")
        elif flag == SAID:
            said.append("the text names this very action")
    return said


def _mark(mark: str) -> str:
    return _MARKS.get(mark, f"in the {mark}")


def _listed(part: str, names: Sequence[str]) -> list[str]:
    said = []
    for listing in filter(None, part.split("; ")):
        name, _, rest = listing.partition(" ")
        overlap, _, value = rest.partition(" ")
        what = "nothing of the task" if overlap == "-" else "a thing of the task"
        said.append(f"{name}: {what}{', ' + value if value else ''}")
    return said


def _shown(part: str, names: Sequence[str]) -> list[str]:
    """What stands near each argument; a scalar fact says itself."""
    said = []
    for clause in part.split("; "):
        near = _NUMBERED.fullmatch(clause)
        if near is None:
            said += [clause] if clause else []
        elif near[2] == "-":
            said.append(f"{_name(near[1], names)} is not shown")
        elif near[2]:
            said.append(f"near {_name(near[1], names)}: {_context(near[2])}")
    return said


def _told(part: str, names: Sequence[str]) -> list[str]:
    if part == "nothing told":
        return ["nothing was told"]
    if word := _WORD_OF.fullmatch(part):
        return [f"told of {_name(word[1], names)}: {word[2]}"]
    told = [known for known in map(_NUMBERED.fullmatch, part.split("; ")) if known is not None]
    if told and all(known[2] == "-" for known in told):
        return [f"nothing was told of {_and([_name(known[1], names) for known in told])}"]
    return [f"told of {_name(known[1], names)}: {_context(known[2])}" for known in told if known[2] not in ("", "-")]


def _context(words: str) -> str:
    return ", ".join(_TASK_WORD if word == "[T]" else word for word in words.split())


def _name(number: str, names: Sequence[str]) -> str:
    """The argument with this number: its own words, else its place in the pattern."""
    at = int(number) - 1
    return names[at] if 0 <= at < len(names) else f"{{{number}}}"


def _and(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


_SAYERS = {"counts": _counts, "flags": _flags, "listed": _listed, "shown": _shown, "told": _told}
