"""What can only be read off the library's file as a whole: its namespaces, and how full its tiers are."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hardwon.memory.errors import UnknownName
from hardwon.memory.learning.rule_mining import strategy_id
from hardwon.memory.storage.database import Store


def namespaces(path: Path, *, read_only: bool = True) -> list[str]:
    """The parts of a library."""
    store = Store(path, read_only=read_only)
    try:
        return [row[0] for row in store.rows("SELECT name FROM namespaces ORDER BY name")]
    finally:
        store.close()


def filled(path: Path) -> dict[str, int]:
    """Return the namespaces with episodes, and how many each has, the fullest first."""
    store = Store(path, read_only=True)
    try:
        return dict(
            store.rows(
                "SELECT name, count(*) FROM trajectories JOIN namespaces ON namespaces.id = namespace "
                "GROUP BY name ORDER BY 2 DESC, 1"
            )
        )
    finally:
        store.close()


def tiers(path: Path, namespace: str) -> dict[str, Any]:
    """How many steps are live and folded, attempts, segments, vectors; items by status and kind; bytes of index files.

    Raises: UnknownName for a namespace that is not there.
    """
    store = Store(path, read_only=True)
    try:
        numbers = {name: number for number, name in store.rows("SELECT id, name FROM namespaces")}
        if namespace not in numbers:
            raise UnknownName.of("namespace", namespace, numbers)
        own = (numbers[namespace],)
        ((attempts, live, tried),) = store.rows(
            "SELECT count(*), coalesce(sum(live), 0), coalesce(sum(n), 0) FROM attempts WHERE namespace = ?", own
        )
        ((segments,),) = store.rows("SELECT count(*) FROM segments WHERE namespace = ?", own)
        vectors = store.rows("SELECT kind, count(*) FROM vectors WHERE namespace = ? GROUP BY kind", own)
        items: dict[str, dict[str, int]] = {}
        for status, kind, count in store.rows(
            "SELECT status, kind, count(*) FROM items WHERE namespace = ? GROUP BY status, kind", own
        ):
            items.setdefault(status, {})[kind] = count
    finally:
        store.close()
    return {
        "live": live,
        "folded": tried - live,
        "attempts": attempts,
        "segments": segments,
        "vectors": dict(vectors),
        "items_by_status": items,
        "index_bytes": sum(index_files(path).values()),
    }


def deciding(path: Path, namespace: str, strategies: Mapping[str, Sequence[int]]) -> dict[str, set[str]]:
    """Return the episodes in which an estimate that a strategy is part of chose an action, by the strategy's id.

    An estimate is a mean over all keys of an action, so every strategy of these keys took part in the choice.

    Args:
        path: The library's file.
        namespace: The part of the library to look at.
        strategies: The ids of steps that each strategy rests on, by its id.
    """
    store = Store(path, read_only=True)
    try:
        keys = _strategy_keys(store, strategies)
        if not keys:
            return {}
        # A regular expression on the stored text takes a fifth of the time of parsing each step's JSON.
        wanted = re.compile(rf"(?<=[\[,])(?:{'|'.join(map(str, keys))})(?=[,\]])")
        rows = store.rows(
            'SELECT trajectory_id, keys FROM steps WHERE why LIKE \'%"key":"%\' AND why NOT LIKE \'%"key":""%\' '
            "AND namespace = (SELECT id FROM namespaces WHERE name = ?)",
            (namespace,),
        )
    finally:
        store.close()
    found: dict[str, set[str]] = {}
    for episode, text in rows:
        for key in wanted.findall(text):
            found.setdefault(keys[int(key)], set()).add(episode)
    return found


def _strategy_keys(store: Store, strategies: Mapping[str, Sequence[int]]) -> dict[int, str]:
    """Return the ids of strategies by the number of the key that each is made of: a key of its first step left."""
    found: dict[int, str] = {}
    for strategy, steps in strategies.items():
        marks = ", ".join("?" * len(steps))
        rows = store.rows(
            "SELECT id, text FROM keys WHERE id IN (SELECT value FROM json_each("
            f"(SELECT keys FROM steps WHERE id IN ({marks}) LIMIT 1)))",
            tuple(steps),
        )
        found |= {number: strategy for number, text in rows if strategy_id(text) == strategy}
    return found


def index_files(path: Path) -> dict[str, int]:
    """The files of saved indices beside a library, by name, and their sizes in bytes."""
    return {file.name: file.stat().st_size for file in sorted(Path(f"{path}.index").glob("*")) if file.is_file()}
