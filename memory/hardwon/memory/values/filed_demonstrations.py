"""The indexes of demonstrations of a namespace, one for each environment, updated from new episodes.

A success in one environment says nothing about another one, however alike their tasks are worded. Episodes belong to
the environment that their label names. Those without a label, such as imports, belong to each environment that they are
kin to by their actions.
"""

import json
from collections.abc import Iterable
from typing import Any

from hardwon.memory.situations.actions import parse_action
from hardwon.memory.storage.counted import OUTCOME
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import read_steps
from hardwon.memory.storage.worlds import World, Worlds, are_kin

from .demonstration_index import DemonstrationIndex

_NEW = (
    f"SELECT one.rowid, one.id, task, {OUTCOME}, seed, meta FROM trajectories AS one JOIN episode_worlds AS placed "
    "ON placed.namespace = one.namespace AND trajectory_id = one.id "
    # The unary plus makes SQLite scan the few new rows by rowid instead of the index of the namespace.
    "WHERE +one.namespace = ? AND one.rowid > ? AND success IS NOT NULL AND trust = 'trusted' {among}"
    "ORDER BY one.rowid DESC LIMIT ?"
)


class FiledDemonstrations:
    """The indexes of demonstrations of a namespace."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store = store
        self._namespace = namespace
        self._filed: dict[str | None, _Filed] = {}
        self.unread = True
        """Whether there may be episodes that have not been counted."""

    def read(self, worlds: Worlds, environment: str | None, actions: Iterable[str]) -> DemonstrationIndex:
        """Return the index of demonstrations of an environment with all new episodes."""
        if self.unread:
            self.unread = False
            for index in self._filed.values():
                index.unread = True
        filed = self._filed.get(environment)
        if filed is None:
            filed = self._filed[environment] = _Filed()
        if filed.unread:
            self._update(filed, worlds, environment, actions)
        return filed.index

    def _update(self, filed: "_Filed", worlds: Worlds, environment: str | None, actions: Iterable[str]) -> None:
        among, ids = "", frozenset[int]()
        if environment is not None:
            ids = _list_worlds(worlds, environment, actions)
            among = f"AND world IN ({','.join(map(str, sorted(ids)))}) "
        if (ids - filed.ids) & filed.all_ids or filed.ids - ids:  # episodes that were passed over belong to it now
            filed.clear()
        filed.ids, filed.all_ids = ids, frozenset(world.id for world in worlds.standing) | worlds.aliases.keys()
        filed.unread = False
        rows = self._store.rows(_NEW.format(among=among), (self._namespace, filed.last, 500))
        for rowid, episode, task, outcome, seed, meta in reversed(rows):
            steps = read_steps(
                self._store,
                "namespace = ? AND trajectory_id = ? AND witness = 0 ORDER BY t",
                (self._namespace, episode),
            )
            trial, split = _read_meta(meta)
            filed.index.add(episode, task, steps, outcome=outcome, trial=trial, seed=seed, split=split)
            filed.last = rowid


class _Filed:
    """One index of demonstrations, and what it was counted from."""

    def __init__(self) -> None:
        self.all_ids: frozenset[int] = frozenset()
        """All worlds of the namespace when it was read."""
        self.clear()

    def clear(self) -> None:
        """Start again without episodes."""
        self.index = DemonstrationIndex()
        self.ids: frozenset[int] = frozenset()
        """The worlds that belong to it."""
        self.last = 0
        """Row of the last episode that was counted."""
        self.unread = True


def _list_worlds(worlds: Worlds, environment: str, actions: Iterable[str]) -> frozenset[int]:
    """Return the ids of the worlds of an environment, merged ones included."""
    homes = [world for world in worlds.standing if world.environment == environment]
    forms = frozenset(parse_action(action).template for action in actions)
    accepted = {
        world.id
        for world in worlds.standing
        if world.environment == environment or (not world.environment and _is_at_home(world, homes, forms))
    }
    return frozenset({*accepted, *(old for old, into in worlds.aliases.items() if into in accepted)})


def _is_at_home(world: World, homes: list[World], forms: frozenset[str]) -> bool:
    """Return whether a world without a label belongs to an environment, by its actions."""
    if homes:
        return any(are_kin(world, home) for home in homes)
    return bool(forms) and world.knows(forms) == 1.0


def _read_meta(meta: str) -> tuple[Any, str]:
    """Return whether demonstrations were followed or withheld in an episode, and its split, from its metadata."""
    try:
        read = json.loads(meta)
        return read.get("demonstrations"), str(read.get("split") or "")
    except (ValueError, AttributeError):
        return None, ""
