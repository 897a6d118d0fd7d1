"""The write buffer: recorded, durable episodes that are not yet in the episode store.

Recording an episode costs one row and one fsync. Everything derived from it (states, steps, attempts, words
and their indexes) is stored before the next read, in the order of recording and many episodes at once, so no reader
sees the buffer. One transaction moves an episode from the buffer (table `inbox`) to the store, so it is always in
exactly one of the two and a kill loses nothing. That transaction need not be durable: a power failure that undoes it
leaves the episode in the buffer.

An episode that cannot be stored stays in the buffer with the reason, which `verify` reports. It does not block others.
"""

import gc
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache, partial
from sqlite3 import Connection, IntegrityError, InterfaceError, ProgrammingError
from typing import Any

from hardwon.memory.errors import LibraryBusy, LibraryUnwritable
from hardwon.memory.guardrails.outage import mark_outages
from hardwon.memory.learning import item_credit
from hardwon.memory.privacy.redaction import redact_trajectory
from hardwon.memory.records import Diagnosis, Failure, State, Step, Trajectory
from hardwon.memory.retrieval.cache import NamespaceCache
from hardwon.memory.situations.familiarity import has_keys, with_keys
from hardwon.memory.sqlite_errors import TRANSLATED
from hardwon.memory.storage.checksums import SUMMED, compute_checksum, raw_text
from hardwon.memory.storage.clock import fix_time, now
from hardwon.memory.storage.counted import EpisodeClock
from hardwon.memory.storage.database import BUSY_TIMEOUT_S, Store
from hardwon.memory.storage.episodes import EpisodeBatch, KeyIds, dumps, is_recorded, refuse_other_episode
from hardwon.memory.validation import check_episode, check_size

DISCOUNT = 0.95
"""Discount per step for the returns of recorded steps."""
FILE_AFTER = 16_000_000
"""Characters that one process buffers before it stores them itself: about 15,000 steps, which take one second."""
BRIEF_S = 0.1
"""Seconds for which a read waits to file episodes. Most commits of other processes take less."""
FIRST = 64
"""Largest number of episodes in the first transaction, which doubles with each. Keys that are missing are computed from
words that many of the episodes before show."""
_WAITING = "FROM inbox WHERE namespace = ? AND failed IS NULL"
PUT = "INSERT INTO inbox(id, namespace, ref, named, at, episode, checksum) VALUES (?, ?, ?, ?, ?, ?, ?)"
_NEXT = f"SELECT checksum, {SUMMED['inbox'].columns} {_WAITING} ORDER BY id"
_FIND = """
SELECT episode FROM inbox WHERE named AND namespace = :namespace AND ref = :ref
UNION ALL SELECT episode FROM inbox WHERE id = :id AND namespace = :namespace AND ref = :ref AND NOT named
"""
"""Only ids from callers are indexed, because an index costs one more page per write. An id that was assigned here
encodes its row."""
BROKEN = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    *(IntegrityError, InterfaceError, ProgrammingError),
)
"""Errors caused by the content of an episode. All other errors concern the file or the machine and are raised."""

logger = logging.getLogger("hardwon.memory")


class WriteBuffer:
    """The buffered episodes of one namespace."""

    def __init__(self, store: Store, namespace: int, read_words: Callable[[], NamespaceCache] | None = None) -> None:
        """Create the buffer; `read_words` returns the state from which missing keys are computed."""
        self._store = store
        self._namespace = namespace
        self._read_words = read_words or cache(partial(_read_words, store, namespace))
        self._key_ids = KeyIds()
        self._recent: dict[str, Trajectory] = {}
        self._steps = self._size = 0
        self._newest = 0
        self._suffix = os.urandom(8).hex()
        """Random suffix that makes the ids assigned by this process unique."""
        self._clock = EpisodeClock(self._namespace)
        self.on_filed: Callable[[Sequence[Trajectory]], None] = lambda episodes: None
        """Callback that receives episodes as they were stored."""

    @property
    def namespace(self) -> int:
        """Return the number of the namespace."""
        return self._namespace

    def put(self, episodes: Iterable[Trajectory]) -> list[str]:
        """Write checked episodes in one transaction that is durable on return.

        Episodes that already exist are not written again. Episodes that use items bypass the buffer, because item
        scores change with them. So do episodes inside another transaction.
        """
        self.on_file()
        # Before the transaction: redacting and packing take long, and other writers would have to wait.
        redacted, ids = list(map(redact_and_pack, episodes)), []
        new: dict[str, Trajectory] = {}
        rows: list[tuple[int, int, str, int, str, str]] = []
        with self._store.transaction() as connection:
            at = now()
            for number, (episode, text) in enumerate(redacted, self._next_row_id(connection)):
                ref = episode.id or f"{number:016x}{self._suffix}"
                ids.append(ref)
                if ref in new:
                    refuse_other_episode(episode, new[ref].task, len(new[ref].steps))
                elif not (episode.id and self._is_present(connection, episode)):
                    new[ref] = episode
                    rows.append((number, self._namespace, ref, int(bool(episode.id)), at, text))
            # Item scores depend on outcomes, so episodes that use items cannot wait in the buffer. Inside another
            # transaction nothing is durable yet, so buffering would not help.
            at_once = self._store.nested or any(map(item_credit.names_items, new.values()))
            if at_once:
                self.file()
                self.on_filed(self.write(connection, [(at, _with_id(episode, ref)) for ref, episode in new.items()]))
            else:
                connection.executemany(PUT, [(*row, compute_checksum(row)) for row in rows])
                self._newest = rows[-1][0] if rows else self._newest
        if new and not at_once:
            self._remember(new, sum(len(text) for *_, text in rows))
        return ids

    def _next_row_id(self, connection: Connection) -> int:
        """Return the next row id: the current time in ns, or max(id) + 1 if the clock went backwards."""
        number = time.time_ns()
        # The fast path needs no query: the clock moved forward since this process wrote its last row.
        if number > self._newest > 0:
            return number
        (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM inbox").fetchone()
        return max(number, self._newest + 1, int(newest) + 1)

    def _is_present(self, connection: Connection, episode: Trajectory) -> bool:
        """Return whether an episode is in the buffer or in the episode store."""
        parameters = {"id": _decode_row_id(episode.id), "namespace": self._namespace, "ref": episode.id}
        waiting = connection.execute(_FIND, parameters).fetchone()
        if waiting:
            other = unpack_episode(waiting[0], episode.id)
            refuse_other_episode(episode, other.task, len(other.steps))
        return waiting is not None or is_recorded(connection, self._namespace, episode)

    def _remember(self, new: dict[str, Trajectory], size: int) -> None:
        self._size += size
        for ref, episode in new.items():
            if self._steps < 2_000:
                self._recent[ref] = episode
                self._steps += len(episode.steps)
        self._store.freshness.waiting = self.file
        if self._size > FILE_AFTER:
            self.file()

    # -- filing -----------------------------------------------------------------------------------

    def on_file(self) -> None:
        """Switch from an in-memory copy back to the file, because a write follows."""
        if self._store.copied:
            self._store.to_file()
            self._store.freshness.waiting = self.file

    def file(self) -> None:
        """Store all buffered episodes, whichever process recorded them.

        If the file cannot be written, they are stored in an in-memory copy, so that reads see them. While another
        process holds the lock of a large file, they stay in the buffer, and the next read tries again.
        """
        store = self._store
        if store.writing:  # inside a transaction, errors must reach its owner
            store.freshness.waiting = None
            self._file_waiting()
            return
        # Somebody wrote to the file, so the copy is stale and the file may be writable again.
        if store.freshness.is_copy_stale():
            store.to_file()
        wait_s = 0.0 if store.freshness.is_behind else BRIEF_S
        # First of all: storing reads from the store, which would file again.
        store.freshness.waiting = None
        store.freshness.is_behind = False
        if not has_waiting(store, self._namespace):
            return
        try:
            if store.read_only:  # a second connection, which may write
                with closing(Store(store.path)) as writer:
                    WriteBuffer(writer, self._namespace, self._read_words)._file_waiting(wait_s)
            else:
                self._file_waiting(wait_s)
        except LibraryUnwritable as error:
            if isinstance(error, LibraryBusy) and not store.is_small():
                store.freshness.is_behind = True
                return
            logger.info("%s Recent episodes are read from an in-memory copy.", error)
            self.forget()
            store.to_copy(partial(self._file_waiting, 0.0))  # nobody else has the copy
            self.forget()

    def _file_waiting(self, wait_s: float = BUSY_TIMEOUT_S) -> None:
        """Store the buffered episodes, a few per transaction."""
        most, more = FIRST, True
        with _pause_gc():
            while more:
                with self._store.transaction(durable=False, wait_s=wait_s) as connection:
                    more = self._file_some(connection, most)
                most *= 2
        self._recent.clear()
        self._steps = self._size = 0

    def _file_some(self, connection: Connection, most: int) -> bool:
        """Store at most so many episodes; return whether there may be more."""
        episodes: list[tuple[int, str, Trajectory]] = []
        steps, is_full = 0, False
        broken = []
        # Raw text: with invalid UTF-8 in one row, the query itself would fail and hold up all others.
        with raw_text(connection), closing(connection.execute(_NEXT, (self._namespace,))) as rows:
            for checksum, *row in rows:
                try:
                    episodes.append(self._decode_row(row, checksum))
                except BROKEN as error:
                    broken.append((repr(error), row[0]))
                    continue
                steps += len(episodes[-1][2].steps)
                # Approximate number of steps per transaction, because other writers wait for its end.
                if is_full := steps >= 4_000 or len(episodes) >= most:
                    break
        try:
            self._move(connection, episodes)
        except BROKEN:
            # Store them one by one, so that a broken episode does not hold up the others.
            for episode in episodes:
                try:
                    self._move(connection, [episode])
                except BROKEN as error:
                    broken.append((repr(error), episode[0]))
        connection.executemany("UPDATE inbox SET failed = ? WHERE id = ?", broken)
        for why, number in broken:
            logger.warning("episode %d in the write buffer of %s cannot be stored: %s", number, self._store.path, why)
        return is_full

    def _decode_row(self, row: Sequence[Any], checksum: int | None) -> tuple[int, str, Trajectory]:
        """Return the row id, the time and the episode of a row whose texts are still bytes."""
        if checksum not in (None, compute_checksum(row)):
            raise ValueError("the row was damaged after it was written: wrong checksum")
        number, _, ref, _, at, text = row
        ref, at, text = ref.decode(), at.decode(), text.decode()
        recent = self._recent.get(ref)
        return int(number), at, _with_id(recent, ref) if recent else unpack_episode(text, ref)

    def _move(self, connection: Connection, episodes: Sequence[tuple[int, str, Trajectory]]) -> None:
        """Move episodes from the buffer to the episode store, all or none."""
        if not episodes:
            return
        # A savepoint lets one broken episode fail without undoing the rest of the transaction.
        connection.execute("SAVEPOINT filing")
        try:
            stored = self.write(connection, [(at, episode) for _, at, episode in episodes])
            connection.executemany("DELETE FROM inbox WHERE id = ?", [(number,) for number, _, _ in episodes])
        except BaseException:
            if connection.in_transaction:  # a full disk ends the transaction by itself
                connection.execute("ROLLBACK TO filing")
            raise
        finally:
            if connection.in_transaction:
                connection.execute("RELEASE filing")
        self.on_filed(stored)

    def write(self, connection: Connection, episodes: Iterable[tuple[str, Trajectory]]) -> list[Trajectory]:
        """Store (time, episode) pairs and update the scores of the items they used; return the stored episodes.

        Steps without keys get them here: recording need not wait for that.
        """
        batch = EpisodeBatch(connection, self._namespace, self._key_ids, DISCOUNT)
        stored = []
        try:
            for at, raw in episodes:
                episode = raw if has_keys(raw) else with_keys(raw, self._read_words().keys)
                if not item_credit.names_items(episode):
                    stored.append(batch.add(episode, at))
                    continue
                # Credit depends on the number of earlier episodes, so these must be written first.
                batch.write()
                clock = self._clock.read(connection.execute)
                stored.append(batch.add(episode, at))
                batch.write()
                with fix_time(at):
                    item_credit.settle(connection, self._namespace, stored[-1], clock)
            batch.write()
        except BaseException:
            self.forget()
            raise
        return stored

    def write_alone(self, connection: Connection, episode: Trajectory, at: str) -> Trajectory:
        """Store one episode without updating item scores, and return it with the ids of its steps; for imports."""
        check_episode(episode)
        batch = EpisodeBatch(connection, self._namespace, self._key_ids, DISCOUNT)
        stored = batch.add(episode, at)
        batch.write()
        return stored

    def reset(self, namespace: int) -> None:
        """Clear all caches and switch to a namespace, after experience was forgotten."""
        self._namespace = namespace
        self._recent.clear()
        self._steps = self._size = 0
        self.forget()

    def rollback(self) -> None:
        """Return to the state before a transaction that was rolled back."""
        self.forget()
        # The rollback put filed episodes back into the buffer, so the next read must file them again.
        self._store.freshness.waiting = self.file

    def forget(self) -> None:
        """Clear the caches that a transaction filled, after it was rolled back."""
        self._key_ids.forget()
        self._clock = EpisodeClock(self._namespace)


@contextmanager
def _pause_gc() -> Iterator[None]:
    """Disable Python's garbage collector, which takes a fifth of the time of storing and frees nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read_words(store: Store, namespace: int) -> NamespaceCache:
    """Return the derived state of a namespace of which no open library has it."""
    derived = NamespaceCache(store, namespace)
    derived.catch_up()
    return derived


def _with_id(episode: Trajectory, ref: str) -> Trajectory:
    return episode if episode.id else replace(episode, id=ref)


def _decode_row_id(ref: str) -> int:
    """Return the row id that an id assigned by this class encodes, or -1 for other ids."""
    try:
        number = int(ref[:16], 16) if len(ref) == 32 else -1
    except ValueError:
        number = -1
    return number if number < 2**63 else -1  # SQLite integers have 64 bits


def has_waiting(store: Store, namespace: int) -> bool:
    """Return whether buffered episodes wait to be stored."""
    try:
        return store.connection.execute(f"SELECT 1 {_WAITING} LIMIT 1", (namespace,)).fetchone() is not None
    except TRANSLATED as error:  # not `store.rows`, which would file again
        raise store.translate(error) from error


def file_all(store: Store) -> None:
    """Store the buffered episodes of every namespace."""
    for (namespace,) in store.rows("SELECT id FROM namespaces"):
        WriteBuffer(store, namespace).file()


def redact_and_pack(episode: Trajectory) -> tuple[Trajectory, str]:
    """Return an episode without secrets, and its packed text."""
    episode = mark_outages(episode)
    text = pack_episode(episode)
    check_size(episode, text)
    clean = redact_trajectory(episode)
    return clean, text if clean is episode else pack_episode(clean)


def pack_episode(episode: Trajectory) -> str:
    """Return an episode as text for the buffer. States that several steps share occur once."""
    states = {id(state): state for step in episode.steps for state in (step.pre, step.post)}
    places = {ref: place for place, ref in enumerate(states)}
    offers = {actions: place for place, actions in enumerate(dict.fromkeys(step.admissible for step in episode.steps))}
    return dumps(
        [
            episode.task,
            None if episode.success is None else bool(episode.success),
            float(episode.score),
            episode.arm,
            episode.seed,
            episode.ending,
            dict(episode.meta),
            [
                [
                    *(state.observation, dict(state.facts), state.location, state.task, state.feedback, state.notes),
                    state.signature_if_known,
                ]
                for state in states.values()
            ],
            [
                [
                    places[id(step.pre)],
                    step.action,
                    places[id(step.post)],
                    _encode_diagnosis(step.diagnosis),
                    float(step.reward),
                    step.keys,
                    step.why.to_dict(with_trajectory=False),
                    offers[step.admissible],
                ]
                for step in episode.steps
            ],
            list(offers),
            *(() if episode.trust == "trusted" and not episode.writer else (episode.writer, episode.trust)),
        ]
    )


def _encode_diagnosis(diagnosis: Diagnosis) -> list[Any]:
    success, stagnant, loop = bool(diagnosis.success), bool(diagnosis.stagnant), bool(diagnosis.loop)
    progress, diff = float(diagnosis.progress), dict(diagnosis.diff)
    return [success, diagnosis.failure, progress, stagnant, loop, diff, diagnosis.evidence]


def unpack_episode(text: str, ref: str) -> Trajectory:
    """Return the episode that `pack_episode` encoded."""
    return decode_episode(json.loads(text), ref)


def decode_episode(values: Sequence[Any], ref: str) -> Trajectory:
    """Return an episode from the JSON values of its packed text."""
    task, success, score, arm, seed, ending, meta, state_values, step_values, *more = values
    listed = more.pop(0) if more and isinstance(more[0], list) else [()]  # older versions stored no admissible actions
    states = [State(*values) for values in state_values]
    offers = [tuple(actions) for actions in listed]
    steps = tuple(
        Step(
            states[pre],
            action,
            states[post],
            _decode_diagnosis(*diagnosis),
            reward,
            t,
            tuple(keys),
            why,
            admissible=offers[offer[0] if offer else 0],
        )
        for t, (pre, action, post, diagnosis, reward, keys, why, *offer) in enumerate(step_values)
    )
    return Trajectory(task, steps, success, score, arm, seed, ending, meta, ref, *more)


def _decode_diagnosis(success: bool, failure: str, *rest: Any) -> Diagnosis:
    return Diagnosis(success, Failure(failure), *rest)
