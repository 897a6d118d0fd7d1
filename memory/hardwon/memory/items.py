"""Storage of items: one row per item, a log of every change, and the indexes.

The functions write without judging; the `curator` decides whether an item is worth writing. The id of an item is a
hash of its content, so that proposing the same finding twice yields the same id.
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
from .situations.scripts import index_text
from .storage.checksums import seal
from .storage.clock import now
from .storage.episodes import dumps, first_row, log_change, plain
from .validation import check_item

_EDITABLE = frozenset(field.name for field in fields(Item)) - {"id", "kind", "status", "version", "writer"}
_WORDING = frozenset(["title", "body", "when_to_use", "when_not_to_use", "condition", "forbids", "steps", "verify"])
_LOGGED_BESIDE = ("retired", "scored")
"""Operations whose history entry does not contain the whole item."""
_WORDS = re.compile(r"\w+")

logger = logging.getLogger("hardwon.memory")


def identify(item: Item) -> str:
    """Return the id of an item: a hash of its kind, the words of its title, its condition and its forbidden action."""
    # any change here gives every item a new id, so that older libraries learn all of them again
    title = _WORDS.findall(item.title.lower()) or item.title
    content = dumps([item.kind, title, item.condition, item.forbids])
    return f"{item.kind[:2]}-{hashlib.blake2b(content.encode(), digest_size=6).hexdigest()}"


def check_conditions(item: Item) -> None:
    """Raise ConfigError if a condition of an item cannot be evaluated."""
    for condition in (item.condition, item.verify):
        if condition is not None:
            validate(condition)


def restore(connection: Connection, namespace: int, item: Item) -> None:
    """Write an item unchanged, under its own id, without admission."""
    check_item(item)
    check_conditions(item)
    write(connection, namespace, item, "restored")


def change(connection: Connection, namespace: int, item: Item, changes: Mapping[str, Any], op: str) -> Item:
    """Change fields of an item, and log the change.

    A change of its wording makes "user" the writer of the item.
    """
    for name in changes:
        if name not in _EDITABLE:
            raise ConfigError(f"{name!r} of an item cannot be changed; use one of {', '.join(sorted(_EDITABLE))}.")
    writer = "user" if _WORDING & changes.keys() else item.writer
    try:
        updated = replace(item, **changes, writer=writer, version=item.version + 1)
    except (TypeError, AttributeError) as error:  # such as a number for a title
        raise ConfigError(f"{item.id} cannot be changed to {dict(changes)}: {error}.") from error
    # first, because it bounds the nesting of the conditions, which `check_conditions` recurses into
    check_item(updated)
    check_conditions(updated)
    write(connection, namespace, updated, op)
    return updated


def retire(connection: Connection, namespace: int, item_id: str, why: str, *, until_needed: bool = False) -> None:
    """Take an item out of use; it stays in the history.

    With `until_needed`, new evidence may reactivate it.
    """
    item = read_item(connection, namespace, item_id)
    if item is not None:
        retired: Item = replace(item, status="retired", version=item.version + 1)
        write(
            connection, namespace, retired, "retired", {"why": why, **({"until_needed": True} if until_needed else {})}
        )


def find_retirement(connection: Connection, namespace: int, item: Item) -> int | None:
    """Return when an item was retired until needed, as the id of the newest step at that time."""
    seq, detail = _read_retirement(connection, namespace, item)
    if not detail.get("until_needed"):
        return None
    (newest,) = connection.execute(
        "SELECT coalesce(max(id), 0) FROM steps WHERE namespace = ?1 AND trajectory_id = (SELECT ref FROM changes "
        # the unary plus keeps SQLite off the index of the namespace, which would need a sort by seq
        "WHERE +namespace = ?1 AND what = 'trajectory' AND seq < ?2 ORDER BY seq DESC LIMIT 1)",
        (namespace, seq),
    ).fetchone()
    return int(newest)


def find_retirement_reason(connection: Connection, namespace: int, item: Item) -> str:
    """Return why an item was retired the last time; empty if it is in use."""
    return str(_read_retirement(connection, namespace, item)[1].get("why", ""))


def _read_retirement(connection: Connection, namespace: int, item: Item) -> tuple[int, dict[str, Any]]:
    """Return the number and the detail of the change that retired an item; 0 and nothing if it is in use."""
    if item.status != "retired":
        return 0, {}
    row = connection.execute(
        "SELECT seq, detail FROM changes WHERE namespace = ? AND what = 'item' AND ref = ? AND op = 'retired' "
        "ORDER BY seq DESC LIMIT 1",
        (namespace, item.id),
    ).fetchone()
    return (row[0], json.loads(row[1])) if row is not None else (0, {})


def weaken(connection: Connection, namespace: int, item: Item, share: float, why: str) -> None:
    """Multiply an item's confidence by `share`, and log the reason."""
    weaker = replace(item, confidence=round(item.confidence * share, 3), version=item.version + 1)
    write(connection, namespace, weaker, f"weakened: {why}")


def release(connection: Connection, namespace: int, item: Item, why: str) -> Item:
    """Release an item from quarantine; it is trusted from then on."""
    if item.status != "quarantined":
        raise ConfigError(f"{item.id} is {item.status}, not quarantined. Only quarantined items can be released.")
    released: Item = replace(item, status="active", trust="trusted", version=item.version + 1)
    write(connection, namespace, released, f"released: {why}")
    return released


def undo(connection: Connection, namespace: int, item: Item) -> Item:
    """Restore an item to the version before its last change that was not undone yet; its score stays."""
    # replay the history: each "undone" cancels the newest version that is still in force
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
        raise ConfigError(f"{item.id} has no earlier version. Retire it to remove it from use.")
    # through `item_of`, which validates: the history entry may be damaged
    earlier: Item = replace(item_of(dumps(versions[-2])), score=item.score, version=item.version + 1)
    write(connection, namespace, earlier, "undone")
    return earlier


def set_score(connection: Connection, namespace: int, item: Item, score: float) -> None:
    """Set an item's score; the history logs only this field."""
    write(connection, namespace, replace(item, score=score), "scored", {"score": [item.score, score]})


def set_fresh(connection: Connection, namespace: int, item_id: str, clock: int) -> None:
    """Mark an item as used or confirmed after this number of episodes."""
    connection.execute("UPDATE items SET fresh = ? WHERE namespace = ? AND id = ?", (clock, namespace, item_id))
    seal(connection, "items", "namespace = ? AND id = ?", (namespace, item_id))


def write(connection: Connection, namespace: int, item: Item, op: str, detail: Any = None) -> None:
    """Write an item's row, its index entries and a line of its history."""
    # row, index entries and history must agree: callers hold a transaction
    record, at, previous = record_of(item), now(), None
    row = connection.execute(
        "SELECT number, record FROM items WHERE namespace = ? AND id = ?", (namespace, item.id)
    ).fetchone()
    if row is None:  # unique across namespaces: vectors refer to the number alone
        (number,) = connection.execute("SELECT coalesce(max(number), 0) + 1 FROM items").fetchone()
        connection.execute(
            "INSERT INTO items(id, namespace, number, kind, status, score, pinned, created_at, updated_at, record) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (item.id, namespace, number, item.kind, item.status, item.score, int(item.pinned), at, at, record),
        )
    else:
        # the row's own version, not the caller's: the index entries to remove are those of the row
        number, previous = row[0], item_of(row[1])
        connection.execute(
            "UPDATE items SET kind = ?, status = ?, score = ?, pinned = ?, updated_at = ?, record = ? WHERE number = ?",
            (item.kind, item.status, item.score, int(item.pinned), at, record, number),
        )
    seal(connection, "items", "number = ?", (number,))
    _write_text(connection, namespace, number, previous, item)
    _write_places(connection, namespace, number, previous, item)
    log_change(connection, namespace, "item", item.id, op, json.loads(record) if detail is None else detail)


def places_of(item: Item) -> set[tuple[str, str]]:
    """Return the index entries of an item as (index, value) pairs; empty unless the item is active."""
    if item.status != "active":
        return set()
    filed = {"signature": item.signatures, "location": item.locations, "tag": tags_of(item)}
    return {(by, value) for by, values in filed.items() for value in values}


def tags_of(item: Item) -> tuple[str, ...]:
    """Return an item's own tags and the ones derived from its actions and its failure."""
    actions = [*item.steps, *([item.forbids] if item.forbids else [])]
    verbs = [parse_action(action).verb for action in actions]
    things = [word for action in actions for slot in parse_action(action).slots for word in words(slot)]
    tags = dict.fromkeys((*item.tags, *verbs, *(word for word in things if word.isalpha()), item.repairs))
    return tuple(tag for tag in tags if tag)


def _write_places(connection: Connection, namespace: int, number: int, previous: Item | None, item: Item) -> None:
    """Update the index entries of an item by the difference to its previous version."""
    before, after = (places_of(previous) if previous is not None else set()), places_of(item)
    connection.executemany(
        "DELETE FROM item_places WHERE namespace = ? AND by = ? AND value = ? AND number = ?",
        [(namespace, by, plain(value), number) for by, value in sorted(before - after)],
    )
    connection.executemany(
        "INSERT OR IGNORE INTO item_places VALUES (?, ?, ?, ?)",
        [(namespace, by, plain(value), number) for by, value in sorted(after - before)],
    )


def _write_text(connection: Connection, namespace: int, number: int, previous: Item | None, item: Item) -> None:
    """Update the text index, and drop the item's vector if its text or status changed."""
    if previous is not None and (previous.text, previous.status) == (item.text, item.status):
        return
    if previous is not None:
        connection.execute("DELETE FROM items_text WHERE rowid = ?", (first_row(namespace) + number,))
        connection.execute("DELETE FROM vectors WHERE kind = 'items' AND ref = ?", (number,))
    if item.status == "active":
        row = first_row(namespace) + number, index_text(plain(item.text))
        connection.execute("INSERT INTO items_text(rowid, text) VALUES (?, ?)", row)


def read_item(connection: Connection, namespace: int, item_id: str) -> Item | None:
    """Return an item by id, whatever its status, or None."""
    row = connection.execute("SELECT record FROM items WHERE namespace = ? AND id = ?", (namespace, item_id)).fetchone()
    return item_of(row[0]) if row else None


def record_of(item: Item) -> str:
    """Return an item as stored JSON."""
    return dumps({field.name: getattr(item, field.name) for field in fields(Item)})


def item_of(record: str) -> Item:
    """Return an item from its stored JSON.

    Raises:
        LibraryDamaged: The JSON is not a valid item.
    """
    try:
        return Item(**json.loads(record))
    except (ValueError, TypeError, AttributeError) as error:
        raise LibraryDamaged(
            f"a row of items contains {record!r:.60}, which is not a valid item ({error}). Run: hardwon memory verify"
        ) from error


kept_item_of = lru_cache(maxsize=1024)(item_of)
"""Cached `item_of`, for callers that read all items repeatedly and do not change them."""


def readable_items(rows: Iterable[tuple[int, str]]) -> Iterator[tuple[int, Item]]:
    """Yield items with their numbers; damaged rows are logged and skipped."""
    for number, record in rows:
        try:
            yield number, kept_item_of(record)
        except LibraryDamaged as error:
            logger.warning("item %d is skipped: %s", number, error)
