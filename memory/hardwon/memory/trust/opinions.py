"""Feedback of untrusted writers: how far it may move the score of an item.

Feedback is stored in the library, so it survives a restart of the server. Each writer may rate an item once per episode
and moves it by at most `TUNING.max_opinion_change` in total. Untrusted feedback never takes an item below the score at
which recall drops it; only trusted feedback and outcomes can do that.
"""

from sqlite3 import Connection

from hardwon.memory.errors import TooMuchFeedback
from hardwon.memory.records import Item
from hardwon.memory.values.tuning import TUNING as VALUES_TUNING

from .tuning import TUNING


def count_rating(connection: Connection, client: str, most: int, now: float) -> None:
    """Count one rating of a client, unless it gave too many in the last minute.

    The times are in the library, so that all processes of a server share the limit. Older ones are deleted.
    """
    # Times in the future are from before the clock was put back; they would never expire.
    connection.execute("DELETE FROM ratings WHERE at <= ? OR at > ?", (now - 60.0, now + 1.0))
    times = connection.execute("SELECT at FROM ratings WHERE client = ? ORDER BY at", (client,)).fetchall()
    if len(times) >= most:
        wait_s = (times[len(times) - most][0] if most > 0 else now) + 60.0 - now
        raise TooMuchFeedback(
            f"more than {most} ratings in a minute. Continue in {wait_s:.0f} s, and rate only items that clearly "
            "helped or misled you."
        )
    connection.execute("INSERT INTO ratings(client, at) VALUES (?, ?)", (client, now))


def record_opinion(
    connection: Connection, namespace: int, item: Item, helped: bool, writer: str, episode: str
) -> float:
    """Record an untrusted writer's feedback on an item, and return the item's new score."""
    opinions = connection.execute(
        "SELECT episode, moved FROM opinions WHERE namespace = ? AND item_id = ? AND writer = ?",
        (namespace, item.id, writer),
    ).fetchall()
    if any(rated == episode for rated, _ in opinions):
        raise TooMuchFeedback(
            f"{item.id} already has your feedback for this episode. Send feedback again after the next episode."
        )
    wanted = TUNING.opinion_step * (float(helped) - item.score)
    # Absolute moves: raising and lowering in turn must not restore the allowance.
    left = max(0.0, TUNING.max_opinion_change - sum(abs(float(by)) for _, by in opinions))
    score = item.score + max(-left, min(left, wanted))
    if not helped:  # may not push the item below the floor of recall
        score = max(score, min(item.score, VALUES_TUNING.masking_score))
    score = round(float(score), 4)
    connection.execute(
        "INSERT INTO opinions(namespace, item_id, writer, episode, moved) VALUES (?, ?, ?, ?, ?)",
        (namespace, item.id, writer, episode, score - item.score),
    )
    return float(score)
