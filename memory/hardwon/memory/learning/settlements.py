"""Settlements: what each episode changed in the scores of the items that it was shown.

A late grade changes the outcome of an episode that was settled before. With its settlement, the scores are known as
they were then, so `learning.recrediting` can settle it again, and the later episodes that its items took part in.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from sqlite3 import Connection

from hardwon.memory.storage.episodes import dumps
from hardwon.memory.storage.world_scores import Scores

_COLUMNS = "id, trajectory_id, item_id, world, uses, before, after"


@dataclass(frozen=True, slots=True)
class ScoreState:
    """The scores of an item at one moment."""

    scores: Scores
    overall: float


@dataclass(frozen=True, slots=True)
class Settlement:
    """The effect of one episode on the scores of one item."""

    id: int
    """Number of the row; 0 if it is not written yet."""
    episode: str
    item: str
    world: int | None
    """World of the episode; None if it has none."""
    uses: int
    """Number of earlier uses of the item."""
    before: ScoreState
    after: ScoreState


def add_settlements(connection: Connection, namespace: int, settlements: Iterable[Settlement]) -> None:
    """Write the settlements of an episode."""
    connection.executemany(
        "INSERT INTO settlements(namespace, trajectory_id, item_id, world, uses, before, after) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(namespace, entry.episode, entry.item, *_pack(entry)) for entry in settlements],
    )


def replace_settlements(connection: Connection, namespace: int, settlements: Iterable[Settlement]) -> None:
    """Replace settlements by new ones of the same rows, and add those that have no row yet."""
    rows = list(settlements)
    connection.executemany(
        "UPDATE settlements SET world = ?, uses = ?, before = ?, after = ? WHERE id = ?",
        [(*_pack(entry), entry.id) for entry in rows if entry.id],
    )
    add_settlements(connection, namespace, [entry for entry in rows if not entry.id])


def read_settlements_since(connection: Connection, namespace: int, episode: str) -> list[list[Settlement]]:
    """Return the settlements of an episode and of all later ones, one list per episode, in the order of recording."""
    rows = connection.execute(
        f"SELECT {', '.join(f'settled.{name.strip()}' for name in _COLUMNS.split(','))} "
        "FROM trajectories AS one JOIN settlements AS settled "
        "ON settled.namespace = one.namespace AND settled.trajectory_id = one.id "
        # The unary plus makes SQLite scan the later episodes by rowid instead of the index of the namespace.
        "WHERE +one.namespace = ?1 AND one.rowid >= (SELECT rowid FROM trajectories WHERE namespace = ?1 AND id = ?2) "
        "ORDER BY one.rowid, settled.id",
        (namespace, episode),
    )
    groups: dict[str, list[Settlement]] = {}
    for ref, name, item, world, uses, before, after in rows:
        groups.setdefault(name, []).append(
            Settlement(ref, name, item, world, uses, _parse_state(before), _parse_state(after))
        )
    return list(groups.values())


def _pack(entry: Settlement) -> tuple[int | None, int, str, str]:
    return entry.world, entry.uses, _dump_state(entry.before), _dump_state(entry.after)


def _dump_state(standing: ScoreState) -> str:
    return dumps([standing.overall, [[world, *scored] for world, scored in sorted(standing.scores.items())]])


def _parse_state(text: str) -> ScoreState:
    overall, scores = json.loads(text)
    return ScoreState({world: (score, uses) for world, score, uses in scores}, overall)
