"""Coverage: what needs no line in a hint, because the run has done it already or a remedy says it better.

Only calls and shell commands count as done: a game's `open drawer` is worth doing again.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from hardwon.memory import Item, State, Step
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.commands import looks_like_shell
from hardwon.memory.trust.testimony import REQUESTS
from hardwon.runtime.interfaces.results import find_failure

_LINE = re.compile(
    r"^[>*-]?[ \t]*([^\W\d][\w.-]*\((?:[^()\"']|\"[^\"]*\"|'[^']*')*\))[ \t:=>-]*(.*)(?=(?:\n(.*))?)", re.MULTILINE
)
"""A call at the beginning of a line, with the rest of the line and the next line."""


def find_done(state: State | None, history: Sequence[Step]) -> tuple[str, ...]:
    """Return the calls that have worked in this run: those of its steps, or without steps those that the state shows.

    A state shows calls as `> refund(order="A-1")` with the result below or beside it. What was done for an earlier
    request of the same conversation may have to be done again.
    """
    if state is None:
        return ()
    done = (step.action for step in history if step.diagnosis.success and step.pre.task == state.task)
    return tuple(dict.fromkeys(filter(_is_call, done if history else _read_done(state.observation))))


def _read_done(observation: str) -> Iterator[str]:
    """Yield the calls in a text that have a result and did not fail."""
    for call, rest, below in _LINE.findall(observation):
        result = (rest or below).strip()
        if result and not find_failure(result) and not result.lower().startswith("fail"):
            yield call


def _is_call(action: str) -> bool:
    """Return whether an action is a call or a shell command."""
    return parse_action(action).template.endswith(")") or looks_like_shell(action)


class Coverage:
    """Decides about the lines of one hint."""

    def __init__(self, items: Iterable[Item], done: Sequence[str]) -> None:
        self._done = done
        remedies = [item for item in items if item.kind == "remedy" and item.source == "experience" and item.steps]
        self._about = {item.id: [*filter(None, [item.forbids]), *item.steps] for item in remedies}
        # a remedy whose words may not be shown says nothing better
        worded = [item for item in remedies if item.episodes >= REQUESTS]
        self._open = [action for item in worded if not self._is_satisfied(item) for action in self._about[item.id]]
        self._all = [action for item in worded for action in self._about[item.id]]

    def _is_satisfied(self, item: Item) -> bool:
        """Return whether the run did what a remedy advises, so that the call can be made or was made."""
        *repairing, last = item.steps
        is_prepared = bool(repairing) and not item.forbids and all(map(self.is_done, repairing))
        return is_prepared or self.is_done(last)

    def is_done(self, action: str) -> bool:
        """Return whether the run has done this."""
        return any(_agree(action, call) for call in self._done)

    def needs_item(self, item: Item, actions: Sequence[str]) -> bool:
        """Return whether an item about these actions needs a line."""
        if item.source != "experience" or not actions:
            return True
        if item.id in self._about:
            return not self._is_satisfied(item)
        is_advice = item.kind in ("skill", "strategy")
        if is_advice and all(map(self.is_done, actions)):
            return False
        return not all(any(_agree(action, other) for other in self._all) for action in actions)

    def needs_step(self, action: str, message: str | None) -> bool:
        """Return whether what an action did in other episodes needs a line.

        Args:
            action: The action in general words.
            message: How it failed, empty if nobody may know, or None if it worked.
        """
        if message is None:
            return not self.is_done(action) and not any(_agree(action, other) for other in self._open)
        about = [other for other in self._all if _agree(action, other)]
        return not about or (bool(message) and any(other in self._open for other in about))


def _agree(action: str, other: str) -> bool:
    """Return whether two actions or patterns may be the same: their values are equal, except placeholders."""
    a, b = parse_action(action), parse_action(other)
    if a.template != b.template:
        return False
    return all(x == y or x[:1] == "{" or y[:1] == "{" for x, y in zip(a.slots, b.slots, strict=True))
