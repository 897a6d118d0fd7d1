"""Descriptions of keys and conditions for people.

`put map in box | tried 1 to new | 1:T,inventory 2:T | inventory T | 1: ; 2: empty | 1: reads; 2: -` is described by:
`put map in box`; tried once here, which led to a state visited once; map is named by the task and in the inventory; and
so on. `hardwon.memory.situations.keys` defines the forms of keys.

The ids of items from rules are computed from these descriptions, so changing one creates its items again.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .keys import ANY_SAID, GUARD_MARK, SAID, TOLD, parse_action
from .refinements import split_refinement

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
_ANYTHING = TOLD.removeprefix(" | ")
_TASK_WORD = "a word of the task"
PARTS = {
    1: (),
    2: ("counts",),  # or a word about an argument in the notes: `1 grill`, or any word: `?`
    3: ("flags", "told"),
    4: ("counts", "flags", "listed"),
    6: ("counts", "flags", "listed", "shown", "told"),
}
"""Kinds of the parts after the pattern, by the number of parts of a key."""


def key_words(key: str, action: str = "") -> list[str]:
    """Return a description of a key as phrases, the action first."""
    if key == "*":
        return ["any action"]
    if key == ANY_SAID:
        return ["any action that the text names"]
    if key.startswith(GUARD_MARK):
        pattern, _, condition = key.removeprefix(GUARD_MARK).partition(" @ ")
        operator, _, operand = condition.partition(" ")
        return [f"`{pattern}`", condition_words({operator: operand}, pattern)]
    kind, rest = split_refinement(key)
    kind = kind.partition(":")[0]
    pattern, *parts = rest.split(" | ")
    names = parse_action(action or pattern).slots
    phrases = [f"`{pattern}`"]
    if kind in _REFINED:
        return phrases + [
            phrase for name, part in zip(_REFINED[kind], parts, strict=False) for phrase in name(part, names)
        ]
    # not strict: a key of an unknown form is described by its action alone
    for kind, part in zip(PARTS.get(len(parts) + 1, ()), parts, strict=False):
        phrases += _DESCRIBERS[kind](part, names)
    return phrases


def condition_words(condition: Mapping[str, Any] | None, pattern: str = "") -> str:
    """Return a guardrail's condition as a clause that follows "when"."""
    operator, operand = next(iter((condition or {"all": []}).items()))
    names = parse_action(pattern).slots
    match operator:
        case "all" if not operand:
            return "always"
        case "all" | "any":
            if operator == "any" and len(operand) > 1 and all("signature" in part for part in operand):
                return f"the situation is one of {len(operand)} known ones"
            joint = " and " if operator == "all" else " or "
            return joint.join(f"({condition_words(part, pattern)})" for part in operand)
        case "not":
            return f"not ({condition_words(operand, pattern)})"
        case "around" if not operand:  # a call without arguments in the situation
            return "in any situation"
        case "around":
            return "; ".join(_describe_around(operand, names)) or "wherever it is"
        case "told":
            return "; ".join(_describe_notes(operand, names)) or "whatever was told"
        case "mark":
            number, _, mark = operand.partition(" ")
            return f"{_name(number, names)} is {_describe_mark(mark)}"
        case "again":
            return "it has just failed and nothing was done since"
        case "text":
            return f'the text says "{operand}"'
        case "fact":
            return ", ".join(f"{name} is {value}" for name, value in operand.items())
        case "signature":
            return f"the situation is {operand}"
    return json.dumps(condition, ensure_ascii=False)


def _describe_counts(part: str, names: Sequence[str]) -> list[str]:
    """Describe the tries in this state, or a word of the notes, or any of them, in a key with two parts."""
    if part == _ANYTHING:
        return [f"something was told of {' or '.join(names)}"]
    match = _COUNTS.fullmatch(part)
    if match is None:
        return _describe_notes(part, names)
    follows = _FOLLOWS.get(match[2])
    return [f"{_TRIES.get(match[1], part)}, {follows}" if follows else _TRIES.get(match[1], part)]


def _describe_flags(part: str, names: Sequence[str]) -> list[str]:
    """Describe the flags of the arguments."""
    phrases = []
    for flag in part.split():
        number, _, marks = flag.partition(":")
        if marks:
            phrases.append(f"{_name(number, names)} is {_join([_describe_mark(mark) for mark in marks.split(',')])}")
        elif flag == SAID:
            phrases.append("the text names this very action")
    return phrases


def _describe_mark(mark: str) -> str:
    """Describe one flag."""
    return _MARKS.get(mark, f"in the {mark}")


def _describe_lists(part: str, names: Sequence[str]) -> list[str]:
    """Describe the lists of the facts."""
    phrases = []
    for listing in filter(None, part.split("; ")):
        name, _, rest = listing.partition(" ")
        overlap, _, value = rest.partition(" ")
        what = "nothing of the task" if overlap == "-" else "a thing of the task"
        phrases.append(f"{name}: {what}{', ' + value if value else ''}")
    return phrases


def _describe_around(part: str, names: Sequence[str]) -> list[str]:
    """Describe the words around each argument; a scalar fact stays as it is."""
    phrases = []
    for clause in part.split("; "):
        match = _NUMBERED.fullmatch(clause)
        if match is None:
            phrases += [clause] if clause else []
        elif match[1] == "0":
            phrases += _describe_sight(match[2], names) if match[2] else []
        elif match[2] == "-":
            phrases.append(f"the text does not name {_name(match[1], names)}")
        elif match[2]:
            phrases.append(f"near {_name(match[1], names)}: {_describe_words(match[2])}")
    return phrases


def _describe_notes(part: str, names: Sequence[str]) -> list[str]:
    """Describe the words about each argument in the notes."""
    if part == "nothing told":
        return ["nothing was told"]
    if word := _WORD_OF.fullmatch(part):
        return [f"told of {_name(word[1], names)}: {word[2]}"]
    notes = [match for match in map(_NUMBERED.fullmatch, part.split("; ")) if match is not None]
    if notes and all(match[2] == "-" for match in notes):
        return [f"nothing was told of {_join([_name(match[1], names) for match in notes])}"]
    return [
        f"told of {_name(match[1], names)}: {_describe_words(match[2])}" for match in notes if match[2] not in ("", "-")
    ]


def _describe_words(words: str) -> str:
    """Return the words of a context, separated by commas."""
    return ", ".join(_TASK_WORD if word == "[T]" else word for word in words.split())


def _name(number: str, names: Sequence[str]) -> str:
    """Return the words of the argument with this number, or its placeholder."""
    at = int(number) - 1
    return names[at] if 0 <= at < len(names) else f"{{{number}}}"


def _join(parts: Sequence[str]) -> str:
    """Return the parts joined by commas and a final "and"."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def _describe_goal(part: str, _: Sequence[str]) -> list[str]:
    """Describe the words of the task."""
    return [f"the task says {', '.join(part.split())}"] if part else []


def _describe_sight(part: str, _: Sequence[str]) -> list[str]:
    """Describe the words of the text."""
    return [f"the text says {_describe_words(part)}"]


def _describe_slot(part: str, _: Sequence[str]) -> list[str]:
    """Describe what stands in one place of the text."""
    return [f"the text says {part}"]


_REFINED = {
    "=goal": (_describe_goal,),
    "=near": (_describe_goal, _describe_around, _describe_notes),
    "=sight": (_describe_sight,),
    "=both": (_describe_goal, _describe_sight),
    "=slot": (_describe_slot,),
    "=case": (_describe_sight, _describe_slot),
}
"""By kind of refinement, the functions for the parts after its pattern."""

_DESCRIBERS = {
    "counts": _describe_counts,
    "flags": _describe_flags,
    "listed": _describe_lists,
    "shown": _describe_around,
    "told": _describe_notes,
}
