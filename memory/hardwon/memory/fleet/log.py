"""The log of one namespace in PostgreSQL: append, read in order, and the lease of the process that learns items.

Appending is one INSERT and one commit. The writer chooses the key, so an append that is repeated after a lost
connection is written once. Places in the order are given afterwards; see `fleet.schema`.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

from hardwon.memory.errors import (
    EmbedderMismatch,
    KeyTaken,
    LibraryForbidden,
    OtherReplica,
    UnknownName,
)
from hardwon.memory.validation import check_no_secret

from .entries import FORMAT, LogEntry, is_equal, unpack
from .schema import GRANTS, MANAGE_GRANTS, WRITE_GRANTS, install
from .session import KeyExists, ServerSession

LEASE_S = 10.0
"""Seconds for which a process that stopped keeps others from learning items."""
PAGE = 500
"""Entries read at a time."""
logger = logging.getLogger("hardwon.memory")
_APPEND = """
INSERT INTO hardwon.log(namespace, kind, format, key, payload, term)
SELECT %(namespace)s, %(kind)s, %(format)s, key, payload, %(term)s
FROM unnest(%(keys)s::text[], %(payloads)b::bytea[]) AS new(key, payload)
ON CONFLICT (namespace, key) DO NOTHING RETURNING key, id
"""
_APPEND_ONE = """
INSERT INTO hardwon.log(namespace, kind, format, key, payload, term)
VALUES (%(namespace)s, %(kind)s, %(format)s, %(key)s, %(payload)b, %(term)s) RETURNING id
"""
"""The same for one entry. A key that exists is an error, which is rare: looking for it first costs every append."""
_FETCH = """
SELECT pos, to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US+00:00'), kind, key, payload, format, id
FROM hardwon.positions JOIN hardwon.log ON log.id = log_id
WHERE positions.namespace = %(namespace)s AND log.namespace = %(namespace)s AND pos > %(after)s
ORDER BY pos LIMIT %(limit)s
"""


class LogStatus(NamedTuple):
    """The state of a log."""

    head: int
    """The last position."""
    waiting: int
    """Number of entries that have no position yet."""
    leader: str
    """Host and process that learns items; empty if none does."""
    term: int
    """Number of the lease."""
    size: int
    """Size of the log of all namespaces in bytes."""
    snapshot: int
    """Position of the newest snapshot; 0 if there is none."""
    blockers: tuple[str, ...]
    """Sessions of the server that keep a transaction open for more than a second."""


class Log:
    """The log of one namespace. Safe to use from several threads."""

    def __init__(self, url: str, namespace: str, *, create: bool = True, database: str | None = None) -> None:
        """Connect, and install the schema or the namespace if they are missing."""
        self._reader, self._writer = ServerSession(url), ServerSession(url)
        self.name, self.namespace, self.database = self._reader.name, namespace, database or ""
        self.identity = self._reader.identity
        self._create = create
        self._number: int | None = None
        self._lead_s: float | None = None
        """Seconds by which the clock of the server is ahead of `time.monotonic`."""
        self._attaching = threading.Lock()
        self._on_wake: Callable[[], None] | None = None
        if database is None:
            try:
                _ = self.number  # connects, so a wrong address is an error of opening
            except BaseException:
                self.close()
                raise

    @property
    def is_attached(self) -> bool:
        """Return whether the server has answered and the database is the expected one."""
        return self._number is not None

    @property
    def number(self) -> int:
        """Return the number of the namespace, which is looked for in the database once the server answers."""
        with self._attaching:
            if self._number is None:
                install(self._reader, self._create)
                database = self.read_meta("database") or ""
                if self.database not in ("", database):
                    raise OtherReplica(
                        f"{self.name} is another database ({database}) than the one that this host has a replica of "
                        f"({self.database}). Check the address; to use the new database, open the library again."
                    )
                number = self._find_namespace(self._create)
                if self._on_wake is not None:
                    self._reader.listen(f"hardwon_{number}", self._on_wake)
                self.database, self._number = database, number
            return self._number

    def read_meta(self, name: str) -> str | None:
        """Return a value that holds for the whole database, such as its embedder; None if it has none yet."""
        rows = self._reader.run("SELECT value FROM hardwon.meta WHERE name = %(name)s", {"name": name})
        return str(rows[0][0]) if rows else None

    def _find_namespace(self, create: bool) -> int:
        find, by = "SELECT id FROM hardwon.namespaces WHERE name = %(name)s", {"name": self.namespace}
        rows = self._reader.run(find, by)
        if not rows and create:
            check_no_secret("namespace", self.namespace)
            try:
                with self._reader.transaction():
                    self._reader.run(
                        "INSERT INTO hardwon.namespaces(name) VALUES (%(name)s) ON CONFLICT (name) DO NOTHING", by
                    )
                    self._reader.run(
                        "INSERT INTO hardwon.leases(namespace) SELECT id FROM hardwon.namespaces "
                        "WHERE name = %(name)s ON CONFLICT DO NOTHING",
                        by,
                    )
            except LibraryForbidden as error:
                raise self._unknown() from error
            rows = self._reader.run(find, by)
        if not rows:
            raise self._unknown()
        return int(rows[0][0])

    def _unknown(self) -> UnknownName:
        names = [name for (name,) in self._reader.run("SELECT name FROM hardwon.namespaces")]
        return UnknownName.of("namespace", self.namespace, names)

    def agree_on_embedder(self, name: str, fingerprint: str) -> None:
        """Store the embedder of the library, or check that it is this one."""
        stored = self.read_meta("fingerprint")
        if stored is None:
            with self._reader.transaction():
                for key, value in (("embedder", name), ("fingerprint", fingerprint)):
                    self._reader.run(
                        "INSERT INTO hardwon.meta VALUES (%(name)s, %(value)s) ON CONFLICT DO NOTHING",
                        {"name": key, "value": value},
                    )
            stored = self.read_meta("fingerprint")
        if stored != fingerprint:
            raise EmbedderMismatch(
                f"{self.name} was created with the embedder {self.read_meta('embedder')!r} ({stored}), not with "
                f"{name!r} ({fingerprint}). Open it with that embedder."
            )

    # -- writing ----------------------------------------------------------------------------------

    def append(
        self,
        kind: str,
        rows: Sequence[tuple[str, bytes]],
        *,
        term: int | None = None,
        is_same: Callable[[Any, Any], bool] = is_equal,
    ) -> list[int]:
        """Append entries in one statement, durable on return, and return their ids.

        Entries that are in the log already are not written again, so repeat the call if you do not know whether an
        earlier one succeeded.
        """
        keys = [f"{kind}:{key}" for key, _ in rows]
        values = {"namespace": self.number, "kind": kind, "format": FORMAT, "term": term}
        # In a transaction, an error would undo what was written before it.
        if len(rows) == 1 and not self._writer.in_transaction():
            with suppress(KeyExists):
                ((ref,),) = self._writer.run(_APPEND_ONE, {**values, "key": keys[0], "payload": rows[0][1]})
                return [int(ref)]
            return list(self._compare([(keys[0], rows[0][1])], is_same).values())
        payloads = [payload for _, payload in rows]
        written = dict(self._writer.run(_APPEND, {**values, "keys": keys, "payloads": payloads}))
        if missing := [(key, payload) for key, (_, payload) in zip(keys, rows, strict=True) if key not in written]:
            written |= self._compare(missing, is_same)
        return [written[key] for key in keys]

    def _compare(self, rows: Sequence[tuple[str, bytes]], is_same: Callable[[Any, Any], bool]) -> dict[str, int]:
        """Return the ids of entries that were in the log before; raises KeyTaken if one of them differs."""
        stored = {
            key: (ref, bytes(payload), number)
            for key, ref, payload, number in self._writer.run(
                "SELECT key, id, payload, format FROM hardwon.log WHERE namespace = %(namespace)s "
                "AND key = ANY(%(keys)s)",
                {"namespace": self.number, "keys": [key for key, _ in rows]},
            )
        }
        for key, payload in rows:
            _, before, number = stored[key]
            if before != payload and not is_same(unpack(before, number), unpack(payload)):
                kind, _, name = key.partition(":")
                raise KeyTaken(
                    f"{self.name} has other content under the {kind} id {name!r}. Use a different id, or none to have "
                    "one assigned."
                )
        return {key: ref for key, (ref, *_) in stored.items()}

    def find(self, kind: str, key: str) -> Any:
        """Return the values of an entry, with a position or without one; None if it is not in the log."""
        query = "SELECT payload, format FROM hardwon.log WHERE namespace = %(namespace)s AND key = %(key)s"
        rows = self._writer.run(query, {"namespace": self.number, "key": f"{kind}:{key}"})
        return unpack(*rows[0]) if rows else None

    @contextmanager
    def change(self) -> Iterator[int]:
        """Keep other processes from changing items until the body ends; what it appends is committed with it.

        A process that stops in the body loses the lock after `LEASE_S`, and then its commit fails.
        """
        namespace = self._by()
        with self._writer.transaction():
            self._writer.run(f"SET LOCAL idle_in_transaction_session_timeout = '{LEASE_S:.0f}s'")
            self._writer.run(f"SET LOCAL lock_timeout = '{2 * LEASE_S:.0f}s'")
            yield int(self._writer.run("SELECT hardwon.lock_items(%(namespace)s)", namespace)[0][0])

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Commit all calls of `write` inside together, or none."""
        _ = self.number  # before the transaction
        with self._writer.transaction():
            yield

    def write(self, query: str, parameters: dict[str, Any] | None = None) -> list[Any]:
        """Run a statement about this namespace that may write; `namespace` is one of its parameters."""
        return self._writer.run(query, {**self._by(), **(parameters or {})})

    # -- reading ----------------------------------------------------------------------------------

    def assign(self) -> int:
        """Give every committed entry its position, and return the last position."""
        query = "SELECT hardwon.assign_positions(%(namespace)s), extract(epoch FROM clock_timestamp())"
        ((head, seconds),) = self._reader.run(query, self._by())
        self._lead_s = float(seconds) - time.monotonic()
        return int(head)

    def read_clock(self, timespec: str = "seconds") -> str | None:
        """Return the time of the server in the stored format; None if the server has not answered yet.

        Hosts must agree on the time, and the clock of a host may be wrong by hours.
        """
        if self._lead_s is None:
            return None
        return datetime.fromtimestamp(time.monotonic() + self._lead_s, UTC).isoformat(timespec=timespec)

    def fetch(self, after: int, limit: int = PAGE) -> list[LogEntry]:
        """Return the next entries, in order."""
        rows = self._reader.run(_FETCH, {"namespace": self.number, "after": after, "limit": limit})
        return [
            LogEntry(position, f"{moment[:19]}+00:00", kind, key.partition(":")[2], bytes(payload), number, ref, moment)
            for position, moment, kind, key, payload, number, ref in rows
        ]

    def read(self, query: str, parameters: dict[str, Any] | None = None) -> list[Any]:
        """Run a query about this namespace; `namespace` is one of its parameters."""
        return self._reader.run(query, {**self._by(), **(parameters or {})})

    def listen(self, on_wake: Callable[[], None]) -> None:
        """Let the server report new positions."""
        self._on_wake = on_wake
        if self.is_attached:
            self._reader.listen(f"hardwon_{self.number}", on_wake)

    def fileno(self) -> int | None:
        """Return the descriptor that becomes readable when the server reports; None while it is not connected."""
        return self._reader.fileno()

    def read_status(self) -> LogStatus:
        """Return the state of the log."""
        ((head, waiting, leader, term, size, snapshot),) = self._reader.run(_STATUS, self._by())
        blockers = self._reader.run(
            "SELECT format('pid %%s of %%s in %%s: %%s', pid, usename, datname, state) FROM pg_stat_activity "
            "WHERE xact_start < clock_timestamp() - interval '1 s' AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'",
            {},
        )
        return LogStatus(head, waiting, leader or "", term, size, snapshot, tuple(text for (text,) in blockers))

    def may_manage(self) -> bool:
        """Return whether the role may forget and store snapshots."""
        return bool(self._reader.run("SELECT hardwon.may_manage(%(namespace)s)", self._by())[0][0])

    # -- the lease --------------------------------------------------------------------------------

    def take_lease(self, holder: str) -> int | None:
        """Take or renew the lease of the process that learns items; return its term, or None if another one has it."""
        query = "SELECT hardwon.take_lease(%(namespace)s, %(holder)s, %(seconds)s)"
        rows = self._writer.run(query, {**self._by(), "holder": holder, "seconds": LEASE_S})
        return None if rows[0][0] is None else int(rows[0][0])

    def give_lease(self, holder: str) -> None:
        """Give the lease back, so that another process can take it at once."""
        self._writer.run("SELECT hardwon.give_lease(%(namespace)s, %(holder)s)", {**self._by(), "holder": holder})

    def _by(self) -> dict[str, Any]:
        return {"namespace": self.number}

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()
        self._writer.close()


_STATUS = """
SELECT (SELECT coalesce(max(pos), 0) FROM hardwon.positions WHERE namespace = %(namespace)s),
    (SELECT count(*) FROM hardwon.waiting WHERE namespace = %(namespace)s),
    (SELECT holder FROM hardwon.leases WHERE namespace = %(namespace)s AND expires > clock_timestamp()),
    (SELECT term FROM hardwon.leases WHERE namespace = %(namespace)s), pg_total_relation_size('hardwon.log'),
    (SELECT coalesce(max(pos), 0) FROM hardwon.snapshots WHERE namespace = %(namespace)s)
"""


def grant(url: str, role: str, namespace: str, *, write: bool, manage: bool = False) -> None:
    """Let a role of the database read one namespace, and write to it if `write` is set. The owner calls this.

    The rights of an earlier call are replaced.
    """
    from psycopg import sql

    with closing(Log(url, namespace)) as log:
        if not log._writer.run("SELECT 1 FROM pg_roles WHERE rolname = %(role)s", {"role": role}):
            names = log._writer.run("SELECT rolname FROM pg_roles WHERE rolname NOT LIKE 'pg\\_%%'", {})
            raise UnknownName.of("role", role, [name for (name,) in names])
        writes = write or manage
        rights = GRANTS + (WRITE_GRANTS if writes else "") + (MANAGE_GRANTS if manage else "")
        with log._writer.transaction():
            log._writer.run(sql.SQL(rights).format(role=sql.Identifier(role)))  # type: ignore[arg-type]
            log._writer.run(
                "INSERT INTO hardwon.members(role, namespace, writes, manages) "
                "VALUES (%(role)s, %(namespace)s, %(write)s, %(manage)s) ON CONFLICT (role, namespace) "
                "DO UPDATE SET writes = excluded.writes, manages = excluded.manages",
                {"role": role, "namespace": log.number, "write": writes, "manage": manage},
            )
