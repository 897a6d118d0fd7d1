"""The tiers between raw steps and items: attempts, which sum up steps, and segments, which sum up episodes.

An attempt is one kind of action in one kind of situation: a rolling summary with exact counts. Only
its newest steps stay in step-by-step recall; the older ones are folded into the summary and remain in
the ledger, so that every count resolves to the ids behind it. Both tiers are derived: the steps are
the truth, and both are rebuilt from them. What they say is counted, never judged by a model.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import isclose
from sqlite3 import Connection

from hardwon.memory.errors import UnknownName
from hardwon.memory.records import Failure, Segment, Step, Summary
from hardwon.memory.situations.keys import parse_action

from .checksums import parse
from .database import Store

WINDOW = 32
"""Steps of one attempt that are recalled one by one."""
FOLD = 16
"""Steps folded at once, the oldest, when there are more than WINDOW."""
RUNS = 12
"""Runs of equal actions that a segment's text names; of a longer one the first and the last."""

_ASKED = 200
"""Attempts asked for in one statement: SQLite takes so many parameters."""

Key = tuple[str, str]
"""Of an attempt: the signature of the state, and the action with its arguments left open."""

_SUMMARY = "id, signature, pattern, n, failures, returns, best, first, last, live"


def live_of(n: int) -> int:
    """How many of so many steps are not folded."""
    return n if n <= WINDOW else WINDOW - FOLD + 1 + (n - WINDOW - 1) % FOLD


def key_of(signature: str, action: str) -> Key:
    """To which attempt an action in a state belongs."""
    return signature, parse_action(action).template


@dataclass(slots=True)
class Tally:
    """What came of the steps of one attempt, in the order of their ids."""

    n: int = 0
    returns: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)
    best: int = 0
    best_return: float = float("-inf")
    first: int = 0
    last: int = 0

    def add(self, step: int, value: float, failure: str) -> None:
        """Count one more step; of equal returns the newest is the best."""
        self.n += 1
        self.returns += value
        if failure != Failure.NONE:
            self.failures[failure] += 1
        if value >= self.best_return:
            self.best, self.best_return = step, value
        self.first = self.first or step
        self.last = step


class Attempts:
    """The attempts that one transaction adds to: read once, counted in memory, written once by `write`."""

    def __init__(self, connection: Connection, namespace: int) -> None:
        self._connection = connection
        self._namespace = namespace
        self._tallies: dict[Key, Tally] = {}
        self._ids: dict[Key, int] = {}
        self._before: dict[Key, int] = {}
        self._next = 0

    def read(self, steps: Iterable[Step]) -> None:
        """Read what there is of the attempts to which steps belong, in few statements."""
        keys = dict.fromkeys(key_of(step.pre.signature, step.action) for step in steps if step.action)
        missing = [key for key in keys if key not in self._tallies]
        for at in range(0, len(missing), _ASKED):
            some = missing[at : at + _ASKED]
            rows = self._connection.execute(
                f"WITH wanted(s, p) AS (VALUES {','.join(['(?, ?)'] * len(some))}) "
                "SELECT signature, pattern, id, n, returns, failures, best, best_return, first, last "
                "FROM wanted CROSS JOIN attempts ON namespace = ? AND signature = s AND pattern = p",
                (*(part for key in some for part in key), self._namespace),
            )
            for signature, pattern, ref, n, returns, failures, *rest in rows:
                counted = Counter(parse(failures, "attempts")) if failures != "{}" else Counter()
                self._ids[signature, pattern] = ref
                self._tallies[signature, pattern] = Tally(n, returns, counted, *rest)
        for key in missing:
            if key not in self._tallies:
                self._ids[key] = self._new_id()
                self._tallies[key] = Tally()
            self._before[key] = self._tallies[key].n

    def count(self, step: Step) -> int | None:
        """Count a step that has its id; returns the number of its attempt, None where nothing was done."""
        if not step.action:
            return None
        key = key_of(step.pre.signature, step.action)
        if key not in self._tallies:
            self.read([step])
        self._tallies[key].add(step.id or 0, step.return_to_go or 0.0, step.diagnosis.failure.value)
        return self._ids[key]

    def _new_id(self) -> int:
        if not self._next:
            row = self._connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'attempts'").fetchone()
            self._next = row[0] if row else 0
        self._next += 1
        return self._next

    def write(self) -> None:
        """Write what was counted, and fold what is too much; call when the steps are written."""
        new = [key for key in self._tallies if not self._before[key]]
        known = [key for key in self._tallies if self._before[key]]
        self._connection.executemany(
            _INSERT, [(self._ids[key], self._namespace, *key, *_columns(self._tallies[key])) for key in new]
        )
        self._connection.executemany(
            "UPDATE attempts SET n = ?, live = ?, returns = ?, failures = ?, best = ?, best_return = ?, "
            "first = ?, last = ? WHERE id = ?",
            [(*_columns(self._tallies[key]), self._ids[key]) for key in known],
        )
        counts = [(self._ids[key], self._before[key], tally.n) for key, tally in self._tallies.items()]
        self._connection.executemany(
            "UPDATE steps SET folded = 1 WHERE id IN "
            "(SELECT id FROM steps WHERE attempt = ? AND folded = 0 ORDER BY id DESC LIMIT -1 OFFSET ?)",
            [(ref, live_of(n)) for ref, before, n in counts if n - live_of(n) > before - live_of(before)],
        )
        self._tallies.clear()


_INSERT = (
    "INSERT INTO attempts(id, namespace, signature, pattern, n, live, returns, failures, best, best_return, first, "
    "last) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def _columns(tally: Tally) -> tuple[float | str, ...]:
    return (
        tally.n,
        live_of(tally.n),
        tally.returns,
        _failures(tally.failures),
        tally.best,
        tally.best_return,
        tally.first,
        tally.last,
    )


def _failures(counts: Mapping[str, int]) -> str:
    return json.dumps(dict(sorted(counts.items())))


def summaries(
    store: Store, namespace: int, signature: str | None = None, limit: int | None = None, offset: int = 0
) -> tuple[Summary, ...]:
    """Attempts, the most tried first; of one situation, or of all."""
    where, parameters = ("AND signature = ?", (signature,)) if signature is not None else ("", ())
    rows = store.rows(
        f"SELECT {_SUMMARY} FROM attempts WHERE namespace = ? {where} ORDER BY n DESC, id DESC LIMIT ? OFFSET ?",
        (namespace, *parameters, -1 if limit is None else limit, offset),
    )
    return tuple(map(_summary, rows))


def _summary(row: tuple[int, str, str, int, str, float, int, int, int, int]) -> Summary:
    ref, signature, pattern, n, failures, returns, best, first, last, live = row
    counts = parse(failures, "attempts") if failures != "{}" else {}
    return Summary(ref, signature, pattern, n, counts, returns / n, best, first, last, live)


def evidence(store: Store, namespace: int, summary_id: int, failure: str | None = None) -> list[int]:
    """The ids of the steps behind a summary's count: all, or those with a failure; `none` are the others.

    Raises: UnknownName for a summary or a failure that does not exist.
    """
    if failure is not None and failure not in list(Failure):
        raise UnknownName.of("failure", failure, list(Failure))
    if not store.rows("SELECT 1 FROM attempts WHERE namespace = ? AND id = ?", (namespace, summary_id)):
        known = store.rows("SELECT id FROM attempts WHERE namespace = ? ORDER BY n DESC LIMIT 20", (namespace,))
        raise UnknownName.of("summary", str(summary_id), [str(row[0]) for row in known])
    where, parameters = ("AND failure = ?", (str(failure),)) if failure is not None else ("", ())
    rows = store.rows(f"SELECT id FROM steps WHERE attempt = ? {where} ORDER BY id", (summary_id, *parameters))
    return [row[0] for row in rows]


def segments_of(trajectory_id: str, steps: Sequence[Step]) -> Iterator[Segment]:
    """The stretches of an episode that end with a gain, and what follows the last of them."""
    start = 0
    for end, step in enumerate(steps):
        if step.reward > 0 or end == len(steps) - 1:
            part = steps[start : end + 1]
            yield Segment(
                trajectory_id,
                part[0].t,
                part[-1].t,
                sum(one.reward for one in part),
                part[0].pre.location,
                segment_text(part),
                tuple(one.id for one in part if one.id is not None),
            )
            start = end + 1


def segment_text(steps: Sequence[Step]) -> str:
    """In words: the actions, equal ones in a row once; what failed, by kind; what was gained.

    `go east (3 times), take map; failed: no_effect 2; gained 1`
    """
    runs = [(action or "nothing", len(list(run))) for action, run in groupby(step.action for step in steps)]
    said = [f"{action} ({times} times)" if times > 1 else action for action, times in runs]
    if len(said) > RUNS:
        said[RUNS // 2 : -RUNS // 2] = [f"... {len(said) - RUNS} more ..."]
    failures = Counter(step.diagnosis.failure.value for step in steps if step.diagnosis.failure is not Failure.NONE)
    gain = sum(step.reward for step in steps)
    parts = [", ".join(said)]
    if failures:
        parts.append("failed: " + ", ".join(f"{name} {n}" for name, n in sorted(failures.items())))
    if gain:
        parts.append(f"{'gained' if gain > 0 else 'lost'} {abs(gain):.6g}")
    return "; ".join(parts)


def write_segments(connection: Connection, namespace: int, segments: Iterable[Segment]) -> None:
    """Keep the segments of an episode."""
    connection.executemany(
        "INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(namespace, one.trajectory_id, one.first_t, one.last_t, one.gain, one.location, one.text) for one in segments],
    )


def segments(store: Store, namespace: int, trajectory_id: str) -> list[Segment]:
    """The segments of one episode, in their order."""
    ids = dict(
        store.rows("SELECT t, id FROM steps WHERE namespace = ? AND trajectory_id = ?", (namespace, trajectory_id))
    )
    rows = store.rows(
        "SELECT trajectory_id, first_t, last_t, gain, location, text FROM segments "
        "WHERE namespace = ? AND trajectory_id = ? ORDER BY first_t",
        (namespace, trajectory_id),
    )
    return [
        Segment(ref, first, last, gain, location, text, tuple(ids[t] for t in range(first, last + 1)))
        for ref, first, last, gain, location, text in rows
    ]


# -- against the truth ----------------------------------------------------------------------------

_TRUTH = """
SELECT steps.id, signature, action, return_to_go, failure, attempt, folded FROM steps
JOIN states ON states.id = pre
JOIN trajectories AS episode ON episode.namespace = steps.namespace AND episode.id = trajectory_id
WHERE steps.namespace = ? AND action != '' AND success IS NOT NULL AND trust = 'trusted' ORDER BY steps.id
"""
_ATTEMPT = "n, live, returns, failures, best, best_return, first, last"
_OF = "FROM attempts WHERE namespace = ?"
_KEYS = f"SELECT id, signature, pattern {_OF}"


def differences(store: Store, namespace: int) -> list[str]:
    """In what the attempts differ from the steps, in words; nothing when they agree."""
    kept = {row[1:3]: row for row in store.rows(f"SELECT id, signature, pattern, {_ATTEMPT} {_OF}", (namespace,))}
    truth, strays = _count_again(store, namespace, {key: row[0] for key, row in kept.items()})
    rows = {key: row[3:] for key, row in kept.items()}
    wrong = sum(key in rows and not _same(_columns(tally), rows[key]) for key, tally in truth.items())
    found = []
    if missing := len(truth.keys() - rows.keys()):
        found.append(f"{missing} missing")
    if ghosts := len(rows.keys() - truth.keys()):
        found.append(f"{ghosts} of nothing that was done")
    if wrong:
        found.append(f"{wrong} with other counts than their steps")
    if strays:
        found.append(f"{strays} steps filed wrongly")
    return found


def _same(told: Sequence[float | str], kept: Sequence[float | str]) -> bool:
    return all(
        isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) if isinstance(a, float) and isinstance(b, float) else a == b
        for a, b in zip(told, kept, strict=True)
    )


def _count_again(store: Store, namespace: int, ids: Mapping[Key, int]) -> tuple[dict[Key, Tally], int]:
    """The attempts by the steps themselves, and how many steps are filed under another or folded wrongly."""
    tallies: dict[Key, Tally] = {}
    filed: dict[Key, list[tuple[int, int]]] = {}
    strays = 0
    for ref, signature, action, value, failure, attempt, folded in store.rows(_TRUTH, (namespace,)):
        key = key_of(signature, action)
        tally = tallies.get(key) or tallies.setdefault(key, Tally())
        tally.add(ref, value, failure)
        filed.setdefault(key, []).append((attempt, folded))
    for key, marks in filed.items():
        old = len(marks) - live_of(len(marks))
        strays += sum(mark != (ids.get(key), int(at < old)) for at, mark in enumerate(marks))
    ((uncounted,),) = store.rows(
        "SELECT count(*) FROM steps JOIN trajectories AS episode "
        "ON episode.namespace = steps.namespace AND episode.id = trajectory_id "
        "WHERE steps.namespace = ? AND attempt IS NOT NULL AND (action = '' OR success IS NULL OR trust != 'trusted')",
        (namespace,),
    )
    return tallies, strays + uncounted


def rebuild(connection: Connection, store: Store, namespace: int) -> None:
    """Make the attempts anew from the steps; one that is there keeps its number."""
    ids = {row[1:]: row[0] for row in store.rows(_KEYS, (namespace,))}
    taken = set(ids.values())
    for _, signature, action, _, _, attempt, _ in store.rows(_TRUTH, (namespace,)):  # a lost one by what its steps say
        key = key_of(signature, action)
        if key not in ids and attempt is not None and attempt not in taken:
            ids[key] = attempt
            taken.add(attempt)
    connection.execute("UPDATE steps SET attempt = NULL, folded = 0 WHERE namespace = ?", (namespace,))
    connection.execute("DELETE FROM attempts WHERE namespace = ?", (namespace,))
    truth, _ = _count_again(store, namespace, {})
    connection.executemany(
        _INSERT,
        [(ids.get(key), namespace, *key, *_columns(tally)) for key, tally in truth.items()],
    )
    ids = {row[1:]: row[0] for row in store.rows(_KEYS, (namespace,))}
    connection.executemany(
        "UPDATE steps SET attempt = ? WHERE id = ?",
        [(ids[key_of(row[1], row[2])], row[0]) for row in store.rows(_TRUTH, (namespace,))],
    )
    connection.executemany(
        "UPDATE steps SET folded = 1 WHERE id IN "
        "(SELECT id FROM steps WHERE attempt = ? ORDER BY id DESC LIMIT -1 OFFSET ?)",
        [(ids[key], live_of(tally.n)) for key, tally in truth.items() if tally.n > WINDOW],
    )
