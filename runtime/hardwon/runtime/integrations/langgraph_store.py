"""Persistent long-term memory for LangGraph: a `BaseStore` in the library, a file or one that many machines share.

    store = HardwonStore(library)
    graph = builder.compile(store=store)

Values are the application's data, not experience: they are returned exactly as they were put, and are never
redacted, exported, recalled or evolved. They are stored in two separate tables, created on the first write,
under the library's namespace (see `memory.stored_values`); in a shared library, a batch of writes is one entry of
its log. Semantic search uses the library's embedder. Results are ordered newest first, expired values are never
returned, and the reads of a batch see the state before its writes.
"""

import asyncio
import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
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
from hardwon.memory.privacy.deadlines import Interruptible
from hardwon.memory.retrieval.embedders import Embedder, Vectors
from hardwon.memory.storage.clock import read_clock
from hardwon.memory.stored_values import ValueBatch, ValueWrite
from hardwon.memory.upkeep.argument_types import check_types
from hardwon.memory.validation import check_library, check_no_secret, check_texts

from .langgraph_embedder import GivenEmbedder

_OPERATORS = ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte")

_COLUMNS = "id, path, key, value, created_at, updated_at, ttl"

WHOLE: Mapping[str, Any] = {"fields": ["$"]}
"""Index settings that embed the whole value."""
ValueRow = tuple[Any, ...]
Texts = dict[str, str]
"""Texts to embed, by field."""


class HardwonStore(BaseStore):
    """A LangGraph store of JSON values under keys in hierarchical namespaces.

    It is safe for concurrent threads and processes.
    """

    supports_ttl = True

    @check_types
    def __init__(
        self,
        library: ExperienceLibrary,
        *,
        index: Mapping[str, Any] | None = WHOLE,
        ttl: TTLConfig | None = None,
    ) -> None:
        """Open a store in `library`, with its own connection; close it after use, and before a shared library.

        Args:
            library: The library whose namespace holds the values.
            index: The fields of a value to embed, `{"fields": [...]}`; the field `$` is the whole value. None
                embeds nothing, and queries are ignored. With LangGraph's `dims` and `embed`, these settings
                replace the library's embedder.
            ttl: LangGraph's time-to-live settings, in minutes. Expired values are omitted unless `omit_expired`
                is False.

        Raises:
            ConfigError: The index settings are invalid.
            LibraryError: The file cannot be opened; see `ExperienceLibrary.open`.
        """
        check_library(library)
        check_texts("fields of index", (index or {}).get("fields") or [])
        has_embedder = index is not None and set(index) != {"fields"}
        embedder: Embedder = GivenEmbedder(index or {}) if has_embedder else library.admin.embedder
        self._values, self._embedder = library.admin.open_values(), embedder
        self._calls = Interruptible(f"the embedder {embedder.name}")
        self._fields = list(index.get("fields") or ["$"]) if index is not None else None
        self.ttl_config = ttl
        self._omit_expired = (ttl or {}).get("omit_expired", True)
        self._stop = threading.Event()
        self._sweeper: threading.Thread | None = None

    # ---- operations

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations in one batch.

        The reads run first, in one snapshot. The writes are then committed in one transaction; if a key is written
        more than once, the last write wins.

        Args:
            ops: The operations.

        Returns:
            One result per operation, in order; None for writes.

        Raises:
            ConfigError: An operation is of unknown type, a value is not plain JSON, a label or key contains a secret,
                or a filter operator is unknown.
            LibraryUnreachable: The batch writes, and the server of a shared library does not answer.
        """
        operations = list(ops)
        for op in operations:
            if not isinstance(op, GetOp | SearchOp | ListNamespacesOp | PutOp):
                raise ConfigError(f"{op!r} is not a store operation; use GetOp, SearchOp, ListNamespacesOp or PutOp.")
            validate_op_namespace(op)
        queries = self._embed_queries(op.query for op in operations if isinstance(op, SearchOp))
        puts = {(op.namespace, op.key): op for op in operations if isinstance(op, PutOp)}
        # Embedding is slow, so it happens before the transaction, which would block other writers.
        writes = [self._prepare(op) for op in puts.values()]
        reads = _Reads(queries)
        results: list[Result] = [None] * len(operations)
        if not all(isinstance(op, PutOp) for op in operations):
            results = self._read_all(operations, reads)
        if writes or (reads.touched and not self._values.read_only):
            self._values.write(
                ValueBatch(writes, sorted(reads.touched), self._embedder.fingerprint, self._omit_expired)
            )
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations in one batch in a thread; see `batch`."""
        return await asyncio.to_thread(self.batch, list(ops))

    def sweep_ttl(self) -> int:
        """Delete the expired values of this namespace and return their number."""
        return self._values.sweep()

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> None:
        """Start a thread that deletes expired values until `stop_ttl_sweeper` or `close`.

        Args:
            sweep_interval_minutes: Minutes between sweeps. None uses the interval of the `ttl` settings, or 5.
        """
        minutes = sweep_interval_minutes or (self.ttl_config or {}).get("sweep_interval_minutes") or 5
        if self._sweeper is None:
            self._stop.clear()
            self._sweeper = threading.Thread(target=self._run_sweeper, args=(minutes * 60.0,), daemon=True)
            self._sweeper.start()

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the sweeper thread.

        Args:
            timeout: Seconds to wait for it to end; None waits indefinitely.

        Returns:
            Whether the thread has ended.
        """
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
        self._values.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # ---- reading

    def _read_all(self, ops: list[Op], reads: "_Reads") -> list[Result]:
        """Return the results of a batch's reads from one snapshot."""
        while True:
            with self._values.reading() as exists:
                results = [self._read(op, reads) if exists else _get_empty_result(op) for op in ops]
            if not reads.missing:
                return results
            # Embedding inside the snapshot would hold up other threads, so the batch is read again. The vectors are not
            # stored, because a search only reads; the next put of the value stores new ones.
            for ref, texts in reads.missing.items():
                reads.vectors[ref] = list(self._embed(texts)) if texts else []
            reads.missing.clear()

    def _read(self, op: Op, reads: "_Reads") -> Result:
        match op:
            case GetOp():
                rows = self._select_rows(
                    _join_labels(op.namespace), "AND path = ? AND key = ?", (_join_labels(op.namespace), op.key)
                )
                row = next(iter(rows), None)
                if row is not None and op.refresh_ttl and row[6] is not None:
                    reads.touched.add(row[0])
                return None if row is None else _build_item(row)
            case SearchOp():
                hits = self._search(op, reads)
                if op.refresh_ttl:
                    reads.touched.update(row[0] for row, _ in hits if row[6] is not None)
                return [_build_search_item(row, score) for row, score in hits]
            case ListNamespacesOp():
                return self._list_namespaces(op)
        return None

    def _select_rows(
        self, prefix: str, more: str = "", parameters: tuple[Any, ...] = (), columns: str = _COLUMNS
    ) -> list[ValueRow]:
        """Return the rows under a path that have not expired; `more` extends the WHERE clause."""
        below, bounds = _build_prefix_condition(prefix)
        now = read_clock() if self._omit_expired else 0.0
        return self._values.store.rows(
            f"SELECT {columns} FROM langgraph_values WHERE namespace = ? AND {below} "
            f"AND (expires_at IS NULL OR expires_at > ?) {more}",
            (self._values.namespace, *bounds, now, *parameters),
        )

    def _search(self, op: SearchOp, reads: "_Reads") -> list[tuple[ValueRow, float | None]]:
        """Return matching rows with their scores.

        With a query, rows are ordered by similarity, and rows without a vector come last. Ties are ordered newest
        first, as are all rows without a query.
        """
        prefix, newest = _join_labels(op.namespace_prefix), "ORDER BY id DESC"
        query = reads.queries.get(op.query or "")
        if query is None and not op.filter:
            return [
                (row, None) for row in self._select_rows(prefix, f"{newest} LIMIT ? OFFSET ?", (op.limit, op.offset))
            ]
        if op.filter:
            rows = self._select_rows(prefix, newest, columns="id, value")
            refs = [ref for ref, value in rows if _matches_filter(json.loads(value), op.filter)]
        else:
            refs = [ref for (ref,) in self._select_rows(prefix, newest, columns="id")]
        scores = {} if query is None else self._score_values(prefix, query, reads)
        # Sort score of values without a vector: below any cosine similarity.
        refs.sort(key=lambda ref: -scores.get(ref, -2.0))  # a stable sort keeps the newest first among ties
        page = refs[op.offset : op.offset + op.limit]
        # json_each takes the ids as one parameter; SQLite limits the number of parameters of a query.
        rows_by_id = {
            row[0]: row for row in self._select_rows(prefix, "AND id IN (SELECT value FROM json_each(?))", (str(page),))
        }
        # A value that expired since the first query is missing here.
        return [(rows_by_id[ref], scores.get(ref)) for ref in page if ref in rows_by_id]

    def _score_values(self, prefix: str, query: Vectors, reads: "_Reads") -> dict[int, float]:
        """Return the similarity of every value under a path: the maximum over its fields."""
        below, bounds = _build_prefix_condition(prefix)
        rows = self._values.store.rows(
            "SELECT v.value, v.vector, v.fingerprint FROM langgraph_values JOIN langgraph_vectors v "
            f"ON id = v.value WHERE namespace = ? AND {below}",
            (self._values.namespace, *bounds),
        )
        # Vectors of different embedders are not comparable, and neither are damaged ones.
        foreign = {
            ref
            for ref, vector, fingerprint in rows
            if fingerprint != self._embedder.fingerprint or len(vector) != query.nbytes
        }
        reads.missing |= {ref: self._read_texts(ref) for ref in foreign - reads.vectors.keys()}
        rows = [row for row in rows if row[0] not in foreign]
        rows += [(ref, vector.tobytes(), "") for ref in foreign for vector in reads.vectors.get(ref, ())]
        if not rows:
            return {}
        vectors = np.frombuffer(b"".join(row[1] for row in rows), np.float32).reshape(len(rows), -1)
        scores: dict[int, float] = {}
        for (ref, *_), similarity in zip(rows, (vectors @ query).tolist(), strict=True):
            scores[ref] = max(similarity, scores.get(ref, -1.0))
        return scores

    def _read_texts(self, ref: int) -> list[str]:
        """Return the texts of a value that are embedded."""
        ((value, fields),) = self._values.store.rows("SELECT value, fields FROM langgraph_values WHERE id = ?", (ref,))
        return list(_extract_texts(json.loads(value), json.loads(fields)).values())

    def _embed(self, texts: list[str]) -> Vectors:
        """Return the vectors of texts; a deadline of the caller ends the wait for an embedder that does not answer."""
        return self._calls.call(lambda: self._embedder.embed(texts))

    def _list_namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        paths = (_split_path(path) for (path,) in self._select_rows("", columns="DISTINCT path"))
        namespaces = {
            labels[: op.max_depth]
            for labels in paths
            if all(_matches_condition(condition, labels) for condition in op.match_conditions or ())
        }
        return sorted(namespaces)[op.offset : op.offset + op.limit]

    def _embed_queries(self, queries: Iterable[str | None]) -> dict[str, Vectors]:
        wanted = sorted({query for query in queries if query}) if self._fields is not None else []
        return dict(zip(wanted, self._embed(wanted), strict=True)) if wanted else {}

    # ---- writing

    def _prepare(self, op: PutOp) -> ValueWrite:
        """Return a value ready for writing: its JSON, the embedded fields, and their vectors."""
        path = _join_labels(op.namespace)
        if op.value is None:
            return ValueWrite(path, op.key, None)
        for name in (*op.namespace, op.key):
            check_no_secret("a name in the store", name)
        try:
            value = json.dumps(op.value)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"the value of {op.key!r} in {op.namespace} cannot be stored ({error}). Put plain JSON values."
            ) from error
        selected = self._fields if op.index is None else op.index or []
        fields = list(selected) if self._fields is not None and selected else []
        texts = _extract_texts(op.value, fields)
        vectors = self._embed(list(texts.values())) if texts else ()
        vectors_by_field = {field: vector.tobytes() for field, vector in zip(texts, vectors, strict=True)}
        return ValueWrite(path, op.key, value, json.dumps(fields), op.ttl, vectors_by_field)

    def _run_sweeper(self, seconds: float) -> None:
        while not self._stop.wait(seconds):
            try:
                self.sweep_ttl()
            except LibraryError:  # another writer holds the lock; retry at the next interval
                continue


@dataclass
class _Reads:
    """What the reads of a batch share."""

    queries: Mapping[str, Vectors]
    touched: set[int] = field(default_factory=set)
    """Ids of the values that live longer because they were read."""
    vectors: dict[int, list[Vectors]] = field(default_factory=dict)
    """Vectors by id of values whose stored ones come from another embedder."""
    missing: dict[int, list[str]] = field(default_factory=dict)
    """The texts of such values that must be embedded first."""


def _get_empty_result(op: Op) -> Result:
    return [] if isinstance(op, SearchOp | ListNamespacesOp) else None


# ---- paths


def _join_labels(labels: Iterable[str]) -> str:
    return "".join(f"{label}." for label in labels)


def _split_path(path: str) -> tuple[str, ...]:
    return tuple(path.split(".")[:-1])


def _build_prefix_condition(prefix: str) -> tuple[str, tuple[str, ...]]:
    """Return an SQL condition and parameters for a path and everything under it."""
    # `/` is the character after `.`, so this range is the prefix match, and it can use the index.
    return ("path >= ? AND path < ?", (prefix, f"{prefix[:-1]}/")) if prefix else ("1", ())


def _matches_condition(condition: MatchCondition, labels: tuple[str, ...]) -> bool:
    path = tuple(condition.path)
    if len(labels) < len(path):
        return False
    candidate = labels[: len(path)] if condition.match_type == "prefix" else labels[len(labels) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, candidate, strict=True))


# ---- values


def _build_item(row: ValueRow) -> Item:
    _, path, key, value, created, updated, _ = row
    return Item(value=json.loads(value), key=key, namespace=_split_path(path), created_at=created, updated_at=updated)


def _build_search_item(row: ValueRow, score: float | None) -> SearchItem:
    _, path, key, value, created, updated, _ = row
    times = datetime.fromisoformat(created), datetime.fromisoformat(updated)
    return SearchItem(_split_path(path), key, json.loads(value), *times, score=score)


def _extract_texts(value: Mapping[str, Any], fields: Iterable[str]) -> Texts:
    """Return the texts to embed by field; each element of a list is a separate text."""
    texts_by_field: Texts = {}
    for name in fields:
        texts = get_text_at_path(value, name if name == "$" else tokenize_path(name))
        texts_by_field.update({name if len(texts) == 1 else f"{name}.{n}": text for n, text in enumerate(texts)})
    return texts_by_field


def _matches_filter(value: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(_matches_value(_get_by_path(value, key), expected) for key, expected in wanted.items())


def _get_by_path(value: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key or of a dotted path such as `user.plan`; None if it is missing."""
    if key in value or "." not in key:
        return value.get(key)
    current: Any = value
    for part in key.split("."):
        current = current.get(part) if isinstance(current, Mapping) else None
    return current


def _matches_value(value: Any, wanted: Any) -> bool:
    """Return whether a value matches a filter: operators, objects by their given keys, lists elementwise."""
    if isinstance(wanted, Mapping):
        if any(key.startswith("$") for key in wanted):
            return all(_compare(value, operator, to) for operator, to in wanted.items())
        return isinstance(value, Mapping) and _matches_filter(value, wanted)
    if isinstance(wanted, list | tuple):
        same = isinstance(value, list) and len(value) == len(wanted)
        return same and all(_matches_value(left, right) for left, right in zip(value, wanted, strict=True))
    return bool(value == wanted)


def _compare(value: Any, operator: str, to: Any) -> bool:
    """Compare as numbers if both are numeric, else as strings if both are; anything else does not match."""
    if operator not in _OPERATORS:
        raise ConfigError(f"unknown filter operator {operator!r}; use one of {', '.join(_OPERATORS)}.")
    if operator in ("$eq", "$ne"):
        return bool(value == to) is (operator == "$eq")
    try:
        left, right = cast(Any, float(value)), cast(Any, float(to))
    except (TypeError, ValueError):
        if not (isinstance(value, str) and isinstance(to, str)):
            return False
        left, right = value, to
    ordered = {"$gt": left > right, "$gte": left >= right, "$lt": left < right, "$lte": left <= right}
    return bool(ordered[operator])
