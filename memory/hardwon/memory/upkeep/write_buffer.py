"""The inbox: episodes as they were recorded, durable, and not yet filed in the ledger.

Recording is one row and one fsync. What the row becomes (states, steps, attempts, segments, words, and
their indices) is filed before the next read, in the order in which it was recorded, many episodes at
once: no reader sees the inbox. An episode is in the inbox or filed, never both nor neither, for one
transaction moves it; so a kill loses nothing. Filing need not be durable when it returns: what a power
cut takes back is in the inbox again.

An episode that cannot be filed stays there with the reason, which `verify` tells, and holds up no other.
"""

import gc
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from sqlite3 import Connection, IntegrityError, InterfaceError, ProgrammingError
from typing import Any

from hardwon.memory.errors import ConfigError, LibraryUnwritable
from hardwon.memory.guardrails.outage import mark_outages
from hardwon.memory.learning import item_credit
from hardwon.memory.privacy.redaction import may_hold_secrets, redact_trajectory
from hardwon.memory.records import Diagnosis, Failure, State, Step, Trajectory
from hardwon.memory.storage.checksums import SUMMED, compute_checksum, raw_text
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import Batch, KeyIds, dumps, is_recorded, now, refuse_other_episode
from hardwon.memory.validation import LARGEST, check_episode, check_episodes, check_size

DISCOUNT = 0.95
"""Per step, for the returns of recorded steps."""
FILE_AFTER = 16_000_000
"""Characters that one process leaves in the inbox before it files them itself: some 15,000 steps, a second's work."""
KEPT = 2_000
"""Steps of the newest episodes that are kept in memory, so that filing need not read them again."""
AT_ONCE = 4_000
"""Steps filed in one transaction, about: other writers wait as long."""
_WAITING = "FROM inbox WHERE namespace = ? AND failed IS NULL"
_PUT = "INSERT INTO inbox(id, namespace, ref, named, at, episode, checksum) VALUES (?, ?, ?, ?, ?, ?, ?)"
_NEXT = f"SELECT checksum, {SUMMED['inbox'].columns} {_WAITING} ORDER BY id"
_FIND = """
SELECT episode FROM inbox WHERE named AND namespace = :namespace AND ref = :ref
UNION ALL SELECT episode FROM inbox WHERE id = :id AND namespace = :namespace AND ref = :ref AND NOT named
"""
"""Only ids that callers gave are in an index, which is a page more to write; an id of our own tells its row."""
_BROKEN = (
    *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
    *(IntegrityError, InterfaceError, ProgrammingError),
)
"""What an episode that cannot be filed raises; all else is the file's or the machine's."""

logger = logging.getLogger("hardwon.memory")


class Inbox:
    """The episodes of one namespace that wait to be filed."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store = store
        self._namespace = namespace
        self._key_ids = KeyIds()
        self._recent: dict[str, Trajectory] = {}
        self._steps = self._size = 0
        self._copied_at = self._newest = 0
        self._chance = os.urandom(8).hex()
        """With the number of a row the id of an episode that has none: nobody else gives it."""
        self._counted = (0, 0)
        self.on_filed: Callable[[Sequence[Trajectory]], None] = lambda episodes: None
        """Called with episodes as they were stored."""

    def put(self, episodes: Iterable[Trajectory]) -> list[str]:
        """Write episodes in one transaction, durable on return; returns their ids. One that is there is not put again.

        Those that name items are filed at once, for scores move with them; so is what another transaction holds.
        """
        self.on_file()
        given, ids = list(map(_redacted, check_episodes(episodes))), []
        new: dict[str, Trajectory] = {}
        rows: list[tuple[int, int, str, int, str, str]] = []
        with self._store.transaction() as connection:
            at = now()
            for number, (episode, told) in enumerate(given, self._next_number(connection)):
                ref = episode.id or f"{number:016x}{self._chance}"
                ids.append(ref)
                if ref in new:
                    refuse_other_episode(episode, new[ref].task, len(new[ref].steps))
                elif not (episode.id and self._holds(connection, episode)):
                    new[ref] = episode
                    rows.append((number, self._namespace, ref, int(bool(episode.id)), at, told))
            at_once = self._store.nested or any(map(item_credit.names_items, new.values()))
            if at_once:
                self._file_there()
                self.on_filed(self.write(connection, [(at, _named(episode, ref)) for ref, episode in new.items()]))
            else:
                connection.executemany(_PUT, [(*row, compute_checksum(row)) for row in rows])
                self._newest = rows[-1][0] if rows else self._newest
        if new and not at_once:
            self._remember(new, sum(len(told) for *_, told in rows))
        return ids

    def _next_number(self, connection: Connection) -> int:
        """Of the next row: the time, so that no number comes twice; where the clock was put back, above all there."""
        number = time.time_ns()
        if number > self._newest > 0:
            return number
        (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM inbox").fetchone()
        return max(number, self._newest + 1, int(newest) + 1)

    def _holds(self, connection: Connection, episode: Trajectory) -> bool:
        """Whether it is here or filed. Raises ConfigError when another episode has its id."""
        told = {"id": _number_of(episode.id), "namespace": self._namespace, "ref": episode.id}
        waiting = connection.execute(_FIND, told).fetchone()
        if waiting:
            other = unpacked(waiting[0], episode.id)
            refuse_other_episode(episode, other.task, len(other.steps))
        return waiting is not None or is_recorded(connection, self._namespace, episode)

    def _remember(self, new: dict[str, Trajectory], size: int) -> None:
        self._size += size
        for ref, episode in new.items():
            if self._steps < KEPT:
                self._recent[ref] = episode
                self._steps += len(episode.steps)
        self._store.waiting = self.file
        if self._size > FILE_AFTER:
            self.file()

    # -- filing -----------------------------------------------------------------------------------

    def on_file(self) -> None:
        """Leave a copy that was read: something is to be written."""
        if self._store.copied:
            self._store.to_file()
            self._store.waiting = self.file

    def file(self) -> None:
        """File what waits, of this process or another; where the file cannot be written, in a copy in memory."""
        store = self._store
        if store.writing:  # what fails then is the transaction's
            self._file_there()
            return
        if store.copied and store.version() != self._copied_at:
            store.to_file()
        store.waiting = None
        if not waits(store, self._namespace):
            return
        try:
            if store.read_only:
                with closing(Store(store.path)) as writer:
                    Inbox(writer, self._namespace)._file_there()
            else:
                self._file_there()
        except LibraryUnwritable as error:
            logger.info("%s What was recorded lately is read from a copy in memory.", error)
            self.forget()
            self._copied_at = store.version()
            store.to_copy(self._file_there)
            self.forget()

    def _file_there(self) -> None:
        """A few episodes a transaction, until none waits."""
        more = True
        with _uncollected():
            while more:
                with self._store.transaction(durable=False) as connection:
                    more = self._file_some(connection)
        self._recent.clear()
        self._steps = self._size = 0

    def _file_some(self, connection: Connection) -> bool:
        """Whether there may be more."""
        found: list[tuple[int, str, Trajectory]] = []
        steps = 0
        broken = []
        with raw_text(connection), closing(connection.execute(_NEXT, (self._namespace,))) as rows:
            for checksum, *row in rows:
                try:
                    found.append(self._read(row, checksum))
                except _BROKEN as error:
                    broken.append((repr(error), row[0]))
                    continue
                steps += len(found[-1][2].steps)
                if steps >= AT_ONCE:
                    break
        try:
            self._filed(connection, found)
        except _BROKEN:
            for one in found:
                try:
                    self._filed(connection, [one])
                except _BROKEN as error:
                    broken.append((repr(error), one[0]))
        connection.executemany("UPDATE inbox SET failed = ? WHERE id = ?", broken)
        for why, number in broken:
            logger.warning("episode %d in the inbox of %s cannot be filed: %s", number, self._store.path, why)
        return steps >= AT_ONCE

    def _read(self, row: Sequence[Any], checksum: int | None) -> tuple[int, str, Trajectory]:
        """Return the number, the time and the episode of a row, whose texts are not decoded yet."""
        if checksum not in (None, compute_checksum(row)):
            raise ValueError("the row was damaged after it was written: its checksum does not fit")
        number, _, ref, _, at, told = row
        ref, at, told = ref.decode(), at.decode(), told.decode()
        recent = self._recent.get(ref)
        return int(number), at, _named(recent, ref) if recent else unpacked(told, ref)

    def _filed(self, connection: Connection, found: Sequence[tuple[int, str, Trajectory]]) -> None:
        """Move episodes from the inbox to the ledger, all or none."""
        if not found:
            return
        connection.execute("SAVEPOINT filing")
        try:
            stored = self.write(connection, [(at, episode) for _, at, episode in found])
            connection.executemany("DELETE FROM inbox WHERE id = ?", [(number,) for number, _, _ in found])
        except BaseException:
            if connection.in_transaction:  # a full disk ends it
                connection.execute("ROLLBACK TO filing")
            raise
        finally:
            if connection.in_transaction:
                connection.execute("RELEASE filing")
        self.on_filed(stored)

    def write(self, connection: Connection, episodes: Iterable[tuple[str, Trajectory]]) -> list[Trajectory]:
        """File episodes, recorded at a time each, and settle what they say of items; returns them as stored."""
        batch = Batch(connection, self._namespace, self._key_ids, DISCOUNT)
        filed = []
        try:
            for at, episode in episodes:
                if not item_credit.names_items(episode):
                    filed.append(batch.add(episode, at))
                    continue
                batch.write()
                clock = self._clock(connection)
                filed.append(batch.add(episode, at))
                batch.write()
                item_credit.settle(connection, self._namespace, filed[-1], clock)
            batch.write()
        except BaseException:
            self.forget()
            raise
        return filed

    def write_alone(self, connection: Connection, episode: Trajectory, at: str) -> None:
        """File an episode, and leave what it says of items to others; for imports.

        Raises: ConfigError for an episode that cannot be kept.
        """
        check_episode(episode)
        batch = Batch(connection, self._namespace, self._key_ids, DISCOUNT)
        batch.add(episode, at)
        batch.write()

    def _clock(self, connection: Connection) -> int:
        """Episodes filed so far, excluded ones apart."""
        count, last = self._counted
        new, newest = connection.execute(
            "SELECT count(*) FILTER (WHERE success IS NOT NULL), max(rowid) FROM trajectories "
            "WHERE rowid > ? AND +namespace = ?",
            (last, self._namespace),
        ).fetchone()
        self._counted = (count + new, newest or last)
        return count + int(new)

    def start_anew(self, namespace: int) -> None:
        """Drop all that is remembered of what was filed: some of it is forgotten."""
        self._namespace = namespace
        self._recent.clear()
        self._steps = self._size = 0
        self.forget()

    def forget(self) -> None:
        """Drop what was learnt in a transaction that did not commit."""
        self._key_ids.forget()
        self._counted = (0, 0)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's collector, which takes a fifth of the time of filing and finds nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _named(episode: Trajectory, ref: str) -> Trajectory:
    return episode if episode.id else replace(episode, id=ref)


def _number_of(ref: str) -> int:
    """The number of the row that an id of ours tells; what another's tells is no row's."""
    try:
        number = int(ref[:16], 16) if len(ref) == 32 else -1
    except ValueError:
        number = -1
    return number if number < 2**63 else -1  # SQLite's numbers go no further


def waits(store: Store, namespace: int) -> bool:
    """Whether an episode waits to be filed."""
    return store.connection.execute(f"SELECT 1 {_WAITING} LIMIT 1", (namespace,)).fetchone() is not None


def file_all(store: Store) -> None:
    """File what waits, in every namespace."""
    for (namespace,) in store.rows("SELECT id FROM namespaces"):
        Inbox(store, namespace).file()


def _redacted(episode: Trajectory) -> tuple[Trajectory, str]:
    """The episode without secrets, and packed: read once as a whole, its parts only where that shows one may be."""
    episode = mark_outages(episode)
    told = packed(episode)
    check_size(episode, told)
    clean = redact_trajectory(episode) if may_hold_secrets(told) else episode
    return clean, told if clean is episode else packed(clean)


def packed(episode: Trajectory) -> str:
    """An episode as it is kept here: a state that steps share is told once.

    Raises: ConfigError for a reward or score that is no number, and for a seed beyond 64 bits.
    """
    states = {id(state): state for step in episode.steps for state in (step.pre, step.post)}
    places = {ref: place for place, ref in enumerate(states)}
    offers = {actions: place for place, actions in enumerate(dict.fromkeys(one.admissible for one in episode.steps))}
    if not -(2**63) <= episode.seed < 2**63:
        raise ConfigError(f"seed {episode.seed} is beyond 64 bits; give a smaller one.")
    return dumps(
        [
            episode.task,
            None if episode.success is None else bool(episode.success),
            _number("score", episode.score),
            episode.arm,
            episode.seed,
            episode.ending,
            dict(episode.meta),
            [
                [
                    *(one.observation, dict(one.facts), one.location, one.task, one.feedback, one.notes),
                    one.signature_if_known,
                ]
                for one in states.values()
            ],
            [
                [
                    places[id(step.pre)],
                    step.action,
                    places[id(step.post)],
                    _judged(step.diagnosis),
                    _number("reward", step.reward),
                    step.keys,
                    {name: value for name, value in step.why.items() if name != "trajectory"} if step.why else step.why,
                    offers[step.admissible],
                ]
                for step in episode.steps
            ],
            list(offers),
            *(() if episode.trust == "trusted" and not episode.writer else (episode.writer, episode.trust)),
        ]
    )


def _judged(one: Diagnosis) -> list[Any]:
    success, stagnant, loop = bool(one.success), bool(one.stagnant), bool(one.loop)
    return [success, one.failure, float(one.progress), stagnant, loop, dict(one.diff), one.evidence]


def _number(name: str, value: float) -> float:
    if not -LARGEST <= value <= LARGEST:
        raise ConfigError(f"{name} is {value}; give a number of at most {LARGEST:g}.")
    return float(value)


def unpacked(told: str, ref: str) -> Trajectory:
    """The episode that was packed."""
    task, success, score, arm, seed, ending, meta, shown, taken, *more = json.loads(told)
    listed = more.pop(0) if more and isinstance(more[0], list) else [()]  # older versions kept none
    states = [State(*one) for one in shown]
    offers = [tuple(actions) for actions in listed]
    steps = tuple(
        Step(
            states[pre],
            action,
            states[post],
            _diagnosis(*judged),
            reward,
            t,
            tuple(keys),
            why,
            admissible=offers[offer[0] if offer else 0],
        )
        for t, (pre, action, post, judged, reward, keys, why, *offer) in enumerate(taken)
    )
    return Trajectory(task, steps, success, score, arm, seed, ending, meta, ref, *more)


def _diagnosis(success: bool, failure: str, *rest: Any) -> Diagnosis:
    return Diagnosis(success, Failure(failure), *rest)
