"""Attempts: summaries between steps and items.

An attempt covers one kind of action in one kind of situation and keeps exact counts. Only its newest steps are recalled
individually. Older steps are folded: they stay in the episode store, so every count can be traced to step ids, but
recall uses the summary in their place. They are derived from the steps and can be rebuilt from them. They contain
counts only, never a model's judgment.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import isclose
from sqlite3 import Connection
from typing import Any

from hardwon.memory.errors import UnknownName
from hardwon.memory.records import Failure, Step, Summary
from hardwon.memory.situations.keys import parse_action

from .checksums import parse_json
from .database import Store

WINDOW = 32
"""Largest number of steps of one attempt that recall reads individually."""
FOLD = 16
"""Number of oldest steps that are folded together when an attempt exceeds WINDOW."""

_CHUNK = 200
"""Attempts read per statement, below SQLite's limit on parameters."""

RollupKey = tuple[str, str]
"""Identity of an attempt: the signature of the state and the template of the action."""

_SUMMARY = "id, signature, pattern, n, failures, returns, best, first, last, live"


def count_unfolded(n: int) -> int:
    """Return how many of the `n` steps of an attempt are not folded."""
    # Folding in blocks: the result cycles from WINDOW - FOLD + 1 to WINDOW, so most steps fold nothing.
    return n if n <= WINDOW else WINDOW - FOLD + 1 + (n - WINDOW - 1) % FOLD


def make_key(signature: str, action: str) -> RollupKey:
    """Return the key of the attempt to which an action in a state belongs."""
    return signature, parse_action(action).template


@dataclass(slots=True)
class AttemptTally:
    """Counts and returns of the steps of one attempt, in the order of their ids."""

    n: int = 0
    returns: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)
    best: int = 0
    best_return: float = float("-inf")
    first: int = 0
    last: int = 0

    def add(self, step: int, value: float, failure: str) -> None:
        """Count one more step. If returns are equal, the newest step is the best one."""
        self.n += 1
        self.returns += value
        if failure != Failure.NONE:
            self.failures[failure] += 1
        if value >= self.best_return:
            self.best, self.best_return = step, value
        self.first = self.first or step  # ids start at 1, so 0 means not set
        self.last = step


class Attempts:
    """The attempts that one transaction changes: read once, counted in memory, and written once by `write`."""

    def __init__(self, connection: Connection, namespace: int) -> None:
        self._connection = connection
        self._namespace = namespace
        self._tallies: dict[RollupKey, AttemptTally] = {}
        self._ids: dict[RollupKey, int] = {}
        self._before: dict[RollupKey, int] = {}
        self._next = 0

    def count(self, steps: Sequence[Step]) -> dict[int | None, int]:
        """Count steps, and return the id of the attempt of each step that has an action."""
        keys = {step.id: make_key(step.pre.signature, step.action) for step in steps if step.action}
        self._read(dict.fromkeys(keys.values()))
        for step in steps:
            if step.action:
                tally = self._tallies[keys[step.id]]
                tally.add(step.id or 0, step.return_to_go or 0.0, step.diagnosis.failure.value)
        return {ref: self._ids[key] for ref, key in keys.items()}

    def _read(self, keys: Iterable[RollupKey]) -> None:
        """Read the stored attempts with these keys, in a few statements."""
        missing = [key for key in keys if key not in self._tallies]
        for at in range(0, len(missing), _CHUNK):
            chunk = missing[at : at + _CHUNK]
            # CROSS JOIN fixes the join order: SQLite looks up each wanted key in the index of attempts.
            rows = self._connection.execute(
                f"WITH wanted(s, p) AS (VALUES {','.join(['(?, ?)'] * len(chunk))}) "
                "SELECT signature, pattern, id, n, returns, failures, best, best_return, first, last "
                "FROM wanted CROSS JOIN attempts ON namespace = ? AND signature = s AND pattern = p",
                (*chain.from_iterable(chunk), self._namespace),
            )
            for signature, pattern, ref, n, returns, failures, *rest in rows:
                counted = Counter(parse_json(failures, "attempts")) if failures != "{}" else Counter()
                self._ids[signature, pattern] = ref
                self._tallies[signature, pattern] = AttemptTally(n, returns, counted, *rest)
        for key in missing:
            if key not in self._tallies:
                self._ids[key] = self._new_id()
                self._tallies[key] = AttemptTally()
            self._before[key] = self._tallies[key].n

    def _new_id(self) -> int:
        # Assigned here, as steps name their attempt before it is inserted. The write lock keeps the ids free.
        if not self._next:
            row = self._connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'attempts'").fetchone()
            self._next = row[0] if row else 0
        self._next += 1
        return self._next

    def write(self) -> None:
        """Write the counts and fold the oldest steps of large attempts. Call it after the steps are written."""
        new, old, folded = [], [], []
        for key, tally in self._tallies.items():
            ref, before, live = self._ids[key], self._before[key], count_unfolded(tally.n)
            columns = _columns(tally)
            if not before:
                new.append((ref, self._namespace, *key, *columns))
            else:
                old.append((*columns, ref))
            # Update only the attempts whose number of folded steps grew.
            if live < tally.n and tally.n - live > before - count_unfolded(before):
                folded.append((ref, live))
        self._connection.executemany(_INSERT, new)
        self._connection.executemany(
            "UPDATE attempts SET n = ?, live = ?, returns = ?, failures = ?, best = ?, best_return = ?, "
            "first = ?, last = ? WHERE id = ?",
            old,
        )
        self._connection.executemany(
            "UPDATE steps SET folded = 1 WHERE id IN "
            # SQLite allows OFFSET only after LIMIT; -1 means no limit.
            "(SELECT id FROM steps WHERE attempt = ? AND folded = 0 ORDER BY id DESC LIMIT -1 OFFSET ?)",
            folded,
        )
        self._tallies.clear()


_INSERT = (
    "INSERT INTO attempts(id, namespace, signature, pattern, n, live, returns, failures, best, best_return, first, "
    "last) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def _columns(tally: AttemptTally) -> tuple[float | str, ...]:
    return (
        tally.n,
        count_unfolded(tally.n),
        tally.returns,
        json.dumps(dict(sorted(tally.failures.items()))) if tally.failures else "{}",
        tally.best,
        tally.best_return,
        tally.first,
        tally.last,
    )


def summaries(
    store: Store, namespace: int, signature: str | None = None, limit: int | None = None, offset: int = 0
) -> tuple[Summary, ...]:
    """Return attempts of one situation, or of all, with the most frequent first."""
    where, parameters = ("AND signature = ?", (signature,)) if signature is not None else ("", ())
    rows = store.rows(
        f"SELECT {_SUMMARY} FROM attempts WHERE namespace = ? {where} ORDER BY n DESC, id DESC LIMIT ? OFFSET ?",
        (namespace, *parameters, -1 if limit is None else limit, offset),
    )
    return tuple(map(_build_summary, rows))


def _build_summary(row: tuple[int, str, str, int, str, float, int, int, int, int]) -> Summary:
    ref, signature, pattern, n, failures, returns, best, first, last, live = row
    counts = parse_json(failures, "attempts") if failures != "{}" else {}
    return Summary(ref, signature, pattern, n, counts, returns / n, best, first, last, live)


def read_evidence(store: Store, namespace: int, summary_id: int, failure: str | None = None) -> list[int]:
    """Return the ids of the steps behind a summary's counts."""
    if failure is not None and failure not in list(Failure):
        raise UnknownName.of("failure", failure, list(Failure))
    if not store.rows("SELECT 1 FROM attempts WHERE namespace = ? AND id = ?", (namespace, summary_id)):
        candidates = store.rows("SELECT id FROM attempts WHERE namespace = ? ORDER BY n DESC LIMIT 20", (namespace,))
        raise UnknownName.of("summary", str(summary_id), [str(row[0]) for row in candidates])
    where, parameters = ("AND failure = ?", (str(failure),)) if failure is not None else ("", ())
    rows = store.rows(f"SELECT id FROM steps WHERE attempt = ? {where} ORDER BY id", (summary_id, *parameters))
    return [row[0] for row in rows]


# -- checks against the steps ---------------------------------------------------------------------

# Ordered by id, the order of recording: `first`, `last` and ties for `best` depend on it.
_TRUTH_OF = """
SELECT steps.id, signature, action, return_to_go, failure, attempt, folded FROM steps
JOIN states ON states.id = pre
JOIN trajectories AS episode ON episode.namespace = steps.namespace AND episode.id = trajectory_id
WHERE steps.namespace = ? AND action != '' AND success IS NOT NULL AND trust = 'trusted' {}ORDER BY steps.id
"""
_OF_SITUATIONS = (
    "AND pre IN (SELECT id FROM states WHERE namespace = ? AND signature IN (SELECT value FROM json_each(?))) "
)
_TRUTH = _TRUTH_OF.format("")
_ATTEMPT = "n, live, returns, failures, best, best_return, first, last"
_FROM_NAMESPACE = "FROM attempts WHERE namespace = ?"
_KEYS = f"SELECT id, signature, pattern {_FROM_NAMESPACE}"


def find_differences(store: Store, namespace: int) -> list[str]:
    """Return descriptions of how the attempts differ from the steps; empty if they agree."""
    kept = {
        row[1:3]: row
        for row in store.rows(f"SELECT id, signature, pattern, {_ATTEMPT} {_FROM_NAMESPACE}", (namespace,))
    }
    truth, filed = _count_again(store.rows(_TRUTH, (namespace,)))
    rows = {key: row[3:] for key, row in kept.items()}
    wrong = sum(key in rows and not _equals(_columns(tally), rows[key]) for key, tally in truth.items())
    ((strays,),) = store.rows(
        "SELECT count(*) FROM steps JOIN trajectories AS episode "
        "ON episode.namespace = steps.namespace AND episode.id = trajectory_id "
        "WHERE steps.namespace = ? AND attempt IS NOT NULL AND (action = '' OR success IS NULL OR trust != 'trusted')",
        (namespace,),
    )
    for key, steps in filed.items():
        old, ref = len(steps) - count_unfolded(len(steps)), kept[key][0] if key in kept else None
        strays += sum(marks[1:] != (ref, int(at < old)) for at, marks in enumerate(steps))
    differing = []
    if missing := len(truth.keys() - rows.keys()):
        differing.append(f"{missing} missing")
    if extra := len(rows.keys() - truth.keys()):
        differing.append(f"{extra} without steps")
    if wrong:
        differing.append(f"{wrong} with wrong counts")
    if strays:
        differing.append(f"{strays} steps assigned or folded wrongly")
    return differing


def _equals(expected: Sequence[float | str], kept: Sequence[float | str]) -> bool:
    # Sums of returns depend on the order of addition, so floats are compared with a tolerance.
    return all(
        isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) if isinstance(a, float) and isinstance(b, float) else a == b
        for a, b in zip(expected, kept, strict=True)
    )


def _count_again(
    rows: Iterable[tuple[Any, ...]], keys: Collection[RollupKey] | None = None
) -> tuple[dict[RollupKey, AttemptTally], dict[RollupKey, list[tuple[int, int | None, int]]]]:
    """Return these attempts, or all, as counted from steps, and by attempt its steps as (id, attempt, folded)."""
    tallies: dict[RollupKey, AttemptTally] = {}
    filed: dict[RollupKey, list[tuple[int, int | None, int]]] = {}
    for ref, signature, action, value, failure, attempt, folded in rows:
        key = make_key(signature, action)
        if keys is None or key in keys:
            tallies.setdefault(key, AttemptTally()).add(ref, value, failure)
            filed.setdefault(key, []).append((ref, attempt, folded))
    return tallies, filed


def rebuild(connection: Connection, store: Store, namespace: int) -> None:
    """Rebuild the attempts from the steps. Existing attempts keep their ids."""
    ids = {row[1:]: row[0] for row in store.rows(_KEYS, (namespace,))}
    tallies, filed = _count_again(store.rows(_TRUTH, (namespace,)))
    used = set(ids.values())
    # A row that was lost gets the id that its steps still refer to, unless that id is in use.
    for key in [key for key in filed if key not in ids]:
        lost = [attempt for _, attempt, _ in filed[key] if attempt is not None and attempt not in used]
        used.update(lost[:1])
        ids.update(zip([key], lost, strict=False))
    connection.execute("UPDATE steps SET attempt = NULL, folded = 0 WHERE namespace = ?", (namespace,))
    connection.execute("DELETE FROM attempts WHERE namespace = ?", (namespace,))
    _write_again(connection, namespace, ids, tallies, filed)


def recount(connection: Connection, store: Store, namespace: int, episode: str, steps: Iterable[Step]) -> None:
    """Count the attempts of one episode's steps again, after the episode's outcome changed."""
    keys = {make_key(step.pre.signature, step.action) for step in steps if step.action}
    situations = json.dumps(sorted({signature for signature, _ in keys}))
    where = "AND signature IN (SELECT value FROM json_each(?))"
    ids = {row[1:]: row[0] for row in store.rows(f"{_KEYS} {where}", (namespace, situations)) if row[1:] in keys}
    rows = store.rows(_TRUTH_OF.format(_OF_SITUATIONS), (namespace, namespace, situations))
    tallies, filed = _count_again(rows, keys)
    own = (namespace, episode)
    connection.execute("UPDATE steps SET attempt = NULL, folded = 0 WHERE namespace = ? AND trajectory_id = ?", own)
    connection.executemany("UPDATE steps SET attempt = NULL WHERE attempt = ?", [(ref,) for ref in ids.values()])
    connection.executemany("DELETE FROM attempts WHERE id = ?", [(ref,) for ref in ids.values()])
    _write_again(connection, namespace, ids, tallies, filed)


def _write_again(
    connection: Connection,
    namespace: int,
    ids: Mapping[RollupKey, int],
    tallies: Mapping[RollupKey, AttemptTally],
    filed: Mapping[RollupKey, Sequence[tuple[int, int | None, int]]],
) -> None:
    """Write attempts, those with an id under it, and assign and fold their steps."""
    for key, tally in tallies.items():
        ref = connection.execute(_INSERT, (ids.get(key), namespace, *key, *_columns(tally))).lastrowid
        old = tally.n - count_unfolded(tally.n)
        connection.executemany(
            "UPDATE steps SET attempt = ?, folded = ? WHERE id = ?",
            [(ref, int(at < old), step) for at, (step, _, _) in enumerate(filed[key])],
        )
