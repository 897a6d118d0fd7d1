"""Lessons of single steps for other tasks, such as `put milk in fridge: rewarded`, without the values of requests."""

import re
from collections.abc import Sequence

from hardwon.memory import State, Step
from hardwon.memory.situations.actions import fill, parse_action
from hardwon.memory.situations.commands import looks_like_shell
from hardwon.memory.trust.instructions import instruction_in

from .rendering import Visible, generalize_action

_TOKEN = re.compile(r"[^\s\"'(),=]+")
_NUMBERED = re.compile(r"([^\W\d_]+(?: [^\W\d_]+)*) \d+")
"""A thing with a number, such as `apple 2`."""
_COUNT = re.compile(r"(?<=[^\W\d_]) \d+")


def render_lesson(step: Step, preparation: Sequence[Step] = ()) -> str:
    """Return what a step teaches as a line for other tasks, such as `put milk in fridge: rewarded`; empty if nothing.

    Words are kept, because knowledge about kinds of things is what carries over: `put apple 2 in fridge 1` is about an
    apple and a fridge. Values with digits or signs, such as numbers of orders and addresses, and the longer texts of
    calls become named holes.
    """
    action = _render_kinds(step.action)
    # The message is left out: a single episode does not show which of its words are everybody's.
    outcome = "" if step.diagnosis.success else f"failed ({step.diagnosis.failure.value})"
    result = outcome or (("rewarded" if step.reward > 0 else "punished") if step.reward else "")
    if not action or not result:
        return ""
    before = dict.fromkeys(text for each in preparation if (text := _render_form(each.action)) and text != action)
    return f"{', then '.join((*before, action))}: {result}"


def _render_kinds(action: str) -> str:
    """Return an action with kinds of things instead of numbered ones, and holes for ids; empty if it gives orders."""
    text = " ".join(action.split())
    parsed = parse_action(text)
    if not parsed.parts and any(map(_NUMBERED.fullmatch, parsed.slots)):
        text = fill(parsed.template, [_COUNT.sub("", slot) for slot in parsed.slots])
    return _drop_orders(generalize_action(text, _show_words(text)))


def _render_form(action: str) -> str:
    """Return an action with kinds of things, or a call with holes for all its values; empty if it gives orders."""
    text = " ".join(action.split())
    return _drop_orders(generalize_action(text, Visible(None))) if _is_call(text) else _render_kinds(text)


def _drop_orders(action: str) -> str:
    """Return an action on one line, or nothing if it gives orders: names in JSON may be any text."""
    return "" if instruction_in(action) else " ".join(action.split())


def _is_call(action: str) -> bool:
    """Return whether an action is a call or a shell command, whose values are those of its request."""
    return bool(parse_action(action).parts) or looks_like_shell(action)


def _show_words(action: str) -> Visible:
    """Return a view of the words of an action without values that have digits or signs or are the text of a call."""
    parsed, is_call = parse_action(action), _is_call(action)
    # Number of words of a call's value that a lesson keeps; a longer text is a message of its request.
    short = [slot for slot in parsed.slots if not is_call or len(slot.split()) <= 3]
    tokens = _TOKEN.findall(" ".join((parsed.template, *short)))
    return Visible(State(" ".join(token for token in tokens if not re.search(r"[\d@_]", token))))
