"""Titles of the items that rules make: sentences for people.

    take {1} | tried 0 to unknown | 1:T | inventory -
    Prefer `take X` when you have not tried it here and X is named by the task

The forms of keys are those of `hardwon.memory.situations.keys`. An id of an item never depends on these sentences, so
they can be changed without making every item of an older library anew.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .describe import PARTS, condition_words
from .keys import SAID

_HOLE = re.compile(r"\{(\d+)\}")
_COUNTS = re.compile(r"tried (\d) to (\w+)")
_NUMBERED = re.compile(r"(\d+): ?(.*)")
_WORD_OF = re.compile(r"(\d+) (\S+)")
_LETTERS = "XYZ"
_TRIES = {"0": "you have not tried it here", "1": "you tried it once here", "2": "you tried it several times here"}
_FOLLOWS = {
    "new": " and it led somewhere new",
    "seen": " and it led to a state that you had seen before",
    "stale": " and it led to a state that you have seen many times",
}
_MARKS = {
    "T": "named by the task",
    "told": "mentioned in your notes with this verb",
    "other": "mentioned in your notes, but not with this verb",
    "unnamed": "not mentioned in your notes",
}


def strategy_title(key: str) -> str:
    """Return the title of a strategy that was found under a key of the value table."""
    pattern, *parts = key.split(" | ")
    clauses: list[str] = []
    for kind, part in zip(PARTS.get(len(parts) + 1, ()), parts, strict=False):
        clauses += _CLAUSES[kind](part)
    return f"Prefer `{fill_holes(pattern)}` when {_join(clauses) or 'you can'}"


def guardrail_title(pattern: str, condition: Mapping[str, Any]) -> str:
    """Return the title of a guardrail: what it forbids, and when."""
    return f"Do not `{fill_holes(pattern)}`{_when(condition)}"


def warning_title(pattern: str, condition: Mapping[str, Any]) -> str:
    """Return the title of a warning: what mostly fails, and when."""
    return f"`{fill_holes(pattern)}` mostly fails{_when(condition)}"


def skill_title(steps: Sequence[str]) -> str:
    """Return the title of a skill: its steps, each argument that varies by a letter."""
    return f"To earn a reward, {list_steps(steps)}"


def remedy_title(steps: Sequence[str], failure: str) -> str:
    """Return the title of a remedy, whose last step is the action that had failed."""
    *first, action = name_holes(steps)
    return f"If `{action}` fails ({failure.replace('_', ' ')}), first {_quote(first)}, then try it again"


def list_steps(steps: Sequence[str]) -> str:
    """Return steps as words: `open X`, then `take Y`."""
    return _quote(name_holes(steps))


def name_holes(steps: Sequence[str]) -> list[str]:
    """Return steps with their holes as letters.

    Holes of one step are numbered from 1 in a shape (`open {1}`, `take {1}`) and across all steps in a generalized
    skill (`open {1}`, `take {2}`). Pass the generalized steps, so that one letter is one thing.
    """
    return [fill_holes(step) for step in steps]


def fill_holes(pattern: str) -> str:
    """Return a pattern with letters for its holes: `put {1} in {2}` is `put X in Y`."""
    return _HOLE.sub(lambda hole: _letter(hole[1]), pattern)


def _quote(steps: Iterable[str]) -> str:
    return ", then ".join(f"`{step}`" for step in steps)


def _letter(number: str) -> str:
    at = int(number) - 1
    return _LETTERS[at] if 0 <= at < len(_LETTERS) else f"X{number}"


def _when(condition: Mapping[str, Any]) -> str:
    operator, operand = next(iter(condition.items()))
    match operator:
        case "around":
            clauses = _read_around(operand)
        case "told":
            clauses = _read_notes(operand)
        case "mark":
            number, _, mark = operand.partition(" ")
            clauses = [f"{_letter(number)} is {_mark(mark)}"]
        case "again":
            clauses = ["it has just failed and nothing was done since"]
        case _:
            clauses = [fill_holes(condition_words(condition))]
    return f" when {_join(clauses)}" if clauses else ""


def _read_counts(part: str) -> list[str]:
    """Tries in this state; a key with two parts may also have a word of the notes here."""
    tries = _COUNTS.fullmatch(part)
    if tries is None:
        return _read_notes(part)
    return [_TRIES.get(tries[1], part) + _FOLLOWS.get(tries[2], "")]


def _read_flags(part: str) -> list[str]:
    clauses = []
    for flag in part.split():
        number, _, marks = flag.partition(":")
        if marks:
            clauses.append(f"{_letter(number)} is {_join([_mark(mark) for mark in marks.split(',')])}")
        elif flag == SAID:
            clauses.append("the text names this very action")
    return clauses


def _mark(mark: str) -> str:
    return _MARKS.get(mark, f"in the {mark}")


def _read_lists(part: str) -> list[str]:
    """Lists that hold something the task names; that a list holds nothing of it is left out for brevity."""
    clauses = []
    for listing in filter(None, part.split("; ")):
        name, _, rest = listing.partition(" ")
        overlap, _, value = rest.partition(" ")
        if overlap != "-":
            clauses.append(f"the {name} has something that the task names{f' ({value})' if value else ''}")
    return clauses


def _read_around(part: str) -> list[str]:
    clauses = []
    for clause in part.split("; "):
        near = _NUMBERED.fullmatch(clause)
        if near is None:
            clauses += [f'the situation says "{clause}"'] if clause else []
        elif near[2] == "-":
            clauses.append(f"{_letter(near[1])} is not in sight")
        elif near[2]:
            clauses.append(f"the text about {_letter(near[1])} has {_words(near[2])}")
    return clauses


def _read_notes(part: str) -> list[str]:
    if part == "nothing told":
        return []
    if word := _WORD_OF.fullmatch(part):
        return [f"your notes about {_letter(word[1])} have {_words(word[2])}"]
    notes = [known for known in map(_NUMBERED.fullmatch, part.split("; ")) if known is not None]
    return [f"your notes about {_letter(note[1])} have {_words(note[2])}" for note in notes if note[2] not in ("", "-")]


def _words(text: str) -> str:
    return _join([f'"{word}"' if word != "[T]" else "a word of the task" for word in text.split()])


def _join(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


_CLAUSES = {
    "counts": _read_counts,
    "flags": _read_flags,
    "listed": _read_lists,
    "shown": _read_around,
    "told": _read_notes,
}
