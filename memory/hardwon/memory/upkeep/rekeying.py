"""Keys of an older library, computed anew when the function that makes them has changed.

Steps are filed under keys when they are recorded. Keys of another version of that function would never
be asked for again, and what was learnt under them would be lost. The first writer that opens such a
library files its steps anew, with all that is derived from words and templates, in one transaction: a
process that is killed meanwhile leaves the file as it was.
"""

import json
import logging
from collections.abc import Iterator
from sqlite3 import Connection
from typing import Any

from hardwon.memory.retrieval.cache import structural_words
from hardwon.memory.situations.keys import KEYS_VERSION, Situation, guard_keys
from hardwon.memory.storage.checksums import seal
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import KeyIds, read_states

from . import integrity
from .write_buffer import file_all

logger = logging.getLogger(__name__)
_AT_ONCE = 1024
"""Steps that are read, keyed and written together."""
_DERIVED = ("words", "attempts", "item places")
"""What else is made of words and templates."""
_KEYS = "SELECT id, text FROM keys WHERE id IN (SELECT value FROM json_each(?))"


def rekey(store: Store) -> int:
    """File the steps of an older library under today's keys; return how many were."""
    if store.read_only or _version(store) == KEYS_VERSION:
        return 0
    if store.rows("SELECT 1 FROM inbox LIMIT 1"):
        file_all(store)  # what waits has older keys as well
    with store.transaction() as connection:
        if _version(store) == KEYS_VERSION:  # another process was first
            return 0
        namespaces = [row[0] for row in store.rows("SELECT id FROM namespaces ORDER BY id")]
        count = sum(_rekey_namespace(connection, store, namespace) for namespace in namespaces)
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('keys', ?)", (str(KEYS_VERSION),))
    if count:
        logger.info("%s: %d steps of an older version were filed under new keys.", store.path, count)
    return count


def _version(store: Store) -> int:
    found = store.rows("SELECT value FROM meta WHERE name = 'keys'")
    return int(found[0][0]) if found else 1


def _rekey_namespace(connection: Connection, store: Store, namespace: int) -> int:
    if not store.rows("SELECT 1 FROM steps WHERE namespace = ? LIMIT 1", (namespace,)):
        return 0
    for where in _DERIVED:
        integrity.rebuild(connection, store, namespace, where)
    ((episodes,),) = store.rows(
        "SELECT count(*) FROM trajectories WHERE namespace = ? AND success IS NOT NULL", (namespace,)
    )
    words = dict(store.rows("SELECT word, episodes FROM words WHERE namespace = ?", (namespace,)))
    structural = structural_words(words, episodes)
    ids = KeyIds()
    count = 0
    for rows in _steps(store, namespace):
        keyed = _keyed(store, rows, structural)
        numbers = ids.of(connection, [key for _, keys in keyed for key in keys])
        connection.executemany(
            "UPDATE steps SET keys = ? WHERE id = ?",
            [(f"[{','.join([numbers[key] for key in keys])}]", ref) for ref, keys in keyed],
        )
        chosen = json.dumps([ref for ref, _ in keyed])
        seal(connection, "steps", "id IN (SELECT value FROM json_each(?))", (chosen,))
        count += len(rows)
    return count


def _steps(store: Store, namespace: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the steps that are filed under keys, some at a time."""
    last = 0
    while rows := store.rows(
        "SELECT id, pre, action, keys FROM steps WHERE namespace = ? AND id > ? AND keys != '[]' ORDER BY id LIMIT ?",
        (namespace, last, _AT_ONCE),
    ):
        yield rows
        last = rows[-1][0]


def _keyed(store: Store, rows: list[tuple[Any, ...]], structural: frozenset[str]) -> list[tuple[int, tuple[str, ...]]]:
    """Return ids of steps with their new keys."""
    states = read_states(store, {pre for _, pre, _, _ in rows})
    filed = [json.loads(keys) for *_, keys in rows]
    texts = dict(store.rows(_KEYS, (json.dumps(sorted({number for numbers in filed for number in numbers})),)))
    situations: dict[int, Situation] = {}
    found = []
    for (ref, pre, action, _), numbers in zip(rows, filed, strict=True):
        situation = situations.get(pre) or situations.setdefault(pre, Situation(states[pre], structural))
        counts = counts_of([texts.get(number, "") for number in numbers])
        found.append((ref, (*situation.keys(action, counts), *guard_keys(situation, action))))
    return found


def counts_of(keys: list[str]) -> str:
    """Return what the episode had tried, as the third key of a step tells it: `tried 1 to new`."""
    return keys[2].removeprefix(f"{keys[1]} | ") if len(keys) > 2 and keys[2].startswith(f"{keys[1]} | ") else ""
