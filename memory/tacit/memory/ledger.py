"""The ledger: trajectories, steps and states as rows, append-only, with the tiers that sum them up.

A state that was seen before is stored once. Everything a step refers to is written in the same
transaction, so an episode is in the library whole or not at all.
"""

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from json.encoder import encode_basestring
from sqlite3 import Connection
from typing import Any

from .errors import ConfigError
from .records import Diagnosis, Failure, State, Step, Trajectory
from .situation import fact_words, vocabulary
from .store import Store
from .tiers import Attempts, segments_of, write_segments

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
_ASKED = 100
"""Digests looked up in one statement."""
_JUDGED = tuple(field.name for field in fields(Diagnosis))
_STATE = "observation, facts, location, task, feedback, notes, signature"
_STEP = "steps.id, t, pre, action, post, reward, return_to_go, diagnosis, keys, why, trajectory_id"
_BRIEF = _STEP.replace("keys, why", "'', ''")


def now() -> str:
    """The time as it is stored: UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def dumps(value: Any) -> str:
    """JSON, the same for equal values."""
    return plain(_ENCODER.encode(value))


def plain(text: str) -> str:
    """The text with what cannot be written as UTF-8 (half a surrogate pair, from a file's name) as `?`."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def namespace_id(connection: Connection, name: str) -> int:
    """The number of a namespace, which is created with its text index when it is new."""
    connection.execute("INSERT OR IGNORE INTO namespaces(name) VALUES (?)", (name,))
    (number,) = connection.execute("SELECT id FROM namespaces WHERE name = ?", (name,)).fetchone()
    for kind, storage in (("states", ", content=''"), ("items", "")):
        connection.execute(
            f"CREATE VIRTUAL TABLE IF NOT EXISTS {kind}_text_{number} "
            f"USING fts5(text{storage}, tokenize='porter unicode61')"
        )
    return int(number)


def log_change(connection: Connection, namespace: int, what: str, ref: str, op: str, detail: Any = None) -> None:
    """One line of the change log; its number only grows."""
    connection.execute(
        "INSERT INTO changes(at, namespace, what, ref, op, detail) VALUES (?, ?, ?, ?, ?, ?)",
        (now(), namespace, what, ref, op, dumps(detail or {})),
    )


def is_recorded(connection: Connection, namespace: int, trajectory: Trajectory) -> bool:
    """Whether this episode is in the library. Raises ConfigError when another one has its id."""
    known = connection.execute(
        "SELECT task, n_steps FROM trajectories WHERE namespace = ? AND id = ?", (namespace, trajectory.id)
    ).fetchone()
    if known and known != (plain(trajectory.task), len(trajectory.steps)):
        raise ConfigError(
            f"another episode has the id {trajectory.id!r} ({known[1]} steps of {known[0]!r}). "
            "Give this one an id of its own, or none."
        )
    return known is not None


def write_trajectory(
    connection: Connection,
    namespace: int,
    trajectory: Trajectory,
    key_ids: "KeyIds",
    discount: float,
    attempts: Attempts | None = None,
    recorded_at: str | None = None,
) -> Trajectory:
    """Write one episode; returns it as stored: with its id, step ids and returns.

    The steps of an excluded episode (success None) are kept for audit, filed under no key and no attempt.
    Where a transaction writes several episodes it gives the `attempts` they share, and writes those last.
    """
    trajectory = replace(trajectory, id=trajectory.id or uuid.uuid4().hex, task=plain(trajectory.task))
    excluded = trajectory.success is None
    connection.execute(
        "INSERT INTO trajectories VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            trajectory.id,
            namespace,
            recorded_at or now(),
            trajectory.task,
            None if excluded else int(bool(trajectory.success)),
            trajectory.score,
            trajectory.total_reward,
            trajectory.arm,
            trajectory.seed,
            trajectory.ending,
            len(trajectory.steps),
            dumps(dict(trajectory.meta)),
        ),
    )
    trajectory = replace(trajectory, steps=tuple(_numbered(connection, trajectory, discount)))
    shared = attempts or Attempts(connection, namespace)
    _write_steps(connection, namespace, trajectory, key_ids, shared)
    if attempts is None:
        shared.write()
    cuts = segments_of(trajectory.id, trajectory.steps)
    write_segments(connection, namespace, (replace(cut, location=plain(cut.location)) for cut in cuts))
    if not excluded:
        _count_words(connection, namespace, trajectory)
    log_change(connection, namespace, "trajectory", trajectory.id, "recorded")
    return trajectory


def _numbered(connection: Connection, trajectory: Trajectory, discount: float) -> Iterator[Step]:
    """The steps as they will be stored: with returns, and the ids that come next, which no other writer can take."""
    newest = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'steps'").fetchone()
    first, returns = newest[0] + 1 if newest else 1, trajectory.returns(discount)
    for t, (step, value) in enumerate(zip(trajectory.steps, returns, strict=True)):
        keys = () if trajectory.success is None else step.keys
        yield replace(step, t=t, return_to_go=value, id=first + t, action=plain(step.action), keys=keys)


def _write_steps(
    connection: Connection, namespace: int, trajectory: Trajectory, key_ids: "KeyIds", attempts: Attempts
) -> None:
    states = {id(state): state for step in trajectory.steps for state in (step.pre, step.post)}
    refs = dict(zip(states, _write_states(connection, namespace, list(states.values())), strict=True))
    if trajectory.success is not None:
        attempts.read(trajectory.steps)
    rows = [
        (
            step.id,
            namespace,
            trajectory.id,
            step.t,
            refs[id(step.pre)],
            step.action,
            refs[id(step.post)],
            step.reward,
            step.return_to_go,
            step.diagnosis.failure.value,
            dumps({name: getattr(step.diagnosis, name) for name in _JUDGED}),
            f"[{','.join(map(str, key_ids.of(connection, step.keys)))}]",
            dumps({name: value for name, value in step.why.items() if name != "trajectory"}) if step.why else "{}",
            attempts.count(step) if trajectory.success is not None else None,
        )
        for step in trajectory.steps
    ]
    connection.executemany(
        "INSERT INTO steps(id, namespace, trajectory_id, t, pre, action, post, reward, return_to_go, failure, "
        "diagnosis, keys, why, attempt) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )


def _write_states(connection: Connection, namespace: int, states: Sequence[State]) -> list[int]:
    """The ids of states, in their order; what is not known yet is written, in few statements."""
    contents = [_content(state) for state in states]
    digests = [hashlib.blake2b(_strings(content).encode(), digest_size=16).digest() for content in contents]
    ids = _known_states(connection, namespace, digests)
    (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM states").fetchone()
    rows, texts = [], []
    for state, content, digest in zip(states, contents, digests, strict=True):
        if digest not in ids:
            ids[digest] = newest = newest + 1
            rows.append((newest, namespace, digest, *content))
            texts.append((newest, plain(state_text(state))))
    connection.executemany(
        f"INSERT INTO states(id, namespace, digest, {_STATE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows
    )
    connection.executemany(f"INSERT INTO states_text_{namespace}(rowid, text) VALUES (?, ?)", texts)
    return [ids[digest] for digest in digests]


def _known_states(connection: Connection, namespace: int, digests: Sequence[bytes]) -> dict[bytes, int]:
    known: dict[bytes, int] = {}
    for at in range(0, len(digests), _ASKED):
        some = digests[at : at + _ASKED]
        holes = ",".join("?" * len(some))
        known.update(
            connection.execute(
                f"SELECT digest, id FROM states WHERE namespace = ? AND digest IN ({holes})", (namespace, *some)
            )
        )
    return known


def _content(state: State) -> tuple[str, ...]:
    facts = dumps(dict(state.facts)) if state.facts else "{}"
    notes = dumps(list(state.notes)) if state.notes else "[]"
    shown, location, task, feedback = map(plain, (state.observation, state.location, state.task, state.feedback))
    return (shown, facts, location, task, feedback, notes, state.signature)


def _strings(texts: Iterable[str]) -> str:
    """What `dumps` makes of a list of texts, three times as fast."""
    return plain(f"[{','.join(map(encode_basestring, texts))}]")


def state_text(state: State) -> str:
    """The words by which a state is found: what is seen, not the task, which all states of an episode share."""
    return f"{state.observation}\n{state.feedback}"


def episode_words(trajectory: Trajectory) -> frozenset[str]:
    """The distinct words an episode showed: the unit of document frequency."""
    shown: dict[str, None] = {}
    facts: frozenset[str] = frozenset()
    for state in {id(s): s for step in trajectory.steps for s in (step.pre, step.post)}.values():
        shown[state.observation] = shown[state.feedback] = None
        if state.facts:
            facts |= fact_words(state.facts.values())
    return vocabulary("\n".join(shown)) | facts


def _count_words(connection: Connection, namespace: int, trajectory: Trajectory) -> None:
    connection.executemany(
        "INSERT INTO words VALUES (?, ?, 1) ON CONFLICT(namespace, word) DO UPDATE SET episodes = episodes + 1",
        [(namespace, word) for word in sorted(episode_words(trajectory))],
    )


class KeyIds:
    """Key texts as small numbers, so that a step's keys cost a few bytes."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def of(self, connection: Connection, texts: Iterable[str]) -> list[int]:
        """The numbers of these keys; new ones are given one."""
        ids = []
        for text in texts:
            number = self._ids.get(text)
            if number is None:
                stored = plain(text)
                connection.execute("INSERT OR IGNORE INTO keys(text) VALUES (?)", (stored,))
                (number,) = connection.execute("SELECT id FROM keys WHERE text = ?", (stored,)).fetchone()
                self._ids[text] = int(number)
            ids.append(int(number))
        return ids

    def forget(self) -> None:
        """Drop what was learnt in a transaction that did not commit."""
        self._ids.clear()


def read_states(store: Store, ids: Sequence[int]) -> dict[int, State]:
    """States by id."""
    rows = store.rows(f"SELECT id, {_STATE} FROM states WHERE id IN (SELECT value FROM json_each(?))", (dumps(ids),))
    return {row[0]: _state(row[1:]) for row in rows}


def _state(row: tuple[Any, ...]) -> State:
    observation, facts, location, task, feedback, notes, signature = row
    known = json.loads(facts) if facts != "{}" else {}
    told = json.loads(notes) if notes != "[]" else ()
    return State(observation, known, location, task, feedback, told, signature)


def read_steps(store: Store, where: str, parameters: tuple[Any, ...], *, brief: bool = False) -> list[Step]:
    """Steps of a WHERE ... ORDER BY clause over the steps table, with their states.

    `brief` leaves out the keys and the reasons, which cost as much as all the rest.
    Ids are passed as one JSON list, `id IN (SELECT value FROM json_each(?))`: SQLite limits parameters.
    """
    return _steps(store, store.rows(f"SELECT {_STEP} FROM steps WHERE {where}", parameters), brief)


def read_distinct_steps(store: Store, where: str, parameters: tuple[Any, ...], k: int) -> list[Step]:
    """The first k steps of a WHERE ... ORDER BY clause of which none does what an earlier one did; in brief."""
    chosen: dict[str, tuple[Any, ...]] = {}
    for row in store.rows(f"SELECT {_BRIEF} FROM steps WHERE {where}", parameters):
        chosen.setdefault(row[3].lower(), row)
    return _steps(store, list(chosen.values())[:k], brief=True)


def read_best_steps(store: Store, states: Sequence[int], where: str) -> dict[int, Step]:
    """By state, the step taken in it that had the highest return, in brief, among those of a WHERE clause."""
    rows = store.rows(
        f"SELECT {_STEP} FROM steps WHERE pre IN (SELECT value FROM json_each(?)) AND {where} "
        "GROUP BY pre HAVING max(return_to_go) IS NOT NULL",  # SQLite takes the other columns from the row of the max
        (dumps(states),),
    )
    return {row[2]: step for row, step in zip(rows, _steps(store, rows, brief=True), strict=True)}


def _steps(store: Store, rows: Sequence[tuple[Any, ...]], brief: bool) -> list[Step]:
    states = read_states(store, sorted({ref for row in rows for ref in (row[2], row[4])})) if rows else {}
    if brief:
        return [_step(row, (json.loads(row[7]), (), {}), states, {}) for row in rows]
    parsed = [json.loads(f"[{row[7]},{row[8]},{row[9]}]") for row in rows]  # one call for three columns: it adds up
    numbers = sorted({number for _, keys, _ in parsed for number in keys})
    texts = dict(
        store.rows("SELECT id, text FROM keys WHERE id IN (SELECT value FROM json_each(?))", (dumps(numbers),))
    )
    return [_step(row, known, states, texts) for row, known in zip(rows, parsed, strict=True)]


def _step(row: tuple[Any, ...], parsed: Sequence[Any], states: dict[int, State], texts: dict[int, str]) -> Step:
    ref, t, pre, action, post, reward, return_to_go, _, _, _, trajectory_id = row
    judged, keys, why = parsed
    return Step(
        states[pre],
        action,
        states[post],
        Diagnosis(**{**judged, "failure": Failure(judged["failure"])}),
        reward,
        t,
        tuple(texts[number] for number in keys),
        {**why, "trajectory": trajectory_id},
        ref,
        return_to_go,
    )
