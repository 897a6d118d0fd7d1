"""Context builders: which past turns of a conversation a model reads, and in which form.

    ChatPolicy("openai:gpt-5", context="report")
    ChatPolicy("openai:gpt-5", context=ActionsOnly(last=4))

The open turn, which holds the observation, the refused actions, the notes and the plan, is always sent as it is.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime.interfaces.methods import METHODS

from . import prompts

LEFT_OUT = "(an earlier observation, left out)"
REPORT = "What you did so far in this episode, oldest first:"

Messages = tuple[tuple[str, str], ...]
Past = Sequence[tuple[str, str]]
"""Pairs of the environment's message and the answer to it, oldest first."""


@runtime_checkable
class ContextBuilder(Protocol):
    """Writes the messages before the open turn, and the open turn."""

    def build(self, past: Past, current: str) -> Messages:
        """Return pairs of role and text; the last one is the open turn.

        Args:
            past: The answered turns that the conversation keeps.
            current: The message of the open turn.
        """
        ...


class AllTurns:
    """Every kept turn, in full."""

    def build(self, past: Past, current: str) -> Messages:
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
        """Create a builder.

        Args:
            last: Number of past actions to show; None shows all that the conversation keeps.

        Raises:
            ConfigError: The number is negative.
        """
        if last is not None and last < 0:
            raise ConfigError(f"last is {last}; use 0 or more, or None for all.")
        self._last = last

    def build(self, past: Past, current: str) -> Messages:
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
        """Create a builder.

        Args:
            characters: Length of the report; the oldest actions are left out first.

        Raises:
            ConfigError: The number is below 1.
        """
        if characters < 1:
            raise ConfigError(f"characters is {characters}; use 1 or more.")
        self._characters = characters

    def build(self, past: Past, current: str) -> Messages:
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


BUILDERS: Mapping[str, type[AllTurns | ActionsOnly | ReportContext]] = {
    "all": AllTurns,
    "actions": ActionsOnly,
    "report": ReportContext,
}
"""The builders by name."""


def as_builder(context: "str | ContextBuilder") -> ContextBuilder:
    """Return the context builder of a name, or the builder itself.

    Raises:
        UnknownName: There is no builder of this name.
    """
    if not isinstance(context, str):
        return context
    if context not in BUILDERS:
        raise UnknownName.of("context", context, BUILDERS)
    return BUILDERS[context]()
