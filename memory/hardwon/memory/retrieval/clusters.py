"""Clusters: experience of situations with the same signature, looked up by index and never scanned.

Steps and summaries are read by index; the cost depends on how many are requested, not on how many states share the
signature. Items are looked up by the places they are filed under (signature, location, tag) and searched by words and
meaning. The fused ranking is bound to the cluster. `recall` decides what is shown.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hardwon.memory.errors import ConfigError
from hardwon.memory.records import Hit, Item, State, Summary
from hardwon.memory.situations.keys import content_words, words
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import dumps, plain
from hardwon.memory.storage.rollups import summaries

from .cache import NamespaceCache
from .embedders import Vectors
from .ranking import TakenStep, read_taken_steps, steps_of
from .search import DEPTH, Search, fuse

SUMMARIES = 8
"""Number of recalled summaries of a cluster, the most tried ones."""
ATTEMPTS = 12
"""Number of kinds of action that are read for a situation, the most tried ones."""
WORLDS = 4
"""Factor on the number of kinds of action that are read if steps of other worlds do not count."""
DEEPER = 8
"""Factor on the depth of a search if its results are from other worlds."""
VOTERS = 64
"""Number of steps of a situation that vote, the newest ones."""
MIN_COSINE = 0.2
"""Least similarity of a result that matches by words and meaning alone; an empty result is valid."""
HERE = 0.5
"""Least similarity of an item that is filed under the current place."""
NEXT_DOOR = 0.3
"""Least similarity of an item that is filed under a place reached from the current one."""
TAGS = 2
"""Number of an item's tags that a state must contain for a match regardless of other words."""
TAG_WORDS = 16
"""Number of words of a state that are looked up as tags, the rarest ones."""
BOUND = 64
"""Largest number of items bound to a cluster."""
PLACE_STATES = 64
"""Number of states of a place, the newest ones, whose steps show which places can be reached."""
CENTROID_STATES = 256
"""Number of states of a cluster, the newest ones, whose mean vector is its centroid."""


def read_voters(
    store: Store, namespace: int, signature: str, with_before: bool, worlds: frozenset[int] | None = None
) -> list[TakenStep]:
    """Return the steps of a situation that vote: the newest and the best of its most tried kinds of action.

    Args:
        store: The library.
        namespace: The number of the namespace.
        signature: The signature of the situation.
        with_before: Whether to read the preceding action of each step.
        worlds: Worlds whose steps count, or None for all.
    """
    if worlds is None:
        rows = store.rows(_VOTERS, (namespace, signature, ATTEMPTS, VOTERS))
        return read_taken_steps(store, [row[0] for row in rows], with_before)
    for live in ("AND folded = 0", ""):  # activity in other worlds may have folded all of these steps
        query = _VOTERS_OF_WORLDS.format(where=steps_of(worlds), live=live)
        rows = store.rows(query, (namespace, signature, WORLDS * ATTEMPTS, VOTERS))
        if rows:
            return read_taken_steps(store, [row[0] for row in rows], with_before)
    return []


_VOTERS = """
WITH tried AS MATERIALIZED (
    SELECT id, best FROM attempts WHERE namespace = ? AND signature = ? ORDER BY n DESC, id LIMIT ?)
SELECT best FROM tried UNION
SELECT id FROM (
    SELECT id FROM steps WHERE attempt IN (SELECT id FROM tried) AND folded = 0 ORDER BY id DESC LIMIT ?)
"""


_VOTERS_OF_WORLDS = """
WITH tried AS MATERIALIZED (
    SELECT id, best FROM attempts WHERE namespace = ? AND signature = ? ORDER BY n DESC, id LIMIT ?)
SELECT id FROM steps WHERE id IN (SELECT best FROM tried) AND {where} UNION
SELECT id FROM (
    SELECT id FROM steps WHERE attempt IN (SELECT id FROM tried) {live} AND {where} ORDER BY id DESC LIMIT ?)
"""


def read_summaries(
    store: Store, namespace: int, signature: str, worlds: frozenset[int] | None = None
) -> tuple[Summary, ...]:
    """Return summaries of the most tried kinds of action in a cluster, at most SUMMARIES.

    Args:
        store: The library.
        namespace: The number of the namespace.
        signature: The signature of the cluster.
        worlds: If given, only kinds of action that were tried in these worlds.
    """
    if worlds is None:
        return summaries(store, namespace, signature, SUMMARIES)
    most = summaries(store, namespace, signature, WORLDS * SUMMARIES)
    ends = dumps([ref for summary in most for ref in (summary.best, summary.first, summary.last)])
    among = f"SELECT id FROM steps WHERE id IN (SELECT value FROM json_each(?)) AND {steps_of(worlds)}"
    tried = {row[0] for row in store.rows(among, (ends,))}
    kept = (summary for summary in most if not tried.isdisjoint((summary.best, summary.first, summary.last)))
    return tuple(kept)[:SUMMARIES]


def find_items(
    store: Store,
    derived: NamespaceCache,
    search: Search,
    state: State,
    query: str,
    vector: Vectors,
    k: int,
    worlds: frozenset[int] | None = None,
) -> tuple[Hit, ...]:
    """Return the items for a state's cluster, the best first, at most BOUND.

    They are found by the state's signature, its place and adjacent places, its tags, and its words and meaning.

    Args:
        store: The library.
        derived: The cache of the namespace.
        search: The search indices of the namespace.
        state: The current state.
        query: The text to search for.
        vector: The vector of the text, (dim,) float32.
        k: Number of items that will be shown.
        worlds: If given, items with evidence from other worlds only are left out.
    """
    if not derived.items:
        return ()

    def search_within(depth: int) -> list[tuple[int, float, str]]:
        hits = search.find("items", query, depth, frequencies=derived.words, vector=vector, depth=depth)
        return [hit for hit in hits if derived.is_of(hit[0], worlds)]

    depth = max(DEPTH, 4 * k)
    hits_by_search = search_within(depth)
    # Searching deep is the exception: only items of other worlds can leave gaps in the first result.
    if worlds is not None and len(hits_by_search) < depth:
        hits_by_search = search_within(DEEPER * depth)
    own = _find_filed_items(store, derived, search.namespace, "signature", [plain(state.signature)])
    at_place, adjacent = _find_items_by_place(store, derived, search.namespace, plain(state.location))
    tagged = _find_items_by_tag(store, derived, search.namespace, query)
    # `is_of` again: the lookups by place and tag do not know about worlds.
    fused = [
        number
        for number in fuse(own, at_place, adjacent, tagged, [number for number, _, _ in hits_by_search])
        if derived.is_of(number, worlds)
    ][:BOUND]
    cosines = {number: cosine for number, cosine, _ in hits_by_search}
    beyond = [number for number in fused if number not in cosines]
    if beyond:
        cosines.update(zip(beyond, search.index("items").cosine(vector, beyond), strict=True))
    # In ascending order of similarity: the last entry of an item is the strongest reason to show it.
    floors: dict[int, tuple[float, str]] = {
        **dict.fromkeys(tagged, (MIN_COSINE, "its tags")),
        **dict.fromkeys(adjacent, (NEXT_DOOR, "a place that is near")),
        **dict.fromkeys(at_place, (HERE, "its own place")),
        **dict.fromkeys(own, (1.0, "its own situation")),
    }
    reasons = {number: why for number, _, why in hits_by_search}
    return tuple(_iter_similar(derived, fused, cosines, floors, reasons))


def _iter_similar(
    derived: NamespaceCache,
    numbers: Iterable[int],
    cosines: Mapping[int, float],
    floors: Mapping[int, tuple[float, str]],
    reasons: Mapping[int, str],
) -> Iterator[Hit]:
    """Yield hits on the items whose cosine or floor is at least MIN_COSINE, with the stronger reason."""
    for number in numbers:
        floor, why = floors.get(number, (0.0, ""))
        cosine = cosines[number]
        if max(cosine, floor) >= MIN_COSINE:
            why = why if floor >= cosine else reasons.get(number, why)
            yield Hit(derived.items[derived.numbers[number]], max(cosine, floor), why)


def _find_filed_items(
    store: Store, derived: NamespaceCache, namespace: int, by: str, values: Sequence[str]
) -> list[int]:
    """Return the numbers of the active items filed under any of these values, the best score first."""
    rows = store.rows(
        f"SELECT DISTINCT number FROM item_places WHERE namespace = ? AND by = ? "
        f"AND value IN ({','.join('?' * len(values))})",
        (namespace, by, *values),
    )
    return _order_by_score(derived, (row[0] for row in rows))


def _order_by_score(derived: NamespaceCache, numbers: Iterable[int]) -> list[int]:
    """Return the numbers of active items, the best score first, at most BOUND."""
    scored = [
        (-derived.items[derived.numbers[number]].score, number) for number in numbers if number in derived.numbers
    ]
    return [number for _, number in sorted(scored)[:BOUND]]


def _find_items_by_place(
    store: Store, derived: NamespaceCache, namespace: int, location: str
) -> tuple[list[int], list[int]]:
    """Return the items filed under a place, and those filed under places reached from it."""
    any_place = "SELECT 1 FROM item_places WHERE namespace = ? AND by = 'location' LIMIT 1"
    # One index lookup saves a library without placed items the query for reachable places.
    if not location or not store.rows(any_place, (namespace,)):
        return [], []
    at_place = _find_filed_items(store, derived, namespace, "location", [location])
    places = derived.reached.get(location)
    if places is None:
        places = derived.reached[location] = read_reachable(store, namespace, location)
    adjacent = _find_filed_items(store, derived, namespace, "location", places) if places else []
    return at_place, adjacent


def read_reachable(store: Store, namespace: int, location: str) -> tuple[str, ...]:
    """Return the places that recorded steps reached from a place, sorted by name."""
    rows = store.rows(
        "SELECT DISTINCT after.location FROM steps JOIN states AS after ON after.id = post "
        "WHERE pre IN (SELECT id FROM states WHERE namespace = ? AND location = ? AND location != '' "
        "ORDER BY id DESC LIMIT ?) AND after.location NOT IN ('', ?) ORDER BY 1",
        (namespace, location, PLACE_STATES, location),
    )
    return tuple(row[0] for row in rows)


def _find_items_by_tag(store: Store, derived: NamespaceCache, namespace: int, query: str) -> list[int]:
    """Return the items that share at least TAGS tags with the words of a state, most shared tags first."""
    rarest = sorted(content_words(query), key=lambda word: (derived.words.get(word, 0), word))[:TAG_WORDS]
    rows = store.rows(
        f"SELECT number FROM item_places WHERE namespace = ? AND by = 'tag' AND value IN "
        f"({','.join('?' * len(rarest))}) GROUP BY number HAVING count(*) >= ? ORDER BY count(*) DESC, number LIMIT ?",
        (namespace, *rarest, TAGS, BOUND),
    )
    return [row[0] for row in rows]


def list_clusters(store: Store, namespace: int, limit: int | None, offset: int) -> list[dict[str, Any]]:
    """Return clusters, the most frequent first, with their counts, outcomes and best action.

    Args:
        store: The library.
        namespace: The number of the namespace.
        limit: Largest number of clusters, or None for all.
        offset: Number of clusters to skip.

    Raises:
        ConfigError: If the limit or the offset is negative.
    """
    if offset < 0 or (limit is not None and limit < 0):
        raise ConfigError(f"limit {limit} and offset {offset} must not be negative.")
    rows = store.rows(_CLUSTERS, (namespace, -1 if limit is None else limit, offset))
    return [_describe_cluster(store, namespace, row) for row in rows]


_CLUSTERS = """
SELECT signature, count(DISTINCT states.id), count(steps.id), avg(return_to_go), sum(failure != 'none'),
       max(states.id)
FROM states LEFT JOIN steps ON steps.pre = states.id
WHERE states.namespace = ? GROUP BY signature ORDER BY count(steps.id) DESC, signature LIMIT ? OFFSET ?
"""
_EPISODES = """
SELECT count(*), avg(success) FROM trajectories WHERE namespace = ? AND id IN
(SELECT trajectory_id FROM steps WHERE pre IN (SELECT id FROM states WHERE namespace = ? AND signature = ?))
"""
_BEST = """
SELECT action, count(*), avg(return_to_go) FROM steps
WHERE pre IN (SELECT id FROM states WHERE namespace = ? AND signature = ?)
GROUP BY action ORDER BY 3 DESC, 2 DESC, 1 LIMIT 1
"""


def _describe_cluster(store: Store, namespace: int, row: tuple[Any, ...]) -> dict[str, Any]:
    """Return the figures of one cluster."""
    signature, states, steps, mean, failed, newest = row
    ((observation, location),) = store.rows("SELECT observation, location FROM states WHERE id = ?", (newest,))
    ((episodes, success),) = store.rows(_EPISODES, (namespace, namespace, signature))
    best = store.rows(_BEST, (namespace, signature))
    return {
        "signature": signature,
        "states": states,
        "steps": steps,
        "episodes": episodes,
        "success": success,
        "mean_return": mean,
        "failed": failed or 0,
        "location": location,
        "example": observation,
        "best_action": dict(zip(("action", "steps", "mean_return"), best[0], strict=True)) if best else None,
    }


def centroid(store: Store, namespace: int, signature: str) -> Vectors | None:
    """Return the normalized mean vector of a cluster's newest states, or None if none has a vector.

    This is for display only; recall does not assign new signatures to the nearest centroid. At 0.85, where SLEA-RL
    merges, an open and a closed drawer in the same room are one cluster (cosine 0.94 hashed, 0.96 by MiniLM), while
    drawer 3 open and drawer 7 closed are not (0.82). The signature distinguishes them, and the text search finds both.
    """
    rows = store.rows(
        "SELECT vector FROM vectors WHERE kind = 'states' AND ref IN "
        "(SELECT id FROM states WHERE namespace = ? AND signature = ? ORDER BY id DESC LIMIT ?)",
        (namespace, plain(signature), CENTROID_STATES),
    )
    if not rows:
        return None
    mean: Vectors = np.mean([np.frombuffer(row[0], dtype=np.float32) for row in rows], axis=0)
    # The mean is zero if the texts have no words or their vectors cancel out.
    return mean / max(float(np.linalg.norm(mean)), 1e-12)


def distinct(hits: Iterable[Hit], k: int) -> list[Hit]:
    """Return the first k hits on items that do not repeat the words of an earlier hit."""
    chosen: dict[frozenset[str], Hit] = {}
    for hit in hits:
        if isinstance(hit.what, Item):
            chosen.setdefault(frozenset(words(hit.what.text)), hit)
        if len(chosen) == k:
            break
    return list(chosen.values())
