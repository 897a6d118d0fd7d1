"""Read-only queries for people: lists, histories and statistics. They trust derived data, see `upkeep.integrity`."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.memory.items import item_of
from hardwon.memory.privacy.redaction import redact
from hardwon.memory.records import KINDS, Item, Kind, Trajectory
from hardwon.memory.retrieval.embedders import Embedder
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import dumps, plain, read_steps
from hardwon.memory.storage.migrations import SCHEMA_VERSION
from hardwon.memory.validation import check_texts, check_whole

_SORTS = {
    "score": "score DESC",
    "confidence": "json_extract(record, '$.confidence') DESC",
    "new": "number DESC",
    "old": "number",
    "used": "uses DESC",
}
_PLACE_FIELDS = {"signature": "signatures", "location": "locations", "tag": "tags"}
"""Item fields that the table `item_places` indexes, by the name of the index."""


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
    **places: str | None,
) -> list[Item]:
    """Return the items of a namespace, filtered and sorted; equal ranks are sorted by age.

    The arguments are those of `library.items.find`. `places` are `signature`, `location` and `tag`: active items
    are looked up in the index of that name, and items of another status are scanned.
    """
    if sort not in _SORTS:
        raise UnknownName.of("order", sort, _SORTS)
    check_texts("kinds", kinds or ())
    for kind in kinds or ():
        if kind not in KINDS:
            raise UnknownName.of("kind of item", kind, KINDS)
    check_whole("offset", offset)
    if limit is not None:
        check_whole("limit", limit)
    if offset < 0 or (limit is not None and limit < 0):
        raise ConfigError(f"limit {limit} and offset {offset} must not be negative. Use 0 or more, or no limit.")
    # A unary plus keeps SQLite from using the index of that column, so that it starts from item_places.
    plus = "+" if status == "active" and any(value is not None for value in places.values()) else ""
    where = [f"{plus}namespace = ?"]
    parameters: list[int | str] = [namespace]
    if status is not None:
        where.append(f"{plus}status = ?")
        parameters.append(status)
    if kinds is not None:
        where.append(f"{plus}kind IN ({','.join('?' * len(kinds))})")
        parameters.extend(kinds)
    for by, value in places.items():
        if value is not None:
            where.append(_format_place_filter(by, status))
            parameters.extend([namespace, by, plain(value)] if status == "active" else [plain(value)])
    for name, wanted, otherwise in (("trust", trust, "trusted"), ("source", source, "person"), ("writer", writer, "")):
        if wanted is not None:
            # Records of older versions lack these fields; the default is what they meant.
            where.append(f"coalesce(json_extract(record, '$.{name}'), '{otherwise}') = ?")
            parameters.append(plain(wanted))
    for word in [*dict.fromkeys(plain(text or "").lower().split())][:100]:  # SQLite takes a thousand conditions
        where.append(f"instr(lower({_ITEM_TEXT}), ?)")
        parameters.append(word)
    rows = store.rows(
        f"SELECT record FROM items WHERE {' AND '.join(where)} ORDER BY {_SORTS[sort]}, number LIMIT ? OFFSET ?",
        (*parameters, -1 if limit is None else limit, offset),
    )
    return [item_of(row[0]) for row in rows]


_ITEM_TEXT = " || char(10) || ".join(
    f"coalesce(json_extract(record, '$.{name}'), '')" for name in ("title", "body", "when_to_use", "when_not_to_use")
)


def _format_place_filter(by: str, status: str | None) -> str:
    if by not in _PLACE_FIELDS:
        raise UnknownName.of("filter", by, [*_PLACE_FIELDS, "text", "trust", "source", "writer"])
    if status == "active":
        return "number IN (SELECT number FROM item_places WHERE namespace = ? AND by = ? AND value = ?)"
    return f"EXISTS (SELECT 1 FROM json_each(record, '$.{_PLACE_FIELDS[by]}') WHERE value = ?)"


def get(store: Store, namespace: int, item_id: str) -> Item:
    """Return an item by id or by an unambiguous prefix of its id."""
    return item_of(_read_by_prefix(store, namespace, "items", item_id, "record"))


def _read_by_prefix(store: Store, namespace: int, table: str, ref: str, column: str) -> str:
    """Return one column of the row whose id is `ref` or, if unambiguous, starts with it."""
    exact = store.rows(f"SELECT {column} FROM {table} WHERE namespace = ? AND id = ?", (namespace, ref))
    matches = exact or store.rows(
        # Two rows are enough to know that the prefix is ambiguous.
        # Not LIKE, which ignores case and in which % and _ are wildcards.
        f"SELECT {column} FROM {table} WHERE namespace = ? AND substr(id, 1, ?) = ? LIMIT 2",
        (namespace, len(ref), ref),
    )
    if len(matches) == 1 and ref:
        return str(matches[0][0])
    what = "item" if table == "items" else "episode"
    if matches and ref:
        raise UnknownName(f"{what} {ref!r} matches more than one id. Use a longer prefix.")
    candidates = store.rows(f"SELECT id FROM {table} WHERE namespace = ? ORDER BY rowid DESC LIMIT 20", (namespace,))
    raise UnknownName.of(what, ref, [row[0] for row in candidates])


def history(store: Store, namespace: int, item_id: str) -> list[dict[str, Any]]:
    """Return the changes of an item, oldest first."""
    rows = store.rows(
        "SELECT seq, at, op, detail FROM changes WHERE namespace = ? AND what = 'item' AND ref = ? ORDER BY seq",
        (namespace, item_id),
    )
    return [{"seq": seq, "at": at, "op": op, "detail": json.loads(detail)} for seq, at, op, detail in rows]


def usages(store: Store, namespace: int, item_id: str) -> list[dict[str, Any]]:
    """Return the usage rows of an item, oldest first."""
    names = ("trajectory_id", "t", "mode", "arm", "outcome", "control_outcome")
    where = "namespace = ? AND item_id = ?"
    rows = store.rows(f"SELECT {', '.join(names)} FROM usages WHERE {where} ORDER BY id", (namespace, item_id))
    return [dict(zip(names, row, strict=True)) for row in rows]


_EPISODE = "id, recorded_at, task, success, score, total_reward, arm, seed, ending, n_steps, writer, trust, meta"


def trajectories(
    store: Store, namespace: int, limit: int | None, offset: int, ids: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """Return rows about all or some episodes without their steps, newest first."""
    some = "" if ids is None else "AND id IN (SELECT value FROM json_each(?))"
    rows = store.rows(
        f"SELECT {_EPISODE} FROM trajectories WHERE namespace = ? {some} ORDER BY rowid DESC LIMIT ? OFFSET ?",
        (namespace, *([] if ids is None else [json.dumps(list(ids))]), -1 if limit is None else limit, offset),
    )
    return list(map(_build_row, rows))


def _build_row(row: Sequence[Any]) -> dict[str, Any]:
    return {**dict(zip(_EPISODE.split(", "), row, strict=True)), "meta": json.loads(row[-1])}


def trajectory_id(store: Store, namespace: int, ref: str) -> str:
    """Return the full id of an episode for an unambiguous prefix."""
    return _read_by_prefix(store, namespace, "trajectories", ref, "id")


def trajectory(store: Store, namespace: int, ref: str) -> Trajectory:
    """Return an episode with its steps, as it was recorded."""
    ref = trajectory_id(store, namespace, ref)
    ((task, success, score, arm, seed, ending, meta, writer, trust),) = store.rows(
        "SELECT task, success, score, arm, seed, ending, meta, writer, trust FROM trajectories "
        "WHERE namespace = ? AND id = ?",
        (namespace, ref),
    )
    steps = tuple(read_steps(store, "namespace = ? AND trajectory_id = ? ORDER BY t", (namespace, ref)))
    succeeded = None if success is None else bool(success)  # None marks an excluded episode
    return Trajectory(task, steps, succeeded, score, arm, seed, ending, json.loads(meta), ref, writer, trust)


_OF_SPLIT = "(?1 = '' OR coalesce(json_extract(meta, '$.split'), ?1) = ?1)"
"""The condition of episodes of a split, which is the first parameter."""


def select_steps(
    store: Store, namespace: int, ids: Collection[int], *, task: str, seed: int, split: str = ""
) -> frozenset[int]:
    """Return those of some steps that belong to episodes of a task, in the words of its states, a seed and a split.

    Episodes without a split belong to every split.
    """
    rows = store.rows(
        "SELECT step.id FROM steps AS step JOIN trajectories AS one "
        "ON one.namespace = step.namespace AND one.id = step.trajectory_id "
        "WHERE step.id IN (SELECT value FROM json_each(?2)) "
        f"AND step.namespace = ?3 AND one.seed = ?4 AND one.task = ?5 AND {_OF_SPLIT}",
        (split, dumps(sorted(ids)), namespace, seed, plain(redact(task))),
    )
    return frozenset(ref for (ref,) in rows)


def has_episode(store: Store, namespace: int, *, task: str, seed: int, split: str = "") -> bool:
    """Return whether an episode of a task, a seed and a split is recorded; see `select_steps`."""
    return bool(
        store.rows(
            f"SELECT 1 FROM trajectories WHERE namespace = ?2 AND task = ?3 AND seed = ?4 AND {_OF_SPLIT} LIMIT 1",
            (split, namespace, plain(redact(task)), seed),
        )
    )


def stats(store: Store, namespace: int, name: str, embedder: Embedder) -> dict[str, Any]:
    """Return counts, sizes and dates of one namespace."""
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
        "size_bytes": _measure_file(store.path),
    }


def _measure_file(path: str) -> int:
    # Committed data stays in the -wal file until the next checkpoint.
    return sum(Path(path + suffix).stat().st_size for suffix in ("", "-wal") if Path(path + suffix).exists())
