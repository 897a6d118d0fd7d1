"""Looking at a library: listing, histories, figures, and checking what is derived against the truth."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .catalogue import item_of
from .embed import Embedder
from .errors import ConfigError, LibraryError, NotALibrary, UnknownName
from .ledger import episode_words, read_steps, state_text
from .migrations import SCHEMA_VERSION
from .records import KINDS, Item, Kind, Problem, State, Trajectory
from .store import Store

_SORTS = {
    "score": "score DESC",
    "confidence": "json_extract(record, '$.confidence') DESC",
    "new": "number DESC",
    "old": "number",
}
_REPAIR = "tacit memory repair"


def items(
    store: Store,
    namespace: int,
    kinds: Sequence[Kind] | None,
    status: str | None,
    sort: str,
    limit: int | None,
    offset: int,
) -> list[Item]:
    """Items of a namespace, filtered and sorted; ties by age."""
    if sort not in _SORTS:
        raise UnknownName.of("order", sort, _SORTS)
    for kind in kinds or ():
        if kind not in KINDS:
            raise UnknownName.of("kind of item", kind, KINDS)
    if offset < 0 or (limit is not None and limit < 0):
        raise ConfigError(f"limit {limit} and offset {offset} must not be negative.")
    where = "namespace = ?"
    parameters: list[int | str] = [namespace]
    if status is not None:
        where += " AND status = ?"
        parameters.append(status)
    if kinds is not None:
        where += f" AND kind IN ({','.join('?' * len(kinds))})"
        parameters.extend(kinds)
    rows = store.rows(
        f"SELECT record FROM items WHERE {where} ORDER BY {_SORTS[sort]}, number LIMIT ? OFFSET ?",
        (*parameters, -1 if limit is None else limit, offset),
    )
    return [item_of(row[0]) for row in rows]


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
        "meta",
    )
    rows = store.rows(
        f"SELECT {', '.join(names)} FROM trajectories WHERE namespace = ? ORDER BY rowid DESC LIMIT ? OFFSET ?",
        (namespace, -1 if limit is None else limit, offset),
    )
    return [{**dict(zip(names, row, strict=True)), "meta": json.loads(row[-1])} for row in rows]


def trajectory(store: Store, namespace: int, ref: str) -> Trajectory:
    """One episode with its steps, as it was recorded."""
    ref = _one(store, namespace, "trajectories", "episode", ref, "id")
    ((task, success, score, arm, seed, ending, meta),) = store.rows(
        "SELECT task, success, score, arm, seed, ending, meta FROM trajectories WHERE namespace = ? AND id = ?",
        (namespace, ref),
    )
    steps = tuple(read_steps(store, "namespace = ? AND trajectory_id = ? ORDER BY t", (namespace, ref)))
    won = None if success is None else bool(success)
    return Trajectory(task, steps, won, score, arm, seed, ending, json.loads(meta), ref)


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


def verify(store: Store, namespace: int) -> list[Problem]:
    """The file itself, both text indices, the vectors and the word counts, against the truth."""
    try:
        said = [str(row[0]) for row in store.rows("PRAGMA integrity_check")]
    except LibraryError as error:
        said = [str(error)]
    damage = [words for words in said if words != "ok" and "FTS5" not in words]  # newer SQLites look into FTS5 too
    if damage:
        return [Problem("file", words, "Restore a copy; what can be read: tacit memory export") for words in damage]
    with store.snapshot():
        return _differences(store, namespace)


def _differences(store: Store, namespace: int) -> list[Problem]:
    problems = []
    truth = {
        "states": "SELECT id FROM states WHERE namespace = ?",
        "items": "SELECT number FROM items WHERE namespace = ? AND status = 'active'",
    }
    for kind, query in truth.items():
        wanted = {row[0] for row in store.rows(query, (namespace,))}
        held = {row[0] for row in store.rows(f"SELECT id FROM {kind}_text_{namespace}_docsize")}
        if wanted != held:
            problems.append(
                Problem(f"{kind} text index", f"{len(wanted - held)} missing, {len(held - wanted)} too many", _REPAIR)
            )
        vectors = {
            row[0] for row in store.rows("SELECT ref FROM vectors WHERE namespace = ? AND kind = ?", (namespace, kind))
        }
        if vectors - wanted:
            problems.append(Problem(f"{kind} vectors", f"{len(vectors - wanted)} of nothing that exists", _REPAIR))
    if _true_words(store, namespace) != dict(
        store.rows("SELECT word, episodes FROM words WHERE namespace = ?", (namespace,))
    ):
        problems.append(Problem("words", "counts differ from the episodes", _REPAIR))
    return problems


def _true_words(store: Store, namespace: int) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for (ref,) in store.rows("SELECT id FROM trajectories WHERE namespace = ? AND success IS NOT NULL", (namespace,)):
        counts.update(episode_words(trajectory(store, namespace, ref)))
    return dict(counts)


def repair(store: Store, namespace: int) -> list[Problem]:
    """Rebuild from the truth what is wrong; returns what was.

    Raises: NotALibrary when the file itself is damaged, for then the truth is not to be trusted.
    """
    with store.transaction() as connection:
        problems = verify(store, namespace)
        if any(problem.where == "file" for problem in problems):
            raise NotALibrary(f"{store.path} is damaged ({problems[0].what}). {problems[0].remedy}.")
        if not problems:
            return []
        words = _true_words(store, namespace)
        connection.execute(f"INSERT INTO states_text_{namespace}(states_text_{namespace}) VALUES ('delete-all')")
        for row in store.rows("SELECT id, observation, task, feedback FROM states WHERE namespace = ?", (namespace,)):
            text = state_text(State(row[1], task=row[2], feedback=row[3], signature="-"))
            connection.execute(f"INSERT INTO states_text_{namespace}(rowid, text) VALUES (?, ?)", (row[0], text))
        connection.execute(f"DELETE FROM items_text_{namespace}")
        for number, record in store.rows(
            "SELECT number, record FROM items WHERE namespace = ? AND status = 'active'", (namespace,)
        ):
            connection.execute(
                f"INSERT INTO items_text_{namespace}(rowid, text) VALUES (?, ?)", (number, item_of(record).text)
            )
        connection.execute("DELETE FROM vectors WHERE namespace = ?", (namespace,))
        connection.execute("DELETE FROM words WHERE namespace = ?", (namespace,))
        connection.executemany(
            "INSERT INTO words VALUES (?, ?, ?)", [(namespace, w, n) for w, n in sorted(words.items())]
        )
    return problems
