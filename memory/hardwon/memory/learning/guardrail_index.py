"""An index of the active guardrails and warnings, so that a candidate is compared with only a few of them.

Two guardrails can forbid the same calls only if their patterns have the same verb and share an argument, or one of them
has only open arguments, and if one condition follows from the other. Items are therefore filed by verb, condition and
named arguments. The index follows the log of changes, so that the admission of an item costs the same however many
guardrails the library has.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from sqlite3 import Connection
from typing import Any

from hardwon.memory.guardrails.conditions import named_arguments
from hardwon.memory.items import item_of
from hardwon.memory.records import Item
from hardwon.memory.situations.actions import parse_action

_KINDS = ("guardrail", "warning")
_COMPOSITE = "*"
"""Place of conditions that consist of others; their form does not show what they follow from."""
_ALL = "SELECT id, record FROM items WHERE namespace = ? AND status = 'active' AND kind IN ('guardrail', 'warning')"
_CHANGED = "SELECT DISTINCT ref FROM changes WHERE seq > ? AND namespace = ? AND what = 'item'"
_ROWS = "SELECT id, record FROM items WHERE namespace = ? AND id IN (SELECT value FROM json_each(?))"


class GuardrailIndex:
    """The active guardrails and warnings of one namespace, by kind, verb and condition."""

    def __init__(self) -> None:
        self._last = -1
        """Number of the last change that was read; -1 before the first one."""
        self._filed: dict[tuple[str, str], dict[str, _FiledItems]] = {}
        """By kind and verb, then by condition: the items."""
        self._places: dict[str, tuple[tuple[str, str], str]] = {}
        """By id, where the item is filed."""

    def clear(self) -> None:
        """Forget everything, because a transaction was rolled back; the items are read again when needed."""
        self._last = -1
        self._filed.clear()
        self._places.clear()

    def catch_up(self, connection: Connection, namespace: int) -> None:
        """Read the items that changed since the last call."""
        ((newest,),) = connection.execute("SELECT coalesce(max(seq), 0) FROM changes").fetchall()
        if newest == self._last:
            return
        if self._last < 0:
            rows = connection.execute(_ALL, (namespace,)).fetchall()
        else:
            changed = [row[0] for row in connection.execute(_CHANGED, (self._last, namespace))]
            for ref in changed:
                self._drop(ref)
            rows = connection.execute(_ROWS, (namespace, json.dumps(changed))).fetchall() if changed else []
        self._last = newest
        for _, record in rows:
            item = item_of(record)
            if item.kind in _KINDS and item.status == "active" and item.forbids:
                self._file(item)

    def iter_near(self, item: Item) -> Iterator[Item]:
        """Yield the active guardrails that may cover an item or be covered by it, ordered by id."""
        pattern = parse_action(item.forbids or "")
        by_condition = self._filed.get(("guardrail", pattern.verb), {})
        place = _place_of(item.condition)
        # without a simple condition of its own, an item may be related to any condition
        places = by_condition.keys() if place in ("", _COMPOSITE) else {place, "", _COMPOSITE}
        names = named_arguments(pattern)
        yield from _sorted([by_condition[name].select(names) for name in places if name in by_condition])

    def iter_same(self, kind: str, action: str, condition: Mapping[str, Any] | None) -> Iterator[Item]:
        """Yield the active items of a kind whose condition may equal this one and whose verb is that of an action."""
        group = self._filed.get((kind, parse_action(action).verb), {}).get(_place_of(condition))
        yield from _sorted([group.items] if group is not None else [])

    def _file(self, item: Item) -> None:
        """Add an item."""
        group, place = (item.kind, parse_action(item.forbids or "").verb), _place_of(item.condition)
        self._filed.setdefault(group, {}).setdefault(place, _FiledItems()).add(item)
        self._places[item.id] = group, place

    def _drop(self, ref: str) -> None:
        """Remove an item, if it is there."""
        if (filed := self._places.pop(ref, None)) is not None:
            group, place = filed
            by_condition = self._filed[group]
            by_condition[place].remove(ref)
            if not by_condition[place].items:
                del by_condition[place]


class _FiledItems:
    """Items with one verb and one condition, by the named arguments of their patterns."""

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        self._by_name: dict[str, dict[str, Item]] = {}
        """By named argument; items whose patterns name none are under an empty text."""

    def add(self, item: Item) -> None:
        """Add an item."""
        self.items[item.id] = item
        for name in _names_of(item):
            self._by_name.setdefault(name, {})[item.id] = item

    def remove(self, ref: str) -> None:
        """Remove an item."""
        for name in _names_of(self.items.pop(ref)):
            del self._by_name[name][ref]
            if not self._by_name[name]:
                del self._by_name[name]

    def select(self, names: frozenset[str]) -> dict[str, Item]:
        """Return the items by id that may cover, or be covered by, a pattern with these named arguments.

        A pattern covers another one only if that one has all of its named arguments. So they share a name, or one of
        them names nothing.
        """
        if not names:
            return self.items
        return {ref: item for name in (*sorted(names), "") for ref, item in self._by_name.get(name, {}).items()}


def _names_of(item: Item) -> Iterable[str]:
    """Return the named arguments of an item's pattern, or an empty text if it has none."""
    return named_arguments(parse_action(item.forbids or "")) or ("",)


def _place_of(condition: Mapping[str, Any] | None) -> str:
    """Return the place of a condition; equal conditions have equal places."""
    operator, operand = next(iter((condition or {"": ""}).items()))
    if operator in ("all", "any"):
        return _COMPOSITE
    # other operands compare equal in more ways than their texts do: 1, 1.0 and True
    return f"{operator} {operand}" if operator and isinstance(operand, str) else operator


def _sorted(groups: list[dict[str, Item]]) -> Iterator[Item]:
    """Yield the items of several groups, ordered by id."""
    merged = {ref: item for group in groups for ref, item in group.items()}
    return (merged[ref] for ref in sorted(merged))
