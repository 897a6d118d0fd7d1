"""Scores of items per world, so that failures in one world do not lower an item's score in another.

The overall score of an item is its score in the world with the strongest evidence of benefit. That is the world with
the largest (score - 0.5) n / (n + PRIOR) after n uses. In a new world an item starts with its overall score. World 0
holds the score from before worlds were tracked, from an import, or from the world in which the item was created.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from sqlite3 import Connection

from hardwon.memory.records import Item

SCORES = "SELECT item_id, world, score, uses FROM item_worlds WHERE namespace = ?"
PRIOR = 5
"""Shrinkage constant: after this many uses in a world, the local score has half the weight."""
BEFORE = 0
"""Pseudo-world for scores that are not tied to a world."""

Scores = dict[int, tuple[float, int]]
"""Score and number of uses, by world."""


def compute_overall(scores: Mapping[int, tuple[float, int]]) -> float:
    """Return the overall score of an item from its scores per world."""
    return max(scores.values(), key=_rank_score)[0]


def _rank_score(scored: tuple[float, int]) -> tuple[float, float]:
    score, uses = scored
    # Shrink the distance from the neutral 0.5: one lucky use must not outrank many good ones.
    return (score - 0.5) * uses / (uses + PRIOR), score


def score_in(scores: Mapping[int, tuple[float, int]], world: int, score: float) -> float:
    """Return an item's score in one world, shrunk toward its mean over all worlds."""
    if not scores:
        return score
    mean, _ = _mean(list(scores.values()))
    local, uses = scores.get(world, (mean, 0))
    shrunk = (uses * local + PRIOR * mean) / (uses + PRIOR)
    # A person edits the overall score, which shifts the score in every world by the same amount.
    moved = score - compute_overall(scores)
    return min(1.0, max(0.0, shrunk + moved))


class WorldScores:
    """The scores, in the world of one episode, of the items that were shown in it."""

    def __init__(
        self, connection: Connection, namespace: int, episode: str, items: Iterable[Item], uses: Mapping[str, int]
    ) -> None:
        """Read the scores; `uses` counts earlier uses of each item in any world."""
        self._connection = connection
        self._namespace = namespace
        row = connection.execute(
            "SELECT world FROM episode_worlds WHERE namespace = ? AND trajectory_id = ?", (namespace, episode)
        ).fetchone()
        self._world: int | None = row and _find_standing(connection, namespace, row[0])
        self._items = {item.id: item for item in items}
        self._scores = {item.id: self._read(item, uses[item.id]) for item in self._items.values()}

    def local(self) -> list[Item]:
        """Return the items with their scores in this world."""
        return [
            replace(item, score=self._scores[item.id].get(self._world, (item.score, 0))[0])
            if self._world is not None
            else item
            for item in self._items.values()
        ]

    def move(self, item_id: str, score: float, uses: int = 1) -> tuple[Item, float]:
        """Write an item's score in this world, with more or fewer uses; return the item and its new overall score."""
        item = self._items[item_id]
        if self._world is None:
            return item, score
        scores = self._scores[item_id]
        n = scores.get(self._world, (0.0, 0))[1] + uses
        scores[self._world] = (score, max(0, n))
        if uses < 0 and n <= 0:  # no episode is left that earned it
            del scores[self._world]
        write(self._connection, self._namespace, item_id, scores)
        return item, compute_overall(scores) if scores else score

    def _read(self, item: Item, uses: int) -> Scores:
        """Read the scores of an item and apply a person's later change of the overall score to all worlds."""
        scores = read(self._connection, self._namespace, item.id)
        if scores:
            shift = item.score - compute_overall(scores)
            if abs(shift) > 1e-9:  # a person changed the overall score, see `score_in`
                scores = {world: (min(1.0, max(0.0, score + shift)), n) for world, (score, n) in scores.items()}
        # The score was earned in other worlds, so it must not count as a result of this one.
        elif (uses or item.provenance) and not self._is_home(item):
            scores = {BEFORE: (item.score, uses + 1)}
        return scores

    def _is_home(self, item: Item) -> bool:
        """Return whether this is the only world, or the world of the steps that support the item."""
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


def _find_standing(connection: Connection, namespace: int, world: int) -> int:
    """Return the world that absorbed a world, or the world itself; only a late grade meets one that was absorbed."""
    query = "SELECT json_extract(record, '$.into') FROM worlds WHERE namespace = ? AND id = ?"
    while (row := connection.execute(query, (namespace, world)).fetchone()) is not None and row[0]:
        world = row[0]
    return world


def read(connection: Connection, namespace: int, item_id: str) -> Scores:
    """Return the scores of an item by world."""
    rows = connection.execute(
        "SELECT world, score, uses FROM item_worlds WHERE namespace = ? AND item_id = ? ORDER BY world",
        (namespace, item_id),
    )
    return {world: (score, uses) for world, score, uses in rows}


def write(connection: Connection, namespace: int, item_id: str, scores: Scores) -> None:
    """Replace the stored scores of an item."""
    connection.execute("DELETE FROM item_worlds WHERE namespace = ? AND item_id = ?", (namespace, item_id))
    connection.executemany(
        "INSERT INTO item_worlds VALUES (?, ?, ?, ?, ?)",
        [(namespace, item_id, world, score, uses) for world, (score, uses) in sorted(scores.items())],
    )


def rename(connection: Connection, namespace: int, names: Mapping[int, int]) -> None:
    """Assign scores to new world ids.

    Scores that get the same id are averaged, weighted by uses. Scores whose world has no new id are dropped.
    """
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
        write(connection, namespace, ref, {world: _mean(scored) for world, scored in worlds.items()})


def unite(connection: Connection, namespace: int, united: Mapping[int, int]) -> None:
    """Move the scores of merged worlds to the worlds that replace them."""
    rows = connection.execute("SELECT DISTINCT world FROM item_worlds WHERE namespace = ?", (namespace,)).fetchall()
    scored = [world for (world,) in rows]
    if not united.keys().isdisjoint(scored):
        rename(connection, namespace, {world: united.get(world, world) for world in scored})


def _mean(scored: Sequence[tuple[float, int]]) -> tuple[float, int]:
    # A score without uses, from an import, still counts once; otherwise the weight could be zero.
    """Return the mean score, weighted by uses, and the total number of uses."""
    weight = sum(max(1, uses) for _, uses in scored)
    return sum(score * max(1, uses) for score, uses in scored) / weight, sum(uses for _, uses in scored)


def find_problems(connection: Connection, namespace: int) -> Iterator[tuple[str, int]]:
    """Yield (item id, world) of rows with an unknown item, an unknown world or values out of range."""
    yield from connection.execute(_WRONG, (namespace,)).fetchall()


def repair(connection: Connection, namespace: int) -> None:
    """Delete invalid rows, so that the overall score of the item is used instead."""
    connection.executemany(
        "DELETE FROM item_worlds WHERE namespace = ? AND item_id = ? AND world = ?",
        [(namespace, *row) for row in find_problems(connection, namespace)],
    )


_WRONG = """
SELECT item_id, world FROM item_worlds AS one WHERE namespace = ? AND (
    NOT (typeof(score) = 'real' AND score BETWEEN 0 AND 1 AND typeof(uses) = 'integer' AND uses >= 0)
    OR NOT EXISTS (SELECT 1 FROM items WHERE items.namespace = one.namespace AND items.id = item_id)
    OR (world != 0 AND NOT EXISTS (SELECT 1 FROM worlds WHERE worlds.namespace = one.namespace
        AND worlds.id = world AND json_extract(record, '$.into') = 0)))
"""
