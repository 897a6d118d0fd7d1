"""Corrections: what a person says about a finished episode, as an item that the curator judges.

A correction names a step and the action that should have been taken there. Its item applies in the situation of that
step, and the step is its evidence. A lesson is about the whole episode, whose last step is its evidence.

The item is shown to others as the words of the person. So it repeats no text of an untrusted episode, and no values of
the episode's task, actions and errors. A value is a number, an id, a quoted text, a name, or an argument of one of the
episode's calls. A capital letter marks a name, also at the beginning of a sentence, unless the word is a function word
or belongs to the name of an action.
"""

import re
from dataclasses import replace

from hardwon.memory.records import Diagnosis, Failure, Item, State, Trajectory, Trust
from hardwon.memory.situations.actions import parse_action, pattern_of
from hardwon.memory.situations.phrases import FUNCTION_WORDS, words
from hardwon.memory.situations.titles import fill_holes
from hardwon.memory.storage.episodes import is_untrusted
from hardwon.memory.trust.testimony import form_of

from .grades import Grade

LONGEST_TITLE = 300
"""Largest number of characters of a title; a longer lesson continues in the body."""
GAP = "…"
"""Stands for one value or several in a row."""
_QUOTED = re.compile(r"\"[^\"]*\"|“[^“”]*”|«[^«»]*»|`[^`]*`|(?<!\w)'[^']*'(?!\w)")
_TOKEN = re.compile(r"\S+")
_PLAIN_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_CORE = re.compile(r"\w(?:.*\w)?", re.DOTALL)
"""A token without the signs around it."""
_GAPS = re.compile(rf"{GAP}(?: {GAP})+")


def build_lesson(grade: Grade, episode: Trajectory, trust: Trust) -> Item | None:
    """Return the item that a grade teaches, or None if it only changes the outcome."""
    if not (grade.instead or grade.lesson):
        return None
    item = _build_correction(grade, episode) if grade.instead else _build_words(grade, episode)
    is_trusted = trust == "trusted"
    source, writer = ("person", "user") if is_trusted else ("client", grade.grader)
    return replace(item, source=source, writer=writer, trust=trust)


def _build_correction(grade: Grade, episode: Trajectory) -> Item:
    number = _find_step(grade, episode)
    step = episode.steps[number] if number is not None else None
    action = " ".join(grade.instead.split())
    if step is None:
        return Item("strategy", f"For this task, use `{action}`", grade.lesson or grade.why, _describe_task(episode))
    wrong = describe_action(step.action, is_trusted=not is_untrusted(episode)) if step.action != action else ""
    title = f"Use `{action}` instead of `{wrong}`" if wrong else f"Use `{action}` here"
    body = " ".join(filter(None, (grade.lesson or grade.why, _describe_failure(step.diagnosis))))
    return Item(
        "strategy",
        title[:LONGEST_TITLE],
        body,
        _describe_task(episode),
        signatures=(step.pre.signature,),
        locations=() if is_untrusted(episode) else _list_places(step.pre),
        steps=(action,),
        provenance=(step.id,) if step.id is not None else (),
    )


def _find_step(grade: Grade, episode: Trajectory) -> int | None:
    """Return the step that a correction is about: the given one, else the last failed one, else the last one."""
    if grade.step is not None or not episode.steps:
        return grade.step
    failed = [number for number, step in enumerate(episode.steps) if not step.diagnosis.success]
    return failed[-1] if failed else len(episode.steps) - 1


def _describe_failure(diagnosis: Diagnosis) -> str:
    """Return how the other action failed, without its message: the text of a result would become one of a person."""
    return "" if diagnosis.failure is Failure.NONE else f"The other action failed ({diagnosis.failure.value})."


def _describe_task(episode: Trajectory) -> str:
    """Return when an item about an episode applies, without the values of its task; empty if it is untrusted."""
    task = "" if is_untrusted(episode) else _quote(mask_values(episode.task, episode))
    return f"When you are asked: {task}" if task else ""


def _build_words(grade: Grade, episode: Trajectory) -> Item:
    lesson = " ".join(grade.lesson.split())
    kind = "insight" if grade.success else "warning"
    evidence = tuple(step.id for step in episode.steps[-1:] if step.id is not None)
    body = lesson if len(lesson) > LONGEST_TITLE else ""
    return Item(kind, lesson[:LONGEST_TITLE], body, _describe_task(episode), provenance=evidence)  # type: ignore[arg-type]


def _list_places(state: State) -> tuple[str, ...]:
    return (state.location,) if state.location else ()


def _quote(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_TITLE else f"{line[:LONGEST_TITLE].rsplit(' ', 1)[0]} ..."


# -- masking: the words of an episode that an item about it may repeat


def mask_values(text: str, episode: Trajectory) -> str:
    """Return a text of an episode on one line, with a gap for each value; empty if it names nothing else."""
    parsed = [parse_action(step.action) for step in episode.steps if step.action]
    # a command of words has no names of arguments, and its arguments are kinds of things, as in the key of its values
    values = {word for action in parsed if action.parts for slot in action.slots for word in words(slot)}
    verbs = {word for action in parsed for word in words(re.sub(r"[_.-]", " ", action.verb))}

    def mask(core: re.Match[str]) -> str:
        return core[0] if _is_plain(core[0], values, verbs) else GAP

    line = " ".join(_CORE.sub(mask, token) for token in _TOKEN.findall(_QUOTED.sub(GAP, text)))
    masked_line = _GAPS.sub(GAP, line)
    return masked_line if set(words(masked_line)) - FUNCTION_WORDS else ""


def _is_plain(word: str, values: set[str], verbs: set[str]) -> bool:
    """Return whether a word of a text is no value."""
    if _PLAIN_WORD.fullmatch(word) is None:
        return False
    lowered = word.lower()
    if lowered in FUNCTION_WORDS or lowered in verbs:
        return True
    return lowered not in values and word == lowered


def describe_action(action: str, *, is_trusted: bool) -> str:
    """Return an action without its values; empty if nothing of it may be shown."""
    parsed = parse_action(action)
    if parsed.parts or not is_trusted:
        return form_of(action)
    return fill_holes(pattern_of(action))
