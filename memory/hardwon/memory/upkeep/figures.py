"""Figures of one namespace for people: sizes of its tables, growth, items, changes, clusters, and states for a map."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.memory.learning.rule_mining import strategy_id
from hardwon.memory.storage.counted import OUTCOME
from hardwon.memory.storage.database import Store

# An item counts once per episode, however often it was shown in it.
_SHOWN = """
SELECT mode, count(*), avg(outcome) FROM (
    SELECT mode, trajectory_id, item_id, max(outcome) AS outcome FROM usages
    WHERE namespace = ? AND mode IN ('recalled', 'withheld') AND outcome IS NOT NULL GROUP BY 1, 2, 3)
GROUP BY mode
"""

_MODES = ("recalled", "withheld")
_ARMS = """
SELECT item_id, mode, masked, count(*), avg(outcome) FROM (
    SELECT item_id, mode, outcome, max(mode = 'masked') OVER (PARTITION BY item_id, trajectory_id) AS masked FROM (
        SELECT DISTINCT item_id, mode, trajectory_id, outcome FROM usages
        WHERE namespace = ? AND outcome IS NOT NULL AND mode IN ('recalled', 'withheld', 'masked'){}))
WHERE mode != 'masked' GROUP BY 1, 2, 3
"""
"""Query of the arms of items, with a place for a further condition. An item counts once per episode and mode."""

_REFUSED = """
SELECT item_id, sum(mode = 'blocked'), sum(mode = 'overridden' AND outcome IS NOT NULL),
    sum(mode = 'overridden' AND outcome = 1)
FROM usages WHERE namespace = ? AND mode IN ('blocked', 'overridden') GROUP BY item_id
"""


_STATUSES = """
SELECT at, ref, CASE op WHEN 'retired' THEN 'retired' ELSE json_extract(detail, '$.status') END AS status FROM changes
WHERE namespace = ? AND what = 'item' AND status IS NOT NULL ORDER BY seq
"""


@dataclass(frozen=True, slots=True)
class TierCounts:
    """Sizes of the tables of one namespace."""

    live: int
    """Steps that are recalled individually."""
    folded: int
    """Steps that only summaries still count."""
    attempts: int
    vectors: dict[str, int]
    """Number of vectors by kind."""
    items_by_status: dict[str, dict[str, int]]
    """Number of items by status and kind."""


@dataclass(frozen=True, slots=True)
class ItemFigures:
    """Growth and use of the items of one namespace."""

    in_use: tuple[tuple[str, int], ...]
    """Times at which items were admitted, released or retired, oldest first, with the number in use from then on."""
    by_status: dict[str, dict[str, int]]
    """Number of items by status and kind."""
    shown: dict[str, tuple[int, float]]
    """Episodes and their mean outcome, by `recalled` and `withheld`."""
    blocked: int
    """Number of refused actions."""


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the change log: a recorded episode, or a changed item."""

    seq: int
    """Number of the change, unique in the file."""
    at: str
    """Time in UTC, ISO 8601."""
    what: str
    """`trajectory` or `item`."""
    ref: str
    """Id of the episode or item."""
    op: str


def count_tiers(store: Store, namespace: int) -> TierCounts:
    """Count the steps, attempts, vectors and items of a namespace."""
    own = (namespace,)
    ((attempts, live, tried),) = store.rows(
        "SELECT count(*), coalesce(sum(live), 0), coalesce(sum(n), 0) FROM attempts WHERE namespace = ?", own
    )
    vectors = store.rows("SELECT kind, count(*) FROM vectors WHERE namespace = ? GROUP BY kind", own)
    return TierCounts(live, tried - live, attempts, dict(vectors), _count_items(store, namespace))


def item_figures(store: Store, namespace: int) -> ItemFigures:
    """Return the growth of the items of a namespace, and how often they were shown, withheld or refused an action."""
    own = (namespace,)
    ((blocked,),) = store.rows("SELECT count(*) FROM usages WHERE namespace = ? AND mode = 'blocked'", own)
    arms = {mode: (count, mean) for mode, count, mean in store.rows(_SHOWN, own)}
    return ItemFigures(_count_in_use(store, namespace), _count_items(store, namespace), arms, blocked)


def _count_in_use(store: Store, namespace: int) -> tuple[tuple[str, int], ...]:
    """Return the times at which the number of active items changed, with the number from then on."""
    active, counts = set[str](), list[tuple[str, int]]()
    for at, ref, status in store.rows(_STATUSES, (namespace,)):
        (active.add if status == "active" else active.discard)(ref)
        counts.append((at, len(active)))
    return tuple(counts)


def usefulness(store: Store, namespace: int, item_id: str) -> dict[str, Any]:
    """Estimate how much showing an item changes the outcome: E[R | shown] - E[R | withheld] over episodes.

    Only randomized withholding identifies the effect; co-occurrence does not. Episodes in which the item was masked
    withheld it with another probability, so they are compared among themselves; see `estimate_difference`.
    """
    rows = store.rows(_ARMS.format(" AND item_id = ?"), (namespace, item_id))
    return estimate_difference({(mode, bool(masked)): (n, mean) for _, mode, masked, n, mean in rows})


def estimate_difference(arms: Mapping[tuple[str, bool], tuple[int, float]]) -> dict[str, Any]:
    """Return the difference of the mean outcomes with and without an item, with its 95 % interval; see `usefulness`.

    The differences of the episodes in which the item was in use and of those in which it was masked are averaged,
    weighted by the inverse of their variances.
    """
    counts = {mode: sum(arms.get((mode, masked), (0, 0.0))[0] for masked in (False, True)) for mode in _MODES}
    compared = [
        _compare(*(arms[mode, masked] for mode in _MODES))
        for masked in (False, True)
        if all(arms.get((mode, masked), (0, 0.0))[0] for mode in _MODES)
    ]
    sizes = {"shown": counts["recalled"], "withheld": counts["withheld"]}
    if not compared:
        return {**sizes, "difference": None, "low": None, "high": None}
    weight = sum(1.0 / variance for _, variance in compared)
    difference = sum(each / variance for each, variance in compared) / weight
    margin = 1.96 / math.sqrt(weight)
    return {
        **sizes,
        "difference": difference,
        "low": max(-1.0, difference - margin),
        "high": min(1.0, difference + margin),
    }


def _compare(with_it: tuple[int, float], without_it: tuple[int, float]) -> tuple[float, float]:
    """Return the difference of two mean outcomes and its variance."""
    (n, with_item), (m, without) = with_it, without_it
    # Smoothed, so that the interval never has width 0.
    p, q = (with_item * n + 1) / (n + 2), (without * m + 1) / (m + 2)
    return with_item - without, p * (1 - p) / n + q * (1 - q) / m


def measure_items(store: Store, namespace: int) -> dict[str, dict[str, Any]]:
    """Return by item id the measured effect of every item that was used, and the counts of its refusals.

    The effect is that of `usefulness`; `succeeded` is the mean outcome of the episodes that were shown the
    item. `blocked`, `overridden` and `worked` count refused actions, refusals that were overridden, and those of them
    whose action worked.
    """
    outcomes: dict[str, dict[tuple[str, bool], tuple[int, float]]] = {}
    for ref, mode, masked, count, mean in store.rows(_ARMS.format(""), (namespace,)):
        outcomes.setdefault(ref, {})[mode, bool(masked)] = (count, mean)
    refused = {ref: counts for ref, *counts in store.rows(_REFUSED, (namespace,))}
    measured = {}
    for ref in outcomes.keys() | refused.keys():
        arms = outcomes.get(ref, {})
        with_it = [arms.get(("recalled", masked), (0, 0.0)) for masked in (False, True)]
        n = sum(count for count, _ in with_it)
        counts = refused.get(ref, (0, 0, 0))
        measured[ref] = {
            **estimate_difference(arms),
            "succeeded": sum(count * mean for count, mean in with_it) / n if n else None,
            **dict(zip(("blocked", "overridden", "worked"), counts, strict=True)),
        }
    return measured


def _count_items(store: Store, namespace: int) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for status, kind, count in store.rows(
        "SELECT status, kind, count(*) FROM items WHERE namespace = ? GROUP BY status, kind", (namespace,)
    ):
        counts.setdefault(status, {})[kind] = count
    return counts


def newest_change(store: Store, namespace: int) -> int:
    """Return the number of the newest change of a namespace."""
    # the unary plus keeps SQLite off the index of the namespace, which would need a sort by seq
    rows = store.rows("SELECT seq FROM changes WHERE +namespace = ? ORDER BY seq DESC LIMIT 1", (namespace,))
    return int(rows[0][0]) if rows else 0


def list_changes(store: Store, namespace: int, after: int = 0, limit: int = 500) -> list[Change]:
    """Return the changes of a namespace after the given number, oldest first."""
    rows = store.rows(
        "SELECT seq, at, what, ref, op FROM changes WHERE seq > ? AND namespace = ? ORDER BY seq LIMIT ?",
        (after, namespace, limit),
    )
    return [Change(*row) for row in rows]


def deciding_episodes(store: Store, namespace: int, strategies: Mapping[str, Sequence[int]]) -> dict[str, set[str]]:
    """Return, by strategy id, the episodes in which a strategy took part in an estimate that chose an action.

    An estimate is a mean over all keys of an action, so every strategy of these keys took part in the choice.
    """
    keys = _find_strategy_keys(store, strategies)
    if not keys:
        return {}
    # Matching the stored text takes a fifth of the time of parsing the JSON of every step.
    wanted = re.compile(rf"(?<=[\[,])(?:{'|'.join(map(str, keys))})(?=[,\]])")
    rows = store.rows(
        'SELECT trajectory_id, keys FROM steps WHERE why LIKE \'%"key":"%\' AND why NOT LIKE \'%"key":""%\' '
        "AND namespace = ?",
        (namespace,),
    )
    episodes: dict[str, set[str]] = {}
    for episode, text in rows:
        for key in wanted.findall(text):
            episodes.setdefault(keys[int(key)], set()).add(episode)
    return episodes


def _find_strategy_keys(store: Store, strategies: Mapping[str, Sequence[int]]) -> dict[int, str]:
    """Return the strategy ids by the number of their key, found among the keys of the first step that still exists."""
    strategy_by_key: dict[int, str] = {}
    for strategy, steps in strategies.items():
        marks = ", ".join("?" * len(steps))
        rows = store.rows(
            "SELECT id, text FROM keys WHERE id IN (SELECT value FROM json_each("
            f"(SELECT keys FROM steps WHERE id IN ({marks}) LIMIT 1)))",
            tuple(steps),
        )
        # The id of a strategy is a hash of its key, which tells this key from the others of the step.
        strategy_by_key |= {number: strategy for number, text in rows if strategy_id(text) == strategy}
    return strategy_by_key


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
