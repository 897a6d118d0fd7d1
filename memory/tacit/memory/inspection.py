"""Looking at a library: listing, histories, figures, and checking what is derived against the truth."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from . import derived, search, tiers
from .catalogue import item_of, places_of
from .embed import Embedder
from .errors import ConfigError, LibraryError, NotALibrary, UnknownName
from .ledger import episode_words, plain, read_steps, state_text
from .migrations import SCHEMA_VERSION
from .records import KINDS, Item, Kind, Problem, Segment, State, Trajectory
from .sidecar import Sidecar
from .store import Store

_SORTS = {
    "score": "score DESC",
    "confidence": "json_extract(record, '$.confidence') DESC",
    "new": "number DESC",
    "old": "number",
    "used": "uses DESC",
}
_FILED = {"signature": "signatures", "location": "locations", "tag": "tags"}
"""Of item_places: the name of an index, and the field of an item that it files."""
_REPAIR = "tacit memory repair"


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
    """The file itself, and everything derived from its steps and items, against the truth."""
    try:
        said = [str(row[0]) for row in store.rows("PRAGMA integrity_check")]
    except LibraryError as error:
        said = [str(error)]
    damage = [words for words in said if words != "ok" and "FTS5" not in words]  # newer SQLites look into FTS5 too
    if damage:
        return [Problem("file", words, "Restore a copy; what can be read: tacit memory export") for words in damage]
    with store.snapshot():
        return [Problem(where, what, _REPAIR) for where, what in _differences(store, namespace)]


def _differences(store: Store, namespace: int) -> Iterator[tuple[str, str]]:
    """Every derived structure that differs, and how."""
    for kind, query in _LIVE.items():
        wanted = {row[0] for row in store.rows(query, (namespace,))}
        held = {row[0] for row in store.rows(f"SELECT id FROM {kind}_text_{namespace}_docsize")}
        if wanted != held:
            yield f"{kind} text index", f"{len(wanted - held)} missing, {len(held - wanted)} too many"
        elif kind == "items" and (other := _other_words(store, namespace)):
            yield "items text index", f"{other} with other words than their items"
        vectors = {row[0] for row in store.rows(_VECTORS, (namespace, kind))}
        if vectors - wanted:
            yield f"{kind} vectors", f"{len(vectors - wanted)} of nothing that exists"
        elif wrong := _wrong_vectors(store, namespace, kind, wanted - vectors, max(vectors, default=0)):
            yield f"{kind} vectors", wrong
    ((unfiled, why),) = store.rows("SELECT count(failed), min(failed) FROM inbox WHERE namespace = ?", (namespace,))
    if unfiled:
        yield "inbox", f"{unfiled} not filed: {why}"
    words, cuts = _read_again(store, namespace)
    if words != dict(store.rows("SELECT word, episodes FROM words WHERE namespace = ?", (namespace,))):
        yield "words", "counts differ from the episodes"
    wrong = _apart(_told(cuts), store.rows(f"SELECT {_SEGMENT} FROM segments WHERE namespace = ?", (namespace,)))
    if wrong:
        yield "segments", wrong
    attempts = tiers.differences(store, namespace)
    if attempts:
        yield "attempts", ", ".join(attempts)
    wrong = _apart(_true_places(store, namespace), store.rows(_PLACES, (namespace,)))
    if wrong:
        yield "item places", wrong
    if wrong := derived.saved_problem(store, namespace):
        yield "saved values", wrong
    for kind in search.KINDS:
        if wrong := search.saved_problem(store, namespace, kind):
            yield f"saved index of {kind}", wrong


_LIVE = {
    "states": "SELECT id FROM states WHERE namespace = ?",
    "items": "SELECT number FROM items WHERE namespace = ? AND status = 'active'",
}
_VECTORS = "SELECT ref FROM vectors WHERE namespace = ? AND kind = ?"
_SEGMENT = "trajectory_id, first_t, last_t, gain, location, text"
_PLACES = "SELECT by, value, number FROM item_places WHERE namespace = ?"


def _apart(wanted: Iterable[tuple[Any, ...]], held: Iterable[tuple[Any, ...]]) -> str:
    """How two sets of rows differ; nothing when they do not."""
    truth, kept = set(wanted), set(held)
    return f"{len(truth - kept)} missing, {len(kept - truth)} too many" if truth != kept else ""


def _wrong_vectors(store: Store, namespace: int, kind: str, without: set[int], newest: int) -> str:
    """Vectors of another length than most, and states passed over: those not yet embedded are newer than the rest."""
    lengths = "SELECT length(vector), count(*) FROM vectors WHERE namespace = ? AND kind = ? GROUP BY 1 ORDER BY 2 DESC"
    torn = sum(count for _, count in store.rows(lengths, (namespace, kind))[1:])
    missing = sum(ref <= newest for ref in without) if kind == "states" else 0
    return f"{missing} missing, {torn} torn" if missing or torn else ""


def _other_words(store: Store, namespace: int) -> int:
    """How many active items are indexed by a text that is not theirs."""
    rows = store.rows(
        f"SELECT record, text FROM items JOIN items_text_{namespace} AS told ON told.rowid = number "
        "WHERE namespace = ? AND status = 'active'",
        (namespace,),
    )
    return sum(plain(item_of(record).text) != text for record, text in rows)


def _read_again(store: Store, namespace: int) -> tuple[dict[str, int], list[Segment]]:
    """What is made of whole episodes, by reading them all: the counts of words, and the segments."""
    counts: Counter[str] = Counter()
    cuts: list[Segment] = []
    for (ref,) in store.rows("SELECT id FROM trajectories WHERE namespace = ? ORDER BY rowid", (namespace,)):
        episode = trajectory(store, namespace, ref)
        cuts.extend(replace(cut, steps=()) for cut in tiers.segments_of(episode.id, episode.steps))
        if episode.success is not None:
            counts.update(episode_words(episode))
    return dict(counts), cuts


def _told(cuts: Iterable[Segment]) -> Iterator[tuple[Any, ...]]:
    return ((cut.trajectory_id, cut.first_t, cut.last_t, cut.gain, cut.location, cut.text) for cut in cuts)


def _true_places(store: Store, namespace: int) -> set[tuple[str, str, int]]:
    rows = store.rows(
        "SELECT number, record FROM items WHERE namespace = ? AND status = 'active'",
        (namespace,),
    )
    return {(by, plain(value), number) for number, record in rows for by, value in places_of(item_of(record))}


def repair(store: Store, namespace: int) -> list[Problem]:
    """Rebuild from the truth what is wrong, and nothing else; returns what was.

    Raises: NotALibrary when the file itself is damaged, for then the truth is not to be trusted.
    """
    with store.transaction() as connection:
        problems = verify(store, namespace)
        if any(problem.where == "file" for problem in problems):
            raise NotALibrary(f"{store.path} is damaged ({problems[0].what}). {problems[0].remedy}.")
        for where in dict.fromkeys(problem.where for problem in problems):
            _REBUILDERS[where](connection, store, namespace)
    return problems


def embed_all(store: Store, embedder: Embedder, on_embedded: Callable[[int, int], None]) -> None:
    """Embed what has no vector, in every namespace, each few hundred texts durable before the next.

    `on_embedded` is told how many of how many are embedded.
    """
    namespaces = [row[0] for row in store.rows("SELECT id FROM namespaces ORDER BY id")]
    parts: list[tuple[int, search.Kind]] = [(namespace, kind) for namespace in namespaces for kind in search.KINDS]
    total = sum(len(store.rows(_LIVE[kind], (namespace,))) for namespace, kind in parts)
    ((done,),) = store.rows("SELECT count(*) FROM vectors")

    def tell(kind: str, count: int) -> None:
        nonlocal done
        done += count
        on_embedded(done, total)

    for namespace, kind in parts:
        index = search.Search(store, namespace, embedder)
        index.on_embedded = tell
        index.index(kind)


def rebuild_tiers(store: Store) -> None:
    """Make the tiers, the places and the use of items for an older library, which has none, in all its namespaces."""
    if store.read_only or not store.rows("SELECT 1 FROM meta WHERE name = 'rebuild'"):
        return
    with store.transaction() as connection:
        marked = connection.execute("DELETE FROM meta WHERE name = 'rebuild' RETURNING value").fetchall()
        namespaces = [row[0] for row in store.rows("SELECT id FROM namespaces")] if marked else []
        for namespace in namespaces:
            for where in ("attempts", "segments", "item places"):
                _REBUILDERS[where](connection, store, namespace)
        if marked:
            connection.execute(_AGE)


_AGE = """
UPDATE items SET
    uses = (SELECT count(DISTINCT trajectory_id) FROM usages
            WHERE usages.namespace = items.namespace AND item_id = items.id AND mode = 'recalled'),
    fresh = (SELECT count(*) FROM trajectories WHERE trajectories.namespace = items.namespace AND success IS NOT NULL)
"""


def _try_again(connection: Connection, store: Store, namespace: int) -> None:
    """The next read files what waits."""
    connection.execute("UPDATE inbox SET failed = NULL WHERE namespace = ?", (namespace,))


def _rebuild_states_text(connection: Connection, store: Store, namespace: int) -> None:
    connection.execute(f"INSERT INTO states_text_{namespace}(states_text_{namespace}) VALUES ('delete-all')")
    for row in store.rows("SELECT id, observation, feedback FROM states WHERE namespace = ?", (namespace,)):
        text = state_text(State(row[1], feedback=row[2], signature="-"))
        connection.execute(f"INSERT INTO states_text_{namespace}(rowid, text) VALUES (?, ?)", (row[0], text))


def _rebuild_items_text(connection: Connection, store: Store, namespace: int) -> None:
    """Their vectors go as well: one that was made meanwhile is of another text."""
    connection.execute(f"DELETE FROM items_text_{namespace}")
    rows = store.rows("SELECT number, record FROM items WHERE namespace = ? AND status = 'active'", (namespace,))
    connection.executemany(
        f"INSERT INTO items_text_{namespace}(rowid, text) VALUES (?, ?)",
        [(number, plain(item_of(record).text)) for number, record in rows],
    )
    connection.execute("DELETE FROM vectors WHERE namespace = ? AND kind = 'items'", (namespace,))


def _drop_file(name: str) -> "Rebuilder":
    """It is written anew when it is next worth it."""

    def drop(connection: Connection, store: Store, namespace: int) -> None:
        Sidecar(store, namespace).drop(name)

    return drop


def _drop_vectors(kind: str) -> "Rebuilder":
    def drop(connection: Connection, store: Store, namespace: int) -> None:
        connection.execute(
            f"DELETE FROM vectors WHERE namespace = ? AND kind = ? AND (ref NOT IN ({_LIVE[kind]}) "
            "OR length(vector) != (SELECT length(vector) FROM vectors AS others WHERE others.namespace = ? "
            "AND others.kind = ? GROUP BY 1 ORDER BY count(*) DESC LIMIT 1))",
            (namespace, kind, namespace, namespace, kind),
        )

    return drop


def _rebuild_words(connection: Connection, store: Store, namespace: int) -> None:
    words, _ = _read_again(store, namespace)
    connection.execute("DELETE FROM words WHERE namespace = ?", (namespace,))
    connection.executemany("INSERT INTO words VALUES (?, ?, ?)", [(namespace, w, n) for w, n in sorted(words.items())])


def _rebuild_segments(connection: Connection, store: Store, namespace: int) -> None:
    _, cuts = _read_again(store, namespace)
    connection.execute("DELETE FROM segments WHERE namespace = ?", (namespace,))
    tiers.write_segments(connection, namespace, cuts)


def _rebuild_places(connection: Connection, store: Store, namespace: int) -> None:
    places = sorted(_true_places(store, namespace))
    connection.execute("DELETE FROM item_places WHERE namespace = ?", (namespace,))
    connection.executemany("INSERT INTO item_places VALUES (?, ?, ?, ?)", [(namespace, *place) for place in places])


Rebuilder = Callable[[Connection, Store, int], None]
_REBUILDERS: dict[str, Rebuilder] = {
    "inbox": _try_again,
    "states text index": _rebuild_states_text,
    "items text index": _rebuild_items_text,
    "states vectors": _drop_vectors("states"),
    "items vectors": _drop_vectors("items"),
    "words": _rebuild_words,
    "segments": _rebuild_segments,
    "attempts": tiers.rebuild,
    "item places": _rebuild_places,
    "saved values": _drop_file("values"),
    "saved index of states": _drop_file("states"),
    "saved index of items": _drop_file("items"),
}
