"""Scores per world: what an item earned in each world, so that its use in one does not cost it its standing in another.

An item's score is the one of the world where it surely helps most: by (score - 0.5) n / (n + PRIOR) after n uses
there. In a new world it begins with the score it has. World 0 is what an item had before: from a file that knew no
worlds, from an import, or from the world that it was made in.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from sqlite3 import Connection

from hardwon.memory.records import Item

SCORES = "SELECT item_id, world, score, uses FROM item_worlds WHERE namespace = ?"
PRIOR = 5
"""Uses in a world after which half of what an item earned there is believed."""
BEFORE = 0

Scores = dict[int, tuple[float, int]]
"""By world: the score, and after how many uses."""


def overall(scores: Mapping[int, tuple[float, int]]) -> float:
    """Return the score of an item that has these scores in worlds."""
    return max(scores.values(), key=lambda one: ((one[0] - 0.5) * one[1] / (one[1] + PRIOR), one[0]))[0]


def score_in(scores: Mapping[int, tuple[float, int]], world: int, score: float) -> float:
    """Return the score in one world of an item whose score is `score`, shrunk to the mean over its worlds."""
    if not scores:
        return score
    mean, _ = _mean(list(scores.values()))
    local, uses = scores.get(world, (mean, 0))
    shrunk = (uses * local + PRIOR * mean) / (uses + PRIOR)
    moved = score - overall(scores)  # by a person, who moves all of them
    return min(1.0, max(0.0, shrunk + moved))


class WorldScores:
    """The scores in one world of the items that an episode was shown."""

    def __init__(
        self, connection: Connection, namespace: int, episode: str, items: Iterable[Item], uses: Mapping[str, int]
    ) -> None:
        """Read them; `uses` is how often each item was used before, anywhere."""
        self._connection = connection
        self._namespace = namespace
        row = connection.execute(
            "SELECT world FROM episode_worlds WHERE namespace = ? AND trajectory_id = ?", (namespace, episode)
        ).fetchone()
        self._world: int | None = row and row[0]
        self._items = {item.id: item for item in items}
        self._scores = {item.id: self._read(item, uses[item.id]) for item in self._items.values()}

    def local(self) -> list[Item]:
        """Return the items, with the scores that they have in this world."""
        return [
            replace(item, score=self._scores[item.id].get(self._world, (item.score, 0))[0])
            if self._world is not None
            else item
            for item in self._items.values()
        ]

    def move(self, item_id: str, score: float) -> tuple[Item, float]:
        """Write an item's score in this world; return the item as it was, and its new score over all worlds."""
        item = self._items[item_id]
        if self._world is None:
            return item, score
        scores = self._scores[item_id]
        scores[self._world] = (score, scores.get(self._world, (0.0, 0))[1] + 1)
        write(self._connection, self._namespace, item_id, scores)
        return item, overall(scores)

    def _read(self, item: Item, uses: int) -> Scores:
        """Read the scores of an item; a person who changed its score since changed all of them."""
        scores = read(self._connection, self._namespace, item.id)
        if scores:
            by = item.score - overall(scores)
            if abs(by) > 1e-9:
                scores = {world: (min(1.0, max(0.0, score + by)), n) for world, (score, n) in scores.items()}
        elif (uses or item.provenance) and not self._is_home(item):
            scores = {BEFORE: (item.score, uses + 1)}
        return scores

    def _is_home(self, item: Item) -> bool:
        """Whether this is the only world, or the one whose steps the item was made of."""
        worlds = self._connection.execute(
            "SELECT 1 FROM worlds WHERE namespace = ? AND json_extract(record, '$.into') = 0 LIMIT 2",
            (self._namespace,),
        ).fetchall()
        if len(worlds) < 2:
            return True
        homes = self._connection.execute(
            "SELECT DISTINCT world FROM steps JOIN episode_worlds USING (namespace, trajectory_id) "
            "WHERE namespace = ? AND steps.id IN (SELECT value FROM json_each(?))",
            (self._namespace, json.dumps(item.provenance)),
        ).fetchall()
        return (self._world,) in homes


def read(connection: Connection, namespace: int, item_id: str) -> Scores:
    """Return the scores of an item by world."""
    rows = connection.execute(
        "SELECT world, score, uses FROM item_worlds WHERE namespace = ? AND item_id = ? ORDER BY world",
        (namespace, item_id),
    )
    return {world: (score, uses) for world, score, uses in rows}


def write(connection: Connection, namespace: int, item_id: str, scores: Scores) -> None:
    """Write the scores of an item in place of those it has."""
    connection.execute("DELETE FROM item_worlds WHERE namespace = ? AND item_id = ?", (namespace, item_id))
    connection.executemany(
        "INSERT INTO item_worlds VALUES (?, ?, ?, ?, ?)",
        [(namespace, item_id, world, score, uses) for world, (score, uses) in sorted(scores.items())],
    )


def rename(connection: Connection, namespace: int, names: Mapping[int, int]) -> None:
    """File scores under other worlds: two that become one are a mean by uses. Those of no new name are dropped."""
    rows = connection.execute(
        "SELECT item_id, world, score, uses FROM item_worlds WHERE namespace = ? ORDER BY item_id, world", (namespace,)
    ).fetchall()
    items: defaultdict[str, defaultdict[int, list[tuple[float, int]]]] = defaultdict(lambda: defaultdict(list))
    for ref, world, score, uses in rows:
        name = BEFORE if world == BEFORE else names.get(world)
        if name is not None:
            items[ref][name].append((score, uses))
    connection.execute("DELETE FROM item_worlds WHERE namespace = ?", (namespace,))
    for ref, worlds in items.items():
        write(connection, namespace, ref, {world: _mean(some) for world, some in worlds.items()})


def unite(connection: Connection, namespace: int, united: Mapping[int, int]) -> None:
    """File the scores of worlds that were united under the ones that stand for them."""
    rows = connection.execute("SELECT DISTINCT world FROM item_worlds WHERE namespace = ?", (namespace,)).fetchall()
    known = [world for (world,) in rows]
    if not united.keys().isdisjoint(known):
        rename(connection, namespace, {world: united.get(world, world) for world in known})


def _mean(some: Sequence[tuple[float, int]]) -> tuple[float, int]:
    weight = sum(max(1, uses) for _, uses in some)
    return sum(score * max(1, uses) for score, uses in some) / weight, sum(uses for _, uses in some)


def problems(connection: Connection, namespace: int) -> Iterator[tuple[str, int]]:
    """Return the rows that are of no item, of no world that stands, or whose figures cannot be: (item, world)."""
    yield from connection.execute(_WRONG, (namespace,)).fetchall()


def repair(connection: Connection, namespace: int) -> None:
    """Drop the rows that are wrong; the item's own score is used in their place."""
    connection.executemany(
        "DELETE FROM item_worlds WHERE namespace = ? AND item_id = ? AND world = ?",
        [(namespace, *one) for one in problems(connection, namespace)],
    )


_WRONG = """
SELECT item_id, world FROM item_worlds AS one WHERE namespace = ? AND (
    NOT (typeof(score) = 'real' AND score BETWEEN 0 AND 1 AND typeof(uses) = 'integer' AND uses >= 0)
    OR NOT EXISTS (SELECT 1 FROM items WHERE items.namespace = one.namespace AND items.id = item_id)
    OR (world != 0 AND NOT EXISTS (SELECT 1 FROM worlds WHERE worlds.namespace = one.namespace
        AND worlds.id = world AND json_extract(record, '$.into') = 0)))
"""
