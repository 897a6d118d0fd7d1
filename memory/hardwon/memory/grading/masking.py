"""Masking: the words of an episode that an item about it may repeat, without the values of one customer.

A value is a number, an id, a quoted text, a name, or an argument of one of the episode's calls. A capital letter marks
a name, also at the beginning of a sentence, unless the word is a function word or belongs to the name of an action.
"""

import re

from hardwon.memory.records import Trajectory
from hardwon.memory.situations.actions import parse_action, pattern_of
from hardwon.memory.situations.phrases import FUNCTION_WORDS, words
from hardwon.memory.situations.titles import fill_holes
from hardwon.memory.trust.testimony import form_of

GAP = "…"
"""Stands for one value or several in a row."""
_QUOTED = re.compile(r"\"[^\"]*\"|“[^“”]*”|«[^«»]*»|`[^`]*`|(?<!\w)'[^']*'(?!\w)")
_TOKEN = re.compile(r"\S+")
_PLAIN_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_CORE = re.compile(r"\w(?:.*\w)?", re.DOTALL)
"""A token without the signs around it."""
_GAPS = re.compile(rf"{GAP}(?: {GAP})+")


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
