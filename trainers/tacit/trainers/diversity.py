"""Diversity while training: the same few items must not be shown all the time, nor kept many times over.

What is recalled is re-ranked so that what was shown less gets its turn (Complementary RL), or an item
could never be told from its equals. Now and then near twins are merged into one, whose evidence is
theirs together. Outside training recall is left as it is.
"""

import math
import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tacit.memory import ExperienceLibrary, Item
from tacit.runtime.guidance import Guidance, Hint, recalling
from tacit.runtime.protocols import Context

USED = 0.4
"""What a doubling of the times that an item was shown, by e, costs in ranks."""
RECENT = 1.0
"""What it costs to have been shown just now, in ranks."""
SPAN = 5
"""Queries for which an item counts as just shown."""
DEMOTE = 0.5
"""Probability with which a first that was shown at the last query is put last."""
TIE = 0.02
"""Items that are no nearer than this, in cosine, have the same rank."""
WIDER = 16
"""Candidates that should be recalled for each that is shown."""
CHUNK = 5
"""Items that a merge pass looks at together."""
ALIKE = 0.6
"""Share of all their words that two items have in common from which they are near twins."""


class Diversity:
    """Re-ranks by how often and how recently it was shown: s = -rank - USED log(1 + shown) - RECENT[recent]."""

    def __init__(self, *, seed: int = 0, demote: float = DEMOTE) -> None:
        self._shown: dict[str, int] = {}
        self._recent: deque[tuple[str, ...]] = deque(maxlen=SPAN)
        self._demote, self._chance = demote, random.Random(seed)

    def ranked(self, items: Mapping[str, float], k: int = 1) -> list[str]:
        """Ids in their new order, from ids with their nearness; the first k count as shown."""
        recent = {item for query in self._recent for item in query}

        def score(item: str) -> float:
            rank = sum(other > items[item] + TIE for other in items.values())
            return -rank - USED * math.log1p(self._shown.get(item, 0)) - RECENT * (item in recent)

        order = sorted(items, key=lambda item: (-score(item), -items[item], item))
        last = self._recent[-1] if self._recent else ()
        if len(order) > 1 and order[0] in last and self._chance.random() < self._demote:
            order.append(order.pop(0))
        self._recent.append(tuple(order[:k]))
        for item in order[:k]:
            self._shown[item] = self._shown.get(item, 0) + 1
        return order

    def state_dict(self) -> dict[str, Any]:
        """All that it needs to go on exactly, as plain values."""
        return {
            "shown": dict(self._shown),
            "recent": [list(query) for query in self._recent],
            "chance": self._chance.getstate(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._shown = dict(state["shown"])
        self._recent = deque((tuple(query) for query in state["recent"]), maxlen=SPAN)
        version, numbers, gauss = state["chance"]
        self._chance.setstate((version, tuple(numbers), gauss))


class DiverseGuidance:
    """Guidance from the k items that come first after re-ranking; recall WIDER times as many for it."""

    def __init__(self, inner: Guidance, diversity: Diversity, *, k: int = 1) -> None:
        self._inner, self._diversity, self._k = inner, diversity, k

    def propose(self, context: Context) -> Hint | None:
        """What the inner guidance makes of those."""
        recollection = context.recollection
        hits = {hit.what.id: hit for hit in recollection.items if isinstance(hit.what, Item)}
        if hits:
            near = {item: hit.similarity for item, hit in hits.items()}
            first = self._diversity.ranked(near, self._k)[: self._k]
            recollection = replace(recollection, items=tuple(hits[item] for item in first))
        return self._inner.propose(recalling(context, recollection))


def merge_pass(library: ExperienceLibrary) -> int:
    """Rewrite near twins into one, chunk by chunk; returns how many items there are fewer.

    The one with the best score keeps its words. What a person pinned, what acts by itself (skills,
    guardrails, remedies) and what differs in a number or a "not" is left alone.
    """
    items = [item for item in library.items(limit=None) if item.kind in ("insight", "strategy", "warning")]
    fewer = 0
    for kind in sorted({item.kind for item in items}):
        for chunk in chunks([item for item in items if item.kind == kind and not item.pinned]):
            for twins in _twins(chunk):
                kept = max(twins, key=lambda item: (item.score, item.confidence, item.id))
                others = [item.id for item in twins if item is not kept]
                merged = library.rewrite([kept.id, *others], replace(kept, writer="merge"))
                fewer += len(others) * (merged.status == "merged")
    return fewer


def chunks(items: Iterable[Item], size: int = CHUNK) -> list[list[Item]]:
    """The items in chunks of the nearest: the first one left and those most like it."""
    left, made = list(items), []
    while left:
        first = left[0]
        left.sort(key=lambda item: -likeness(first, item))  # stable: the first stays first
        made.append(left[:size])
        left = left[size:]
    return made


def _twins(chunk: Sequence[Item]) -> list[list[Item]]:
    """Those of a chunk that say about the same, two or more together."""
    groups: list[list[Item]] = []
    for item in chunk:
        home = next((group for group in groups if all(_mergeable(item, other) for other in group)), None)
        if home is None:
            groups.append([item])
        else:
            home.append(item)
    return [group for group in groups if len(group) > 1]


def _mergeable(one: Item, other: Item) -> bool:
    same = (one.condition, one.forbids, one.steps, one.trust) == (
        other.condition,
        other.forbids,
        other.steps,
        other.trust,
    )
    return same and _marks(one) == _marks(other) and likeness(one, other) >= ALIKE


def likeness(one: Item, other: Item) -> float:
    """Share of all their words that two items have in common."""
    a, b = _words(one), _words(other)
    return len(a & b) / len(a | b) if a | b else 1.0


_NEGATIONS = frozenset("not never no avoid cannot without don't".split())  # noqa: SIM905  one line


def _words(item: Item) -> frozenset[str]:
    return frozenset(item.text.lower().replace(",", " ").replace(".", " ").split())


def _marks(item: Item) -> frozenset[str]:
    """Words that turn a sentence into another one however alike the rest: numbers and negations."""
    return frozenset(word for word in _words(item) if word in _NEGATIONS or any(sign.isdigit() for sign in word))
