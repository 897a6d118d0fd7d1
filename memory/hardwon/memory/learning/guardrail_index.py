"""An index of the active guardrails and warnings, so that a candidate is compared with only a few of them.

Two guardrails can forbid the same calls only if their patterns have the same verb and one condition follows from the
other. Items are therefore filed by verb and condition. The index follows the log of changes, so that the admission of
an item costs the same however many guardrails the library has.
"""

import json
from collections.abc import Iterator, Mapping
from sqlite3 import Connection
from typing import Any

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
        self._filed: dict[tuple[str, str], dict[str, dict[str, Item]]] = {}
        """By kind and verb, then by condition: the items by id."""
        self._places: dict[str, tuple[tuple[str, str], str]] = {}
        """By id, where the item is filed."""

    def clear(self) -> None:
        """Forget everything, because a transaction was rolled back; the items are read again when needed."""
        self._last = -1
        self._filed.clear()
        self._places.clear()

    def catch_up(self, connection: Connection, namespace: int) -> None:
        """Read the items that changed since the last call.

        Args:
            connection: An open transaction, or a connection without one.
            namespace: The number of the namespace.
        """
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
        by_condition = self._filed.get(("guardrail", parse_action(item.forbids or "").verb), {})
        place = _place_of(item.condition)
        # without a simple condition of its own, an item may be related to any condition
        places = by_condition.keys() if place in ("", _COMPOSITE) else {place, "", _COMPOSITE}
        yield from _sorted([by_condition[name] for name in places if name in by_condition])

    def iter_same(self, kind: str, action: str, condition: Mapping[str, Any] | None) -> Iterator[Item]:
        """Yield the active items of a kind whose condition may equal this one and whose verb is that of an action."""
        by_condition = self._filed.get((kind, parse_action(action).verb), {})
        yield from _sorted([by_condition.get(_place_of(condition), {})])

    def _file(self, item: Item) -> None:
        """Add an item."""
        group, place = (item.kind, parse_action(item.forbids or "").verb), _place_of(item.condition)
        self._filed.setdefault(group, {}).setdefault(place, {})[item.id] = item
        self._places[item.id] = group, place

    def _drop(self, ref: str) -> None:
        """Remove an item, if it is there."""
        if (filed := self._places.pop(ref, None)) is not None:
            group, place = filed
            by_condition = self._filed[group]
            del by_condition[place][ref]
            if not by_condition[place]:
                del by_condition[place]


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
