"""Replace recorded episodes by later versions of them, as a log that grew has them.

An episode keeps its id, its grades, and the record of the items that it was shown; items that rest on its steps rest on
the new ones. It takes part in the caller's transaction, so an episode is there in one version or in the other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from sqlite3 import Connection

from hardwon.memory import items as catalogue
from hardwon.memory.grading.grades import note_change
from hardwon.memory.grading.regrading import Regrading
from hardwon.memory.records import Step, Trajectory
from hardwon.memory.storage.checksums import seal
from hardwon.memory.storage.clock import now
from hardwon.memory.storage.database import Store
from hardwon.memory.upkeep import queries
from hardwon.memory.upkeep.write_buffer import DISCOUNT, WriteBuffer

from .deletion import Deletion

EpisodeVersion = tuple[Trajectory, Sequence[str]]
"""The new version of an episode, and the ids of the recorded ones that it replaces; the first one is its id."""
_GRADES = "namespace = ? AND what = 'grade' AND ref = ?"


def replace_episodes(
    store: Store, connection: Connection, buffer: WriteBuffer, versions: Sequence[EpisodeVersion]
) -> None:
    """Replace episodes in the open transaction of a connection."""
    buffer.forget()  # ids of keys that the replacement deletes
    replacement = Replacement(store, connection, buffer.namespace, DISCOUNT)
    replacement.apply(versions, lambda episode: buffer.write_alone(connection, episode, now()))


class Replacement:
    """The replacement of some episodes of one namespace."""

    def __init__(self, store: Store, connection: Connection, namespace: int, discount: float) -> None:
        """Begin a replacement, in the open transaction of the connection."""
        self._store, self._connection, self._namespace = store, connection, namespace
        self._regrading = Regrading(store, connection, namespace, discount)
        self._moved: dict[int, int] = {}
        """Ids of the new steps by those of the old ones."""

    def apply(self, versions: Sequence[EpisodeVersion], write: Callable[[Trajectory], Trajectory]) -> None:
        """Replace episodes."""
        olds = [[queries.trajectory(self._store, self._namespace, ref) for ref in refs] for _, refs in versions]
        graded = [self._collect_grades(episodes) for episodes in olds]
        deletion = Deletion(self._store, self._connection, self._namespace)
        deletion.clear([refs[0] for _, refs in versions], [ref for _, refs in versions for ref in refs[1:]])
        for (new, _), episodes, outcome in zip(versions, olds, graded, strict=True):
            stored = self._write(new, episodes[0], outcome, write)
            for old in episodes:
                self._moved |= _match_steps(old.steps, stored.steps)
        self._move_evidence()
        note_change(self._connection)

    def _collect_grades(self, episodes: Sequence[Trajectory]) -> Trajectory | None:
        """Give the first of some episodes the grades of all; return the one whose grades count, if there is one."""
        graded = None
        for episode in episodes:
            own = (self._namespace, episode.id)
            if self._connection.execute(f"SELECT 1 FROM changes WHERE {_GRADES}", own).fetchone():
                graded = graded or episode
                self._connection.execute(f"UPDATE changes SET ref = ? WHERE {_GRADES}", (episodes[0].id, *own))
        seal(self._connection, "changes", _GRADES, (self._namespace, episodes[0].id))
        return graded

    def _write(
        self, new: Trajectory, old: Trajectory, graded: Trajectory | None, write: Callable[[Trajectory], Trajectory]
    ) -> Trajectory:
        """Write a version with the outcome of before, then change it, so that what depends on it changes, too."""
        steps = tuple(
            replace(step, why=old.steps[at].why)
            if at < len(old.steps) and old.steps[at].action == step.action
            else step
            for at, step in enumerate(new.steps)
        )
        new = replace(new, id=old.id, steps=steps)
        target = new if graded is None else _with_outcome(new, graded)
        is_changed = (target.success, target.score) != (old.success, old.score)
        stored = write(_with_outcome(new, old) if is_changed else target)
        if is_changed:
            ids = zip(target.steps, stored.steps, strict=True)
            target = replace(target, steps=tuple(replace(step, id=other.id, t=other.t) for step, other in ids))
            self._regrading.change(stored, target)
        return stored

    def _move_evidence(self) -> None:
        """Let items rest on the new steps."""
        rows = self._connection.execute("SELECT id FROM items WHERE namespace = ?", (self._namespace,)).fetchall()
        for (ref,) in rows:
            item = catalogue.read_item(self._connection, self._namespace, ref)
            if item is not None and not self._moved.keys().isdisjoint(item.provenance):
                moved = dict.fromkeys(self._moved.get(step, step) for step in item.provenance)
                provenance = tuple(step for step in moved if step)
                item = replace(item, provenance=provenance, version=item.version + 1)
                catalogue.write(self._connection, self._namespace, item, "recomputed")


def _with_outcome(episode: Trajectory, other: Trajectory) -> Trajectory:
    """Return an episode that ended like another one; the last reward pays for the outcome."""
    steps = episode.steps
    if steps and other.steps:
        steps = (*steps[:-1], replace(steps[-1], reward=other.steps[-1].reward))
    return replace(episode, success=other.success, score=other.score, ending=other.ending, steps=steps)


def _match_steps(old: Sequence[Step], new: Sequence[Step]) -> Mapping[int, int]:
    """Return the ids of the new steps by those of the old ones: at the same place, or else with the same action.

    A step that has no counterpart gets 0.
    """
    by_action = {step.action: step.id or 0 for step in reversed(new)}
    return {
        step.id or 0: (new[at].id or 0)
        if at < len(new) and new[at].action == step.action
        else by_action.get(step.action, 0)
        for at, step in enumerate(old)
    }
