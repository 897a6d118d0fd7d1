"""Batches of stored values as entries of the log."""

import json
import sqlite3
from base64 import b64decode, b64encode
from typing import Any

from hardwon.memory.stored_values import ValueBatch, ValueWrite, apply

STORE = "store"
"""Kind of the entries."""
IDS = 2**24
"""Ids that each position of the log has for its values; a batch of the largest size has fewer writes."""


def pack_batch(batch: ValueBatch) -> list[Any]:
    """Return a batch as the JSON values of an entry."""
    writes = [
        [*write[:5], {field: b64encode(vector).decode() for field, vector in write.vectors.items()}]
        for write in batch.writes
    ]
    return [writes, list(batch.touches), batch.fingerprint, batch.sweeps]


def apply_entry(connection: sqlite3.Connection, namespace: str, values: Any, position: int) -> None:
    """Write the batch of an entry. The ids of its values follow from its position, so they are equal on every host."""
    rows, touches, fingerprint, sweeps = values
    writes = []
    for path, key, value, fields, ttl, vectors in rows:
        for text in (fields, "0" if value is None else value):
            json.loads(text)  # else every later read would fail
        decoded = {field: b64decode(vector, validate=True) for field, vector in vectors.items()}
        writes.append(ValueWrite(path, key, value, fields, ttl, decoded))
    apply(connection, namespace, ValueBatch(writes, touches, fingerprint, sweeps), position * IDS)
