"""The admissible actions in the messages of a conversation: the whole list, or what has changed since the last message.

    offer, text = describe_actions(("go north", "take coin"), before=("go north",))
    # Also admissible now:
    # <actions>
    # take coin
    # </actions>

A list of 20 actions has 200 tokens, and most of it stands in every message. A reader of the whole conversation needs it
once. Changes name actions in their exact words, one per line: without numbers, which would not fit a list in parts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from . import prompts

Listing = Literal["full", "changes"]
"""What a message lists: all admissible actions, numbered (`full`), or what has changed since the last list."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The actions that are admissible at a message."""

    actions: tuple[str, ...]
    """The actions as lines; empty if the message had no list."""
    is_whole: bool
    """Whether the message names all of them, so that it needs no message before it."""


def find_known(offers: Iterable[Offer | None]) -> tuple[str, ...]:
    """Return the actions that a reader of messages takes for admissible; empty if it cannot know them."""
    lines: tuple[str, ...] | None = None
    for offer in offers:
        if offer is not None and (offer.is_whole or lines is not None):
            lines = offer.actions
    return lines or ()


def describe_actions(actions: Sequence[str], before: Sequence[str] = ()) -> tuple[Offer, str]:
    """Return what a message offers, and its text: the changes of the list, or all of it if that is not longer."""
    lines = tuple(_write_line(action) for action in actions)
    whole = f"Admissible actions:\n{_write_block('actions', lines)}" if lines else ""
    if not lines or not before:
        return Offer(lines, True), whole
    changes = _describe_changes(lines, before)
    return (Offer(lines, False), changes) if len(changes) < len(whole) else (Offer(lines, True), whole)


def _describe_changes(lines: Sequence[str], before: Sequence[str]) -> str:
    """Return which lines are new and which are gone."""
    old, now = set(before), set(lines)
    new, gone = [line for line in lines if line not in old], [line for line in before if line not in now]
    parts = [
        f"Also admissible now:\n{_write_block('actions', new)}" if new else "",
        f"No longer admissible:\n{_write_block('gone', gone)}" if gone else "",
    ]
    return "\n\n".join(filter(None, parts)) or "The same actions are admissible as before."


def _write_block(tag: str, lines: Sequence[str]) -> str:
    """Return lines between tags."""
    return "\n".join((f"<{tag}>", *lines, f"</{tag}>"))


def _write_line(action: str) -> str:
    """Return an action as one line, which can neither end its block nor look like two actions."""
    return " ".join(prompts.clean(action, prompts.LINE).split())
