"""Thinning: guardrails that decide nothing leave, so that a library's guardrails follow its habits, not its age.

A guardrail is redundant where another one in force forbids the same calls. It is idle where it refused nothing
for many episodes in which its form of action was used: nobody makes the call any more, or another guardrail
answers first. Both are retired until they are needed: one more failure of the call brings the guardrail back,
since its evidence is there. Pinned guardrails, and those that people or models wrote, stay.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from sqlite3 import Connection

from hardwon.memory.records import Item
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.worlds import Worlds

from .conditions import covers, is_in_force

IDLE_AFTER = 100
"""Episodes with its form of action after which a guardrail that never decided anything is retired."""
IDLE_SINCE = 400
"""The same since the last decision of one that did decide, or whose failures lost the task."""
LOOK_EVERY = 20
"""Episodes between two looks for idle guardrails."""
_EPISODES = (
    "SELECT world FROM trajectories AS one LEFT JOIN episode_worlds AS placed "
    "ON placed.namespace = one.namespace AND trajectory_id = id "
    "WHERE +one.namespace = ? AND success IS NOT NULL ORDER BY one.rowid LIMIT -1 OFFSET ?"
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
    """Return whether an item is a guardrail that the rules may take back."""
    return item.kind == "guardrail" and item.writer == "rules" and item.source == "experience" and not item.pinned


def covering(connection: Connection, namespace: int, item: Item, others: Iterable[Item]) -> Item | None:
    """Return a guardrail in force that forbids all that a rule-made one would, where that is so."""
    if not (is_made_by_rules(item) and is_in_force(item)):
        return None
    found = (one for one in others if one.id != item.id and is_in_force(one) and covers(one, item))
    return next((one for one in found if _speaks_for(connection, namespace, one, item)), None)


def covered(connection: Connection, namespace: int, item: Item, others: Iterable[Item]) -> list[Item]:
    """Return the rule-made guardrails in force that one in force makes redundant."""
    if not is_in_force(item):
        return []
    candidates = (one for one in others if one.id != item.id and is_made_by_rules(one) and is_in_force(one))
    return [one for one in candidates if covers(item, one) and _speaks_for(connection, namespace, item, one)]


def _speaks_for(connection: Connection, namespace: int, wide: Item, narrow: Item) -> bool:
    """Return whether a guardrail is in force in all worlds in which another one is."""
    if wide.source != "experience" or not wide.provenance:
        return True
    known, wanted = (
        {row[0] for row in connection.execute(_HOMES, (namespace, json.dumps(item.provenance)))}
        for item in (wide, narrow)
    )
    return not known or (bool(wanted) and wanted <= known)


class IdleWatch:
    """Finds idle guardrails of one namespace, once in a while."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store = store
        self._namespace = namespace
        self._looked_at = -LOOK_EVERY

    def idle(
        self,
        items: Iterable[Item],
        episodes: int,
        worlds: Worlds,
        homes_of: Callable[[Item], frozenset[int]],
        loses: Callable[[Item], bool],
    ) -> list[tuple[Item, str]]:
        """Return the guardrails that decided nothing for so long, and why they go.

        `homes_of` names the worlds of an item's evidence, none where it is of all; `loses` says whether what it
        forbids lost the task.
        """
        if episodes - self._looked_at < LOOK_EVERY:
            return []
        self._looked_at = episodes
        fresh = dict(
            self._store.rows(
                "SELECT id, fresh FROM items WHERE namespace = ? AND status = 'active' AND kind = 'guardrail' "
                "AND fresh <= ?",
                (self._namespace, episodes - IDLE_AFTER),
            )
        )
        old = [item for item in items if item.id in fresh and is_made_by_rules(item) and is_in_force(item)]
        if not old:
            return []
        first = min(fresh[item.id] for item in old)
        later = [row[0] for row in self._store.rows(_EPISODES, (self._namespace, first))]
        chances = _Chances(worlds, later, first)
        found = []
        for item in old:
            since = chances.since(fresh[item.id], item.forbids or "", homes_of(item))
            if since >= IDLE_AFTER and (since >= IDLE_SINCE or not (loses(item) or self._has_decided(item))):
                found.append((item, f"it decided nothing in {since} episodes in which its form of action was used"))
        return found

    def _has_decided(self, item: Item) -> bool:
        return bool(self._store.rows(_DECIDED, (self._namespace, item.id))[0][0])


class _Chances:
    """In how many later episodes a form of action was used, about: the share of its world's episodes that used it."""

    def __init__(self, worlds: Worlds, later: Sequence[int | None], first: int) -> None:
        self._worlds = worlds
        self._later = [None if one is None else worlds.standing_for(one) for one in later]
        self._first = first
        self._counted: dict[int, Mapping[int | None, int]] = {}

    def since(self, clock: int, pattern: str, homes: frozenset[int]) -> int:
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
        world = self._worlds.get(number)
        return min(1.0, world.forms[form] / world.episodes) if world.episodes else 0.0
