"""The active items of one namespace, with the worlds of their evidence and the guard of its guardrails."""

import json
from collections.abc import Mapping, Sequence

from hardwon.memory.guardrails.conditions import Guard, is_in_force
from hardwon.memory.guardrails.context_ranges import ContextRanges
from hardwon.memory.guardrails.preconditions import RemediesByVerb, index_remedies
from hardwon.memory.items import readable_items
from hardwon.memory.records import Item
from hardwon.memory.storage.counted import EpisodeWords
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.worlds import WorldMap

_EPISODES_OF = "SELECT DISTINCT trajectory_id FROM steps WHERE id IN (SELECT value FROM json_each(?))"
_CHANGED = "SELECT DISTINCT ref FROM changes WHERE seq > ? AND namespace = ? AND what = 'item'"
_CHANGED_ITEMS = (
    "SELECT number, id, record, status FROM items "
    "WHERE namespace = ? AND id IN (SELECT value FROM json_each(?)) ORDER BY number"
)
_ACTIVE = "SELECT number, record FROM items WHERE namespace = ? AND status = 'active'"


class ItemsInForce:
    """The active items; not thread-safe."""

    def __init__(self, store: Store, namespace: int, worlds: WorldMap, words: EpisodeWords) -> None:
        self._store, self._namespace = store, namespace
        self._worlds, self._words = worlds, words
        self.by_id: dict[str, Item] = {}
        self.numbers: dict[int, str] = {}
        """The ids of the items by their numbers, in ascending order."""
        self.context_ranges = ContextRanges(store, lambda: words.structural)
        self.homes: dict[str, frozenset[int]] = {}
        """By item, the worlds of its evidence; see `homes_of`."""
        self._guard: Guard | None = None
        self._remedies: list[Item] | None = None
        self._warning: RemediesByVerb | None = None

    @property
    def guard(self) -> Guard:
        """Return the guard of the active guardrails."""
        if self._guard is None:
            self._guard = Guard(self.by_id.values(), self.is_known_for, self.context_ranges)
        self._guard.follow(self._words.structural)
        return self._guard

    @property
    def remedies(self) -> Sequence[Item]:
        """Return the active remedies that have steps."""
        if self._remedies is None:
            self._remedies = [item for item in self.by_id.values() if item.kind == "remedy" and item.steps]
            self._warning = None
        return self._remedies

    @property
    def warning_remedies(self) -> RemediesByVerb:
        """Return the active remedies that warn of a call, by its verb."""
        remedies = self.remedies
        if self._warning is None:
            self._warning = index_remedies(remedies)
        return self._warning

    def has(self, number: int, worlds: frozenset[int] | None) -> bool:
        """Return whether this is the number of an active item that applies in these worlds."""
        ref = self.numbers.get(number)
        return ref is not None and (worlds is None or self.counts_in(self.by_id[ref], worlds))

    def counts_in(self, item: Item, worlds: frozenset[int] | None) -> bool:
        """Return whether an item applies in these worlds.

        Pinned items and items without evidence apply everywhere; other items apply in the worlds of their evidence.
        """
        if worlds is None or item.pinned or not item.provenance:
            return True
        homes = self.homes_of(item)
        return not homes or not homes.isdisjoint(worlds)

    def is_known_for(self, item: Item, task: str) -> bool:
        """Return whether an item has evidence from the world of a task.

        Items that were not created from experience apply to all worlds.
        """
        if item.source != "experience" or not item.provenance:
            return True
        homes = self.homes_of(item)
        return not homes or any(self._worlds.fits(world, task) for world in homes)

    def homes_of(self, item: Item) -> frozenset[int]:
        """Return the worlds of an item's evidence; empty if none of its steps are recorded."""
        if item.id not in self.homes:
            rows = self._store.rows(_EPISODES_OF, (json.dumps(item.provenance),))
            self.homes[item.id] = frozenset(world for (ref,) in rows if (world := self._worlds.of(ref)) is not None)
        return self.homes[item.id]

    def read(self, after: int) -> None:
        """Read the active items that changed after this number of a change, or all of them if it is 0."""
        self._remedies = None
        refs = [ref for (ref,) in self._store.rows(_CHANGED, (after, self._namespace))] if after else []
        rows = self._store.rows(_CHANGED_ITEMS, (self._namespace, json.dumps(refs))) if after else []
        if not after or len(rows) < len(refs):  # a row that is gone leaves no number to remove
            self._read_all()
            return
        read = {item.id: item for _, item in readable_items((row[0], row[2]) for row in rows if row[3] == "active")}
        if self._guard is not None:  # one query for all; `exchange` would read the evidence of each on its own
            self.context_ranges.read(filter(is_in_force, read.values()))
        added = []
        for number, ref, _, _ in rows:
            old, new = self.by_id.get(ref), read.get(ref)
            if self._guard is not None:
                self._guard.exchange(old, new)
            self.homes.pop(ref, None)  # an update may have added evidence
            if new is None:
                self.by_id.pop(ref, None)
                self.numbers.pop(number, None)
                continue
            self.by_id[ref] = new
            if number not in self.numbers:
                added.append(number)
            self.numbers[number] = ref
        # in the order of their numbers, as when all are read: a revived item has an old number
        if added and [*self.numbers][-len(added) :] != sorted(self.numbers)[-len(added) :]:
            self.numbers = dict(sorted(self.numbers.items()))
            self.by_id = {ref: self.by_id[ref] for ref in self.numbers.values()}

    def _read_all(self) -> None:
        """Read all active items."""
        self.by_id, self.numbers, self._guard = {}, {}, None
        self.homes.clear()
        for number, item in readable_items(self._store.rows(f"{_ACTIVE} ORDER BY number", (self._namespace,))):
            self.by_id[item.id] = item
            self.numbers[number] = item.id

    def read_scores(self, after: int) -> Mapping[str, Item]:
        """Read the items of which only the score changed after this number of a change, and return them by id."""
        rows = self._store.rows(f"{_ACTIVE} AND id IN ({_CHANGED})", (self._namespace, after, self._namespace))
        updated = {item.id: item for _, item in readable_items(rows)}
        if self._guard is not None:
            for ref, item in updated.items():
                self._guard.exchange(self.by_id.get(ref), item)
        self.by_id.update(updated)
        self._remedies = None
        return updated
