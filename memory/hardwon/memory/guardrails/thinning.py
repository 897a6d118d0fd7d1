"""Thinning: retire guardrails that decide nothing.

This way, the number of guardrails reflects current behavior and not the age of the library.

A guardrail is redundant if another guardrail in force forbids the same calls. It is idle if it refused nothing for many
episodes in which its form of action was used: the call is no longer made, or another guardrail answers first. Both are
retired until they are needed. Their evidence stays, so one more failure of the call restores the guardrail. Pinned
guardrails, and guardrails written by people or models, stay.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from sqlite3 import Connection

from hardwon.memory.records import Item
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.storage.counted import COUNTED_EPISODES, find_counted_writers
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.worlds import Worlds

from .conditions import covers, is_in_force
from .tuning import TUNING

_EPISODES = (
    "SELECT world FROM trajectories AS one LEFT JOIN episode_worlds AS placed "
    "ON placed.namespace = one.namespace AND trajectory_id = id "
    # the unary plus keeps SQLite off the namespace index, which would need a sort by rowid
    # items.fresh counts no excluded episodes either, so it can serve as the offset
    "WHERE +one.namespace = ? AND success IS NOT NULL {counted}ORDER BY one.rowid LIMIT -1 OFFSET ?"
)
_HOMES = (
    "SELECT DISTINCT world FROM steps JOIN episode_worlds AS placed "
    "ON placed.namespace = steps.namespace AND placed.trajectory_id = steps.trajectory_id "
    "WHERE steps.namespace = ? AND steps.id IN (SELECT value FROM json_each(?))"
)
_DECIDED = (
    "SELECT EXISTS (SELECT 1 FROM probation WHERE namespace = ?1 AND item_id = ?2 AND refused + trials > 0) "
    "OR EXISTS (SELECT 1 FROM usages WHERE namespace = ?1 AND item_id = ?2 AND mode IN ('blocked', 'overridden'))"
)


def is_made_by_rules(item: Item) -> bool:
    """Return whether an item is a guardrail that the rules may retire: they created it and nobody pinned it."""
    return item.kind == "guardrail" and item.writer == "rules" and item.source == "experience" and not item.pinned


def find_covering(connection: Connection, namespace: int, item: Item, stored_items: Iterable[Item]) -> Item | None:
    """Return a guardrail in force that makes a rule-made one redundant, or None."""
    if not (is_made_by_rules(item) and is_in_force(item)):
        return None
    # a generator: `_applies_wherever` queries the file, but only for candidates that pass the cheap tests
    candidates = (other for other in stored_items if other.id != item.id and is_in_force(other) and covers(other, item))
    return next((other for other in candidates if _applies_wherever(connection, namespace, other, item)), None)


def find_covered(connection: Connection, namespace: int, item: Item, stored_items: Iterable[Item]) -> list[Item]:
    """Return the rule-made guardrails in force that this guardrail makes redundant."""
    if not is_in_force(item):
        return []
    candidates = (
        other for other in stored_items if other.id != item.id and is_made_by_rules(other) and is_in_force(other)
    )
    return [
        other for other in candidates if covers(item, other) and _applies_wherever(connection, namespace, item, other)
    ]


def _applies_wherever(connection: Connection, namespace: int, wide: Item, narrow: Item) -> bool:
    """Return whether one guardrail is in force in every world in which another one is."""
    if wide.source != "experience" or not wide.provenance:
        return True
    wide_worlds, narrow_worlds = (
        {row[0] for row in connection.execute(_HOMES, (namespace, json.dumps(item.provenance)))}
        for item in (wide, narrow)
    )
    # A guardrail without recorded worlds applies everywhere.
    return not wide_worlds or (bool(narrow_worlds) and narrow_worlds <= wide_worlds)


class IdleWatch:
    """Finds the idle guardrails of one namespace at intervals."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store = store
        self._namespace = namespace
        # the first call looks, even in an empty library
        self._looked_at = -TUNING.search_every

    def idle(
        self,
        items: Iterable[Item],
        episodes: int,
        worlds: Worlds,
        homes_of: Callable[[Item], frozenset[int]],
        loses: Callable[[Item], bool],
    ) -> list[tuple[Item, str]]:
        """Return the guardrails that decided nothing for long, each with the reason to retire it."""
        if episodes - self._looked_at < TUNING.search_every:
            return []
        self._looked_at = episodes
        fresh = dict(
            self._store.rows(
                "SELECT id, fresh FROM items WHERE namespace = ? AND status = 'active' AND kind = 'guardrail' "
                "AND fresh <= ?",
                (self._namespace, episodes - TUNING.idle_after),
            )
        )
        old = [item for item in items if item.id in fresh and is_made_by_rules(item) and is_in_force(item)]
        if not old:
            return []
        first = min(fresh[item.id] for item in old)
        counted = COUNTED_EPISODES[find_counted_writers(self._store.rows, self._namespace)]
        rows = self._store.rows(_EPISODES.format(counted=counted), (self._namespace, first))
        later = [row[0] for row in rows]
        chances = _Chances(worlds, later, first)
        idle = []
        for item in old:
            since = chances.since(fresh[item.id], item.forbids or "", homes_of(item))
            if since >= TUNING.idle_after and (
                since >= TUNING.idle_since_use or not (loses(item) or self._has_decided(item))
            ):
                idle.append((item, f"it decided nothing in {since} episodes in which its form of action was used"))
        return idle

    def _has_decided(self, item: Item) -> bool:
        """Return whether a guardrail ever refused or tried a call."""
        return bool(self._store.rows(_DECIDED, (self._namespace, item.id))[0][0])


class _Chances:
    """Estimates in how many later episodes a form of action was used.

    The estimate multiplies the later episodes of each world by the share of its episodes that used the form.
    """

    def __init__(self, worlds: Worlds, later: Sequence[int | None], first: int) -> None:
        self._worlds = worlds
        self._later = [None if world is None else worlds.standing_for(world) for world in later]
        self._first = first
        self._counted: dict[int, Mapping[int | None, int]] = {}

    def since(self, clock: int, pattern: str, homes: frozenset[int]) -> int:
        """Return the estimated number of episodes after `clock` in these worlds that used the pattern's form."""
        if clock not in self._counted:
            self._counted[clock] = Counter(self._later[max(0, clock - self._first) :])
        form = parse_action(pattern).template
        return int(
            sum(
                count * self._share(world, form)
                for world, count in self._counted[clock].items()
                if world is not None and (not homes or world in homes)
            )
        )

    def _share(self, number: int, form: str) -> float:
        """Return the share of a world's episodes that used a form of action, in [0, 1]."""
        world = self._worlds.get(number)
        return min(1.0, world.forms[form] / world.episodes) if world.episodes else 0.0
