"""A replica: a library file that holds what the entries of a log say, up to a position.

`apply` is the only writer of a replica. Everything in it is a function of the entries and their order: their grouping,
the process that applies them, and the time at which it does so leave no trace. The position is stored in the same
transaction, so a process that is killed continues where the file is.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import fields, replace
from itertools import groupby
from pathlib import Path
from sqlite3 import Connection
from typing import Any, NamedTuple

from hardwon.memory import items as catalogue
from hardwon.memory.errors import LibraryDamaged, LibraryError, NewerSchema, OtherReplica, UnknownName
from hardwon.memory.grading.regrading import Regrading, unpack_grade
from hardwon.memory.privacy.redaction import redact_trajectory
from hardwon.memory.records import Item, Trajectory, Trust
from hardwon.memory.storage.checksums import compute_checksum
from hardwon.memory.storage.clock import fix_time
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import dumps
from hardwon.memory.upkeep import forgetting, jsonl
from hardwon.memory.upkeep.forgetting.replacement import EpisodeVersion, replace_episodes
from hardwon.memory.upkeep.queries import trajectory
from hardwon.memory.upkeep.setup import namespace_number
from hardwon.memory.upkeep.write_buffer import BROKEN, DISCOUNT, PUT, WriteBuffer

from .application.batches import STORE, apply_entry
from .entries import ERASED, LogEntry, find_places, find_steps, locate_steps, unpack, unpack_episode_entry

logger = logging.getLogger("hardwon.memory")
UNUSABLE = (*BROKEN, RecursionError)
"""Errors caused by the content of an entry. All others concern the file or the machine and are raised."""
_NAME = "replica"
"""Row of the table `meta` that marks a file as a replica."""


class EntryErased(Exception):
    """An entry was erased from the log after `forget`: what it led to is in a snapshot."""


class Origin(NamedTuple):
    """The log that a replica follows, and how far."""

    database: str = ""
    """Random id of the database."""
    namespace: str = ""
    position: int = 0
    """Position of the last applied entry."""
    entry: int = 0
    """Row of the database that holds that entry."""


def read_origin(store: Store) -> Origin:
    """Return which log a library file follows; one that follows none has a position of 0."""
    rows = store.rows("SELECT value FROM meta WHERE name = ?", (_NAME,))
    return Origin(*json.loads(rows[0][0])) if rows else Origin()


def read_position(path: Path) -> int:
    """Return the position of a replica's file; 0 if there is none that can be read."""
    with suppress(LibraryError):
        if path.exists():
            with closing(Store(path, read_only=True)) as store:
                return read_origin(store).position
    return 0


class Replica:
    """The replica of one namespace in one library file. Several processes may apply entries to the same file."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store = store
        self._namespace = namespace
        self._buffer = WriteBuffer(store, namespace)
        store.freshness.on_forgotten = self._reset

    def _reset(self) -> None:
        """Drop what was remembered of the file, after this or another process forgot experience or filled it again."""
        if name := self.origin.namespace:
            self._namespace = namespace_number(self._store, name)
        self._buffer.reset(self._namespace)

    @property
    def namespace(self) -> int:
        """Return the number of the namespace in the file."""
        return self._namespace

    @property
    def position(self) -> int:
        """Return the position of the last applied entry."""
        return self.origin.position

    @property
    def origin(self) -> Origin:
        """Return which log the file follows."""
        return read_origin(self._store)

    def adopt(self, database: str, namespace: str) -> None:
        """Bind the file to a log, or check that it is bound to it."""
        with self._store.transaction() as connection:
            origin = self.origin
            if not origin.database:
                if self._store.rows("SELECT 1 FROM changes LIMIT 1"):
                    raise OtherReplica(
                        f"{self._store.path} is a library of its own, not a replica. Give another folder as replica."
                    )
                _write_origin(connection, Origin(database, namespace))
            elif origin[:2] != (database, namespace):
                raise OtherReplica(
                    f"{self._store.path} is the replica of namespace {origin.namespace!r} of database "
                    f"{origin.database}, not of namespace {namespace!r} of database {database}. Give another folder as "
                    "replica, or delete that one: it is filled again from its log."
                )

    def apply(self, entries: Sequence[LogEntry]) -> int:
        """Apply entries in one transaction, and return the position of the file afterwards.

        Entries up to the position of the file are skipped, so applying them again has no effect.
        """
        # Not durable: the log is. After a power failure, the file is at an earlier position and continues from there.
        with self._store.transaction(durable=False) as connection:
            origin = self.origin
            new = [entry for entry in entries if entry.position > origin.position]
            for before, entry in enumerate(new, origin.position):
                if entry.position != before + 1:
                    raise LibraryError(
                        f"{self._store.path} is at position {before} and cannot continue with {entry.position}. "
                        "Delete the replica; it is filled again from its log."
                    )
            if any(entry.format == ERASED for entry in new):
                raise EntryErased
            try:
                for is_episode, group in groupby(new, key=lambda entry: entry.kind == "episode"):
                    if is_episode:
                        self._apply_episodes(connection, list(group))
                    else:
                        for entry in group:
                            self._apply_other(connection, entry)
                if new:
                    _write_origin(connection, origin._replace(position=new[-1].position, entry=new[-1].log_id))
            except BaseException:
                self._buffer.forget()  # its caches may hold ids that are rolled back
                raise
            return new[-1].position if new else origin.position

    # -- episodes ---------------------------------------------------------------------------------

    def _apply_episodes(self, connection: Connection, entries: Sequence[LogEntry]) -> None:
        """Store episodes, together if all of them can be stored."""
        try:
            with _savepoint(connection):
                waiting: dict[str, tuple[str, Trajectory]] = {}
                for entry in entries:
                    values = unpack(entry.payload, entry.format)
                    places = find_places(values)
                    if not waiting.keys().isdisjoint(episode for episode, _ in places):  # their steps need ids first
                        self._buffer.write(connection, waiting.values())
                        waiting.clear()
                    if self._holds(connection, entry.key):  # imported before it was recorded
                        continue
                    ids = find_steps(self._store, self._namespace, places)
                    waiting[entry.key] = entry.at, unpack_episode_entry(values, entry.key, ids)
                self._buffer.write(connection, waiting.values())
        except LibraryDamaged:  # this file, not the entry
            raise
        except UNUSABLE as error:
            if len(entries) == 1:
                self._set_aside(connection, entries[0], error)
                return
            # One by one, so that a broken episode does not hold up the others.
            for entry in entries:
                self._apply_episodes(connection, [entry])

    def _holds(self, connection: Connection, ref: str) -> bool:
        query = "SELECT 1 FROM trajectories WHERE namespace = ? AND id = ?"
        return connection.execute(query, (self._namespace, ref)).fetchone() is not None

    def _set_aside(self, connection: Connection, entry: LogEntry, error: Exception) -> None:
        """Keep an episode that cannot be stored in the write buffer with the reason, where `verify` reports it."""
        logger.warning("episode %s at position %d cannot be stored: %r", entry.key, entry.position, error)
        try:
            text = dumps(unpack(entry.payload, entry.format)[0])
        except (*UNUSABLE, TypeError):
            text = ""
        row = (entry.position, self._namespace, entry.key, 1, entry.at, text)
        connection.execute(PUT, (*row, compute_checksum(row)))
        connection.execute("UPDATE inbox SET failed = ? WHERE id = ?", (repr(error), entry.position))

    # -- items, banks and values --------------------------------------------------------------------------

    def _apply_other(self, connection: Connection, entry: LogEntry) -> None:
        """Apply an entry of another kind than an episode; one that makes no sense is skipped, on every replica."""
        apply = {
            "items": self._apply_items, "bank": self._apply_bank, "store": self._apply_values,
            "import": self._apply_import, "forget": self._apply_forget, "grade": self._apply_grade,
        }.get(entry.kind)  # fmt: skip
        if apply is None:
            raise NewerSchema(
                f"the entry at position {entry.position} is of the unknown kind {entry.kind!r}. Update your clone of "
                "hardwon, then run: pip install ."
            )
        try:
            at = entry.moment if entry.kind == STORE and entry.moment else entry.at
            with fix_time(at), _savepoint(connection):
                apply(connection, unpack(entry.payload, entry.format), entry.position)
        except LibraryDamaged:
            raise
        except UNUSABLE as error:
            logger.warning("the entry at position %d (%s) is skipped: %r", entry.position, entry.kind, error)

    def _apply_items(self, connection: Connection, values: Any, position: int) -> None:
        for item_id, op, changed, detail, fresh in values["changes"]:
            named = dict(changed)
            if "provenance" in named:
                places = [(str(episode), int(t)) for episode, t in named["provenance"]]
                ids = find_steps(self._store, self._namespace, places)
                named["provenance"] = tuple(ids[place] for place in places if place in ids)
            stored = catalogue.read_item(connection, self._namespace, item_id)
            if stored is None and "kind" not in named:  # a change of an item that is not there any more
                continue
            item = Item(**named) if stored is None else replace(stored, **named)
            catalogue.write(connection, self._namespace, item, op, detail)
            if fresh is not None:
                catalogue.set_fresh(connection, self._namespace, item_id, fresh)
        connection.executemany(
            "INSERT OR REPLACE INTO opinions(namespace, item_id, writer, episode, moved) VALUES (?, ?, ?, ?, ?)",
            [(self._namespace, *row) for row in values["opinions"]],
        )

    def _apply_bank(self, connection: Connection, values: Any, position: int) -> None:
        match values:
            case ["put", task, team, key, value]:
                connection.execute(
                    "INSERT INTO bank_entries(id, namespace, task, team, key, value) VALUES (?, ?, ?, ?, ?, ?)",
                    (position, self._namespace, task, team, key, value),
                )
            case ["pull", entry, reader]:
                connection.execute(
                    "INSERT INTO bank_pulls(entry, reader, own) SELECT id, ?2, team = ?2 FROM bank_entries "
                    "WHERE id = ?1 AND namespace = ?3",
                    (entry, reader, self._namespace),
                )
            case ["drop", task]:
                entries = "SELECT id FROM bank_entries WHERE namespace = ? AND task = ?"
                connection.execute(f"DELETE FROM bank_pulls WHERE entry IN ({entries})", (self._namespace, task))
                connection.execute("DELETE FROM bank_entries WHERE namespace = ? AND task = ?", (self._namespace, task))
            case _:
                raise ValueError(f"{values!r:.60} is no operation of a bank")

    def _apply_values(self, connection: Connection, values: Any, position: int) -> None:
        ((name,),) = connection.execute("SELECT name FROM namespaces WHERE id = ?", (self._namespace,)).fetchall()
        apply_entry(connection, name, values, position)

    # -- upkeep -----------------------------------------------------------------------------------

    def _apply_import(self, connection: Connection, values: Any, position: int) -> None:
        self.load_lines(connection, *values)
        self._reset()  # it may have replaced episodes by later versions

    def load_lines(self, connection: Connection, trust: Trust, lines: Sequence[str]) -> int:
        """Write the records of an exported file that do not exist yet; return the number of new lines."""

        def write(episode: Trajectory, at: str) -> None:
            self._buffer.write_alone(connection, redact_trajectory(episode), at)

        def record(episode: Trajectory) -> str:
            raise ValueError(f"the episode {episode.id} has no time of recording")

        def update(versions: Sequence[EpisodeVersion]) -> None:
            clean = [(redact_trajectory(episode), refs) for episode, refs in versions]
            replace_episodes(self._store, connection, self._buffer, clean)

        loading = jsonl.Import(connection, self._store, self._namespace, record, write, update, trust)
        try:
            return loading.read_lines(lines, "the import")
        finally:
            self._buffer.forget()  # counted episodes before these were written

    def _apply_forget(self, connection: Connection, values: Any, position: int) -> None:
        """Delete the rows; `forgetting.finish` erases their bytes after the transaction."""
        what, value = values
        try:
            forgetting.delete(self._store, self._namespace, what, value)
        except UnknownName:  # forgotten twice
            return
        self._reset()

    def _apply_grade(self, connection: Connection, values: Any, position: int) -> None:
        """Give an episode another outcome; one that was forgotten in the meantime is left out."""
        grade, episode = unpack_grade(values, lambda ref: trajectory(self._store, self._namespace, ref))
        Regrading(self._store, connection, self._namespace, DISCOUNT).apply(grade, episode)
        self._reset()


@contextmanager
def _savepoint(connection: Connection) -> Iterator[None]:
    """Undo what the body wrote if it raises, and leave the rest of the transaction as it is."""
    connection.execute("SAVEPOINT applying")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # a full disk ends the transaction by itself
            connection.execute("ROLLBACK TO applying")
        raise
    finally:
        if connection.in_transaction:
            connection.execute("RELEASE applying")


def _write_origin(connection: Connection, origin: Origin) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_NAME, json.dumps(origin)))


class Capture:
    """The changes of items that a transaction of a replica made, as the values of an entry of kind `items`.

    Used inside a transaction that is rolled back afterwards: the changes are made when the entry is applied.
    """

    def __init__(self, store: Store, connection: Connection, namespace: int) -> None:
        self._store, self._connection, self._namespace = store, connection, namespace
        (self._last,) = connection.execute("SELECT coalesce(max(seq), 0) FROM changes").fetchone()
        self._before = dict(self._read_fresh())
        self._opinions = set(self._read_opinions())
        self._items: dict[str, Item | None] = {
            ref: catalogue.kept_item_of(record)
            for ref, record in connection.execute("SELECT id, record FROM items WHERE namespace = ?", (namespace,))
        }

    def _read_fresh(self) -> Iterator[tuple[str, int]]:
        yield from self._connection.execute("SELECT id, fresh FROM items WHERE namespace = ?", (self._namespace,))

    def _read_opinions(self) -> Iterator[tuple[Any, ...]]:
        yield from self._connection.execute(
            "SELECT item_id, writer, episode, moved FROM opinions WHERE namespace = ?", (self._namespace,)
        )

    def read(self, reply: tuple[str, str] | None = None) -> dict[str, Any] | None:
        """Return the values of the entry, or None if nothing changed and there is no reply to keep."""
        rows = self._connection.execute(
            "SELECT ref, op, detail FROM changes WHERE seq > ? AND namespace = ? AND what = 'item' ORDER BY seq",
            (self._last, self._namespace),
        ).fetchall()
        fresh = dict(self._read_fresh())
        changes = [self._describe(ref, op, json.loads(detail), fresh) for ref, op, detail in rows]
        opinions = [row for row in self._read_opinions() if row not in self._opinions]
        values = {"changes": changes, "opinions": opinions}
        return {**values, "reply": reply} if reply else values if changes or opinions else None

    def _describe(self, ref: str, op: str, detail: dict[str, Any], fresh: Mapping[str, int]) -> list[Any]:
        """Return one change: item, operation, changed fields, detail of the history, and the age of the item."""
        before = self._items.get(ref)
        beside = None
        if before is not None and op == "retired":
            after, beside = replace(before, status="retired", version=before.version + 1), detail
        elif before is not None and op == "scored":
            after, beside = replace(before, score=detail["score"][1]), detail
        else:
            after = Item(**detail)
        self._items[ref] = after
        changed = {
            field.name: getattr(after, field.name)
            for field in fields(Item)
            if before is None or getattr(after, field.name) != getattr(before, field.name)
        }
        if "provenance" in changed:
            places = locate_steps(self._store, self._namespace, after.provenance)
            changed["provenance"] = [places[step] for step in after.provenance if step in places]
        moved = fresh[ref] if fresh[ref] != self._before.get(ref) else None
        return [ref, op, changed, beside, moved]
