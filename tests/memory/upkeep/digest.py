"""The digest of a namespace: a hash of everything in it that follows from what was recorded.

Two files with equal digests hold the same experience and the same items. Row numbers are replaced by what they refer
to: a step by its episode and its number there. Vectors and proposals are left out; they only save work. Values that an
application stored beside the experience count, with the vectors that were stored with them.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from hardwon.memory.situations.keys import KEYS_VERSION
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import dumps
from hardwon.memory.storage.migrations import SCHEMA_VERSION
from hardwon.memory.stored_values import has_tables

NamesById = dict[int, str]
"""The name of each step: `episode:t`."""

_PLAIN = {
    "episodes": "SELECT id, recorded_at, task, success, score, total_reward, arm, seed, ending, n_steps, meta, writer, "
    "trust FROM trajectories WHERE namespace = ? ORDER BY rowid",
    "unfiled": "SELECT ref, at FROM inbox WHERE namespace = ? AND failed IS NOT NULL ORDER BY ref",
    "words": "SELECT word, episodes FROM words WHERE namespace = ? ORDER BY word",
    "worlds": "SELECT id, record FROM worlds WHERE namespace = ? ORDER BY id",
    "episode worlds": "SELECT trajectory_id, world FROM episode_worlds WHERE namespace = ? ORDER BY trajectory_id",
    "item worlds": "SELECT item_id, world, score, uses FROM item_worlds WHERE namespace = ? ORDER BY item_id, world",
    "opinions": "SELECT item_id, writer, episode, moved FROM opinions WHERE namespace = ? "
    "ORDER BY item_id, writer, episode",
    "probation": "SELECT item_id, refusals, refused, trials, failed, began, tried FROM probation WHERE namespace = ? "
    "ORDER BY item_id",
    "usages": "SELECT item_id, trajectory_id, t, mode, arm, outcome, control_outcome FROM usages WHERE namespace = ? "
    "ORDER BY id",
    "bank": "SELECT id, task, team, key, value FROM bank_entries WHERE namespace = ? ORDER BY id",
    "pulls": "SELECT entry, reader, bank_pulls.own FROM bank_pulls JOIN bank_entries ON bank_entries.id = entry "
    "WHERE namespace = ? ORDER BY bank_pulls.id",
}
_STEPS = """
SELECT steps.trajectory_id, steps.t, before.digest, action, after.digest, reward, return_to_go, failure, diagnosis,
    witness > 0, writers.name, offers.digest, attempts.signature, attempts.pattern, folded, keys, why
FROM steps JOIN states AS before ON before.id = pre JOIN states AS after ON after.id = post
LEFT JOIN writers ON writers.id = witness LEFT JOIN offers ON offers.id = offer
LEFT JOIN attempts ON attempts.id = attempt WHERE steps.namespace = ? ORDER BY steps.id
"""
_ATTEMPTS = """
SELECT signature, pattern, n, live, returns, failures, best_return, best, first, last FROM attempts
WHERE namespace = ? ORDER BY signature, pattern
"""
_ITEMS = """
SELECT kind, status, score, pinned, created_at, updated_at, uses, fresh, record FROM items
WHERE namespace = ? ORDER BY number
"""
_VALUES = """
SELECT path, key, v.value, fields, created_at, updated_at, ttl, expires_at, field, fingerprint, vector
FROM langgraph_values AS v LEFT JOIN langgraph_vectors ON langgraph_vectors.value = id
WHERE namespace = (SELECT name FROM namespaces WHERE id = ?) ORDER BY id, field
"""
_CHANGES = "SELECT at, what, ref, op, detail FROM changes WHERE namespace = ? ORDER BY seq"


def compute_digest(store: Store, namespace: int) -> str:
    """Return the digest of a namespace, as hexadecimal text. Call it after all buffered episodes are stored."""
    total = hashlib.blake2b(f"schema {SCHEMA_VERSION} keys {KEYS_VERSION}".encode(), digest_size=16)
    with store.snapshot():
        names = {
            ref: f"{episode}:{t}"
            for ref, episode, t in store.rows(
                "SELECT id, trajectory_id, t FROM steps WHERE namespace = ?", (namespace,)
            )
        }
        for title, section in _iterate_sections(store, namespace, names):
            total.update(f"\n{title}\n".encode())
            for row in section:
                total.update(repr(row).encode(errors="backslashreplace"))
    return total.hexdigest()


def _iterate_sections(store: Store, namespace: int, names: NamesById) -> Iterator[tuple[str, Iterator[Any]]]:
    for title, query in _PLAIN.items():
        yield title, iter(store.rows(query, (namespace,)))
    keys = dict(store.rows("SELECT id, text FROM keys"))
    yield "steps", _rename(store, _STEPS, namespace, lambda row: (*row[:-2], *_name_reasons(row, keys, names)))
    yield "attempts", _rename(store, _ATTEMPTS, namespace, lambda row: (*row[:-3], *map(names.get, row[-3:])))
    yield "items", _rename(store, _ITEMS, namespace, lambda row: (*row[:-1], _name_evidence(row[-1], names)))
    yield "changes", _rename(store, _CHANGES, namespace, lambda row: (*row[:-1], _name_evidence(row[-1], names)))
    values = store.rows(_VALUES, (namespace,)) if has_tables(store) else []
    if values:  # without any, the digest is that of a library without the tables
        yield "values", iter(values)


def _rename(store: Store, query: str, namespace: int, name: Callable[[Any], Any]) -> Iterator[Any]:
    return map(name, store.rows(query, (namespace,)))


def _name_reasons(row: tuple[Any, ...], keys: dict[int, str], names: NamesById) -> tuple[Any, ...]:
    """Return the keys of a step as texts, and its reasons with the names of the steps that they refer to."""
    *_, numbers, why = row
    texts = [keys.get(number) for number in json.loads(numbers)]
    if '"like"' not in why:
        return texts, why
    reasons = json.loads(why)
    reasons["like"] = [names.get(ref, ref) if isinstance(ref, int) else ref for ref in reasons["like"]]
    return texts, dumps(reasons)


def _name_evidence(text: str, names: NamesById) -> str:
    """Return the JSON of an item or a change with the names of the steps that it refers to."""
    if '"provenance"' not in text:
        return text
    values = json.loads(text)
    values["provenance"] = [names.get(ref, ref) for ref in values["provenance"]]
    return dumps(values)
