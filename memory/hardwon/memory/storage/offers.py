"""Offers: the lists of what could be done at recorded steps, each stored once."""

import hashlib
import json
from collections.abc import Collection, Iterable
from sqlite3 import Connection

from .checksums import seal
from .database import Store

_AMONG = "id IN (SELECT value FROM json_each(?))"
_MANY = 250
"""Digests looked up in one statement."""


def write_offers(
    connection: Connection, namespace: int, offers: Iterable[tuple[str, ...]]
) -> dict[tuple[str, ...], int]:
    """Store lists of admissible actions that are new; return the id of each list. The empty list has none."""
    distinct = [actions for actions in dict.fromkeys(offers) if actions]
    if not distinct:
        return {}
    # half a surrogate pair, from the name of a file, cannot be stored
    texts = [json.dumps(one, separators=(",", ":"), ensure_ascii=False).encode(errors="replace") for one in distinct]
    digests = [hashlib.blake2b(text, digest_size=16).digest() for text in texts]
    connection.executemany(
        "INSERT OR IGNORE INTO offers(namespace, digest, actions) VALUES (?, ?, ?)",
        [(namespace, digest, text.decode()) for digest, text in zip(digests, texts, strict=True)],
    )
    numbers: dict[bytes, int] = {}
    for at in range(0, len(digests), _MANY):
        some = digests[at : at + _MANY]
        marks = ",".join("?" * len(some))
        query = f"SELECT digest, id FROM offers WHERE namespace = ? AND digest IN ({marks})"
        numbers.update(connection.execute(query, (namespace, *some)).fetchall())
    seal(connection, "offers", f"{_AMONG} AND checksum IS NULL", (json.dumps(sorted(numbers.values())),))
    return {actions: numbers[digest] for actions, digest in zip(distinct, digests, strict=True)}


def read_offers(store: Store, ids: Collection[int]) -> dict[int, tuple[str, ...]]:
    """Return lists of admissible actions by their ids."""
    if not ids:
        return {}
    query = "SELECT id, actions FROM offers WHERE id IN (SELECT value FROM json_each(?))"
    return {number: tuple(json.loads(text)) for number, text in store.rows(query, (json.dumps(sorted(ids)),))}
