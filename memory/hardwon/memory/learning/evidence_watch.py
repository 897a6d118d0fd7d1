"""Evidence watch: find the rule-made items to look at again, because they or the counts behind them changed.

`evolve` retires items that the counts no longer support. Most counts do not change from one call to the next, so an
item is due only if its own record changed, if the cell of its steps changed, or if it has no cell at all.
"""

from collections.abc import Iterable

from hardwon.memory.guardrails.conditions import guard_key
from hardwon.memory.records import Item


class EvidenceWatch:
    """The rule-made guardrails and warnings of one namespace, by the keys of their steps."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Item, str]] = {}
        """By id, the item as it was last looked at, and its key."""
        self._by_key: dict[str, set[str]] = {}
        """By key: the ids of the items that are based on its cell."""
        self._changed: set[str] = set()
        """Keys of cells that changed since the last look."""

    def note(self, keys: Iterable[str]) -> None:
        """Note the keys of cells that changed."""
        # most keys belong to no item, and new items are due anyway
        self._changed.update(key for key in keys if key in self._by_key)

    def find_due(self, items: Iterable[Item]) -> list[Item]:
        """Return the items to look at: new and changed ones, and those whose cells changed."""
        changed = {ref for key in self._changed for ref in self._by_key[key]}
        self._changed.clear()
        due, seen = [], self._seen
        for item in items:
            if item.writer != "rules" or not item.forbids:
                continue
            before = seen.get(item.id)
            if before is None or before[0] is not item:
                self._file(item, before)
                due.append(item)
            elif item.id in changed:
                due.append(item)
        return due

    def key_of(self, item: Item) -> str:
        """Return the key of the steps behind an item."""
        before = self._seen.get(item.id)
        return before[1] if before is not None and before[0] is item else guard_key(item)

    def _file(self, item: Item, before: tuple[Item, str] | None) -> None:
        """File an item under its key."""
        key = guard_key(item)
        if before is not None and before[1] != key:
            self._by_key[before[1]].discard(item.id)
        self._seen[item.id] = item, key
        self._by_key.setdefault(key, set()).add(item.id)
