"""Titles of items that rules create, as sentences for people.

    take {1} | tried 0 to unknown | 1:T | inventory -
    Prefer `take X` when you have not tried it here yet and the task names X

`hardwon.memory.situations.keys` defines the forms of keys. Ids of items never depend on these sentences, so you can
change them without creating all items of an older library again.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from .actions import ParsedAction, keep_arguments, put_values
from .describe import PARTS, condition_words
from .keys import SAID, parse_action

_HOLE = re.compile(r"\{(\d+)\}")
_COUNTS = re.compile(r"tried (\d) to (\w+)")
_NUMBERED = re.compile(r"(\d+): ?(.*)")
_EMPTY = re.compile(r" (?= |$)")
"""Place of an argument of a command that is empty in its pattern: `say  to bob`."""
_PLACEHOLDER = " {0}"
_WORD_OF = re.compile(r"(\d+) (\S+)")
_LETTERS = "XYZ"
_TRIES = {"0": "you have not tried it here yet", "1": "you tried it once here", "2": "you tried it several times here"}
_FOLLOWS = {
    "new": " and it led somewhere new",
    "seen": " and it led to a state that you had seen before",
    "stale": " and it led to a state that you have seen many times",
}
_MARKS = {
    "T": "the task names {name}",
    "told": 'your notes say "{verb}" about {name}',
    "other": 'your notes mention {name}, but not with "{verb}"',
    "unnamed": "your notes do not mention {name}",
}
_NOT_IN_SIGHT = " is not in sight"
_TASK_WORD = "a word of the task"
_OF_ANY_CALL = (_NOT_IN_SIGHT, f" says {_TASK_WORD}", ' says "request"', f' says {_TASK_WORD} and "request"')
"""Ends of clauses about an argument that hold for most calls: a request names what to call with, in its own words."""

_OPEN = r"In `[^`]+`, check \S+"
_NEXT_CASE = re.compile(r', (?=[\w.-]+="[^"]*" if )')
"""What stands between two cases in the title of a choice."""
_BEGINNING = re.compile(r'(\S+) begins with "([^"]+)"')
_CONDITION = re.compile(r"\S+ begins with |the text (?:says|does not say) ")
NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?")
_RANGE = rf"Before `[^`]*`, call [^.]* if (\S+) is (above|below) ({NUMBER.pattern})"
"""The numbers for which a call needs another one before."""
_QUOTED_WORD = re.compile(r'"([^"]+)"')
WITH_FAILED_VALUES = "with the values that failed before; other values may work"
"""The end of a sentence about failures whose values are left out."""


class Difference(NamedTuple):
    """What decides between the texts in which an action did well, and those in which it did not."""

    says: tuple[str, ...] = ()
    """Words that the text must say."""
    lacks: tuple[str, ...] = ()
    """Words that it must not say."""

    def fits(self, words: Collection[str]) -> bool:
        """Return whether a text with these words says and lacks all that it must."""
        return all(word in words for word in self.says) and all(word not in words for word in self.lacks)


_NO_DIFFERENCE = Difference()


def end_sentence(text: str) -> str:
    """Return a text with a full stop, if it does not end with a mark of its own."""
    text = text.rstrip()
    return text if text.endswith((".", "!", "?", "。", "！", "？")) else f"{text}."


def strategy_title(
    key: str, common: Collection[str] = (), examples: Collection[str] = (), difference: Difference = _NO_DIFFERENCE
) -> str:
    """Return the title of a strategy that was found under a key of the value table.

    Of what the text shows as a whole, it names the difference, or all words that are not common.
    """
    pattern, *parts = key.split(" | ")
    parsed = parse_action(pattern)
    # the words of a command name a thing already, so a letter is clearer there
    names = _name_arguments(pattern) if parsed.parts else ()
    # a request names what a tool is called with, and a call that worked is seldom made again
    kinds = ("shown", "listed", "told") if parsed.template.endswith(")") else ()
    clauses: list[str] = []
    # not strict: a key of an unknown form has a title without clauses
    for kind, part in zip(PARTS.get(len(parts) + 1, ()), parts, strict=False):
        match kind:
            case _ if kinds and kind not in kinds:
                continue
            case "flags":
                clauses += _read_flags(part, _find_verb(pattern), names)
            case "shown":
                clauses += _read_around(_drop_words(part, common, difference), names, difference)
            case "listed":
                clauses += _read_lists(part)
            case "told":
                clauses += _read_notes(part, names)
            case _:
                clauses += _read_counts(part, names)
    if parsed.parts:
        clauses = [clause for clause in clauses if not clause.endswith(_OF_ANY_CALL)]
    action = fill_holes(name_pattern(pattern, examples))
    return f"Prefer `{action}` when {_join(_drop_repeats(clauses, _find_verb(pattern))) or 'you can'}"


def _find_verb(pattern: str) -> str:
    """Return the first word of an action."""
    return pattern.partition(" ")[0]


def _drop_repeats(clauses: Sequence[str], verb: str) -> list[str]:
    """Return the clauses without words of the notes that another clause already tells: the verb about an argument."""
    repeats = {
        f'your notes about {letter} say "{verb}"'
        for letter in _LETTERS
        if _MARKS["told"].format(name=letter, verb=verb) in clauses
    }
    return [clause for clause in clauses if clause not in repeats]


def _drop_words(part: str, common: Collection[str], difference: Difference) -> str:
    """Return the words around each argument without the common ones; an argument without any other word is left out.

    The place of the text as a whole stays if the difference is to stand there.
    """
    clauses = []
    for clause in part.split("; "):
        match = _NUMBERED.fullmatch(clause)
        if match is None or match[2] in ("", "-") or (match[1] == "0" and any(difference)):
            clauses.append(clause)
        elif kept := [word for word in match[2].split() if word not in common]:
            clauses.append(f"{match[1]}: {' '.join(kept)}")
    return "; ".join(clauses)


def name_pattern(pattern: str, examples: Collection[str]) -> str:
    """Return a pattern in the order and with the signs of actions that match it; the pattern itself if none can.

    If all steps did the same, this is the action as it was run: a pattern keeps only the part of an address or a path
    that tells it apart.
    """
    example = next(iter(examples), "")
    wanted, tried = parse_action(pattern), parse_action(example)
    if _HOLE.sub("{}", wanted.template) != _HOLE.sub("{}", tried.template) or len(wanted.slots) != len(tried.slots):
        return pattern
    if len(examples) == 1 and "\n" not in example and not _HOLE.search(pattern):
        return example
    changed = {old: new for new, old in zip(wanted.slots, tried.slots, strict=True) if new != old}
    named = put_values(example, changed) if changed else example
    return named if named and parse_action(named).slots == wanted.slots else pattern


def guardrail_title(
    pattern: str,
    condition: Mapping[str, Any],
    examples: Collection[str] = (),
    difference: Difference = _NO_DIFFERENCE,
) -> str:
    """Return the title of a guardrail: the forbidden action, in the words of examples, and its condition."""
    return f"Do not `{fill_holes(name_pattern(pattern, examples))}`{_when(condition, pattern, difference)}"


def warning_title(
    pattern: str,
    condition: Mapping[str, Any],
    examples: Collection[str] = (),
    difference: Difference = _NO_DIFFERENCE,
) -> str:
    """Return the title of a warning: the action that mostly fails, in the words of examples, and its condition."""
    return f"`{fill_holes(name_pattern(pattern, examples))}` mostly fails{_when(condition, pattern, difference)}"


def skill_title(steps: Sequence[str]) -> str:
    """Return the title of a skill: its steps, with names for arguments that vary."""
    return f"To earn a reward, {list_steps(steps)}"


def remedy_title(failed: str, steps: Sequence[str], failure: str, *, is_usual: bool) -> str:
    """Return the title of a remedy: what to do first, or in its place, if the action usually fails, else if it did."""
    failed, *steps = name_holes([failed, *steps])
    if steps == [failed]:
        return f"If `{failed}` fails ({failure}), call it again"
    if is_usual:
        return f"{'First' if len(steps) > 1 else 'Use'} {quote_steps(steps)}"
    return f"If `{failed}` fails ({failure}), {'first' if len(steps) > 1 else 'then'} {quote_steps(steps)}"


def is_for_failures(title: str) -> bool:
    """Return whether the title of a remedy is about an action that was already tried and failed."""
    return title.startswith("If `")


def choice_title(steps: Sequence[str], name: str, cases: Mapping[str, str], needed_if: str = "") -> str:
    """Return the title of a remedy that says what a call needs before it, and which value under which condition.

    What stands without a condition is what to do with all values; if it is empty, nothing is said about them.
    """
    *before, last = (parse_action(step) for step in name_holes(steps))
    given = {part.value: part.name for part in last.parts}
    shared = [" and ".join(given[part.value] for part in call.parts if part.value in given) for call in before]
    calls = ", then ".join(
        f"`{call.verb}`{f' with the same {names}' if names else ''}" for call, names in zip(before, shared, strict=True)
    )
    values = ", ".join(f'{name}="{value}" if {clause}' for clause, value in sorted(cases.items()) if clause)
    advice = f"use {values}" if values else cases.get("", "")
    needs = [f"Before `{last.verb}`, call {calls}{f' if {needed_if}' if needed_if else ''}"] if before else []
    return ". ".join([*needs, *([f"In `{last.verb}`, {advice}"] if advice else [])])


def is_open(title: str) -> bool:
    """Return whether a title of `choice_title` names an argument without a value that works."""
    return re.fullmatch(_OPEN, title) is not None


def choose_cases(title: str, says: Callable[[str], bool], shows_id: Callable[[str], bool]) -> str:
    """Return a title of `choice_title` with the cases whose condition the present meets.

    Without any, all of them stay if a value depends on an id that may come later; otherwise, what the call needs stays.

    Args:
        title: The title; another one is returned as it is.
        says: Whether the present says a word.
        shows_id: Whether it has an id that begins like this.
    """
    advice, _, clause = title.rpartition("` if ")
    if advice.startswith(("Use `", "First `")) and _CONDITION.match(clause):  # a remedy for some requests
        return title if _is_met(clause, says, shows_id) else ""
    before, use, rest = title.rpartition(", use ")
    clauses = {case: case.partition('" if ')[2] for case in _NEXT_CASE.split(rest)} if use else {}
    if not clauses or not all(map(_CONDITION.match, clauses.values())):  # somebody else wrote it
        return title
    kept = [case for case, clause in clauses.items() if _is_met(clause, says, shows_id)]
    if not kept and not shows_id("") and any(map(_BEGINNING.fullmatch, clauses.values())):
        return title
    return f"{before}{use}{', '.join(kept)}" if kept else before.rpartition(". In ")[0]


def is_in_range(title: str, call: ParsedAction) -> bool:
    """Return whether a call has a number for which a title of `choice_title` says that it needs another one before."""
    match = re.match(_RANGE, title)
    value = next((part.value for part in call.parts if match and part.name == match[1]), "")
    if match is None or not NUMBER.fullmatch(value):
        return True
    number, bound = float(value), float(match[3])
    return number > bound if match[2] == "above" else number < bound


def _is_met(clause: str, says: Callable[[str], bool], shows_id: Callable[[str], bool]) -> bool:
    """Return whether the present meets the condition of a case."""
    if beginning := _BEGINNING.fullmatch(clause):
        return shows_id(beginning[2])
    wanted, _, unwanted = (_QUOTED_WORD.findall(part) for part in clause.partition(" not "))
    return bool(wanted or unwanted) and all(map(says, wanted)) and not any(map(says, unwanted))


def read_beginning(name: str, start: str) -> str:
    """Return the condition that an argument begins like this."""
    return f'{name} begins with "{start}"'


def name_arguments(call: str, names: Collection[str]) -> str:
    """Return a call with these arguments alone: `refund(to="card")`."""
    return f"`{fill_holes(keep_arguments(call, names))}`"


def list_steps(steps: Sequence[str]) -> str:
    """Return steps as text: `open X`, then `take Y`."""
    return quote_steps(name_holes(steps))


def name_holes(steps: Sequence[str]) -> list[str]:
    """Return steps with names for their placeholders: those of the parameters of calls, else letters.

    In a shape, each step numbers its placeholders from 1 (`open {1}`, `take {1}`). In a generalized skill, they are
    numbered across all steps (`open {1}`, `take {2}`). Pass the generalized steps, so that a letter always means the
    same thing.
    """
    names = _name_numbers(steps)
    return [_HOLE.sub(lambda hole: names.get(hole[1]) or _letter(hole[1]), step) for step in steps]


def _name_numbers(steps: Sequence[str]) -> dict[str, str]:
    """Return the names of placeholders that are whole arguments of calls, by number: `{order}`."""
    names: dict[str, str] = {}
    for part in (part for step in steps for part in parse_action(step).parts):
        if part.name and (hole := _HOLE.fullmatch(part.value)):
            name = f"{{{part.name.rpartition('.')[2]}}}"
            # two arguments with the same name differ by their letters
            names.setdefault(hole[1], _letter(hole[1]) if name in names.values() else name)
    return names


def fill_holes(pattern: str) -> str:
    """Return a pattern with names for its placeholders: `put {1} in {2}` becomes `put X in Y`."""
    return name_holes([pattern])[0]


def quote_steps(steps: Iterable[str]) -> str:
    """Return steps in backquotes, joined by "then"; a step that is repeated comes once, with its count."""
    counted = ((step, len([*group])) for step, group in groupby(steps))
    return ", then ".join(f"`{step}`{f' ({n} times)' if n > 1 else ''}" for step, n in counted)


def _letter(number: str) -> str:
    """Return the letter of a placeholder by its number."""
    at = int(number) - 1
    return _LETTERS[at] if 0 <= at < len(_LETTERS) else f"X{number}"


def _when(condition: Mapping[str, Any], pattern: str, difference: Difference) -> str:
    """Return the condition of an action as a clause that begins with "when"."""
    operator, operand = next(iter(condition.items()))
    names = _name_arguments(pattern)
    match operator:
        case "around":
            clauses = _read_around(operand, names, difference) or _read_silence(operand, names)
        case "told":
            clauses = _read_notes(operand, names)
        case "mark":
            number, _, mark = operand.partition(" ")
            clauses = [_read_mark(mark, number, _find_verb(pattern), names)]
        case "again":
            clauses = ["it has just failed and nothing was done since"]
        case "all" if not operand:
            clauses = []
        case _:
            clauses = [_HOLE.sub(lambda hole: _name(hole[1], names), condition_words(condition))]
    if parse_action(pattern).parts:
        clauses = [clause for clause in clauses if not clause.endswith(_OF_ANY_CALL)]
    return f" when {_join(clauses)}" if clauses else ""


def _name_arguments(pattern: str) -> list[str]:
    """Return the names of a pattern's arguments: their words, their parameter, or a letter."""
    # an empty argument of a command is marked while the pattern is parsed: otherwise, the next one takes its number
    slots = [slot.replace(_PLACEHOLDER, "").strip() for slot in parse_action(_EMPTY.sub(_PLACEHOLDER, pattern)).slots]
    named = _name_numbers([pattern])
    letters = [named.get(slot.strip("{}"), _letter(str(number))) for number, slot in enumerate(slots, 1)]
    return [name if not slot or _HOLE.search(slot) else slot for slot, name in zip(slots, letters, strict=True)]


def _name(number: str, names: Sequence[str]) -> str:
    """Return the name of the argument with this number, or its letter."""
    at = int(number) - 1
    return names[at] if 0 <= at < len(names) else _letter(number)


def _read_counts(part: str, names: Sequence[str]) -> list[str]:
    """Return clauses about the tries in this state, or a word of the notes in a key with two parts."""
    tries = _COUNTS.fullmatch(part)
    if tries is None:
        return _read_notes(part, names)
    return [_TRIES.get(tries[1], part) + _FOLLOWS.get(tries[2], "")]


def _read_flags(part: str, verb: str, names: Sequence[str]) -> list[str]:
    """Return clauses about the flags of the arguments."""
    clauses = []
    for flag in part.split():
        number, _, marks = flag.partition(":")
        if marks:
            clauses += [_read_mark(mark, number, verb, names) for mark in marks.split(",")]
        elif flag == SAID:
            clauses.append("the text names this very action")
    return clauses


def _read_mark(mark: str, number: str, verb: str, names: Sequence[str]) -> str:
    """Return the clause about one flag of an argument."""
    name = _name(number, names)
    return _MARKS[mark].format(name=name, verb=verb) if mark in _MARKS else f"{name} is in the {mark}"


def _read_lists(part: str) -> list[str]:
    """Return clauses about lists with something that the task names. Other lists are skipped for brevity."""
    clauses = []
    for listing in filter(None, part.split("; ")):
        name, _, rest = listing.partition(" ")
        overlap, _, value = rest.partition(" ")
        if overlap != "-":
            clauses.append(f"the {name} has something that the task names{f' ({value})' if value else ''}")
    return clauses


def _read_around(part: str, names: Sequence[str] = (), difference: Difference = _NO_DIFFERENCE) -> list[str]:
    """Return clauses about the words around each argument, and of the whole text, or what decides in it."""
    clauses = []
    for clause in part.split("; "):
        match = _NUMBERED.fullmatch(clause)
        if match is None:
            clauses += [f'the situation says "{clause}"'] if clause else []
        elif match[1] == "0":
            clauses += filter(None, [read_difference(difference) or _read_sight(match[2])]) if match[2] else []
        elif match[2] == "-":
            clauses.append(f"{_name(match[1], names)}{_NOT_IN_SIGHT}")
        elif match[2]:
            clauses.append(f"the text around {_name(match[1], names)} says {_words(match[2])}")
    return clauses


def _read_sight(words: str) -> str:
    """Return the clause about what the text shows as a whole; nearly every text shows a word of its task."""
    content = " ".join(word for word in words.split() if word != "[T]")
    return f"the text says {_words(content)}" if content else ""


def read_difference(difference: Difference) -> str:
    """Return the clause about what the text must say, and must not; empty for no difference."""
    says, lacks = _words(" ".join(difference.says)), _words(" ".join(difference.lacks), "or")
    if says and lacks:
        return f"the text says {says} but not {lacks}"
    return f"the text says {says}" if says else f"the text does not say {lacks}" if lacks else ""


def _read_silence(part: str, names: Sequence[str]) -> list[str]:
    """Return the clause about arguments that are in sight with no common word near them."""
    matches = (_NUMBERED.fullmatch(clause) for clause in part.split("; "))
    things = [_name(match[1], names) for match in matches if match is not None]
    return [f"no common word is near {_join(things)}"] if things else []


def _read_notes(part: str, names: Sequence[str] = ()) -> list[str]:
    """Return clauses about the notes on each argument."""
    if part == "nothing told":
        return []
    if word := _WORD_OF.fullmatch(part):
        return [f"your notes about {_name(word[1], names)} say {_words(word[2])}"]
    notes = [match for match in map(_NUMBERED.fullmatch, part.split("; ")) if match is not None]
    return [
        f"your notes about {_name(note[1], names)} say {_words(note[2])}" for note in notes if note[2] not in ("", "-")
    ]


def _words(text: str, last: str = "and") -> str:
    """Return quoted words, joined by commas and a final "and"."""
    return _join([f'"{word}"' if word != "[T]" else _TASK_WORD for word in text.split()], last)


def _join(parts: Sequence[str], last: str = "and") -> str:
    """Return the parts joined by commas and a final "and"."""
    return f" {last} ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))
