"""LangGraph's long-term memory in the library's file: a `BaseStore` that lasts.

    store = HardwonStore(library)
    graph = builder.compile(store=store)

What an application puts comes back as it was put: it is the application's data, not experience. It is
neither redacted nor exported, recalled nor evolved. It lies in two tables of its own, made when they are
first written to, under the library's namespace; meaning is searched with the library's embedder. The
newest come first, an expired value is never returned, and the reads of a batch see what was there before
its writes.
"""

import asyncio
import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from sqlite3 import Connection
from typing import Any, Self, cast

import numpy as np
from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    get_text_at_path,
    tokenize_path,
    validate_op_namespace,
)

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError, LibraryError
from hardwon.memory.retrieval.embedders import Embedder, Vectors
from hardwon.memory.storage.database import Store

from .langgraph_embedder import GivenEmbedder

MINUTE = 60.0
"""Seconds."""
NOWHERE = -2.0
"""Below any cosine: where a value without a vector stands."""
_OPERATORS = ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte")

# A label ends with a dot, which no label contains: `acme.` begins `acme.users.` and not `acme-corp.`
_TABLES = """
CREATE TABLE IF NOT EXISTS langgraph_values (
    id INTEGER PRIMARY KEY AUTOINCREMENT, namespace TEXT NOT NULL, path TEXT NOT NULL, key TEXT NOT NULL,
    value TEXT NOT NULL, fields TEXT NOT NULL, created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
    ttl REAL, expires_at REAL, UNIQUE (namespace, path, key));
CREATE INDEX IF NOT EXISTS langgraph_values_by_expiry ON langgraph_values(expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS langgraph_vectors (
    value INTEGER NOT NULL, field TEXT NOT NULL, fingerprint TEXT NOT NULL, vector BLOB NOT NULL,
    PRIMARY KEY (value, field));
"""
_COLUMNS = "id, path, key, value, created_at, updated_at, ttl"

WHOLE: Mapping[str, Any] = {"fields": ["$"]}
"""An index on all of a value."""
Row = tuple[Any, ...]
Texts = dict[str, str]
"""What is embedded of a value, by the field it stands in."""


class HardwonStore(BaseStore):
    """Keys and JSON values in hierarchical namespaces; safe for many threads and processes."""

    supports_ttl = True

    def __init__(
        self,
        library: ExperienceLibrary,
        *,
        index: Mapping[str, Any] | None = WHOLE,
        ttl: TTLConfig | None = None,
    ) -> None:
        """A store in the file of `library`, with a connection of its own; close it when done.

        `index`: which fields of a value are embedded, `$` the whole; None embeds nothing, and then a query is
        ignored. With `dims` and `embed`, as LangGraph has them, texts are embedded by that and not by the library's
        embedder. `ttl` as LangGraph has it, in minutes; expired values are left out unless `omit_expired` is False.

        Raises: ConfigError for an index that cannot be used, and what `ExperienceLibrary.open` raises.
        """
        own = index is not None and set(index) != {"fields"}
        embedder: Embedder = GivenEmbedder(index or {}) if own else library.embedder
        self._store = Store(library.path, read_only=library.read_only)
        self._namespace, self._embedder = library.namespace, embedder
        self._fields = list(index.get("fields") or ["$"]) if index is not None else None
        self.ttl_config = ttl
        self._omit_expired = (ttl or {}).get("omit_expired", True)
        self._stop = threading.Event()
        self._sweeper: threading.Thread | None = None

    # ---- operations

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out the operations; their writes become durable together, after the reads."""
        asked = list(ops)
        for op in asked:
            if not isinstance(op, GetOp | SearchOp | ListNamespacesOp | PutOp):
                raise ConfigError(f"{op!r} is no operation of a store.")
            validate_op_namespace(op)
        queries = self._query_vectors(op.query for op in asked if isinstance(op, SearchOp))
        puts = {(op.namespace, op.key): op for op in asked if isinstance(op, PutOp)}
        written = [self._prepared(op) for op in puts.values()]
        touched: set[int] = set()
        with self._store.snapshot():
            there = self._is_there()
            results = [self._read(op, queries, touched) if there else _nothing(op) for op in asked]
        if written or (touched and not self._store.read_only):
            with self._store.transaction() as connection:
                self._write(connection, written, touched)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """The same, in a thread."""
        return await asyncio.to_thread(self.batch, list(ops))

    def sweep_ttl(self) -> int:
        """Delete what has expired, in this namespace; returns how many values."""
        with self._store.transaction() as connection:
            return _sweep(connection, self._namespace) if self._is_there() else 0

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> None:
        """Sweep now and then, in a thread, until `stop_ttl_sweeper` or `close`."""
        minutes = sweep_interval_minutes or (self.ttl_config or {}).get("sweep_interval_minutes") or 5
        if self._sweeper is None:
            self._stop.clear()
            self._sweeper = threading.Thread(target=self._sweep_every, args=(minutes * MINUTE,), daemon=True)
            self._sweeper.start()

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop that thread; returns whether it has ended."""
        self._stop.set()
        if self._sweeper is not None:
            self._sweeper.join(timeout)
            if self._sweeper.is_alive():
                return False
            self._sweeper = None
        return True

    def close(self) -> None:
        """Close the store; the library stays open."""
        self.stop_ttl_sweeper()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # ---- reading

    def _is_there(self) -> bool:
        return bool(self._store.rows("SELECT 1 FROM sqlite_master WHERE name = 'langgraph_vectors'"))

    def _read(self, op: Op, queries: Mapping[str, Vectors], touched: set[int]) -> Result:
        match op:
            case GetOp():
                rows = self._rows(_path(op.namespace), "AND path = ? AND key = ?", (_path(op.namespace), op.key))
                found = next(iter(rows), None)
                if found is not None and op.refresh_ttl and found[6] is not None:
                    touched.add(found[0])
                return None if found is None else _item(found)
            case SearchOp():
                hits = self._search(op, queries.get(op.query or ""))
                if op.refresh_ttl:
                    touched.update(row[0] for row, _ in hits if row[6] is not None)
                return [_hit(row, score) for row, score in hits]
            case ListNamespacesOp():
                return self._namespaces(op)
        return None

    def _rows(
        self, prefix: str, more: str = "", parameters: tuple[Any, ...] = (), columns: str = _COLUMNS
    ) -> list[Row]:
        """Rows below a path that are not expired; `more` continues the condition."""
        below, of = _below(prefix)
        now = time.time() if self._omit_expired else 0.0
        return self._store.rows(
            f"SELECT {columns} FROM langgraph_values WHERE namespace = ? AND {below} "
            f"AND (expires_at IS NULL OR expires_at > ?) {more}",
            (self._namespace, *of, now, *parameters),
        )

    def _search(self, op: SearchOp, query: Vectors | None) -> list[tuple[Row, float | None]]:
        """The nearest first where there is a query, then what has no vector; the newest first among equals."""
        prefix, newest = _path(op.namespace_prefix), "ORDER BY id DESC"
        if query is None and not op.filter:
            return [(row, None) for row in self._rows(prefix, f"{newest} LIMIT ? OFFSET ?", (op.limit, op.offset))]
        if op.filter:
            rows = self._rows(prefix, newest, columns="id, value")
            refs = [ref for ref, value in rows if _passes(json.loads(value), op.filter)]
        else:
            refs = [ref for (ref,) in self._rows(prefix, newest, columns="id")]
        scores = {} if query is None else self._scores(prefix, query)
        refs.sort(key=lambda ref: -scores.get(ref, NOWHERE))
        chosen = refs[op.offset : op.offset + op.limit]
        found = {
            row[0]: row for row in self._rows(prefix, "AND id IN (SELECT value FROM json_each(?))", (str(chosen),))
        }
        return [(found[ref], scores.get(ref)) for ref in chosen]

    def _scores(self, prefix: str, query: Vectors) -> dict[int, float]:
        """How near every value below a path is: by the field of it that is nearest."""
        below, of = _below(prefix)
        rows = self._store.rows(
            "SELECT of.value, of.vector, of.fingerprint FROM langgraph_values JOIN langgraph_vectors of "
            f"ON id = of.value WHERE namespace = ? AND {below}",
            (self._namespace, *of),
        )
        foreign = {ref for ref, _, fingerprint in rows if fingerprint != self._embedder.fingerprint}
        rows = [row for row in rows if row[0] not in foreign] + self._embedded_again(foreign)
        if not rows:
            return {}
        vectors = np.frombuffer(b"".join(row[1] for row in rows), np.float32).reshape(len(rows), -1)
        scores: dict[int, float] = {}
        for (ref, *_), near in zip(rows, (vectors @ query).tolist(), strict=True):
            scores[ref] = max(near, scores.get(ref, -1.0))
        return scores

    def _embedded_again(self, refs: Iterable[int]) -> list[Row]:
        """Vectors of values whose own were made by another embedder than the library has now."""
        found: list[Row] = []
        for ref in refs:
            ((value, fields),) = self._store.rows("SELECT value, fields FROM langgraph_values WHERE id = ?", (ref,))
            texts = list(_texts(json.loads(value), json.loads(fields)).values())
            found += [(ref, vector.tobytes(), "") for vector in self._embedder.embed(texts)] if texts else []
        return found

    def _namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        paths = (_labels(path) for (path,) in self._rows("", columns="DISTINCT path"))
        found = {
            labels[: op.max_depth]
            for labels in paths
            if all(_matches(condition, labels) for condition in op.match_conditions or ())
        }
        return sorted(found)[op.offset : op.offset + op.limit]

    def _query_vectors(self, queries: Iterable[str | None]) -> dict[str, Vectors]:
        wanted = sorted({query for query in queries if query}) if self._fields is not None else []
        return dict(zip(wanted, self._embedder.embed(wanted), strict=True)) if wanted else {}

    # ---- writing

    def _prepared(self, op: PutOp) -> tuple[PutOp, str, list[str], dict[str, bytes]]:
        """A value as it is written: its JSON, the fields that are embedded, and their vectors."""
        if op.value is None:
            return op, "", [], {}
        try:
            value = json.dumps(op.value)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"the value of {op.key!r} in {op.namespace} cannot be kept ({error}). Put plain JSON values."
            ) from error
        chosen = self._fields if op.index is None else op.index or []
        fields = list(chosen) if self._fields is not None and chosen else []
        texts = _texts(op.value, fields)
        vectors = self._embedder.embed(list(texts.values())) if texts else ()
        return op, value, fields, {field: vector.tobytes() for field, vector in zip(texts, vectors, strict=True)}

    def _write(
        self, connection: Connection, puts: Iterable[tuple[PutOp, str, list[str], dict[str, bytes]]], touched: set[int]
    ) -> None:
        for statement in _TABLES.split(";\n"):
            connection.execute(statement)
        connection.executemany(
            "UPDATE langgraph_values SET expires_at = ? + 60.0 * ttl WHERE id = ?",
            [(time.time(), ref) for ref in sorted(touched)],
        )
        for put in puts:
            self._put(connection, *put)
        if self._omit_expired:
            _sweep(connection, self._namespace)

    def _put(
        self, connection: Connection, op: PutOp, value: str, fields: Sequence[str], vectors: Mapping[str, bytes]
    ) -> None:
        """Write a value anew, so that its id says when it was put; its first time stays."""
        place, now = (self._namespace, _path(op.namespace), op.key), datetime.now(UTC).isoformat()
        created = now
        for ref, created_at, expires_at in connection.execute(
            "SELECT id, created_at, expires_at FROM langgraph_values WHERE namespace = ? AND path = ? AND key = ?",
            place,
        ).fetchall():
            connection.execute("DELETE FROM langgraph_values WHERE id = ?", (ref,))
            connection.execute("DELETE FROM langgraph_vectors WHERE value = ?", (ref,))
            created = created_at if expires_at is None or expires_at > time.time() else now
        if op.value is None:
            return
        expires = None if op.ttl is None else time.time() + MINUTE * op.ttl
        ref = connection.execute(
            "INSERT INTO langgraph_values VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*place, value, json.dumps(fields), created, now, op.ttl, expires),
        ).lastrowid
        connection.executemany(
            "INSERT INTO langgraph_vectors VALUES (?, ?, ?, ?)",
            [(ref, field, self._embedder.fingerprint, vector) for field, vector in vectors.items()],
        )

    def _sweep_every(self, seconds: float) -> None:
        while not self._stop.wait(seconds):
            try:
                self.sweep_ttl()
            except LibraryError:  # another writer held the file: the next time will do
                continue


def _sweep(connection: Connection, namespace: str) -> int:
    gone = [
        row[0]
        for row in connection.execute(
            "SELECT id FROM langgraph_values WHERE expires_at <= ? AND namespace = ?", (time.time(), namespace)
        )
    ]
    connection.executemany("DELETE FROM langgraph_vectors WHERE value = ?", [(ref,) for ref in gone])
    connection.executemany("DELETE FROM langgraph_values WHERE id = ?", [(ref,) for ref in gone])
    return len(gone)


def _nothing(op: Op) -> Result:
    return [] if isinstance(op, SearchOp | ListNamespacesOp) else None


# ---- paths


def _path(labels: Iterable[str]) -> str:
    return "".join(f"{label}." for label in labels)


def _labels(path: str) -> tuple[str, ...]:
    return tuple(path.split(".")[:-1])


def _below(prefix: str) -> tuple[str, tuple[str, ...]]:
    """A condition for this path and all below it; `/` is what follows the dot."""
    return ("path >= ? AND path < ?", (prefix, f"{prefix[:-1]}/")) if prefix else ("1", ())


def _matches(condition: MatchCondition, labels: tuple[str, ...]) -> bool:
    path = tuple(condition.path)
    if len(labels) < len(path):
        return False
    own = labels[: len(path)] if condition.match_type == "prefix" else labels[len(labels) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, own, strict=True))


# ---- values


def _item(row: Row) -> Item:
    _, path, key, value, created, updated, _ = row
    return Item(value=json.loads(value), key=key, namespace=_labels(path), created_at=created, updated_at=updated)


def _hit(row: Row, score: float | None) -> SearchItem:
    _, path, key, value, created, updated, _ = row
    times = datetime.fromisoformat(created), datetime.fromisoformat(updated)
    return SearchItem(_labels(path), key, json.loads(value), *times, score=score)


def _texts(value: Mapping[str, Any], fields: Iterable[str]) -> Texts:
    """What is embedded of a value; a list in it is several texts."""
    found: Texts = {}
    for name in fields:
        texts = get_text_at_path(value, name if name == "$" else tokenize_path(name))
        found.update({name if len(texts) == 1 else f"{name}.{n}": text for n, text in enumerate(texts)})
    return found


def _passes(value: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(_equals(_at(value, key), expected) for key, expected in wanted.items())


def _at(value: Mapping[str, Any], key: str) -> Any:
    """Return what stands under a key, or under a dotted path, `user.plan`; None where nothing does."""
    if key in value or "." not in key:
        return value.get(key)
    found: Any = value
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _equals(value: Any, wanted: Any) -> bool:
    """Whether a value is as a filter wants it: operators, objects by their given keys, lists element by element."""
    if isinstance(wanted, Mapping):
        if any(key.startswith("$") for key in wanted):
            return all(_compares(value, operator, to) for operator, to in wanted.items())
        return isinstance(value, Mapping) and _passes(value, wanted)
    if isinstance(wanted, list | tuple):
        same = isinstance(value, list) and len(value) == len(wanted)
        return same and all(_equals(one, other) for one, other in zip(value, wanted, strict=True))
    return bool(value == wanted)


def _compares(value: Any, operator: str, to: Any) -> bool:
    """As numbers where both are, else as text where both are; what cannot be compared does not pass."""
    if operator not in _OPERATORS:
        raise ConfigError(f"filter has {operator!r}; use one of {', '.join(_OPERATORS)}.")
    if operator in ("$eq", "$ne"):
        return bool(value == to) is (operator == "$eq")
    try:
        one, other = cast(Any, float(value)), cast(Any, float(to))
    except (TypeError, ValueError):
        if not (isinstance(value, str) and isinstance(to, str)):
            return False
        one, other = value, to
    ordered = {"$gt": one > other, "$gte": one >= other, "$lt": one < other, "$lte": one <= other}
    return bool(ordered[operator])
