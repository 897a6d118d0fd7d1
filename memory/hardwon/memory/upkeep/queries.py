"""Looking at a library: listing, histories, figures. What is derived is believed here; `upkeep.integrity` checks it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.memory.items import item_of
from hardwon.memory.records import KINDS, Item, Kind, Trajectory
from hardwon.memory.retrieval.embedders import Embedder
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import plain, read_steps
from hardwon.memory.storage.migrations import SCHEMA_VERSION

_SORTS = {
    "score": "score DESC",
    "confidence": "json_extract(record, '$.confidence') DESC",
    "new": "number DESC",
    "old": "number",
    "used": "uses DESC",
}
_FILED = {"signature": "signatures", "location": "locations", "tag": "tags"}
"""Of item_places: the name of an index, and the field of an item that it files."""


def items(
    store: Store,
    namespace: int,
    kinds: Sequence[Kind] | None = None,
    status: str | None = "active",
    sort: str = "score",
    limit: int | None = None,
    offset: int = 0,
    *,
    text: str | None = None,
    trust: str | None = None,
    source: str | None = None,
    writer: str | None = None,
    **filed: str | None,
) -> list[Item]:
    """Items of a namespace, filtered and sorted; ties by age.

    `signature`, `location` and `tag` ask the index of that name, which files active items alone; of
    items of another status their own fields are asked. `text` finds items that have all its words.
    """
    if sort not in _SORTS:
        raise UnknownName.of("order", sort, _SORTS)
    for kind in kinds or ():
        if kind not in KINDS:
            raise UnknownName.of("kind of item", kind, KINDS)
    if offset < 0 or (limit is not None and limit < 0):
        raise ConfigError(f"limit {limit} and offset {offset} must not be negative.")
    # the plus leaves the choice of items to the index that is asked for
    plus = "+" if status == "active" and any(value is not None for value in filed.values()) else ""
    where = [f"{plus}namespace = ?"]
    parameters: list[int | str] = [namespace]
    if status is not None:
        where.append(f"{plus}status = ?")
        parameters.append(status)
    if kinds is not None:
        where.append(f"{plus}kind IN ({','.join('?' * len(kinds))})")
        parameters.extend(kinds)
    for by, value in filed.items():
        if value is not None:
            where.append(_filed_under(by, status))
            parameters.extend([namespace, by, plain(value)] if status == "active" else [plain(value)])
    for name, wanted, otherwise in (("trust", trust, "trusted"), ("source", source, "person"), ("writer", writer, "")):
        if wanted is not None:
            where.append(f"coalesce(json_extract(record, '$.{name}'), '{otherwise}') = ?")
            parameters.append(plain(wanted))
    for word in plain(text or "").lower().split():
        where.append(f"instr(lower({_SAID}), ?)")
        parameters.append(word)
    rows = store.rows(
        f"SELECT record FROM items WHERE {' AND '.join(where)} ORDER BY {_SORTS[sort]}, number LIMIT ? OFFSET ?",
        (*parameters, -1 if limit is None else limit, offset),
    )
    return [item_of(row[0]) for row in rows]


_SAID = " || char(10) || ".join(
    f"coalesce(json_extract(record, '$.{name}'), '')" for name in ("title", "body", "when_to_use", "when_not_to_use")
)


def _filed_under(by: str, status: str | None) -> str:
    if by not in _FILED:
        raise UnknownName.of("filter", by, [*_FILED, "text", "trust", "source", "writer"])
    if status == "active":
        return "number IN (SELECT number FROM item_places WHERE namespace = ? AND by = ? AND value = ?)"
    return f"EXISTS (SELECT 1 FROM json_each(record, '$.{_FILED[by]}') WHERE value = ?)"


def get(store: Store, namespace: int, item_id: str) -> Item:
    """An item by id or by an unambiguous beginning of it."""
    return item_of(_one(store, namespace, "items", "item", item_id, "record"))


def _one(store: Store, namespace: int, table: str, what: str, ref: str, column: str) -> str:
    exact = store.rows(f"SELECT {column} FROM {table} WHERE namespace = ? AND id = ?", (namespace, ref))
    found = exact or store.rows(
        f"SELECT {column} FROM {table} WHERE namespace = ? AND substr(id, 1, ?) = ? LIMIT 2", (namespace, len(ref), ref)
    )
    if len(found) == 1 and ref:
        return str(found[0][0])
    if found and ref:
        raise UnknownName(f"{what} {ref!r} is the beginning of more than one id. Give more of it.")
    known = store.rows(f"SELECT id FROM {table} WHERE namespace = ? ORDER BY rowid DESC LIMIT 20", (namespace,))
    raise UnknownName.of(what, ref, [row[0] for row in known])


def history(store: Store, namespace: int, item_id: str) -> list[dict[str, Any]]:
    """The change log of an item, oldest first."""
    rows = store.rows(
        "SELECT seq, at, op, detail FROM changes WHERE namespace = ? AND what = 'item' AND ref = ? ORDER BY seq",
        (namespace, item_id),
    )
    return [{"seq": seq, "at": at, "op": op, "detail": json.loads(detail)} for seq, at, op, detail in rows]


def usages(store: Store, namespace: int, item_id: str) -> list[dict[str, Any]]:
    """The usage rows of an item, oldest first."""
    names = ("trajectory_id", "t", "mode", "arm", "outcome", "control_outcome")
    where = "namespace = ? AND item_id = ?"
    rows = store.rows(f"SELECT {', '.join(names)} FROM usages WHERE {where} ORDER BY id", (namespace, item_id))
    return [dict(zip(names, row, strict=True)) for row in rows]


def trajectories(store: Store, namespace: int, limit: int | None, offset: int) -> list[dict[str, Any]]:
    """Rows about episodes, newest first."""
    names = (
        "id",
        "recorded_at",
        "task",
        "success",
        "score",
        "total_reward",
        "arm",
        "seed",
        "ending",
        "n_steps",
        "writer",
        "trust",
        "meta",
    )
    rows = store.rows(
        f"SELECT {', '.join(names)} FROM trajectories WHERE namespace = ? ORDER BY rowid DESC LIMIT ? OFFSET ?",
        (namespace, -1 if limit is None else limit, offset),
    )
    return [{**dict(zip(names, row, strict=True)), "meta": json.loads(row[-1])} for row in rows]


def trajectory_id(store: Store, namespace: int, ref: str) -> str:
    """The id of an episode by an unambiguous beginning of it."""
    return _one(store, namespace, "trajectories", "episode", ref, "id")


def trajectory(store: Store, namespace: int, ref: str) -> Trajectory:
    """One episode with its steps, as it was recorded."""
    ref = trajectory_id(store, namespace, ref)
    ((task, success, score, arm, seed, ending, meta, writer, trust),) = store.rows(
        "SELECT task, success, score, arm, seed, ending, meta, writer, trust FROM trajectories "
        "WHERE namespace = ? AND id = ?",
        (namespace, ref),
    )
    steps = tuple(read_steps(store, "namespace = ? AND trajectory_id = ? ORDER BY t", (namespace, ref)))
    won = None if success is None else bool(success)
    return Trajectory(task, steps, won, score, arm, seed, ending, json.loads(meta), ref, writer, trust)


def stats(store: Store, namespace: int, name: str, embedder: Embedder) -> dict[str, Any]:
    """Counts, sizes and ages of one namespace."""
    ((episodes, successes, excluded, first, last),) = store.rows(
        "SELECT count(*), sum(success), sum(success IS NULL), min(recorded_at), max(recorded_at) "
        "FROM trajectories WHERE namespace = ?",
        (namespace,),
    )
    ((steps,),) = store.rows("SELECT count(*) FROM steps WHERE namespace = ?", (namespace,))
    ((states, clusters),) = store.rows(
        "SELECT count(*), count(DISTINCT signature) FROM states WHERE namespace = ?", (namespace,)
    )
    kinds = store.rows(
        "SELECT kind, count(*) FROM items WHERE namespace = ? AND status = 'active' GROUP BY kind ORDER BY kind",
        (namespace,),
    )
    failures = store.rows(
        "SELECT failure, count(*) FROM steps WHERE namespace = ? AND failure != 'none' "
        "GROUP BY failure ORDER BY 2 DESC, 1",
        (namespace,),
    )
    return {
        "path": store.path,
        "namespace": name,
        "namespaces": [row[0] for row in store.rows("SELECT name FROM namespaces ORDER BY name")],
        "schema": SCHEMA_VERSION,
        "embedder": embedder.name,
        "episodes": episodes,
        "successes": successes or 0,
        "excluded": excluded or 0,
        "steps": steps,
        "states": states,
        "clusters": clusters,
        "items": dict(kinds),
        "failures": dict(failures),
        "first": first,
        "last": last,
        "size_bytes": _size(store.path),
    }


def _size(path: str) -> int:
    return sum(Path(path + suffix).stat().st_size for suffix in ("", "-wal") if Path(path + suffix).exists())
