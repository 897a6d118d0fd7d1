"""Query the file of a library as a whole: its namespaces, the sizes of its tables, and its index files."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hardwon.memory.errors import UnknownName
from hardwon.memory.learning.rule_mining import strategy_id
from hardwon.memory.storage.database import Store


def list_namespaces(path: Path, *, read_only: bool = True) -> list[str]:
    """Return the names of the namespaces of a library, sorted.

    Args:
        path: The library file.
        read_only: Open the file read-only, which requires that it exists with the current schema.
    """
    store = Store(path, read_only=read_only)
    try:
        return [row[0] for row in store.rows("SELECT name FROM namespaces ORDER BY name")]
    finally:
        store.close()


def count_episodes(path: Path) -> dict[str, int]:
    """Return the number of episodes of every namespace that has any, largest first."""
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


def count_tiers(path: Path, namespace: str) -> dict[str, Any]:
    """Count the steps, attempts, segments, vectors and items of a namespace, and the bytes of the index files.

    Args:
        path: The library file.
        namespace: The namespace to count.

    Returns:
        `live` and `folded` steps, `attempts`, `segments`, `vectors` by kind, `items_by_status` and kind, `index_bytes`.

    Raises:
        UnknownName: The namespace does not exist.
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
        "index_bytes": sum(list_index_files(path).values()),
    }


def find_deciding_episodes(path: Path, namespace: str, strategies: Mapping[str, Sequence[int]]) -> dict[str, set[str]]:
    """Return, by strategy id, the episodes in which a strategy took part in an estimate that chose an action.

    An estimate is a mean over all keys of an action, so every strategy of these keys took part in the choice.

    Args:
        path: The library file.
        namespace: The namespace to search.
        strategies: The ids of the steps behind each strategy, by its id.
    """
    store = Store(path, read_only=True)
    try:
        keys = _find_strategy_keys(store, strategies)
        if not keys:
            return {}
        # Matching the stored text takes a fifth of the time of parsing the JSON of every step.
        wanted = re.compile(rf"(?<=[\[,])(?:{'|'.join(map(str, keys))})(?=[,\]])")
        rows = store.rows(
            'SELECT trajectory_id, keys FROM steps WHERE why LIKE \'%"key":"%\' AND why NOT LIKE \'%"key":""%\' '
            "AND namespace = (SELECT id FROM namespaces WHERE name = ?)",
            (namespace,),
        )
    finally:
        store.close()
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


def list_index_files(path: Path) -> dict[str, int]:
    """Return the sizes in bytes of the index files beside a library, by file name."""
    return {file.name: file.stat().st_size for file in sorted(Path(f"{path}.index").glob("*")) if file.is_file()}
