"""Whether a library is sound: what is derived, checked against the steps and items, and made again from them.

The truth itself is never changed here: a file that SQLite finds damaged is told, and left to its owner.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from sqlite3 import Connection
from typing import Any

from hardwon.memory.errors import LibraryDamaged, LibraryError, NotALibrary
from hardwon.memory.items import item_of, places_of
from hardwon.memory.records import Problem, Segment, State
from hardwon.memory.retrieval import search
from hardwon.memory.retrieval.embedders import Embedder
from hardwon.memory.storage import rollups, world_scores, worlds
from hardwon.memory.storage.cache_files import Sidecar
from hardwon.memory.storage.checksums import Damage, find_damaged_rows, seal, seal_missing
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import episode_words, plain, state_text
from hardwon.memory.values import saved_tables

from .damage import UNREADABLE
from .queries import trajectory

_REPAIR = "hardwon memory repair"


def verify(store: Store, namespace: int) -> list[Problem]:
    """The file itself, and everything derived from its steps and items, against the truth."""
    try:
        said = [str(row[0]) for row in store.rows("PRAGMA integrity_check")]
    except LibraryError as error:
        said = [str(error)]
    damage = [words for words in said if words != "ok" and "FTS5" not in words]  # newer SQLites look into FTS5 too
    if damage:
        return [Problem("file", words, "Restore a copy; what can be read: hardwon memory export") for words in damage]
    with store.snapshot():
        damaged = list(find_damaged_rows(store.connection))
        problems = [_named(store, namespace, one) for one in damaged if not one.missing]
        if without := len(damaged) - len(problems):
            problems.append(Problem("checksums", f"{without} rows have none", _REPAIR))
        if any(problem.where != "checksums" for problem in problems):  # what is made of them would differ as well
            return problems
        return problems + [Problem(where, what, _REPAIR) for where, what in _differences(store, namespace)]


def _named(store: Store, namespace: int, damage: Damage) -> Problem:
    """Say which row is damaged, whose it is, and what can be done: nothing tells what was in it."""
    words = f"row {damage.ref} was changed since it was written"
    if damage.namespace not in (None, namespace):
        return Problem(f"rows of {damage.table}", f"{words} (of another namespace)", _RESTORE)
    if damage.table == "states":
        rows = store.rows(_MET, (damage.ref, damage.ref))
    elif damage.table in ("trajectories", "steps", "inbox"):
        rows = [(damage.name,)]
    else:
        return Problem(f"rows of {damage.table}", f"{words} ({damage.name})" if damage.name else words, _RESTORE)
    episodes = ", ".join(str(row[0]) for row in rows[:_SHOWN]) + (", ..." if len(rows) > _SHOWN else "")
    forget = (
        f"{_RESTORE}; or give up its episodes: hardwon memory forget LIBRARY --episode {rows[0][0] if rows else 'ID'}"
    )
    return Problem(f"rows of {damage.table}", f"{words} (of {episodes or 'no episode'})", forget)


_RESTORE = "Restore a copy of the file"
_MET = (
    "SELECT DISTINCT trajectory_id FROM steps WHERE pre = ? "
    "UNION SELECT DISTINCT trajectory_id FROM steps WHERE post = ?"
)
_SHOWN = 5


def _differences(store: Store, namespace: int) -> Iterator[tuple[str, str]]:
    """Yield every derived structure that differs, and how; what cannot even be read differs as well."""
    again = cache(lambda: _read_again(store, namespace))  # of whole episodes, for two of them
    of_episodes: dict[str, Comparison] = {
        "words": lambda store, namespace: _wrong_words(store, namespace, again()[0]),
        "segments": lambda store, namespace: _wrong_segments(store, namespace, again()[1]),
    }
    for where, compare in (_COMPARED | of_episodes).items():
        try:
            wrong = compare(store, namespace)
        except (*UNREADABLE, LibraryDamaged) as error:
            wrong = f"cannot be read: {error!r:.200}"
        if wrong:
            yield where, wrong


def _text_index(kind: search.Kind) -> "Comparison":
    def compare(store: Store, namespace: int) -> str:
        wanted = _live(store, namespace, kind)
        held = {row[0] for row in store.rows(f"SELECT id FROM {kind}_text_{namespace}_docsize")}
        if wanted != held:
            return f"{len(wanted - held)} missing, {len(held - wanted)} too many"
        other = _other_words(store, namespace) if kind == "items" else 0
        return f"{other} with other words than their items" if other else ""

    return compare


def _vectors(kind: search.Kind) -> "Comparison":
    def compare(store: Store, namespace: int) -> str:
        wanted = _live(store, namespace, kind)
        vectors = {row[0] for row in store.rows(_VECTORS, (namespace, kind))}
        if vectors - wanted:
            return f"{len(vectors - wanted)} of nothing that exists"
        return _wrong_vectors(store, namespace, kind, wanted - vectors, max(vectors, default=0))

    return compare


def _live(store: Store, namespace: int, kind: str) -> set[int]:
    return {row[0] for row in store.rows(_LIVE[kind], (namespace,))}


def _unfiled(store: Store, namespace: int) -> str:
    ((unfiled, why),) = store.rows("SELECT count(failed), min(failed) FROM inbox WHERE namespace = ?", (namespace,))
    return f"{unfiled} not filed: {why}" if unfiled else ""


def _wrong_words(store: Store, namespace: int, words: dict[str, int]) -> str:
    held = dict(store.rows("SELECT word, episodes FROM words WHERE namespace = ?", (namespace,)))
    return "counts differ from the episodes" if words != held else ""


def _wrong_segments(store: Store, namespace: int, cuts: list[Segment]) -> str:
    return _apart(_told(cuts), store.rows(f"SELECT {_SEGMENT} FROM segments WHERE namespace = ?", (namespace,)))


def _wrong_worlds(store: Store, namespace: int) -> str:
    ((unplaced,),) = store.rows(_UNPLACED, (namespace,))
    worlds.read_worlds(store.rows("SELECT id, record FROM worlds WHERE namespace = ?", (namespace,)))
    return f"{unplaced} episodes in none" if unplaced else ""


def _wrong_scores(store: Store, namespace: int) -> str:
    wrong = len(list(world_scores.problems(store.connection, namespace)))
    return f"{wrong} of no item, of no world, or outside 0 to 1" if wrong else ""


def _wrong_places(store: Store, namespace: int) -> str:
    return _apart(_true_places(store, namespace), store.rows(_PLACES, (namespace,)))


Comparison = Callable[[Store, int], str]
_COMPARED: dict[str, Comparison] = {
    "states text index": _text_index("states"),
    "states vectors": _vectors("states"),
    "items text index": _text_index("items"),
    "items vectors": _vectors("items"),
    "inbox": _unfiled,
    "attempts": lambda store, namespace: ", ".join(rollups.differences(store, namespace)),
    "worlds": _wrong_worlds,
    "scores per world": _wrong_scores,
    "item places": _wrong_places,
    "saved values": lambda store, namespace: saved_tables.saved_problem(store, namespace) or "",
    "saved values per world": lambda store, namespace: saved_tables.saved_problem(store, namespace, per_world=True),
    "saved index of states": lambda store, namespace: search.saved_problem(store, namespace, "states") or "",
    "saved index of items": lambda store, namespace: search.saved_problem(store, namespace, "items") or "",
}

_LIVE = {
    "states": "SELECT id FROM states WHERE namespace = ?",
    "items": "SELECT number FROM items WHERE namespace = ? AND status = 'active'",
}
_VECTORS = "SELECT ref FROM vectors WHERE namespace = ? AND kind = ?"
_SEGMENT = "trajectory_id, first_t, last_t, gain, location, text"
_PLACES = "SELECT by, value, number FROM item_places WHERE namespace = ?"

_UNPLACED = (
    "SELECT count(*) FROM trajectories AS one WHERE namespace = ? AND success IS NOT NULL AND NOT EXISTS "
    "(SELECT 1 FROM episode_worlds WHERE episode_worlds.namespace = one.namespace AND trajectory_id = one.id)"
)


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
        cuts.extend(replace(cut, steps=()) for cut in rollups.segments_of(episode.id, episode.steps))
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
    """Rebuild from the truth what is wrong, and nothing else; returns what was wrong.

    A row of the truth that was damaged is among it, and stays: `verify` names it again, and what to do.

    Raises: NotALibrary when the file itself is damaged, for then the truth is not to be trusted.
    """
    with store.transaction() as connection:
        problems = verify(store, namespace)
        if any(problem.where == "file" for problem in problems):
            raise NotALibrary(f"{store.path} is damaged ({problems[0].what}). {problems[0].remedy}.")
        for where in dict.fromkeys(problem.where for problem in problems):
            if where in _REBUILDERS:  # a damaged row of the truth stays as it is: nothing tells what was in it
                _REBUILDERS[where](connection, store, namespace)
    return problems


def rebuild(connection: Connection, store: Store, namespace: int, where: str) -> None:
    """Make one derived structure anew from the truth."""
    _REBUILDERS[where](connection, store, namespace)


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
            seal(connection, "items", "true", ())


_AGE = """
UPDATE items SET
    uses = (SELECT count(DISTINCT trajectory_id) FROM usages
            WHERE usages.namespace = items.namespace AND item_id = items.id AND mode = 'recalled'),
    fresh = (SELECT count(*) FROM trajectories WHERE trajectories.namespace = items.namespace AND success IS NOT NULL)
"""


def _try_again(connection: Connection, store: Store, namespace: int) -> None:
    """The next read files what waits."""
    connection.execute("UPDATE inbox SET failed = NULL WHERE namespace = ?", (namespace,))


def rebuild_states_text(connection: Connection, store: Store, namespace: int) -> None:
    """Index the texts of all states anew; nothing of what was indexed before is left."""
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
    rollups.write_segments(connection, namespace, cuts)


def _rebuild_places(connection: Connection, store: Store, namespace: int) -> None:
    places = sorted(_true_places(store, namespace))
    connection.execute("DELETE FROM item_places WHERE namespace = ?", (namespace,))
    connection.executemany("INSERT INTO item_places VALUES (?, ?, ?, ?)", [(namespace, *place) for place in places])


def _renew_worlds(connection: Connection, store: Store, namespace: int) -> None:
    """Place all episodes anew; what was saved of their values goes by the old numbers of the worlds."""
    worlds.renew(connection, namespace)
    Sidecar(store, namespace).drop("world-values")


def _seal_missing(connection: Connection, store: Store, namespace: int) -> None:
    seal_missing(connection)


Rebuilder = Callable[[Connection, Store, int], None]
_REBUILDERS: dict[str, Rebuilder] = {
    "inbox": _try_again,
    "checksums": _seal_missing,
    "states text index": rebuild_states_text,
    "items text index": _rebuild_items_text,
    "states vectors": _drop_vectors("states"),
    "items vectors": _drop_vectors("items"),
    "words": _rebuild_words,
    "segments": _rebuild_segments,
    "attempts": rollups.rebuild,
    "item places": _rebuild_places,
    "worlds": _renew_worlds,
    "scores per world": lambda connection, store, namespace: world_scores.repair(connection, namespace),
    "saved values": _drop_file("values"),
    "saved values per world": _drop_file("world-values"),
    "saved index of states": _drop_file("states"),
    "saved index of items": _drop_file("items"),
}
