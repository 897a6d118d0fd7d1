"""Coverage: what needs no line in a hint, because the run has done it already or a remedy says it better.

Only calls and shell commands count as done: a game's `open drawer` is worth doing again.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType

from hardwon.memory import Item, State, Step
from hardwon.memory.guardrails.preconditions import find_failing_pattern
from hardwon.memory.situations.actions import bind, parse_action
from hardwon.memory.situations.commands import looks_like_shell
from hardwon.memory.trust.testimony import REQUESTS
from hardwon.runtime.interfaces.results import find_failure

_LINE = re.compile(
    r"^[>*-]?[ \t]*([^\W\d][\w.-]*\((?:[^()\"']|\"[^\"]*\"|'[^']*')*\))[ \t:=>-]*(.*)(?=(?:\n(.*))?)", re.MULTILINE
)
"""A call at the beginning of a line, with the rest of the line and the next line."""
NO_VALUES: Mapping[str, str] = MappingProxyType({})


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
        self._done = _ActionSet(done)
        remedies = [item for item in items if item.kind == "remedy" and item.source == "experience" and item.steps]
        self._about = {item.id: [*filter(None, [item.forbids]), *item.steps] for item in remedies}
        # a remedy whose words may not be shown says nothing better
        worded = [item for item in remedies if item.episodes >= REQUESTS]
        self._open = _ActionSet(a for item in worded if not self._is_satisfied(item) for a in self._about[item.id])
        self._repeats = _ActionSet(item.steps[-1] for item in worded if self.is_done(item.steps[-1]))
        self._all = _ActionSet(action for item in worded for action in self._about[item.id])

    def _is_satisfied(self, item: Item) -> bool:
        """Return whether the run did what a remedy advises, so that the call can be made or was made."""
        *repairing, last = item.steps
        is_prepared = bool(repairing) and not item.forbids and all(map(self.is_done, repairing))
        return is_prepared or self.is_done(last)

    def is_done(self, action: str) -> bool:
        """Return whether the run has done this."""
        return self._done.has(action)

    def needs_item(self, item: Item, actions: Sequence[str]) -> bool:
        """Return whether an item about these actions needs a line."""
        if item.source != "experience" or not actions:
            return True
        if item.id in self._about:
            return not self._is_satisfied(item)
        is_advice = item.kind in ("skill", "strategy")
        if is_advice and all(map(self.is_done, actions)):
            return False
        return not all(map(self._all.has, actions))

    def needs_step(self, action: str, message: str | None) -> bool:
        """Return whether what an action did in other episodes needs a line.

        Args:
            action: The action in general words.
            message: How it failed, empty if nobody may know, or None if it worked.
        """
        if message is None:  # what was done for a thing is not worth doing again with another value either
            is_done = self._done.has(action, quantify=any) or self._repeats.has(action)
            return not is_done and not self._open.has(action)
        return not self._all.has(action) or (bool(message) and self._open.has(action))


def is_prepared(item: Item, action: str, done: Sequence[str]) -> bool:
    """Return whether the run did what a remedy says, with the things that this call names."""
    *repairing, last = item.steps
    is_other = item.forbids is not None and item.forbids != last
    values = bind(find_failing_pattern(item), action) or {}
    calls = _ActionSet(done)
    return all(calls.has(step, values) for step in ([last] if is_other or not repairing else repairing))


class _ActionSet:
    """Actions and patterns, by their forms."""

    def __init__(self, actions: Iterable[str]) -> None:
        self._whole: dict[str, dict[tuple[str, ...], None]] = {}
        """By template: the values of actions without placeholders. A long run has hundreds; each is a lookup."""
        self._patterns: dict[str, list[tuple[str, ...]]] = {}
        for action in actions:
            parsed = parse_action(action)
            if _has_hole(parsed.slots):
                self._patterns.setdefault(parsed.template, []).append(parsed.slots)
            else:
                self._whole.setdefault(parsed.template, {})[parsed.slots] = None

    def has(
        self,
        action: str,
        values: Mapping[str, str] = NO_VALUES,
        quantify: Callable[[Iterable[bool]], bool] = all,
    ) -> bool:
        """Return whether one of them may be this action: all or any of its values are equal, except placeholders.

        The values fill placeholders of the action.
        """
        parsed = parse_action(action)
        slots = tuple([values.get(slot, slot) for slot in parsed.slots])
        whole = self._whole.get(parsed.template, {})
        if slots in whole:
            return True
        is_exact = quantify is all and not _has_hole(slots)
        return any(
            not slots or quantify(x == y or x[:1] == "{" or y[:1] == "{" for x, y in zip(slots, other, strict=True))
            for other in chain(() if is_exact else whole, self._patterns.get(parsed.template, ()))
        )


def _has_hole(slots: Iterable[str]) -> bool:
    return any(slot[:1] == "{" for slot in slots)
