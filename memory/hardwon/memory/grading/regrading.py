"""Regrading: give a stored episode another outcome, and everything derived from it, in the caller's transaction.

The result is that of a library in which the episode had ended so: its reward, its returns, the rollups, words and
worlds that it counts in, and the usages of items. Their present scores move by the difference that the outcome makes
today. The steps themselves stay as they were recorded.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from sqlite3 import Connection
from typing import Any

from hardwon.memory.learning import item_credit
from hardwon.memory.records import Trajectory
from hardwon.memory.storage import rollups, worlds
from hardwon.memory.storage.checksums import normalize_real, seal
from hardwon.memory.storage.counted import EpisodeClock, add_words, find_counted_writers, is_counted, recount_words
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import KeyIds, is_untrusted

from .grades import FirstOutcome, Grade, is_repeated, log_grade, read_first_outcome, read_grades

_OF_EPISODE = "namespace = ? AND trajectory_id = ?"


class Regrading:
    """The change of one episode's outcome."""

    def __init__(self, store: Store, connection: Connection, namespace: int, discount: float) -> None:
        """Begin a change."""
        self._store, self._connection, self._namespace = store, connection, namespace
        self._discount = discount

    def apply(self, grade: Grade, episode: Trajectory) -> Grade:
        """Write a grade, and change the episode if its outcome differs."""
        before = read_grades(self._store, self._namespace, episode.id)
        if is_repeated(grade, before):
            return replace(before[-1], is_new=False)
        first = read_first_outcome(self._store, self._namespace, episode)
        graded = self._build(grade, episode, first)
        if (graded.success, graded.score) != (episode.success, episode.score):
            self.change(episode, graded)
        return log_grade(self._connection, self._namespace, grade, first)

    @staticmethod
    def _build(grade: Grade, episode: Trajectory, first: FirstOutcome) -> Trajectory:
        """Return the episode with its new outcome.

        The last step's reward pays for the outcome: it moves by as much as the outcome moved since the recording, so
        that a second grade gives the same reward as if it were the first.
        """
        change = _find_level(grade.success, grade.score) - _find_level(first.success, first.score)
        steps = episode.steps
        if steps:
            steps = (*steps[:-1], replace(steps[-1], reward=normalize_real(first.reward + change)))
        ending = first.ending
        if (grade.success, grade.score) != (first.success, first.score):
            ending = "success" if grade.success else "failed" if ending in ("", "success") else ending
        return replace(episode, success=grade.success, score=grade.score, steps=steps, ending=ending)

    def change(self, old: Trajectory, new: Trajectory) -> None:
        """Write the new outcome and everything that depends on it."""
        returns = new.learned_returns(self._discount)
        new = replace(
            new,
            steps=tuple(
                replace(step, return_to_go=value, keys=step.keys if new.success is not None else ())
                for step, value in zip(new.steps, returns, strict=True)
            ),
        )
        before = item_credit.weigh_last(self._connection, self._namespace, old)
        self._write_episode(new)
        self._write_steps(new, has_keys=(old.success is None) != (new.success is None))
        # An episode is placed in a world before it is settled, and leaves its world afterwards.
        if new.success is not None:
            self._count(old, new)
        if not is_untrusted(new):
            rollups.recount(self._connection, self._store, self._namespace, new.id, new.steps)
            self._credit(old, new, before)
        if new.success is None:
            self._count(old, new)
        # The rules look at all keys again: the counts of old steps changed.
        self._connection.execute("DELETE FROM proposals WHERE namespace = ?", (self._namespace,))

    def _write_episode(self, episode: Trajectory) -> None:
        success = None if episode.success is None else int(episode.success)
        self._connection.execute(
            "UPDATE trajectories SET success = ?, score = ?, total_reward = ?, ending = ? "
            "WHERE namespace = ? AND id = ?",
            (
                *(success, normalize_real(episode.score), normalize_real(episode.total_reward), episode.ending),
                *(self._namespace, episode.id),
            ),
        )
        seal(self._connection, "trajectories", "namespace = ? AND id = ?", (self._namespace, episode.id))

    def _write_steps(self, episode: Trajectory, *, has_keys: bool) -> None:
        """Write the rewards and returns of the steps and, with `has_keys`, their keys."""
        own = (self._namespace, episode.id)
        self._connection.executemany(
            "UPDATE steps SET reward = ?, return_to_go = ? WHERE id = ?",
            [
                (normalize_real(step.reward), normalize_real(step.return_to_go or 0.0), step.id)
                for step in episode.steps
            ],
        )
        if has_keys:
            ids = KeyIds().of(self._connection, (key for step in episode.steps for key in step.keys))
            self._connection.executemany(
                "UPDATE steps SET keys = ? WHERE id = ?",
                [(f"[{','.join(ids[key] for key in step.keys)}]", step.id) for step in episode.steps],
            )
        seal(self._connection, "steps", _OF_EPISODE, own)

    def _count(self, old: Trajectory, new: Trajectory) -> None:
        """Count the words and the world of the episode."""
        connection, namespace = self._connection, self._namespace
        counted = find_counted_writers(connection.execute, namespace)
        if old.success is not None and new.success is not None:
            if is_counted(new, counted) and old.success != new.success:
                self._move_successes(new.id, int(new.success) - int(old.success))
        elif new.success is not None:
            add_words(connection, namespace, [new] if is_counted(new, counted) else [])
            worlds.place_episodes(connection, namespace, [new], counted)
        else:
            recount_words(connection, namespace, counted)
            worlds.renew(connection, namespace)

    def _move_successes(self, episode: str, change: int) -> None:
        """Move the number of successes of an episode's world."""
        query = f"SELECT world FROM episode_worlds WHERE {_OF_EPISODE}"
        row = self._connection.execute(query, (self._namespace, episode)).fetchone()
        number = row[0] if row else 0
        while number:
            where = (self._namespace, number)
            row = self._connection.execute("SELECT record FROM worlds WHERE namespace = ? AND id = ?", where).fetchone()
            if row is None:
                return
            record = json.loads(row[0])
            if not record["into"]:
                record["won"] = max(0, record.get("won", 0) + change)
                text = json.dumps(record, separators=(",", ":"))
                self._connection.execute("UPDATE worlds SET record = ? WHERE namespace = ? AND id = ?", (text, *where))
            number = record["into"]  # the world that absorbed this one

    def _credit(self, old: Trajectory, new: Trajectory, before: Mapping[str, tuple[float, float]]) -> None:
        """Write the usages of items with the new outcome, and move their present scores."""
        connection, namespace, own = self._connection, self._namespace, (self._namespace, new.id)
        if not (item_credit.names_items(old) or item_credit.names_items(new)):
            return
        if new.success is not None and old.success is not None:
            where = f"{_OF_EPISODE} AND mode IN ('recalled', 'withheld', 'masked', 'blocked')"
            connection.execute(f"UPDATE usages SET outcome = ? WHERE {where}", (new.outcome, *own))
            seal(connection, "usages", _OF_EPISODE, own)
        else:
            connection.execute(f"DELETE FROM usages WHERE {_OF_EPISODE}", own)
            if new.success is not None:
                item_credit.credit(connection, namespace, new, EpisodeClock(namespace).read(connection.execute))
            elif item_credit.names_items(new):
                item_credit.write_usages(connection, namespace, new, None)
        if old.success is not None:
            item_credit.recredit(connection, namespace, new, before)


def _find_level(success: bool | None, score: float) -> float:
    """Return how good an outcome is, in [0, 1]: its score or, without one, whether it is a success."""
    return score or float(bool(success))


def pack_grade(grade: Grade, keys: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return a grade, and the keys of the steps of an episode that begins to count, as the values of a log entry."""
    names = ("episode", "success", "score", "grader", "why", "lesson", "instead", "step")
    return {**{name: getattr(grade, name) for name in names}, "keys": [list(own) for own in keys]}


def unpack_grade(values: dict[str, Any], read: Any) -> tuple[Grade, Trajectory]:
    """Return the grade of a log entry, and the episode with the keys that the entry gives its steps."""
    keys = values.pop("keys")
    episode: Trajectory = read(values["episode"])
    if keys:
        steps = zip(episode.steps, keys, strict=True)
        episode = replace(episode, steps=tuple(replace(step, keys=tuple(own)) for step, own in steps))
    grade = Grade(**values, previous_success=episode.success, previous_score=episode.score)
    return grade, episode
