"""Context builders: which past turns of a conversation a model reads, and in which form.

    ChatPolicy("openai:gpt-5", context="report")
    ChatPolicy("openai:gpt-5", context=ActionsOnly(last=4))

The open turn, which holds the observation, the refused actions, the notes and the plan, is always sent as it is.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime.interfaces.methods import METHODS

from . import prompts

LEFT_OUT = "(an earlier observation, left out)"
OMIT = "omit"
"""Key of an answer under which a model names the messages that it no longer needs."""
REPORT = "What you did so far in this episode, oldest first:"

PromptMessages = tuple[tuple[str, str], ...]
Past = Sequence[tuple[str, str]]
"""Pairs of the environment's message and the answer to it, oldest first."""


@runtime_checkable
class ContextBuilder(Protocol):
    """Writes the messages before the open turn, and the open turn."""

    def build(self, past: Past, current: str) -> PromptMessages:
        """Return pairs of role and text; the last one is the open turn."""
        ...


@runtime_checkable
class AnswersCount(Protocol):
    """A context builder that reads the answers: it explains how, and says what of an answer is kept."""

    rules: str
    """Text for the system message."""

    def build_from(self, past: Past, current: str, first: int) -> PromptMessages:
        """Return what `build` does, given the number of turns that are no longer kept before `past`."""
        ...

    def keep(self, answer: str, action: str) -> str | None:
        """Return the text of an answer that the conversation keeps in place of the action; None for the action."""
        ...


class AllTurns:
    """Every kept turn, in full."""

    def build(self, past: Past, current: str) -> PromptMessages:
        """Return all turns."""
        pairs = [pair for user, answer in past for pair in (("user", user), ("assistant", answer))]
        return (*pairs, ("user", current))


@METHODS.add(
    "HiconAgent (history compression)",
    "arXiv:2512.01763",
    evidence="C",
    reach='`ChatPolicy(model, context="actions")`, `context=ActionsOnly(last=n)`',
    reading="the compressed form alone; its training, with drawn lengths of history, is not implemented",
)
class ActionsOnly:
    """The past actions without the observations that they answered."""

    def __init__(self, *, last: int | None = None) -> None:
        """Create a builder."""
        if last is not None and last < 0:
            raise ConfigError(f"last is {last}; use 0 or more, or None for all.")
        self._last = last

    def build(self, past: Past, current: str) -> PromptMessages:
        """Return the answers of the last turns, each to the same placeholder."""
        kept = past if self._last is None else past[len(past) - min(self._last, len(past)) :]
        pairs = [pair for _, answer in kept for pair in (("user", LEFT_OUT), ("assistant", answer))]
        return (*pairs, ("user", current))


@METHODS.add(
    "IterResearch (workspace reconstruction)",
    "arXiv:2511.07327",
    evidence="A P",
    reach='`ChatPolicy(model, context="report")`',
    reading="the report is made by rule from the actions, newest kept; the notes are in the open turn already",
)
class ReportContext:
    """One message: a short report of what was done, and the open turn."""

    def __init__(self, *, characters: int = 1200) -> None:
        """Create a builder."""
        if characters < 1:
            raise ConfigError(f"characters is {characters}; use 1 or more.")
        self._characters = characters

    def build(self, past: Past, current: str) -> PromptMessages:
        """Return one message; without past turns it is the open turn alone."""
        lines: list[str] = []
        room = self._characters
        for _, answer in reversed(past):
            line = " ".join(prompts.clean(answer, prompts.LINE).split())
            room -= len(line) + 1
            if room < 0:
                break
            lines.append(line)
        if not lines:
            return (("user", current),)
        report = prompts.block("steps", "\n".join(reversed(lines)))
        return (("user", f"{REPORT}\n{report}\n\n{current}"),)


@METHODS.add(
    "Agent-Omit (omitted observations)",
    "arXiv:2602.04284",
    evidence="C A",
    reach='`ChatPolicy(model, context="omit")`',
    reading="the protocol: the model names numbers of messages, which it does not read again; omitted thoughts, and "
    "training with a reward for what was left out, are not implemented",
)
class OmittingContext:
    """Every kept turn, without the observations that the model chose to omit.

    In Agent-Omit (arXiv:2602.04284) an answer may carry `omit_tool_response_N`. From then on, answer N is an empty tag
    in the history. Here the answer is JSON with the numbers beside the action, and every message shows its number.
    """

    rules = (
        "Every message of the environment begins with its number. If you will not need some of them again, answer with "
        'JSON on one line: {"action": "YOUR ACTION", "omit": [NUMBERS]}. You will not see them again; notes, refused '
        "actions and the plan stay."
    )
    """What the system message says about it."""

    def build(self, past: Past, current: str) -> PromptMessages:
        """Return all turns that were not omitted, with their numbers."""
        return self.build_from(past, current, 0)

    def build_from(self, past: Past, current: str, first: int) -> PromptMessages:
        """Return all turns that were not omitted."""
        omitted = {number for _, answer in past for number in prompts.find_numbers(answer, OMIT)}
        messages: list[tuple[str, str]] = []
        for number, (user, answer) in enumerate(past, first + 1):
            messages += [("user", f"[{number}]\n{LEFT_OUT if number in omitted else user}"), ("assistant", answer)]
        return (*messages, ("user", f"[{first + len(past) + 1}]\n{current}"))

    def keep(self, answer: str, action: str) -> str | None:
        """Return the answer as the conversation keeps it: with its numbers; None if it names none."""
        numbers = prompts.find_numbers(answer, OMIT)
        return json.dumps({"action": action, OMIT: numbers}, ensure_ascii=False) if numbers else None


BUILDERS: Mapping[str, type[AllTurns | ActionsOnly | OmittingContext | ReportContext]] = {
    "all": AllTurns,
    "actions": ActionsOnly,
    "omit": OmittingContext,
    "report": ReportContext,
}
"""The builders by name."""


def as_builder(context: "str | ContextBuilder") -> ContextBuilder:
    """Return the context builder of a name, or the builder itself."""
    if not isinstance(context, str):
        return context
    if context not in BUILDERS:
        raise UnknownName.of("context", context, BUILDERS)
    return BUILDERS[context]()
