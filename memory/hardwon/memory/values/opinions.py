"""Opinions: how far untrusted writers may move the score of an item by saying that it helped or misled them.

What a writer said is kept in the library's file, so that a restarted server forgets nothing of it. One writer says
one thing of an item for each episode, moves it by at most `MOST` in all, and never takes an item below the score at
which it is no longer recalled: only trusted feedback and outcomes do that.
"""

from sqlite3 import Connection

from hardwon.memory.errors import TooMuchFeedback
from hardwon.memory.records import Item

from .effects import FLOOR

LEAST = 0.1
"""How far one opinion moves an item's score towards 1 or 0."""
MOST = 0.15
"""How far one untrusted writer moves the score of one item in all."""


def moved(connection: Connection, namespace: int, item: Item, helped: bool, writer: str, episode: str) -> float:
    """Return the score of an item after an untrusted writer's opinion, and keep that opinion.

    Raises: TooMuchFeedback for a second opinion on an item in one episode.
    """
    said = connection.execute(
        "SELECT episode, moved FROM opinions WHERE namespace = ? AND item_id = ? AND writer = ?",
        (namespace, item.id, writer),
    ).fetchall()
    if any(one == episode for one, _ in said):
        raise TooMuchFeedback(f"you said already whether {item.id} helped in this episode. Speak of it after the next.")
    wanted = LEAST * (float(helped) - item.score)
    left = max(0.0, MOST - sum(abs(float(by)) for _, by in said))
    score = item.score + max(-left, min(left, wanted))
    if not helped:
        score = max(score, min(item.score, FLOOR))
    score = round(float(score), 4)
    connection.execute(
        "INSERT INTO opinions(namespace, item_id, writer, episode, moved) VALUES (?, ?, ?, ?, ?)",
        (namespace, item.id, writer, episode, score - item.score),
    )
    return float(score)
