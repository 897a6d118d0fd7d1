"""Diversity of the shown items during training, and merging of near duplicates.

Recalled items are re-ranked so that less often shown ones get a turn (Complementary RL). Otherwise equally
similar items could never be told apart by their effect. Periodically, near duplicates are merged and keep
their combined evidence. Recall outside of training is unchanged.
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

from .tuning import TUNING


class Diversity:
    """Re-ranks items by score = -rank - weight_used log(1 + times shown) - weight_recent [shown recently].

    Counts take effect at the next `settle`, at the end of an iteration, and random numbers depend on the asking
    episode. So the order in which the episodes of an iteration ask does not matter.
    """

    def __init__(self, *, seed: int = 0, demote: float = TUNING.demotion) -> None:
        self._seed, self._demote = seed, demote
        self._uses: Counter[str] = Counter()
        self._lately: frozenset[str] = frozenset()
        self._now: dict[str, Counter[str]] = {}
        self._asks: Counter[str] = Counter()

    def ranked(self, items: Mapping[str, float], k: int = 1, asker: str = "") -> list[str]:
        """Return the ids in their new order, and count the first `k` as shown."""
        rng = random.Random(f"{self._seed}:{asker}:{self._asks[asker]}")
        self._asks[asker] += 1
        # sorted: which item gets which number must not depend on the order of recall
        tie_breaks = {item: rng.random() for item in sorted(items)}

        def score(item: str) -> float:
            rank = sum(other > items[item] + TUNING.tie for other in items.values())
            return (
                -rank
                - TUNING.weight_used * math.log1p(self._uses[item])
                - TUNING.weight_recent * (item in self._lately)
            )

        order = sorted(items, key=lambda item: (-score(item), tie_breaks[item]))
        if len(order) > 1 and order[0] in self._lately and rng.random() < self._demote:
            order.append(order.pop(0))
        self._now.setdefault(asker, Counter()).update(order[:k])
        return order

    def take_shown(self, asker: str) -> Counter[str]:
        """Return and forget what an episode was shown, to count it in another process."""
        self._asks.pop(asker, None)
        return self._now.pop(asker, Counter())

    def put_shown(self, asker: str, counts: Counter[str]) -> None:
        """Count what an episode was shown in another process."""
        self._now[asker] = counts

    def settle(self) -> None:
        """Apply the counts of this iteration."""
        for counts in self._now.values():
            self._uses.update(counts)
        self._lately = frozenset(item for counts in self._now.values() for item in counts)
        self._now.clear()
        self._asks.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the counts since the last `settle` as plain values."""
        # `_now` and `_asks` are empty here: checkpoints are written after `settle`
        return {"shown": dict(self._uses), "lately": sorted(self._lately)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self._uses, self._lately = Counter(state["shown"]), frozenset(state["lately"])


class DiverseLibrary:
    """A library with diverse recall. It recalls `TUNING.wider` times as many items, re-ranks and truncates them."""

    def __init__(self, library: ExperienceLibrary, diversity: Diversity) -> None:
        self._library, self._diversity = library, diversity

    def recall(
        self, state_or_text: State | str, *, k: int = 5, budget_tokens: int | None = None, **how: Any
    ) -> Recollection:
        """Return what the library recalls, with its items re-ranked."""
        recalled = self._library.recall(state_or_text, k=k * TUNING.wider, **how)
        hits = {hit.what.id: hit for hit in recalled.items if isinstance(hit.what, Item)}
        if not hits:
            return self._library.recall(state_or_text, k=k, budget_tokens=budget_tokens, **how)
        order = self._diversity.ranked({item: hit.similarity for item, hit in hits.items()}, k, current_session())
        first = tuple(hits[item] for item in order[:k])
        # the budget applies to the chosen items, not to the wider set of candidates
        items, steps, tokens = within_budget(first, recalled.steps[:k], budget_tokens)
        return replace(recalled, items=items, steps=steps, tokens=tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)


def merge_pass(library: ExperienceLibrary) -> int:
    """Merge near duplicates of a library, and return the number of items removed.

    The item with the best score keeps its words. Pinned items, skills, guardrails and remedies are left alone,
    and so are items that differ in a number, a negation or a direction.
    """
    items = [item for item in library.items(limit=None) if item.kind in ("insight", "strategy", "warning")]
    fewer = 0
    for kind in sorted({item.kind for item in items}):
        for chunk in chunks([item for item in items if item.kind == kind and not item.pinned]):
            for twins in _twins(chunk):
                kept = max(twins, key=lambda item: (item.score, item.confidence, item.id))
                duplicates = [item.id for item in twins if item is not kept]
                merged = library.rewrite([kept.id, *duplicates], replace(kept, writer="merge"))
                fewer += len(duplicates) * (merged.status == "merged")
    return fewer


def chunks(items: Iterable[Item], size: int = TUNING.compared_items) -> list[list[Item]]:
    """Return the items in chunks: the first remaining item with those most similar to it."""
    remaining, result = list(items), []
    while remaining:
        first = remaining[0]
        remaining.sort(key=lambda item: -likeness(first, item))  # stable: the first stays first
        result.append(remaining[:size])
        remaining = remaining[size:]
    return result


def _twins(chunk: Sequence[Item]) -> list[list[Item]]:
    """Return the groups of near duplicates in a chunk, each of two items or more."""
    groups: list[list[Item]] = []
    for item in chunk:
        # like all of a group: similarity is not transitive, and chains would merge different items
        home = next((group for group in groups if all(_mergeable(item, other) for other in group)), None)
        if home is None:
            groups.append([item])
        else:
            home.append(item)
    return [group for group in groups if len(group) > 1]


def _mergeable(first: Item, other: Item) -> bool:
    """Return whether two items are near duplicates."""
    same = (first.condition, first.forbids, first.steps, first.trust) == (
        other.condition,
        other.forbids,
        other.steps,
        other.trust,
    )
    return same and _marks(first) == _marks(other) and likeness(first, other) >= TUNING.min_similarity


def likeness(first: Item, other: Item) -> float:
    """Return the Jaccard similarity of the words of two items."""
    a, b = _words(first), _words(other)
    return len(a & b) / len(a | b) if a | b else 1.0


_TURNS = frozenset("not never no avoid cannot without don't".split()) | frozenset(  # noqa: SIM905
    "north south east west left right up down open close on off in out before after first last".split()  # noqa: SIM905
)
"""Words that change the meaning of a sentence, however similar the rest is."""


def _words(item: Item) -> frozenset[str]:
    """Return the lower-cased words of an item."""
    return frozenset(item.text.lower().replace(",", " ").replace(".", " ").split())


def _marks(item: Item) -> frozenset[str]:
    """Return the numbers and the meaning-changing words of an item."""
    return frozenset(word for word in _words(item) if word in _TURNS or any(sign.isdigit() for sign in word))
