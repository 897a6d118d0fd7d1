"""Clusters: situations with the same signature, as figures for people, and the places that can be reached."""

from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.memory.storage.counted import COUNTED_STATES, OUTCOME, TRUSTED
from hardwon.memory.storage.database import Store

from .tuning import TUNING


def read_reachable(store: Store, namespace: int, location: str, counted: str = TRUSTED) -> tuple[str, ...]:
    """Return the places that recorded steps reached from a place, sorted by name."""
    rows = store.rows(
        "SELECT DISTINCT after.location FROM steps JOIN states AS after ON after.id = post "
        f"WHERE pre IN (SELECT id FROM states WHERE namespace = ? AND location = ? AND location != '' "
        f"{COUNTED_STATES[counted]}ORDER BY id DESC LIMIT ?) AND after.location NOT IN ('', ?) ORDER BY 1",
        (namespace, location, TUNING.place_states, location),
    )
    return tuple(row[0] for row in rows)


def read_clusters(store: Store, namespace: int, limit: int | None = None, offset: int = 0) -> list[dict[str, Any]]:
    """Return clusters, the most frequent first, with their counts, outcomes and best action."""
    if offset < 0 or (limit is not None and limit < 0):
        raise ConfigError(f"limit {limit} and offset {offset} must not be negative.")
    rows = store.rows(_CLUSTERS, (namespace, -1 if limit is None else limit, offset))
    return [_describe_cluster(store, namespace, row) for row in rows]


_CLUSTERS = """
SELECT signature, count(DISTINCT states.id), count(steps.id), avg(return_to_go), sum(failure != 'none'),
       max(iif(states.id IN (SELECT pre FROM steps WHERE witness = 0 UNION SELECT post FROM steps WHERE witness = 0),
               states.id, NULL))
FROM states LEFT JOIN steps ON steps.pre = states.id
WHERE states.namespace = ? GROUP BY signature ORDER BY count(steps.id) DESC, signature LIMIT ? OFFSET ?
"""
_EPISODES = f"""
SELECT count(*), avg({OUTCOME}) FROM trajectories WHERE namespace = ? AND id IN
(SELECT trajectory_id FROM steps WHERE pre IN (SELECT id FROM states WHERE namespace = ? AND signature = ?))
"""
_BEST = """
SELECT action, count(*), avg(return_to_go) FROM steps
WHERE pre IN (SELECT id FROM states WHERE namespace = ? AND signature = ?) AND witness = 0
GROUP BY action ORDER BY 3 DESC, 2 DESC, 1 LIMIT 1
"""


def _describe_cluster(store: Store, namespace: int, row: tuple[Any, ...]) -> dict[str, Any]:
    """Return the figures of one cluster."""
    signature, states, steps, mean, failed, newest = row
    seen = store.rows("SELECT observation, location FROM states WHERE id = ?", (newest,))
    observation, location = seen[0] if seen else ("", "")  # one that only untrusted writers saw has no words
    ((episodes, success),) = store.rows(_EPISODES, (namespace, namespace, signature))
    best = store.rows(_BEST, (namespace, signature))
    return {
        "signature": signature,
        "states": states,
        "steps": steps,
        "episodes": episodes,
        "success": success,
        "mean_return": mean,
        "failed": failed or 0,
        "location": location,
        "example": observation,
        "best_action": dict(zip(("action", "steps", "mean_return"), best[0], strict=True)) if best else None,
    }
