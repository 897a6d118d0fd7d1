"""What can only be read off the library's file as a whole: its namespaces and its clusters."""

from pathlib import Path
from typing import Any

from tacit.memory.errors import ConfigError, UnknownName
from tacit.memory.store import Store

_CLUSTERS = """
SELECT signature, count(DISTINCT states.id), count(steps.id), avg(return_to_go), sum(failure != 'none'),
       max(states.id)
FROM states LEFT JOIN steps ON steps.pre = states.id
WHERE states.namespace = ? GROUP BY signature ORDER BY count(steps.id) DESC, signature LIMIT ? OFFSET ?
"""
_BEST = """
SELECT action, count(*), avg(return_to_go) FROM steps
WHERE pre IN (SELECT id FROM states WHERE namespace = ? AND signature = ?)
GROUP BY action ORDER BY 3 DESC, 2 DESC, 1 LIMIT 1
"""


def namespaces(path: Path, *, read_only: bool = True) -> list[str]:
    """The parts of a library."""
    store = Store(path, read_only=read_only)
    try:
        return [row[0] for row in store.rows("SELECT name FROM namespaces ORDER BY name")]
    finally:
        store.close()


def clusters(path: Path, namespace: str, limit: int, offset: int = 0) -> list[dict[str, Any]]:
    """Situations by signature, the most frequent first: how often they were met and what pays there."""
    if limit < 0 or offset < 0:
        raise ConfigError(f"limit {limit} and offset {offset} must not be negative.")
    store = Store(path, read_only=True)
    try:
        numbers = {name: number for number, name in store.rows("SELECT id, name FROM namespaces")}
        if namespace not in numbers:
            raise UnknownName.of("namespace", namespace, numbers)
        rows = store.rows(_CLUSTERS, (numbers[namespace], limit, offset))
        return [_cluster(store, numbers[namespace], row) for row in rows]
    finally:
        store.close()


def _cluster(store: Store, number: int, row: tuple[Any, ...]) -> dict[str, Any]:
    signature, states, steps, mean, failed, newest = row
    ((observation, location),) = store.rows("SELECT observation, location FROM states WHERE id = ?", (newest,))
    best = store.rows(_BEST, (number, signature))
    return {
        "signature": signature,
        "states": states,
        "steps": steps,
        "mean_return": mean,
        "failed": failed or 0,
        "location": location,
        "example": observation,
        "best_action": dict(zip(("action", "steps", "mean_return"), best[0], strict=True)) if best else None,
    }
