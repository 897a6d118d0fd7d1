"""The catalogue: items as rows, admitted one way, every change in the history.

An item's id is made of what it says, so that the same finding made twice meets itself: it is merged,
its evidence united. At capacity a newcomer must beat the weakest unpinned item of its kind.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from sqlite3 import Connection
from typing import Any

from .errors import ConfigError
from .guardrails import validate
from .ledger import dumps, log_change, now, plain
from .records import Admission, Item

CAPACITY = 2000
"""Active items of one kind in one namespace."""
MAX_EVIDENCE = 64
"""Step ids kept on an item; the newest stay."""
_EDITABLE = frozenset(
    [
        "title",
        "body",
        "when_to_use",
        "when_not_to_use",
        "condition",
        "forbids",
        "signatures",
        "provenance",
        "score",
        "confidence",
        "pinned",
    ]
)
_WORDS = re.compile(r"\w+")


def identify(item: Item) -> str:
    """The id of what an item says: kind, the words of its title, condition and forbidden action."""
    title = _WORDS.findall(item.title.lower()) or item.title
    said = dumps([item.kind, title, item.condition, item.forbids])
    return f"{item.kind[:2]}-{hashlib.blake2b(said.encode(), digest_size=6).hexdigest()}"


def admit(connection: Connection, namespace: int, item: Item) -> Admission:
    """Add, merge, replace or reject a candidate, each with the reason."""
    if item.condition is not None:
        validate(item.condition)
    item = replace(item, id=item.id or identify(item))
    known = read_item(connection, namespace, item.id)
    if known is not None and known.status == "retired":
        return Admission("rejected", f"{item.id} says the same and was retired", item.id)
    if known is not None:
        _write(connection, namespace, _merged(known, item), "merged")
        return Admission("merged", f"the same as {known.id}: evidence united", known.id)
    if _held(connection, namespace, item.kind) < CAPACITY:
        _write(connection, namespace, item, "added")
        return Admission("added", "new", item.id)
    weakest = _weakest(connection, namespace, item.kind)
    if weakest is None:
        return Admission("rejected", f"{item.kind} is full of pinned items")
    loser, score = weakest
    if item.score <= score:
        return Admission("rejected", f"{item.kind} is full and its weakest scores {score:.2f}")
    retire(connection, namespace, loser, f"replaced by {item.id}")
    _write(connection, namespace, item, "added")
    return Admission("replaced", f"scores {item.score:.2f}, above {loser} with {score:.2f}", item.id)


def _merged(known: Item, new: Item) -> Item:
    evidence = tuple(dict.fromkeys((*known.provenance, *new.provenance)))[-MAX_EVIDENCE:]
    clusters = tuple(dict.fromkeys((*known.signatures, *new.signatures)))
    return replace(
        known,
        body=new.body or known.body,
        provenance=evidence,
        signatures=clusters,
        confidence=new.confidence if new.writer == known.writer else max(known.confidence, new.confidence),
        version=known.version + 1,
    )


def _held(connection: Connection, namespace: int, kind: str) -> int:
    where = "namespace = ? AND status = 'active' AND kind = ?"
    return int(connection.execute(f"SELECT count(*) FROM items WHERE {where}", (namespace, kind)).fetchone()[0])


def _weakest(connection: Connection, namespace: int, kind: str) -> tuple[str, float] | None:
    row = connection.execute(
        "SELECT id, score FROM items WHERE namespace = ? AND status = 'active' AND kind = ? AND pinned = 0 "
        "ORDER BY score, number LIMIT 1",
        (namespace, kind),
    ).fetchone()
    return (str(row[0]), float(row[1])) if row else None


def restore(connection: Connection, namespace: int, item: Item) -> None:
    """Write an item as it is, under its own id. Raises ConfigError for a condition that cannot be checked."""
    if item.condition is not None:
        validate(item.condition)
    _write(connection, namespace, item, "restored")


def change(connection: Connection, namespace: int, item: Item, changes: Mapping[str, Any], op: str) -> Item:
    """The item with some fields changed, written and logged.

    Raises: ConfigError for a field that may not be edited or a value that cannot be.
    """
    for name in changes:
        if name not in _EDITABLE:
            raise ConfigError(f"{name!r} of an item cannot be changed; these can: {', '.join(sorted(_EDITABLE))}.")
    if changes.get("condition") is not None:
        validate(changes["condition"])
    try:
        updated = replace(item, **changes, version=item.version + 1)
    except (TypeError, AttributeError) as error:  # "high" for a score, a number for a title
        raise ConfigError(f"{item.id} cannot be changed to {dict(changes)}: {error}.") from error
    _write(connection, namespace, updated, op)
    return updated


def retire(connection: Connection, namespace: int, item_id: str, why: str) -> None:
    """Take an item out of use; it stays in the history."""
    item = read_item(connection, namespace, item_id)
    if item is not None:
        retired: Item = replace(item, status="retired", version=item.version + 1)
        _write(connection, namespace, retired, "retired", {"why": why})


def set_score(connection: Connection, namespace: int, item: Item, score: float) -> None:
    """Move an item's score; logged as a change of this field alone."""
    _write(connection, namespace, replace(item, score=score), "scored", {"score": [item.score, score]})


def _write(connection: Connection, namespace: int, item: Item, op: str, detail: Any = None) -> None:
    record, at, known = dumps(asdict(item)), now(), None
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
    _write_text(connection, namespace, number, known, item)
    log_change(connection, namespace, "item", item.id, op, detail if detail is not None else json.loads(record))


def _write_text(connection: Connection, namespace: int, number: int, known: Item | None, item: Item) -> None:
    """Bring the text index after the item; a change of figures alone leaves it and the vector as they are."""
    if known is not None and (known.text, known.status) == (item.text, item.status):
        return
    connection.execute(f"DELETE FROM items_text_{namespace} WHERE rowid = ?", (number,))
    connection.execute("DELETE FROM vectors WHERE kind = 'items' AND ref = ?", (number,))
    if item.status == "active":
        text = plain(item.text)
        connection.execute(f"INSERT INTO items_text_{namespace}(rowid, text) VALUES (?, ?)", (number, text))


def read_item(connection: Connection, namespace: int, item_id: str) -> Item | None:
    """An item by id, retired or not."""
    row = connection.execute("SELECT record FROM items WHERE namespace = ? AND id = ?", (namespace, item_id)).fetchone()
    return item_of(row[0]) if row else None


def item_of(record: str) -> Item:
    """An item from its stored JSON."""
    return Item(**json.loads(record))
