"""New keys for the steps of an older library whose key function differs from the current one.

Steps are indexed by keys that are computed when they are recorded. Keys of another version of the function would never
be queried again, and the experience under them would be lost. The first writer that opens such a library recomputes the
keys, and everything derived from words and templates, in one transaction. If the process is killed, the file stays
as it was.
"""

import json
import logging
from collections.abc import Iterator
from sqlite3 import Connection
from typing import Any

from hardwon.memory.reasons import Reasons
from hardwon.memory.retrieval.search import NOT_ASCII, is_older_copy, read_keys_version
from hardwon.memory.situations.keys import KEYS_VERSION, Situation, guard_keys
from hardwon.memory.situations.refinements import select_filed
from hardwon.memory.storage.cache_files import drop_indices
from hardwon.memory.storage.checksums import seal
from hardwon.memory.storage.counted import EpisodeClock, read_structural_words
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import KeyIds, read_states

from . import integrity
from .write_buffer import file_all

logger = logging.getLogger(__name__)
_DERIVED = ("words", "worlds", "attempts", "item places")
"""Other structures derived from words and templates."""
_KEYS = "SELECT id, text FROM keys WHERE id IN (SELECT value FROM json_each(?))"


def rekey(store: Store) -> int:
    """Compute new keys for the steps of an older library; return the number of steps."""
    if is_older_copy(store):
        logger.warning(
            "%s was written by an older version and is read-only: some of its experience is not found. "
            "Open it once for writing, for example: hardwon memory repair %s",
            store.path,
            store.path,
        )
    if store.read_only or read_keys_version(store) == KEYS_VERSION:
        return 0
    if store.rows("SELECT 1 FROM inbox LIMIT 1"):
        file_all(store)  # buffered episodes also have old keys
    with store.transaction() as connection:
        if read_keys_version(store) == KEYS_VERSION:  # another process was faster
            return 0
        namespaces = [row[0] for row in store.rows("SELECT id FROM namespaces ORDER BY id")]
        count = sum(_rekey_namespace(connection, store, namespace) for namespace in namespaces)
        integrity.rebuild_states_text(connection, store)  # of all namespaces at once
        _drop_other_vectors(connection, store)
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('keys', ?)", (str(KEYS_VERSION),))
    if count:
        logger.info("%s: computed new keys for %d steps of an older version.", store.path, count)
    return count


def _drop_other_vectors(connection: Connection, store: Store) -> None:
    """Drop the hashed vectors of texts that are not ASCII; they are computed again when they are needed."""
    if not store.rows("SELECT 1 FROM meta WHERE name = 'embedder' AND value LIKE 'hashing%'"):
        return
    # the vectors of items were dropped with their texts
    text = " OR ".join(map(NOT_ASCII.format, ("observation", "feedback")))
    connection.execute(f"DELETE FROM vectors WHERE kind != 'items' AND ref IN (SELECT id FROM states WHERE {text})")
    if store.rows("SELECT 1 FROM sqlite_schema WHERE name = 'langgraph_vectors'"):
        connection.execute("DELETE FROM langgraph_vectors WHERE fingerprint LIKE 'hashing%'")
    drop_indices(store)


def _rekey_namespace(connection: Connection, store: Store, namespace: int) -> int:
    integrity.rebuild(connection, store, namespace, "items text index")
    if not store.rows("SELECT 1 FROM steps WHERE namespace = ? LIMIT 1", (namespace,)):
        return 0
    # Word counts first: the new keys depend on them.
    for where in _DERIVED:
        integrity.rebuild(connection, store, namespace, where)
    structural = read_structural_words(store.rows, namespace, EpisodeClock(namespace).read(store.rows))
    ids = KeyIds()
    count = 0
    for rows in _read_chunks(store, namespace):
        keys_by_step = _compute_keys(store, rows, structural)
        numbers = ids.of(connection, [key for _, keys in keys_by_step for key in keys])
        connection.executemany(
            "UPDATE steps SET keys = ? WHERE id = ?",
            [(f"[{','.join([numbers[key] for key in keys])}]", ref) for ref, keys in keys_by_step],
        )
        chosen = json.dumps([ref for ref, _ in keys_by_step])
        seal(connection, "steps", "id IN (SELECT value FROM json_each(?))", (chosen,))
        count += len(rows)
    return count


def _read_chunks(store: Store, namespace: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the steps that have keys, in chunks."""
    last = 0
    while rows := store.rows(
        "SELECT id, pre, action, keys, iif(json_valid(why), why, '{}') FROM steps "
        "WHERE namespace = ? AND id > ? AND keys != '[]' ORDER BY id LIMIT ?",
        (namespace, last, 1024),
    ):
        yield rows
        last = rows[-1][0]


def _compute_keys(
    store: Store, rows: list[tuple[Any, ...]], structural: frozenset[str]
) -> list[tuple[int, tuple[str, ...]]]:
    """Return the ids of steps with their new keys."""
    states = read_states(store, {pre for _, pre, *_ in rows})
    filed = [json.loads(keys) for *_, keys, _ in rows]
    texts = dict(store.rows(_KEYS, (json.dumps(sorted({number for numbers in filed for number in numbers})),)))
    situations: dict[int, Situation] = {}
    keys_by_step = []
    for (ref, pre, action, _, why), numbers in zip(rows, filed, strict=True):
        situation = situations.get(pre) or situations.setdefault(pre, Situation(states[pre], structural))
        # The counts of earlier attempts are recorded only inside the old keys.
        counts = parse_counts([texts.get(number, "") for number in numbers])
        keys = select_filed(situation.keys(action, counts), Reasons.of(json.loads(why)))
        keys_by_step.append((ref, (*keys, *guard_keys(situation, action))))
    return keys_by_step


def parse_counts(keys: list[str]) -> str:
    """Return the counts of earlier attempts (`tried 1 to new`) from the third key of a step."""
    return keys[2].removeprefix(f"{keys[1]} | ") if len(keys) > 2 and keys[2].startswith(f"{keys[1]} | ") else ""
