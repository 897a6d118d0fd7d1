"""Context ranges: the words around the arguments of a guardrail's evidence, read from the recorded steps.

The condition `around` is text in terms of the structural words at the time it was written. The set of structural words
changes as the library grows, so a comparison of text alone would miss matches or report wrong ones. This module
interprets the condition by the states of the guardrail's evidence, under any set of structural words. An argument must
be surrounded by all structural words that surround it in every step of the evidence, and by no structural word that
surrounds it in none. If what the text shows as a whole belongs to the condition, a step must have shown the same. While
the structural words do not change, all these steps have one context and the test is equality.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set as AbstractSet
from typing import NamedTuple

from hardwon.memory.errors import HardwonError
from hardwon.memory.records import Item
from hardwon.memory.situations.actions import is_parsed_of, parse_action
from hardwon.memory.situations.keys import EVERY_WORD, SIGHT, Attempt, Context, Situation, has_sight, limit_sight
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import read_states

from .tuning import TUNING

_MARKS = frozenset({"[T]", "-"})
"""Marks in a context besides structural words: a word of the task, and an argument that the text does not name."""
_STEPS = "SELECT id, pre, action FROM steps WHERE id IN (SELECT value FROM json_each(?))"


WordSets = tuple[frozenset[str], ...]
"""For each argument, the words around it."""
PhraseWords = tuple[str, ...]
"""The words of an action, without articles."""


class ContextRange(NamedTuple):
    """The range of contexts that the evidence of a guardrail spans."""

    shared: WordSets
    """For each argument, the words around it in every step."""
    seen: WordSets
    """For each argument, the words around it in at least one step."""
    sights: tuple[frozenset[str], ...]
    """The words of the whole text in each step; empty if they do not belong to the condition."""
    rests: frozenset[str]
    """The parts of the contexts that come from facts alone."""
    only: PhraseWords = ()
    """The words of the action if all steps took the same one; empty if they took several."""

    @classmethod
    def of(
        cls,
        contexts: Sequence[Context],
        phrases: Collection[PhraseWords] = (),
        sights: Sequence[frozenset[str]] = (),
    ) -> "ContextRange":
        """Return the context range of several contexts, and of the words of whole texts if they belong to it."""
        different = set(phrases)
        columns = list(zip(*(context.words for context in contexts), strict=True))
        return cls(
            tuple(frozenset.intersection(*column) for column in columns),
            tuple(frozenset.union(*column) for column in columns),
            tuple(sights),
            frozenset(context.rest for context in contexts),
            different.pop() if len(different) == 1 else (),
        )

    def list_words(self) -> frozenset[str]:
        """Return all words of the steps that the range depends on."""
        return frozenset().union(*self.seen, *self.sights)

    def needed(self, structural: frozenset[str]) -> WordSets:
        """Return, by argument, the words that a context must have under these structural words."""
        return tuple(words & (structural | _MARKS) for words in self.shared)

    def reduce_sights(self, structural: frozenset[str]) -> list[AbstractSet[str]]:
        """Return what the text of each step shows as a whole under these structural words."""
        return [limit_sight(sight & (structural | _MARKS)) for sight in self.sights]

    def context(self, structural: frozenset[str]) -> str | None:
        """Return the only context in the context range under these structural words, or None if there are several."""
        kept = structural | _MARKS
        needed, sights = self.needed(structural), self.reduce_sights(structural)
        if len(self.rests) > 1 or any(sight != sights[0] for sight in sights):
            return None
        if any(seen & kept != must for seen, must in zip(self.seen, needed, strict=True)):
            return None
        parts = [f"{number}: {' '.join(sorted(words))}" for number, words in enumerate(needed, 1)]
        parts += [f"{SIGHT}{' '.join(sorted(sight))}" for sight in sights[:1]]
        return "; ".join([*parts, *filter(None, self.rests)])

    def has(self, context: Context, structural: frozenset[str]) -> bool:
        """Return whether the context range contains a context under these structural words."""
        return (
            len(context.words) == len(self.shared)
            and context.rest in self.rests
            and all(
                must <= words <= seen
                for must, words, seen in zip(self.needed(structural), context.words, self.seen, strict=True)
            )
        )

    def shows(self, sight: frozenset[str], structural: frozenset[str]) -> bool:
        """Return whether a step showed the same as a whole under these structural words, if that matters."""
        return not self.sights or sight in self.reduce_sights(structural)


class ContextRanges:
    """The context ranges of the items of one namespace, read on first use."""

    def __init__(self, store: Store | None = None, structural: Callable[[], frozenset[str]] = frozenset) -> None:
        """Create an empty cache of context ranges."""
        self._store = store
        self._structural = structural
        self._ranges: dict[str, tuple[tuple[int, ...], ContextRange | None]] = {}

    @property
    def structural(self) -> frozenset[str]:
        """Return the current structural words."""
        return self._structural()

    def find_range(self, item: Item) -> ContextRange | None:
        """Return the range of an item's evidence, or None if it was not made by rules or its steps are gone."""
        self.read((item,))
        return self._ranges[item.id][1]

    def read(self, items: Iterable[Item]) -> None:
        """Read the evidence of several items with one query."""
        # a merge adds steps to the provenance, so a range is valid only for the provenance it was read for
        wanted = {item.id: item for item in items if self._ranges.get(item.id, (None,))[0] != item.provenance}
        for ref, item in wanted.items():
            self._ranges[ref] = (item.provenance, None)  # also caches the answer for items without one
        rule_made = [item for item in wanted.values() if is_of_steps(item)]
        if self._store is None or not rule_made:
            return
        chosen = sorted({ref for item in rule_made for ref in item.provenance[-TUNING.evidence_steps :]})
        rows = self._store.rows(_STEPS, (json.dumps(chosen),))
        try:
            states = read_states(self._store, {pre for _, pre, _ in rows})
        except HardwonError:  # damaged rows; `hardwon memory verify` reports them
            return
        # EVERY_WORD keeps all words of a context: the context range is narrowed to structural words at each check.
        attempts: Mapping[int, Attempt] = {
            ref: Attempt(Situation(states[pre], EVERY_WORD), action) for ref, pre, action in rows
        }
        for item in rule_made:
            steps = [attempts[ref] for ref in item.provenance[-TUNING.evidence_steps :] if ref in attempts]
            pattern = parse_action(item.forbids or "")
            # leave out steps of other calls: `ContextRange.of` needs contexts with the same number of arguments
            own = [attempt for attempt in steps if is_parsed_of(pattern, attempt.parsed)]
            if own:
                context_range = ContextRange.of(
                    [attempt.argument_context for attempt in own],
                    [attempt.phrase for attempt in own],
                    [attempt.sight for attempt in own] if has_sight((item.condition or {})["around"]) else (),
                )
                self._ranges[item.id] = (item.provenance, context_range)

    def hold(self, item: Item, attempt: Attempt) -> bool | None:
        """Return whether the context of an action is in the range of an item's evidence.

        If only one action failed, such as `open red valve`, nothing follows for others of its kind.
        """
        context_range = self.find_range(item) if is_of_steps(item) else None
        if context_range is None:
            return None
        return (
            context_range.only in ((), attempt.phrase)
            and context_range.has(attempt.argument_context, self.structural)
            and context_range.shows(attempt.sight, self.structural)
        )


def is_of_steps(item: Item) -> bool:
    """Return whether an item's context range can be read from steps: rules made it, and its condition is `around`."""
    return (
        item.writer == "rules"
        and item.source == "experience"
        and bool(item.forbids and item.provenance)
        and [*(item.condition or {})] == ["around"]
    )
