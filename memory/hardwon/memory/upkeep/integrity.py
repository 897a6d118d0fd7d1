"""Integrity checks: compare derived data with the steps and items, and rebuild it where it differs.

Primary data is never changed here. A file that SQLite reports as damaged is reported and left as it is.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from sqlite3 import Connection
from typing import Any

from hardwon.memory.errors import LibraryDamaged, LibraryError, NotALibrary
from hardwon.memory.items import item_of, places_of
from hardwon.memory.records import Problem, State
from hardwon.memory.retrieval import search
from hardwon.memory.retrieval.embedders import Embedder
from hardwon.memory.situations.scripts import index_text
from hardwon.memory.storage import rollups, world_scores, worlds
from hardwon.memory.storage.cache_files import CacheFile
from hardwon.memory.storage.checksums import Damage, find_damaged_rows, seal, seal_missing
from hardwon.memory.storage.counted import (
    COUNTED_EPISODES,
    extract_words,
    find_counted_writers,
    find_wrong_writers,
    is_counted,
    recount_words,
    renew_writers,
)
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import first_row, last_row, plain, state_text, witness_of
from hardwon.memory.values import saved_tables

from .damage import UNREADABLE
from .queries import trajectory

_REPAIR = "hardwon memory repair"


def verify(store: Store, namespace: int) -> list[Problem]:
    """Check the file, and compare all derived data with the steps and items; return the problems."""
    try:
        messages = [str(row[0]) for row in store.rows("PRAGMA integrity_check")]
    except LibraryError as error:
        messages = [str(error)]
    # Newer versions of SQLite also report FTS5 indexes, which are derived data and are checked below.
    damage = [message for message in messages if message != "ok" and "FTS5" not in message]
    if damage:
        return [Problem("file", message, _RESTORE_FILE) for message in damage]
    # One snapshot, because other processes may write between the comparisons.
    with store.snapshot():
        damaged = list(find_damaged_rows(store.connection))
        problems = [_describe_damage(store, namespace, row) for row in damaged if not row.missing]
        if without := len(damaged) - len(problems):
            problems.append(Problem("checksums", f"missing for {without} rows", _REPAIR))
        if any(problem.where != "checksums" for problem in problems):
            return problems  # data derived from damaged rows would differ as well
        return problems + [Problem(where, what, _REPAIR) for where, what in _find_differences(store, namespace)]


def _describe_damage(store: Store, namespace: int, damage: Damage) -> Problem:
    """Return a problem that names the damaged row, its episodes and the possible remedies."""
    message = f"row {damage.ref} was damaged after it was written"
    if damage.namespace not in (None, namespace):
        return Problem(f"rows of {damage.table}", f"{message} (in another namespace)", _RESTORE)
    if damage.table == "states":
        rows = store.rows(_EPISODES_OF_STATE, (damage.ref, damage.ref))
    elif damage.table in ("trajectories", "steps", "inbox"):
        rows = [(damage.name,)]
    else:
        return Problem(f"rows of {damage.table}", f"{message} ({damage.name})" if damage.name else message, _RESTORE)
    episodes = ", ".join(str(row[0]) for row in rows[:_LISTED]) + (", ..." if len(rows) > _LISTED else "")
    forget = (
        f"{_RESTORE}; or delete its episodes: hardwon memory forget LIBRARY --episode {rows[0][0] if rows else 'ID'}"
    )
    return Problem(f"rows of {damage.table}", f"{message} (episodes: {episodes or 'none'})", forget)


_RESTORE = "Restore a copy of the file"
_RESTORE_FILE = "Restore a copy. To save what can be read, run: hardwon memory export"
_EPISODES_OF_STATE = (
    "SELECT DISTINCT trajectory_id FROM steps WHERE pre = ? "
    "UNION SELECT DISTINCT trajectory_id FROM steps WHERE post = ?"
)
_LISTED = 5


def _find_differences(store: Store, namespace: int) -> Iterator[tuple[str, str]]:
    """Yield each derived structure that differs or cannot be read, with a description."""
    for where, (compare, _) in _DERIVED.items():
        try:
            difference = compare(store, namespace)
        except (*UNREADABLE, LibraryDamaged) as error:
            difference = f"cannot be read: {error!r:.200}"
        if difference:
            yield where, difference


def _compare_text_index(kind: search.IndexKind) -> "Comparison":
    def compare(store: Store, namespace: int) -> str:
        wanted = _read_live(store, namespace, kind)
        # FTS5 has one row per document in its _docsize table, even if it does not store the text itself.
        first = first_row(namespace)
        ids = f"SELECT id - ? FROM {kind}_text_docsize WHERE id BETWEEN ? AND ?"
        held = {row[0] for row in store.rows(ids, (first, first, last_row(namespace)))}
        if wanted != held:
            return f"{len(wanted - held)} missing, {len(held - wanted)} too many"
        wrong = _count_wrong_texts(store, namespace) if kind == "items" else 0
        return f"{wrong} with the wrong text" if wrong else ""

    return compare


def _compare_vectors(kind: search.IndexKind) -> "Comparison":
    def compare(store: Store, namespace: int) -> str:
        wanted = _read_live(store, namespace, kind)
        vectors = {row[0] for row in store.rows(_VECTORS, (namespace, kind))}
        if vectors - wanted:
            return f"{len(vectors - wanted)} without a row"
        return _describe_wrong_vectors(store, namespace, kind, wanted - vectors, max(vectors, default=0))

    return compare


def _compare_saved_index(kind: search.IndexKind) -> "Comparison":
    return lambda store, namespace: search.saved_problem(store, namespace, kind)


def _read_live(store: Store, namespace: int, kind: str) -> set[int]:
    return {row[0] for row in store.rows(_LIVE[kind], (namespace,))}


def _describe_unstored(store: Store, namespace: int) -> str:
    ((unstored, why),) = store.rows("SELECT count(failed), min(failed) FROM inbox WHERE namespace = ?", (namespace,))
    return f"{unstored} not stored: {why}" if unstored else ""


def _compare_words(store: Store, namespace: int) -> str:
    held = dict(store.rows("SELECT word, episodes FROM words WHERE namespace = ?", (namespace,)))
    return "counts differ from the episodes" if _count_words(store, namespace) != held else ""


def _compare_worlds(store: Store, namespace: int) -> str:
    counted = COUNTED_EPISODES[find_counted_writers(store.rows, namespace)]
    ((unplaced,),) = store.rows(_UNPLACED.format(counted=counted), (namespace,))
    worlds.read_worlds(store.rows("SELECT id, record FROM worlds WHERE namespace = ?", (namespace,)))
    return f"{unplaced} episodes without a world" if unplaced else ""


def _compare_writers(store: Store, namespace: int) -> str:
    wrong = len(find_wrong_writers(store.rows, namespace, witness_of))
    return f"{wrong} differ from those of the episodes" if wrong else ""


def _renew_writers(connection: Connection, store: Store, namespace: int) -> None:
    renew_writers(connection, namespace, find_wrong_writers(store.rows, namespace, witness_of))


def _compare_scores(store: Store, namespace: int) -> str:
    wrong = len(list(world_scores.find_problems(store.connection, namespace)))
    return f"{wrong} without an item or a world, or outside 0 to 1" if wrong else ""


def _compare_places(store: Store, namespace: int) -> str:
    return _describe_difference(_compute_places(store, namespace), store.rows(_PLACES, (namespace,)))


_LIVE = {
    "states": "SELECT id FROM states WHERE namespace = ? AND untrusted = 0",
    "testimony": "SELECT id FROM states WHERE namespace = ? AND untrusted = 1",
    "items": "SELECT number FROM items WHERE namespace = ? AND status = 'active'",
}
_VECTORS = "SELECT ref FROM vectors WHERE namespace = ? AND kind = ?"
_PLACES = "SELECT by, value, number FROM item_places WHERE namespace = ?"

_UNPLACED = (
    "SELECT count(*) FROM trajectories AS one WHERE namespace = ? AND success IS NOT NULL {counted}AND NOT EXISTS "
    "(SELECT 1 FROM episode_worlds WHERE episode_worlds.namespace = one.namespace AND trajectory_id = one.id)"
)


def _describe_difference(wanted: Iterable[tuple[Any, ...]], held: Iterable[tuple[Any, ...]]) -> str:
    """Return the number of missing and of extra rows; empty if the rows are equal."""
    expected, stored = set(wanted), set(held)
    return f"{len(expected - stored)} missing, {len(stored - expected)} too many" if expected != stored else ""


def _describe_wrong_vectors(store: Store, namespace: int, kind: str, without: set[int], newest: int) -> str:
    """Return how many vectors have an unusual length, and how many states were skipped by embedding."""
    lengths = "SELECT length(vector), count(*) FROM vectors WHERE namespace = ? AND kind = ? GROUP BY 1 ORDER BY 2 DESC"
    torn = sum(count for _, count in store.rows(lengths, (namespace, kind))[1:])
    # States are embedded in the order of their ids, so a gap below the newest vector is an error.
    missing = sum(ref <= newest for ref in without) if kind != "items" else 0
    return f"{missing} missing, {torn} damaged" if missing or torn else ""


def _count_wrong_texts(store: Store, namespace: int) -> int:
    """Return how many active items are indexed with a text that is not theirs."""
    rows = store.rows(
        "SELECT record, text FROM items JOIN items_text AS indexed ON indexed.rowid = number + ? "
        "WHERE namespace = ? AND status = 'active'",
        (first_row(namespace), namespace),
    )
    return sum(index_text(plain(item_of(record).text)) != text for record, text in rows)


def _count_words(store: Store, namespace: int) -> dict[str, int]:
    """Return the word counts of the episodes that count, by reading every episode, which also finds lost rows."""
    counted = find_counted_writers(store.rows, namespace)
    counts: Counter[str] = Counter()
    for (ref,) in store.rows("SELECT id FROM trajectories WHERE namespace = ? ORDER BY rowid", (namespace,)):
        episode = trajectory(store, namespace, ref)
        if is_counted(episode, counted):
            counts.update(extract_words(episode))
    return dict(counts)


def _compute_places(store: Store, namespace: int) -> set[tuple[str, str, int]]:
    rows = store.rows(
        "SELECT number, record FROM items WHERE namespace = ? AND status = 'active'",
        (namespace,),
    )
    return {(by, plain(value), number) for number, record in rows for by, value in places_of(item_of(record))}


def repair(store: Store, namespace: int) -> list[Problem]:
    """Rebuild the derived data that is wrong, and nothing else; return the problems.

    Damaged primary rows are among the problems and stay as they are. `verify` reports them again with a remedy.
    """
    # Verify inside the transaction, so that nothing changes between the check and the repair.
    with store.transaction() as connection:
        problems = verify(store, namespace)
        if any(problem.where == "file" for problem in problems):
            raise NotALibrary(f"{store.path} is damaged ({problems[0].what}). {problems[0].remedy}.")
        for where in dict.fromkeys(problem.where for problem in problems):
            if where == "checksums":
                seal_missing(connection)
            elif where in _DERIVED:  # the content of a damaged primary row is lost
                rebuild(connection, store, namespace, where)
    return problems


def rebuild(connection: Connection, store: Store, namespace: int, where: str) -> None:
    """Rebuild one derived structure."""
    _DERIVED[where][1](connection, store, namespace)


def embed_all(store: Store, embedder: Embedder, on_embedded: Callable[[int, int], None]) -> None:
    """Embed all texts without a vector, in every namespace. Each batch of a few hundred texts is committed."""
    namespaces = [row[0] for row in store.rows("SELECT id FROM namespaces ORDER BY id")]
    parts: list[tuple[int, search.IndexKind]] = [(namespace, kind) for namespace in namespaces for kind in search.KINDS]
    total = sum(len(store.rows(_LIVE[kind], (namespace,))) for namespace, kind in parts)
    ((done,),) = store.rows("SELECT count(*) FROM vectors")

    def report(kind: str, count: int) -> None:
        nonlocal done
        done += count
        on_embedded(done, total)

    for namespace, kind in parts:
        index = search.Search(store, namespace, embedder)
        index.on_embedded = report
        with index.waiting():
            index.index(kind)


def rebuild_tiers(store: Store) -> None:
    """Build the rollups, and the places and ages of items, in a library of a version that had none."""
    if store.read_only or not store.rows("SELECT 1 FROM meta WHERE name = 'rebuild'"):
        return
    with store.transaction() as connection:
        # Several processes may open the library at once; the one that deletes the mark does the work.
        marked = connection.execute("DELETE FROM meta WHERE name = 'rebuild' RETURNING value").fetchall()
        namespaces = [row[0] for row in store.rows("SELECT id FROM namespaces")] if marked else []
        for namespace in namespaces:
            for where in ("attempts", "item places"):
                _DERIVED[where][1](connection, store, namespace)
        if marked:
            connection.execute(_AGE)
            seal(connection, "items", "true", ())


_AGE = """
UPDATE items SET
    uses = (SELECT count(DISTINCT trajectory_id) FROM usages
            WHERE usages.namespace = items.namespace AND item_id = items.id AND mode = 'recalled'),
    fresh = (SELECT count(*) FROM trajectories WHERE trajectories.namespace = items.namespace AND success IS NOT NULL)
"""


def _clear_failures(connection: Connection, store: Store, namespace: int) -> None:
    """Clear the failures of buffered episodes, so that the next read tries to store them again."""
    connection.execute("UPDATE inbox SET failed = NULL WHERE namespace = ?", (namespace,))


def rebuild_states_text(connection: Connection, store: Store) -> None:
    """Rebuild the text indexes of the states of all namespaces, leaving no trace of earlier entries.

    Without content, FTS5 keeps no copy of a text, but cannot delete single rows either.
    """
    states = "SELECT ? + id, observation, feedback FROM states WHERE namespace = ? AND untrusted = ?"
    for untrusted, table in enumerate(("states_text", "testimony_text")):
        connection.execute(f"INSERT INTO {table}({table}) VALUES ('delete-all')")
        for (namespace,) in store.rows("SELECT id FROM namespaces"):
            rows = store.rows(states, (first_row(namespace), namespace, untrusted))
            pairs = ((ref, State(text, feedback=feedback, signature="-")) for ref, text, feedback in rows)
            texts = ((ref, index_text(plain(state_text(state)))) for ref, state in pairs)
            connection.executemany(f"INSERT INTO {table}(rowid, text) VALUES (?, ?)", texts)


def _rebuild_text(kind: search.IndexKind, connection: Connection, store: Store, namespace: int) -> None:
    """Rebuild a text index; for items, also delete their vectors, which may stem from wrong texts."""
    if kind != "items":
        rebuild_states_text(connection, store)
        return
    first = first_row(namespace)
    connection.execute("DELETE FROM items_text WHERE rowid BETWEEN ? AND ?", (first, last_row(namespace)))
    rows = store.rows("SELECT number, record FROM items WHERE namespace = ? AND status = 'active'", (namespace,))
    connection.executemany(
        "INSERT INTO items_text(rowid, text) VALUES (?, ?)",
        [(first + number, index_text(plain(item_of(record).text))) for number, record in rows],
    )
    connection.execute("DELETE FROM vectors WHERE namespace = ? AND kind = 'items'", (namespace,))


def _drop_file(name: str) -> "Rebuilder":
    """Return a rebuilder that deletes a cache file. It is written again when it is large enough to be useful."""

    def drop(connection: Connection, store: Store, namespace: int) -> None:
        CacheFile(store, namespace).drop(name)

    return drop


def _drop_vectors(kind: str) -> "Rebuilder":
    def drop(connection: Connection, store: Store, namespace: int) -> None:
        connection.execute(
            # The most frequent length counts as right, because the embedder and its dimension are not known here.
            f"DELETE FROM vectors WHERE namespace = ? AND kind = ? AND (ref NOT IN ({_LIVE[kind]}) "
            "OR length(vector) != (SELECT length(vector) FROM vectors AS others WHERE others.namespace = ? "
            "AND others.kind = ? GROUP BY 1 ORDER BY count(*) DESC LIMIT 1))",
            (namespace, kind, namespace, namespace, kind),
        )

    return drop


def _rebuild_words(connection: Connection, store: Store, namespace: int) -> None:
    recount_words(connection, namespace, find_counted_writers(store.rows, namespace))


def _rebuild_places(connection: Connection, store: Store, namespace: int) -> None:
    places = sorted(_compute_places(store, namespace))
    connection.execute("DELETE FROM item_places WHERE namespace = ?", (namespace,))
    connection.executemany("INSERT INTO item_places VALUES (?, ?, ?, ?)", [(namespace, *place) for place in places])


def _renew_worlds(connection: Connection, store: Store, namespace: int) -> None:
    """Place all episodes again, and delete the cached values, which refer to the old world ids."""
    worlds.renew(connection, namespace)
    CacheFile(store, namespace).drop("world-values")


Comparison = Callable[[Store, int], str]
Rebuilder = Callable[[Connection, Store, int], None]
_DERIVED: dict[str, tuple[Comparison, Rebuilder]] = {
    **{
        f"{kind} {what}": functions
        for kind in search.KINDS
        for what, functions in (
            ("text index", (_compare_text_index(kind), partial(_rebuild_text, kind))),
            ("vectors", (_compare_vectors(kind), _drop_vectors(kind))),
        )
    },
    "inbox": (_describe_unstored, _clear_failures),
    "attempts": (lambda store, namespace: ", ".join(rollups.find_differences(store, namespace)), rollups.rebuild),
    "writers": (_compare_writers, _renew_writers),
    "worlds": (_compare_worlds, _renew_worlds),
    "scores per world": (
        _compare_scores,
        lambda connection, store, namespace: world_scores.repair(connection, namespace),
    ),
    "item places": (_compare_places, _rebuild_places),
    "saved values": (saved_tables.saved_problem, _drop_file("values")),
    "saved values per world": (partial(saved_tables.saved_problem, per_world=True), _drop_file("world-values")),
    **{f"saved index of {kind}": (_compare_saved_index(kind), _drop_file(kind)) for kind in search.KINDS},
    "words": (_compare_words, _rebuild_words),
}
"""By derived structure: what describes how it differs, if it does, and what rebuilds it."""
