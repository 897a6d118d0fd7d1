"""Clusters: experience of situations with the same signature, looked up by index and never scanned.

Steps and summaries are read by index; the cost depends on how many are requested, not on how many states share the
signature. `candidates` adds the items, and `recall` decides what is shown.
"""

from typing import Any

import numpy as np

from hardwon.memory.errors import ConfigError
from hardwon.memory.records import Summary
from hardwon.memory.storage.counted import COUNTED_STATES, OUTCOME, TRUSTED
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import dumps, plain
from hardwon.memory.storage.rollups import summaries

from .embedders import Vectors
from .ranking import TakenStep, read_taken_steps, steps_of
from .tuning import TUNING

ATTEMPTS, MORE_ATTEMPTS = TUNING.many_kinds, 48
"""Numbers of kinds of action that are read for a situation, the most tried ones: up to MANY_KINDS, and beyond."""
VOTERS, MORE_VOTERS = 64, 256
"""Numbers of steps of a situation that vote, the newest ones, without and with more kinds of action."""


def read_voters(
    store: Store, namespace: int, signature: str, with_before: bool, worlds: frozenset[int] | None = None
) -> list[TakenStep]:
    """Return the steps of a situation that vote: the newest and the best of its most tried kinds of action."""
    if worlds is None:
        rows = store.rows(_VOTERS, (namespace, signature, MORE_ATTEMPTS, ATTEMPTS, VOTERS, MORE_VOTERS))
        return read_taken_steps(store, [row[0] for row in rows], with_before)
    for live in ("AND folded = 0", ""):  # activity in other worlds may have folded all of these steps
        query = _VOTERS_OF_WORLDS.format(where=steps_of(worlds), live=live)
        limits = (TUNING.more_kinds * MORE_ATTEMPTS, TUNING.more_kinds * ATTEMPTS, VOTERS, MORE_VOTERS)
        rows = store.rows(query, (namespace, signature, *limits))
        if rows:
            return read_taken_steps(store, [row[0] for row in rows], with_before)
    return []


_VOTERS = """
WITH tried AS MATERIALIZED (
    SELECT id, best FROM attempts WHERE namespace = ? AND signature = ? ORDER BY n DESC, id LIMIT ?)
SELECT best FROM tried UNION
SELECT id FROM (
    SELECT id FROM steps WHERE attempt IN (SELECT id FROM tried) AND folded = 0 ORDER BY id DESC
    LIMIT iif((SELECT count(*) FROM tried) <= ?, ?, ?))
"""


_VOTERS_OF_WORLDS = """
WITH tried AS MATERIALIZED (
    SELECT id, best FROM attempts WHERE namespace = ? AND signature = ? ORDER BY n DESC, id LIMIT ?)
SELECT id FROM steps WHERE id IN (SELECT best FROM tried) AND {where} UNION
SELECT id FROM (
    SELECT id FROM steps WHERE attempt IN (SELECT id FROM tried) {live} AND {where} ORDER BY id DESC
    LIMIT iif((SELECT count(*) FROM tried) <= ?, ?, ?))
"""


def read_summaries(
    store: Store, namespace: int, signature: str, worlds: frozenset[int] | None = None
) -> tuple[Summary, ...]:
    """Return summaries of the most tried kinds of action in a cluster, at most `summaries`."""
    if worlds is None:
        return summaries(store, namespace, signature, TUNING.summaries)
    most = summaries(store, namespace, signature, TUNING.more_kinds * TUNING.summaries)
    ends = dumps([ref for summary in most for ref in (summary.best, summary.first, summary.last)])
    among = f"SELECT id FROM steps WHERE id IN (SELECT value FROM json_each(?)) AND {steps_of(worlds)}"
    tried = {row[0] for row in store.rows(among, (ends,))}
    kept = (summary for summary in most if not tried.isdisjoint((summary.best, summary.first, summary.last)))
    return tuple(kept)[: TUNING.summaries]


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


def centroid(store: Store, namespace: int, signature: str) -> Vectors | None:
    """Return the normalized mean vector of a cluster's newest states, or None if none has a vector.

    This is for display only; recall does not assign new signatures to the nearest centroid. At 0.85, where SLEA-RL
    merges, an open and a closed drawer in the same room are one cluster (cosine 0.94 hashed, 0.96 by MiniLM), while
    drawer 3 open and drawer 7 closed are not (0.82). The signature distinguishes them, and the text search finds both.
    """
    rows = store.rows(
        "SELECT vector FROM vectors WHERE kind IN ('states', 'testimony') AND ref IN "
        "(SELECT id FROM states WHERE namespace = ? AND signature = ? ORDER BY id DESC LIMIT ?)",
        (namespace, plain(signature), TUNING.centroid_states),
    )
    if not rows:
        return None
    mean: Vectors = np.mean([np.frombuffer(row[0], dtype=np.float32) for row in rows], axis=0)
    # The mean is zero if the texts have no words or their vectors cancel out.
    return mean / max(float(np.linalg.norm(mean)), 1e-12)
