"""The catalogue: items as rows, every change in the history, every index kept beside them.

It writes what it is told; whether an item deserves to be written is for the `curator`. An item's id
is made of what it says, so that the same finding made twice meets itself.
"""

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from sqlite3 import Connection
from typing import Any

from .errors import ConfigError, LibraryDamaged
from .guardrails.conditions import validate
from .records import Item
from .situations.keys import parse_action, words
from .storage.checksums import seal
from .storage.episodes import dumps, log_change, now, plain
from .validation import check_item

_EDITABLE = frozenset(field.name for field in fields(Item)) - {"id", "kind", "status", "version", "writer"}
_WORDING = frozenset(["title", "body", "when_to_use", "when_not_to_use", "condition", "forbids", "steps", "verify"])
_LOGGED_BESIDE = ("retired", "scored")
"""Operations whose detail is not the whole item."""
_WORDS = re.compile(r"\w+")
KEPT = 1024
"""Items that are remembered by their rows: whoever writes one reads all of its kind."""

logger = logging.getLogger("hardwon.memory")


def identify(item: Item) -> str:
    """The id of what an item says: kind, the words of its title, condition and forbidden action."""
    title = _WORDS.findall(item.title.lower()) or item.title
    said = dumps([item.kind, title, item.condition, item.forbids])
    return f"{item.kind[:2]}-{hashlib.blake2b(said.encode(), digest_size=6).hexdigest()}"


def check_conditions(item: Item) -> None:
    """Raise ConfigError for a condition that could not be evaluated."""
    for condition in (item.condition, item.verify):
        if condition is not None:
            validate(condition)


def restore(connection: Connection, namespace: int, item: Item) -> None:
    """Write an item as it is, under its own id. Raises ConfigError for a condition that cannot be checked."""
    check_item(item)
    check_conditions(item)
    write(connection, namespace, item, "restored")


def change(connection: Connection, namespace: int, item: Item, changes: Mapping[str, Any], op: str) -> Item:
    """The item with some fields changed, written and logged; who words it anew is its writer from then on.

    Raises: ConfigError for a field that may not be edited or a value that cannot be.
    """
    for name in changes:
        if name not in _EDITABLE:
            raise ConfigError(f"{name!r} of an item cannot be changed; these can: {', '.join(sorted(_EDITABLE))}.")
    writer = "user" if _WORDING & changes.keys() else item.writer
    try:
        updated = replace(item, **changes, writer=writer, version=item.version + 1)
    except (TypeError, AttributeError) as error:  # "high" for a score, a number for a title
        raise ConfigError(f"{item.id} cannot be changed to {dict(changes)}: {error}.") from error
    check_item(updated)
    check_conditions(updated)
    write(connection, namespace, updated, op)
    return updated


def retire(connection: Connection, namespace: int, item_id: str, why: str, *, until_needed: bool = False) -> None:
    """Take an item out of use; it stays in the history. `until_needed` lets new evidence bring it back."""
    item = read_item(connection, namespace, item_id)
    if item is not None:
        retired: Item = replace(item, status="retired", version=item.version + 1)
        write(
            connection, namespace, retired, "retired", {"why": why, **({"until_needed": True} if until_needed else {})}
        )


def is_retired_until_needed(connection: Connection, namespace: int, item: Item) -> bool:
    """Return whether an item was retired for want of use alone, so that new evidence may bring it back."""
    row = connection.execute(
        "SELECT detail FROM changes WHERE namespace = ? AND what = 'item' AND ref = ? AND op = 'retired' "
        "ORDER BY seq DESC LIMIT 1",
        (namespace, item.id),
    ).fetchone()
    return item.status == "retired" and row is not None and bool(json.loads(row[0]).get("until_needed"))


def weaken(connection: Connection, namespace: int, item: Item, share: float, why: str) -> None:
    """Lower an item's confidence to a share of it, with the reason in its history."""
    weaker = replace(item, confidence=round(item.confidence * share, 3), version=item.version + 1)
    write(connection, namespace, weaker, f"weakened: {why}")


def release(connection: Connection, namespace: int, item: Item, why: str) -> Item:
    """Take an item out of quarantine: it is trusted from now on. Raises ConfigError for one that is not in it."""
    if item.status != "quarantined":
        raise ConfigError(f"{item.id} is {item.status}, not quarantined; there is nothing to release it from.")
    released: Item = replace(item, status="active", trust="trusted", version=item.version + 1)
    write(connection, namespace, released, f"released: {why}")
    return released


def undo(connection: Connection, namespace: int, item: Item) -> Item:
    """The item as it was before its last change that was not undone yet; what it earned since stays.

    Raises: ConfigError when there is no earlier version.
    """
    versions: list[dict[str, Any]] = []
    for op, text in connection.execute(
        "SELECT op, detail FROM changes WHERE namespace = ? AND what = 'item' AND ref = ? ORDER BY seq",
        (namespace, item.id),
    ):
        if op == "undone":
            versions.pop()
        elif op == "retired":
            versions.append({**versions[-1], "status": "retired"})
        elif op not in _LOGGED_BESIDE:
            versions.append(json.loads(text))
    if len(versions) < 2:
        raise ConfigError(f"{item.id} has no earlier version. Retire it to be rid of it.")
    earlier: Item = replace(item_of(dumps(versions[-2])), score=item.score, version=item.version + 1)
    write(connection, namespace, earlier, "undone")
    return earlier


def set_score(connection: Connection, namespace: int, item: Item, score: float) -> None:
    """Move an item's score; logged as a change of this field alone."""
    write(connection, namespace, replace(item, score=score), "scored", {"score": [item.score, score]})


def write(connection: Connection, namespace: int, item: Item, op: str, detail: Any = None) -> None:
    """Write an item's row, its places in every index, and a line of its history."""
    record, at, known = record_of(item), now(), None
    row = connection.execute(
        "SELECT number, record FROM items WHERE namespace = ? AND id = ?", (namespace, item.id)
    ).fetchone()
    if row is None:
        (number,) = connection.execute("SELECT coalesce(max(number), 0) + 1 FROM items").fetchone()
        connection.execute(
            "INSERT INTO items(id, namespace, number, kind, status, score, pinned, created_at, updated_at, record) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (item.id, namespace, number, item.kind, item.status, item.score, int(item.pinned), at, at, record),
        )
    else:
        number, known = row[0], item_of(row[1])
        connection.execute(
            "UPDATE items SET kind = ?, status = ?, score = ?, pinned = ?, updated_at = ?, record = ? WHERE number = ?",
            (item.kind, item.status, item.score, int(item.pinned), at, record, number),
        )
    seal(connection, "items", "number = ?", (number,))
    _write_text(connection, namespace, number, known, item)
    _write_places(connection, namespace, number, known, item)
    log_change(connection, namespace, "item", item.id, op, json.loads(record) if detail is None else detail)


def places_of(item: Item) -> set[tuple[str, str]]:
    """Where an item is filed: (index, value) for every cluster, place and tag; nowhere unless it is active."""
    if item.status != "active":
        return set()
    filed = {"signature": item.signatures, "location": item.locations, "tag": tags_of(item)}
    return {(by, value) for by, values in filed.items() for value in values}


def tags_of(item: Item) -> tuple[str, ...]:
    """The tags given to an item, and those that its actions and its failure give it."""
    actions = [*item.steps, *([item.forbids] if item.forbids else [])]
    verbs = [parse_action(action).verb for action in actions]
    things = [word for action in actions for slot in parse_action(action).slots for word in words(slot)]
    found = dict.fromkeys((*item.tags, *verbs, *(word for word in things if word.isalpha()), item.repairs))
    return tuple(tag for tag in found if tag)


def _write_places(connection: Connection, namespace: int, number: int, known: Item | None, item: Item) -> None:
    before, after = (places_of(known) if known is not None else set()), places_of(item)
    connection.executemany(
        "DELETE FROM item_places WHERE namespace = ? AND by = ? AND value = ? AND number = ?",
        [(namespace, by, plain(value), number) for by, value in sorted(before - after)],
    )
    connection.executemany(
        "INSERT OR IGNORE INTO item_places VALUES (?, ?, ?, ?)",
        [(namespace, by, plain(value), number) for by, value in sorted(after - before)],
    )


def _write_text(connection: Connection, namespace: int, number: int, known: Item | None, item: Item) -> None:
    """Bring the text index after the item; a change of figures alone leaves it and the vector as they are."""
    if known is not None and (known.text, known.status) == (item.text, item.status):
        return
    if known is not None:
        connection.execute(f"DELETE FROM items_text_{namespace} WHERE rowid = ?", (number,))
        connection.execute("DELETE FROM vectors WHERE kind = 'items' AND ref = ?", (number,))
    if item.status == "active":
        text = plain(item.text)
        connection.execute(f"INSERT INTO items_text_{namespace}(rowid, text) VALUES (?, ?)", (number, text))


def read_item(connection: Connection, namespace: int, item_id: str) -> Item | None:
    """An item by id, whatever its status."""
    row = connection.execute("SELECT record FROM items WHERE namespace = ? AND id = ?", (namespace, item_id)).fetchone()
    return item_of(row[0]) if row else None


def record_of(item: Item) -> str:
    """An item as the JSON that is stored."""
    return dumps({field.name: getattr(item, field.name) for field in fields(Item)})


def item_of(record: str) -> Item:
    """Return an item from its stored JSON. Raises LibraryDamaged for what is no item."""
    try:
        return Item(**json.loads(record))
    except (ValueError, TypeError, AttributeError) as error:
        raise LibraryDamaged(
            f"a row of items holds {record!r:.60}, which is no item ({error}). Run: hardwon memory verify"
        ) from error


kept_item_of = lru_cache(maxsize=KEPT)(item_of)
"""The same for those who read all items again and again and change none."""


def readable_items(rows: Iterable[tuple[int, str]]) -> Iterator[tuple[int, Item]]:
    """Yield items by number; one whose row is damaged is left out, and logged."""
    for number, record in rows:
        try:
            yield number, kept_item_of(record)
        except LibraryDamaged as error:
            logger.warning("item %d is left out: %s", number, error)
