"""Clusters: what is known of the situations that share a signature, looked up and never scanned for.

Steps and summaries come by index, as many as are asked for, however many states share the signature.
Items come by the places they are filed under (signature, location, tag) and by words and meaning,
fused into one ranking that the library binds to the cluster. What is then shown is for `recall`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hardwon.memory.errors import ConfigError
from hardwon.memory.records import Hit, Item, State, Summary
from hardwon.memory.situations.keys import content_words, words
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import dumps, plain
from hardwon.memory.storage.rollups import summaries

from .cache import Derived
from .embedders import Vectors
from .ranking import Done, done_in, steps_of
from .search import DEPTH, Search, fuse

SUMMARIES = 8
"""Summaries of a cluster that are recalled, the most tried."""
ATTEMPTS = 12
"""Kinds of action of a situation that are looked at: the most tried."""
WORLDS = 4
"""How many times as many kinds of action are looked at where steps of other worlds do not count."""
DEEPER = 8
"""How many times as deep is searched where what was found is of other worlds."""
VOTERS = 64
"""Steps of a situation that vote on what is recalled: the newest."""
MIN_COSINE = 0.2
"""Nothing less near than this is recalled for its words and meaning alone: empty is a valid answer."""
HERE = 0.5
"""How near an item is at least, where it is known to apply in this very place."""
NEXT_DOOR = 0.3
"""How near an item is at least, where it is known to apply in a place that was reached from here."""
TAGS = 2
"""Tags that a state must show for an item to be near whatever its words."""
TAG_WORDS = 16
"""Words of a state that are looked up as tags: its rarest."""
BOUND = 64
"""Items bound to a cluster, the best fused."""
PLACE_STATES = 64
"""States of a place, the newest, that tell where one comes from there."""
CENTROID_STATES = 256
"""States of a cluster, the newest, whose vectors make its centroid."""


def done_here(
    store: Store, namespace: int, signature: str, with_before: bool, worlds: frozenset[int] | None = None
) -> list[Done]:
    """The steps of a situation that vote: of its most tried kinds of action the newest, and the best of each.

    Where `worlds` are given, steps of other worlds do not count.
    """
    if worlds is None:
        rows = store.rows(_VOTERS, (namespace, signature, ATTEMPTS, VOTERS))
        return done_in(store, [row[0] for row in rows], with_before)
    for live in ("AND folded = 0", ""):  # other worlds may have folded all that was done here
        query = _VOTERS_OF_WORLDS.format(where=steps_of(worlds), live=live)
        rows = store.rows(query, (namespace, signature, WORLDS * ATTEMPTS, VOTERS))
        if rows:
            return done_in(store, [row[0] for row in rows], with_before)
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


def summaries_of(
    store: Store, namespace: int, signature: str, worlds: frozenset[int] | None = None
) -> tuple[Summary, ...]:
    """What came of the kinds of action most tried in a cluster; where `worlds` are given, of those tried there."""
    if worlds is None:
        return summaries(store, namespace, signature, SUMMARIES)
    most = summaries(store, namespace, signature, WORLDS * SUMMARIES)
    ends = dumps([ref for one in most for ref in (one.best, one.first, one.last)])
    among = f"SELECT id FROM steps WHERE id IN (SELECT value FROM json_each(?)) AND {steps_of(worlds)}"
    done = {row[0] for row in store.rows(among, (ends,))}
    kept = (one for one in most if not done.isdisjoint((one.best, one.first, one.last)))
    return tuple(kept)[:SUMMARIES]


def items_of(
    store: Store,
    derived: Derived,
    search: Search,
    state: State,
    query: str,
    vector: Vectors,
    k: int,
    worlds: frozenset[int] | None = None,
) -> tuple[Hit, ...]:
    """Items for a state's cluster, by its signature, its place and the next ones, its tags, its words and meaning.

    Where `worlds` are given, items whose evidence is of other worlds are left out.
    """
    if not derived.items:
        return ()

    def found_within(depth: int) -> list[tuple[int, float, str]]:
        hits = search.find("items", query, depth, frequencies=derived.words, vector=vector, depth=depth)
        return [one for one in hits if derived.is_of(one[0], worlds)]

    depth = max(DEPTH, 4 * k)
    found = found_within(depth)
    if worlds is not None and len(found) < depth:
        found = found_within(DEEPER * depth)
    own = _filed(store, derived, search.namespace, "signature", [plain(state.signature)])
    here, near = _by_place(store, derived, search.namespace, plain(state.location))
    tagged = _tagged(store, derived, search.namespace, query)
    fused = [
        number
        for number in fuse(own, here, near, tagged, [number for number, _, _ in found])
        if derived.is_of(number, worlds)
    ][:BOUND]
    cosines = {number: cosine for number, cosine, _ in found}
    beyond = [number for number in fused if number not in cosines]
    if beyond:
        cosines.update(zip(beyond, search.index("items").cosine(vector, beyond), strict=True))
    said = {number: why for number, _, why in found}
    floors: dict[int, tuple[float, str]] = {
        **dict.fromkeys(tagged, (MIN_COSINE, "its tags")),
        **dict.fromkeys(near, (NEXT_DOOR, "a place that is near")),
        **dict.fromkeys(here, (HERE, "its own place")),
        **dict.fromkeys(own, (1.0, "its own situation")),
    }
    hits = []
    for number in fused:
        floor, why = floors.get(number, (0.0, ""))
        cosine = cosines[number]
        if max(cosine, floor) >= MIN_COSINE:
            why = why if floor >= cosine else said.get(number, why)
            hits.append(Hit(derived.items[derived.numbers[number]], max(cosine, floor), why))
    return tuple(hits)


def _filed(store: Store, derived: Derived, namespace: int, by: str, values: Sequence[str]) -> list[int]:
    """Numbers of the active items filed under any of these values, the best score first."""
    rows = store.rows(
        f"SELECT DISTINCT number FROM item_places WHERE namespace = ? AND by = ? "
        f"AND value IN ({','.join('?' * len(values))})",
        (namespace, by, *values),
    )
    return _best_first(derived, (row[0] for row in rows))


def _best_first(derived: Derived, numbers: Iterable[int]) -> list[int]:
    scored = [
        (-derived.items[derived.numbers[number]].score, number) for number in numbers if number in derived.numbers
    ]
    return [number for _, number in sorted(scored)[:BOUND]]


def _by_place(store: Store, derived: Derived, namespace: int, location: str) -> tuple[list[int], list[int]]:
    """Items filed under a place, and under those reached from it; nothing is asked where there is no place."""
    any_place = "SELECT 1 FROM item_places WHERE namespace = ? AND by = 'location' LIMIT 1"
    if not location or not store.rows(any_place, (namespace,)):
        return [], []
    here = _filed(store, derived, namespace, "location", [location])
    places = derived.reached.get(location)
    if places is None:
        places = derived.reached[location] = reached(store, namespace, location)
    near = _filed(store, derived, namespace, "location", places) if places else []
    return here, near


def reached(store: Store, namespace: int, location: str) -> tuple[str, ...]:
    """The places to which recorded steps led from a place, by name."""
    rows = store.rows(
        "SELECT DISTINCT after.location FROM steps JOIN states AS after ON after.id = post "
        "WHERE pre IN (SELECT id FROM states WHERE namespace = ? AND location = ? AND location != '' "
        "ORDER BY id DESC LIMIT ?) AND after.location NOT IN ('', ?) ORDER BY 1",
        (namespace, location, PLACE_STATES, location),
    )
    return tuple(row[0] for row in rows)


def _tagged(store: Store, derived: Derived, namespace: int, query: str) -> list[int]:
    """Items that share TAGS or more tags with the words of a state, most first."""
    rarest = sorted(content_words(query), key=lambda word: (derived.words.get(word, 0), word))[:TAG_WORDS]
    rows = store.rows(
        f"SELECT number FROM item_places WHERE namespace = ? AND by = 'tag' AND value IN "
        f"({','.join('?' * len(rarest))}) GROUP BY number HAVING count(*) >= ? ORDER BY count(*) DESC, number LIMIT ?",
        (namespace, *rarest, TAGS, BOUND),
    )
    return [row[0] for row in rows]


def listed(store: Store, namespace: int, limit: int | None, offset: int) -> list[dict[str, Any]]:
    """Clusters, the most frequent first: how often they were met, by how many episodes, and what pays there.

    Raises: ConfigError for a negative limit or offset.
    """
    if offset < 0 or (limit is not None and limit < 0):
        raise ConfigError(f"limit {limit} and offset {offset} must not be negative.")
    rows = store.rows(_CLUSTERS, (namespace, -1 if limit is None else limit, offset))
    return [_cluster(store, namespace, row) for row in rows]


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


def _cluster(store: Store, namespace: int, row: tuple[Any, ...]) -> dict[str, Any]:
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
    """The mean of the vectors of a cluster's newest states, of length 1; None while none has a vector.

    For people: recall binds no new signature to the nearest centroid. At 0.85, where SLEA-RL merges, an
    open and a closed drawer in the same room are one (cosine 0.94 hashed, 0.96 by MiniLM), and drawer 3
    open and drawer 7 closed are not (0.82): the signature tells them apart, the text search finds both.
    """
    rows = store.rows(
        "SELECT vector FROM vectors WHERE kind = 'states' AND ref IN "
        "(SELECT id FROM states WHERE namespace = ? AND signature = ? ORDER BY id DESC LIMIT ?)",
        (namespace, plain(signature), CENTROID_STATES),
    )
    if not rows:
        return None
    mean: Vectors = np.mean([np.frombuffer(row[0], dtype=np.float32) for row in rows], axis=0)
    return mean / max(float(np.linalg.norm(mean)), 1e-12)


def distinct(hits: Iterable[Hit], k: int) -> list[Hit]:
    """The first k hits on items, none in the words of an earlier one."""
    chosen: dict[frozenset[str], Hit] = {}
    for hit in hits:
        if isinstance(hit.what, Item):
            chosen.setdefault(frozenset(words(hit.what.text)), hit)
        if len(chosen) == k:
            break
    return list(chosen.values())
