"""Surroundings: what stood around the arguments of the calls that a guardrail rests on, read from the steps themselves.

The condition `around` was written in the structural words of its time. That set of words grows and shrinks with
the library, so the text of a condition alone would stop to match, or match something else. The steps that justify
the guardrail are still there. From their states follows what the condition means under any set of words: it holds
where each argument stands among all the structural words that every one of these calls stood among, and among none
that none of them stood among. While the words do not change, all these calls have one context and this is equality.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from hardwon.memory.errors import HardwonError
from hardwon.memory.records import Item
from hardwon.memory.situations.actions import is_of, parse_action
from hardwon.memory.situations.keys import EVERY_WORD, Situation
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import read_states

EVIDENCE = 8
"""Newest steps of a guardrail's evidence that are read."""
_MARKS = frozenset({"[T]", "-"})
"""What a context says beside structural words: a word of the task, and an argument that the text does not name."""
_STEPS = "SELECT id, pre, action FROM steps WHERE id IN (SELECT value FROM json_each(?))"


Words = tuple[frozenset[str], ...]
"""Words around each argument."""


class Context(NamedTuple):
    """What `Situation.context` says, by argument; `rest` is what facts alone tell."""

    words: Words
    rest: str

    @classmethod
    def of(cls, situation: Situation, action: str) -> "Context":
        """Return the context of an action."""
        count = len(parse_action(action).slots)
        *parts, rest = f"{situation.context(action)}; ".split("; ", count)
        return cls(tuple(frozenset(part.partition(":")[2].split()) for part in parts), rest.removesuffix("; "))


class Hull(NamedTuple):
    """The contexts that the evidence of a guardrail spans."""

    shared: Words
    """Words that stood around an argument in every step."""
    seen: Words
    """Words that stood there in any step."""
    rests: frozenset[str]

    @classmethod
    def of(cls, contexts: Sequence[Context]) -> "Hull":
        """Return the hull of contexts with equally many arguments."""
        columns = list(zip(*(one.words for one in contexts), strict=True))
        return cls(
            tuple(frozenset.intersection(*column) for column in columns),
            tuple(frozenset.union(*column) for column in columns),
            frozenset(one.rest for one in contexts),
        )

    def needed(self, structural: frozenset[str]) -> Words:
        """Return the words that a context must have."""
        return tuple(words & (structural | _MARKS) for words in self.shared)

    def context(self, structural: frozenset[str]) -> str | None:
        """Return the one context that it spans under these structural words; None where it spans several."""
        needed = self.needed(structural)
        if len(self.rests) > 1 or any(
            seen & (structural | _MARKS) != must for seen, must in zip(self.seen, needed, strict=True)
        ):
            return None
        near = [f"{number}: {' '.join(sorted(words))}" for number, words in enumerate(needed, 1)]
        return "; ".join([*near, *filter(None, self.rests)])

    def has(self, context: Context, structural: frozenset[str]) -> bool:
        """Return whether a context is within it."""
        return (
            len(context.words) == len(self.shared)
            and context.rest in self.rests
            and all(
                must <= words <= seen
                for must, words, seen in zip(self.needed(structural), context.words, self.seen, strict=True)
            )
        )


class Surroundings:
    """The hulls of the items of one namespace, read when they are first asked for."""

    def __init__(self, store: Store | None = None, structural: Callable[[], frozenset[str]] = frozenset) -> None:
        """Without a store no item has a hull, and its condition means what it says."""
        self._store = store
        self._structural = structural
        self._known: dict[str, tuple[tuple[int, ...], Hull | None]] = {}

    @property
    def structural(self) -> frozenset[str]:
        """The structural words of now."""
        return self._structural()

    def hull(self, item: Item) -> Hull | None:
        """Return what the steps of an item span; None for one that is not made by rules or whose steps are gone."""
        self.read((item,))
        return self._known[item.id][1]

    def read(self, items: Iterable[Item]) -> None:
        """Read the evidence of several items at once."""
        wanted = {item.id: item for item in items if self._known.get(item.id, (None,))[0] != item.provenance}
        for ref, item in wanted.items():
            self._known[ref] = (item.provenance, None)
        resting = [item for item in wanted.values() if is_of_steps(item)]
        if self._store is None or not resting:
            return
        chosen = sorted({ref for item in resting for ref in item.provenance[-EVIDENCE:]})
        rows = self._store.rows(_STEPS, (json.dumps(chosen),))
        try:
            states = read_states(self._store, {pre for _, pre, _ in rows})
        except HardwonError:  # damaged rows: `verify` names them
            return
        contexts: Mapping[int, tuple[str, Context]] = {
            ref: (action, Context.of(Situation(states[pre], EVERY_WORD), action)) for ref, pre, action in rows
        }
        for item in resting:
            found = [contexts[ref] for ref in item.provenance[-EVIDENCE:] if ref in contexts]
            own = [context for action, context in found if is_of(item.forbids or "", action)]
            if own:
                self._known[item.id] = (item.provenance, Hull.of(own))

    def hold(self, item: Item, situation: Situation, action: str) -> bool | None:
        """Return whether the action stands in an item's surroundings here; None where its condition must say so."""
        hull = self.hull(item) if is_of_steps(item) else None
        return None if hull is None else hull.has(Context.of(situation, action), self.structural)


def is_of_steps(item: Item) -> bool:
    """Return whether the surroundings of an item can be read from steps: it is made by rules and says `around`."""
    return (
        item.writer == "rules"
        and item.source == "experience"
        and bool(item.forbids and item.provenance)
        and [*(item.condition or {})] == ["around"]
    )
