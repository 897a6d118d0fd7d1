"""Diversity while training: the same few items must not be shown all the time, nor kept many times over.

What is recalled is re-ranked so that what was shown less gets its turn (Complementary RL), or an item
could never be told from its equals. Now and then near twins are merged into one, whose evidence is
theirs together. Outside training recall is left as it is.
"""

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hardwon.memory import ExperienceLibrary, Item, Recollection, State
from hardwon.memory.retrieval.recall import within_budget
from hardwon.trainers.rollouts.rollout import current_session

USED = 0.4
"""What a doubling of the times that an item was shown, by e, costs in ranks."""
RECENT = 1.0
"""What it costs to have been shown lately, in ranks."""
DEMOTE = 0.5
"""Probability with which a first that was shown lately is put last."""
TIE = 0.02
"""Items that are no nearer than this, in cosine, have the same rank; chance orders them."""
WIDER = 16
"""Candidates that should be recalled for each that is shown."""
CHUNK = 5
"""Items that a merge pass looks at together."""
ALIKE = 0.6
"""Share of all their words that two items have in common from which they are near twins."""


class Diversity:
    """Re-ranks by how often and how lately it was shown: s = -rank - USED log(1 + shown) - RECENT[lately].

    What is shown counts from the next `settle` on, an iteration's end, and chance is the asker's: so it
    does not matter in which order the episodes of an iteration ask.
    """

    def __init__(self, *, seed: int = 0, demote: float = DEMOTE) -> None:
        self._seed, self._demote = seed, demote
        self._shown: Counter[str] = Counter()
        self._lately: frozenset[str] = frozenset()
        self._now: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()

    def ranked(self, items: Mapping[str, float], k: int = 1, asker: str = "") -> list[str]:
        """Ids in their new order, from ids with their nearness; the first k count as shown."""
        chance = random.Random(f"{self._seed}:{asker}:{self._asked[asker]}")
        self._asked[asker] += 1
        drawn = {item: chance.random() for item in sorted(items)}

        def score(item: str) -> float:
            rank = sum(other > items[item] + TIE for other in items.values())
            return -rank - USED * math.log1p(self._shown[item]) - RECENT * (item in self._lately)

        order = sorted(items, key=lambda item: (-score(item), drawn[item]))
        if len(order) > 1 and order[0] in self._lately and chance.random() < self._demote:
            order.append(order.pop(0))
        self._now.update(order[:k])
        return order

    def settle(self) -> None:
        """From now on what was shown counts, and was shown lately."""
        self._shown.update(self._now)
        self._lately = frozenset(self._now)
        self._now.clear()
        self._asked.clear()

    def state_dict(self) -> dict[str, Any]:
        """All that it needs to go on exactly from where it was settled, as plain values."""
        return {"shown": dict(self._shown), "lately": sorted(self._lately)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._shown, self._lately = Counter(state["shown"]), frozenset(state["lately"])


class DiverseLibrary:
    """A library whose recall gives every item its turn; all else is the library's own.

    WIDER times as many items are recalled, re-ranked, and cut to what was asked for.
    """

    def __init__(self, library: ExperienceLibrary, diversity: Diversity) -> None:
        self._library, self._diversity = library, diversity

    def recall(
        self, state_or_text: State | str, *, k: int = 5, budget_tokens: int | None = None, **how: Any
    ) -> Recollection:
        """What the library recalls, its items re-ranked."""
        found = self._library.recall(state_or_text, k=k * WIDER, **how)
        hits = {hit.what.id: hit for hit in found.items if isinstance(hit.what, Item)}
        if not hits:
            return self._library.recall(state_or_text, k=k, budget_tokens=budget_tokens, **how)
        order = self._diversity.ranked({item: hit.similarity for item, hit in hits.items()}, k, current_session())
        first = tuple(hits[item] for item in order[:k])
        items, steps, tokens = within_budget(first, found.steps[:k], budget_tokens)
        return replace(found, items=items, steps=steps, tokens=tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)


def merge_pass(library: ExperienceLibrary) -> int:
    """Rewrite near twins into one, chunk by chunk; returns how many items there are fewer.

    The one with the best score keeps its words. What a person pinned, what acts by itself (skills,
    guardrails, remedies) and what differs in a number, a "not" or a direction is left alone.
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


_TURNS = frozenset("not never no avoid cannot without don't".split()) | frozenset(  # noqa: SIM905
    "north south east west left right up down open close on off in out before after first last".split()  # noqa: SIM905
)
"""Words that turn a sentence into another one however alike the rest."""


def _words(item: Item) -> frozenset[str]:
    return frozenset(item.text.lower().replace(",", " ").replace(".", " ").split())


def _marks(item: Item) -> frozenset[str]:
    """Numbers, and words that turn a sentence into another one."""
    return frozenset(word for word in _words(item) if word in _TURNS or any(sign.isdigit() for sign in word))
