"""Lists of admissible actions, each stored once and shared by all steps that have the same list."""

import hashlib
import json
from collections.abc import Collection, Iterable
from sqlite3 import Connection

from .checksums import seal
from .database import Store

_AMONG = "id IN (SELECT value FROM json_each(?))"
_CHUNK = 250
"""Digests looked up per statement, below SQLite's limit on parameters."""


def write_offers(
    connection: Connection, namespace: int, offers: Iterable[tuple[str, ...]]
) -> dict[tuple[str, ...], int]:
    """Store new lists of admissible actions and return the id of each list. An empty list has no id."""
    distinct = [actions for actions in dict.fromkeys(offers) if actions]
    if not distinct:
        return {}
    # A lone surrogate, for example from a file name, cannot be encoded as UTF-8 and is replaced.
    texts = [
        json.dumps(actions, separators=(",", ":"), ensure_ascii=False).encode(errors="replace") for actions in distinct
    ]
    digests = [hashlib.blake2b(text, digest_size=16).digest() for text in texts]
    connection.executemany(
        "INSERT OR IGNORE INTO offers(namespace, digest, actions) VALUES (?, ?, ?)",
        [(namespace, digest, text.decode()) for digest, text in zip(digests, texts, strict=True)],
    )
    # INSERT OR IGNORE does not return the ids of rows that existed, so read all ids back.
    numbers: dict[bytes, int] = {}
    for at in range(0, len(digests), _CHUNK):
        chunk = digests[at : at + _CHUNK]
        marks = ",".join("?" * len(chunk))
        query = f"SELECT digest, id FROM offers WHERE namespace = ? AND digest IN ({marks})"
        numbers.update(connection.execute(query, (namespace, *chunk)).fetchall())
    seal(connection, "offers", f"{_AMONG} AND checksum IS NULL", (json.dumps(sorted(numbers.values())),))
    return {actions: numbers[digest] for actions, digest in zip(distinct, digests, strict=True)}


def read_offers(store: Store, ids: Collection[int]) -> dict[int, tuple[str, ...]]:
    """Return lists of admissible actions by id."""
    if not ids:
        return {}
    query = "SELECT id, actions FROM offers WHERE id IN (SELECT value FROM json_each(?))"
    return {number: tuple(json.loads(text)) for number, text in store.rows(query, (json.dumps(sorted(ids)),))}
