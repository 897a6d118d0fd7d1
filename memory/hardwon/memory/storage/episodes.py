"""The ledger: trajectories, steps and states as rows, append-only, with the tiers that sum them up.

A state that was seen before is stored once. Everything a step refers to is written in the same
transaction, so an episode is in the library whole or not at all.
"""

import codecs
import hashlib
import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring
from math import isfinite
from sqlite3 import Connection
from typing import Any

from hardwon.memory.errors import ConfigError, LibraryDamaged
from hardwon.memory.records import Diagnosis, Failure, State, Step, Trajectory
from hardwon.memory.situations.keys import fact_words, vocabulary

from .checksums import real, seal, sum_of
from .database import Store
from .offers import read_offers, write_offers
from .rollups import Attempts, segments_of, write_segments
from .worlds import place_episodes

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
_NEW_NAMESPACE = """
INSERT OR IGNORE INTO namespaces(id, name) SELECT 1 + max(
    (SELECT coalesce(max(id), 0) FROM namespaces), (SELECT coalesce(max(namespace), 0) FROM receipts)), ?
"""
"""The number of a namespace that was forgotten is never given again: a process may still hold it."""
_ASKED = 250
"""Values looked up in one statement."""
_ONE_BY_ONE = 16
_YES_NO = ("false", "true")
_JUDGED = tuple(field.name for field in fields(Diagnosis))
_STATE = "observation, facts, location, task, feedback, notes, signature"
_FAILURES = {failure.value: failure for failure in Failure}
_STEP = "steps.id, t, pre, action, post, reward, return_to_go, diagnosis, keys, why, trajectory_id, offer"
_BRIEF = _STEP.replace("keys, why", "'', ''").replace("offer", "NULL")


def now() -> str:
    """The time as it is stored: UTC, ISO 8601, to the second."""
    return _at(int(time.time()))


@lru_cache(maxsize=1)
def _at(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()


def dumps(value: Any) -> str:
    """JSON, the same for equal values."""
    return plain_json(_ENCODER.encode(value))


def plain(text: str) -> str:
    r"""Return a text with what is no UTF-8 (half a surrogate pair, from a file's name) as its escape, `\udcff`."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def plain_json(text: str) -> str:
    """Return JSON in which such a half is the same escape once it is read."""
    return text if text.isascii() else text.encode(errors=_ESCAPED_TWICE).decode()


def _escape_twice(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(f"\\\\u{ord(half):04x}" for half in error.object[error.start : error.end]), error.end


_ESCAPED_TWICE = "hardwon.escape_twice"
codecs.register_error(_ESCAPED_TWICE, _escape_twice)


def namespace_id(connection: Connection, name: str) -> int:
    """The number of a namespace, which is created with its text index when it is new."""
    connection.execute(_NEW_NAMESPACE, (name,))
    (number,) = connection.execute("SELECT id FROM namespaces WHERE name = ?", (name,)).fetchone()
    for kind, storage in (("states", ", content=''"), ("items", "")):
        connection.execute(
            f"CREATE VIRTUAL TABLE IF NOT EXISTS {kind}_text_{number} "
            f"USING fts5(text{storage}, tokenize='porter unicode61')"
        )
    return int(number)


def log_change(connection: Connection, namespace: int, what: str, ref: str, op: str, detail: Any = None) -> None:
    """One line of the change log; its number only grows."""
    row = (now(), namespace, what, ref, op, dumps(detail or {}))
    seq = connection.execute(
        "INSERT INTO changes(at, namespace, what, ref, op, detail) VALUES (?, ?, ?, ?, ?, ?)", row
    ).lastrowid
    connection.execute("UPDATE changes SET checksum = ? WHERE seq = ?", (sum_of((seq, *row)), seq))


def is_recorded(connection: Connection, namespace: int, trajectory: Trajectory) -> bool:
    """Whether this episode is in the ledger. Raises ConfigError when another one has its id."""
    known = connection.execute(
        "SELECT task, n_steps FROM trajectories WHERE namespace = ? AND id = ?", (namespace, trajectory.id)
    ).fetchone()
    if known:
        refuse_other_episode(trajectory, *known)
    return known is not None


def refuse_other_episode(trajectory: Trajectory, task: str, n_steps: int) -> None:
    """Raise ConfigError unless the episode that has its id is the same."""
    if (task, n_steps) != (plain(trajectory.task), len(trajectory.steps)):
        raise ConfigError(
            f"another episode has the id {trajectory.id!r} ({n_steps} steps of {task!r}). "
            "Give this one an id of its own, or none."
        )


class Batch:
    """The episodes that one transaction files: gathered by `add`, written in few statements by `write`.

    The steps of an excluded episode (success None) are kept for audit, filed under no key and no attempt.
    """

    def __init__(self, connection: Connection, namespace: int, key_ids: "KeyIds", discount: float) -> None:
        self._connection = connection
        self._namespace = namespace
        self._key_ids = key_ids
        self._discount = discount
        self._episodes: list[tuple[Trajectory, str]] = []
        newest = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'steps'").fetchone()
        self._next = newest[0] + 1 if newest else 1  # no other writer can take the ids that follow

    def add(self, trajectory: Trajectory, recorded_at: str) -> Trajectory:
        """The episode, which has an id, as it will be stored: with step ids and returns."""
        returns, filed = trajectory.learned_returns(self._discount), trajectory.success is not None
        steps = tuple(
            Step(
                step.pre,
                plain(step.action),
                step.post,
                step.diagnosis,
                step.reward,
                t,
                step.keys if filed else (),
                step.why,
                self._next + t,
                value,
                step.admissible,
            )
            for t, (step, value) in enumerate(zip(trajectory.steps, returns, strict=True))
        )
        self._next += len(steps)
        stored = replace(trajectory, task=plain(trajectory.task), steps=steps)
        self._episodes.append((stored, recorded_at))
        return stored

    def write(self) -> None:
        """Write what was gathered."""
        run = self._connection.executemany
        episodes = [episode for episode, _ in self._episodes]
        run(_INSERT, map(self._row, self._episodes))
        self._write_steps(episodes)
        cuts = (cut for episode in episodes for cut in segments_of(episode.id, episode.steps))
        write_segments(self._connection, self._namespace, (replace(cut, location=plain(cut.location)) for cut in cuts))
        shown = Counter(word for one in episodes if one.success is not None for word in episode_words(one))
        run(
            "INSERT INTO words VALUES (?, ?, ?) ON CONFLICT(namespace, word) DO UPDATE SET "
            "episodes = episodes + excluded.episodes",
            [(self._namespace, word, shown[word]) for word in sorted(shown)],
        )
        place_episodes(self._connection, self._namespace, episodes)
        for episode in episodes:
            log_change(self._connection, self._namespace, "trajectory", episode.id, "recorded")
        self._episodes.clear()

    def _row(self, recorded: tuple[Trajectory, str]) -> tuple[Any, ...]:
        trajectory, at = recorded
        row = (
            trajectory.id,
            self._namespace,
            at,
            trajectory.task,
            None if trajectory.success is None else int(bool(trajectory.success)),
            real(trajectory.score),
            real(trajectory.total_reward),
            trajectory.arm,
            int(trajectory.seed),
            trajectory.ending,
            len(trajectory.steps),
            dumps(dict(trajectory.meta)),
            plain(trajectory.writer),
            trajectory.trust,
        )
        return (*row, sum_of(row))

    def _write_steps(self, episodes: Sequence[Trajectory]) -> None:
        steps = [(step, episode) for episode in episodes for step in episode.steps]
        states = {id(state): state for step, _ in steps for state in (step.pre, step.post)}
        numbers = _write_states(self._connection, self._namespace, list(states.values()))
        refs = dict(zip(states, numbers, strict=True))
        keys = self._key_ids.of(self._connection, (key for step, _ in steps for key in step.keys))
        offers = write_offers(self._connection, self._namespace, (step.admissible for step, _ in steps))
        attempts = Attempts(self._connection, self._namespace)
        witnesses = self._witnesses(episodes)
        attempts.read(step for step, episode in steps if _teaches(episode))
        self._connection.executemany(
            "INSERT INTO steps(id, namespace, trajectory_id, t, pre, action, post, reward, return_to_go, failure, "
            "diagnosis, keys, why, witness, offer, checksum, attempt) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    *(
                        row := (
                            step.id,
                            self._namespace,
                            episode.id,
                            step.t,
                            refs[id(step.pre)],
                            step.action,
                            refs[id(step.post)],
                            real(step.reward),
                            real(step.return_to_go or 0.0),
                            step.diagnosis.failure.value,
                            _judgement(step.diagnosis),
                            f"[{','.join([keys[key] for key in step.keys])}]",
                            dumps({name: value for name, value in step.why.items() if name != "trajectory"})
                            if step.why
                            else "{}",
                            0 if episode.trust == "trusted" else witnesses[witness_of(episode.writer)],
                            offers.get(step.admissible),
                        )
                    ),
                    sum_of(row),
                    attempts.count(step) if _teaches(episode) else None,
                )
                for step, episode in steps
            ],
        )
        attempts.write()

    def _witnesses(self, episodes: Sequence[Trajectory]) -> dict[str, int]:
        """Return the numbers of the writers of episodes, by name; new ones are given one."""
        names = {witness_of(episode.writer) for episode in episodes}
        self._connection.executemany(
            "INSERT OR IGNORE INTO writers(namespace, name) VALUES (?, ?)", [(self._namespace, name) for name in names]
        )
        rows = self._connection.execute("SELECT name, id FROM writers WHERE namespace = ?", (self._namespace,))
        return {name: number for name, number in rows if name in names}


_INSERT = (
    "INSERT INTO trajectories(id, namespace, recorded_at, task, success, score, total_reward, arm, seed, ending, "
    "n_steps, meta, writer, trust, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def witness_of(writer: str) -> str:
    """Return the part of a writer's name that a door vouches for: `mcp` of `mcp:CLIENT`, which a client gives itself.

    Agreement counts these, so that one program cannot speak with many names.
    """
    return plain(writer.partition(":")[0] if writer.startswith("mcp:") else writer)


def _teaches(episode: Trajectory) -> bool:
    """Return whether an episode's steps are recalled one by one and summed up: those of untrusted ones are not."""
    return episode.success is not None and episode.trust == "trusted"


def _judgement(judged: Diagnosis) -> str:
    """What `dumps` makes of a diagnosis, three times as fast where nothing in it is out of the ordinary."""
    if judged.diff or type(judged.progress) is not float or not isfinite(judged.progress):
        return dumps({name: getattr(judged, name) for name in _JUDGED})
    evidence, failure = encode_basestring(judged.evidence), judged.failure.value
    loop, stagnant, success = (_YES_NO[bool(one)] for one in (judged.loop, judged.stagnant, judged.success))
    return plain(
        f'{{"diff":{{}},"evidence":{evidence},"failure":"{failure}","loop":{loop},"progress":{judged.progress!r},'
        f'"stagnant":{stagnant},"success":{success}}}'
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
            row = (newest, namespace, digest, *content)
            rows.append((*row, sum_of(row)))
            texts.append((newest, plain(state_text(state))))
    connection.executemany(
        f"INSERT INTO states(id, namespace, digest, {_STATE}, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows
    )
    connection.executemany(f"INSERT INTO states_text_{namespace}(rowid, text) VALUES (?, ?)", texts)
    return [ids[digest] for digest in digests]


def _known_states(connection: Connection, namespace: int, digests: Sequence[bytes]) -> dict[bytes, int]:
    query = f"SELECT digest, id FROM states WHERE namespace = {namespace:d} AND digest IN ({{}})"
    return dict(_asked_for(connection, query, digests))


def _asked_for(connection: Connection, query: str, values: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Rows of a query with a list of values, a few hundred at a time; JSON would do it at once, but not with NULs."""
    for at in range(0, len(values), _ASKED):
        some = values[at : at + _ASKED]
        yield from connection.execute(query.format(",".join("?" * len(some))), some)


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


class KeyIds:
    """Key texts as small numbers, so that a step's keys cost a few bytes."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def of(self, connection: Connection, texts: Iterable[str]) -> dict[str, str]:
        """These keys, and others, with their numbers in digits; new ones are given one."""
        new = [text for text in dict.fromkeys(texts) if text not in self._ids]
        if new:
            stored = {text: plain(text) for text in new}
            connection.executemany("INSERT OR IGNORE INTO keys(text) VALUES (?)", [(text,) for text in stored.values()])
            found = dict(_asked_for(connection, "SELECT text, id FROM keys WHERE text IN ({})", list(stored.values())))
            numbers = _numbers(found.values())
            seal(connection, "keys", "id IN (SELECT value FROM json_each(?)) AND checksum IS NULL", (numbers,))
            self._ids.update((text, str(found[known])) for text, known in stored.items())
        return self._ids

    def forget(self) -> None:
        """Drop what was learnt in a transaction that did not commit."""
        self._ids.clear()


def read_states(store: Store, ids: Collection[int]) -> dict[int, State]:
    """States by id."""
    chosen, values = _among(ids)
    rows = store.rows(f"SELECT id, {_STATE} FROM states WHERE id IN ({chosen})", values)
    try:
        return {
            ref: State(
                observation,
                json.loads(facts) if facts != "{}" else {},
                location,
                task,
                feedback,
                tuple(json.loads(notes)) if notes != "[]" else (),
                signature,
            )
            for ref, observation, facts, location, task, feedback, notes, signature in rows
        }
    except ConfigError as error:
        raise LibraryDamaged(f"a row of states holds what is no state ({error}) Run: hardwon memory verify") from error


def _among(ids: Collection[int]) -> tuple[str, tuple[Any, ...]]:
    """What stands in `IN (...)`, and its values; a few ids one by one, which is quicker."""
    if len(ids) > _ONE_BY_ONE:
        return "SELECT value FROM json_each(?)", (_numbers(ids),)
    return ",".join("?" * len(ids)), tuple(ids)


def _numbers(ids: Iterable[int]) -> str:
    """Ids as JSON."""
    return f"[{','.join(map(str, ids))}]"


def read_steps(store: Store, where: str, parameters: tuple[Any, ...], *, brief: bool = False) -> list[Step]:
    """Steps of a WHERE ... ORDER BY clause over the steps table, with their states.

    `brief` leaves out the keys and the reasons, which cost as much as all the rest.
    Ids are passed as one JSON list, `id IN (SELECT value FROM json_each(?))`: SQLite limits parameters.
    """
    return _steps(store, store.rows(f"SELECT {_STEP} FROM steps WHERE {where}", parameters), brief)


def read_brief_steps(store: Store, ids: Sequence[int]) -> dict[int, Step]:
    """Steps by id, in brief."""
    chosen, values = _among(ids)
    rows = store.rows(f"SELECT {_BRIEF} FROM steps WHERE id IN ({chosen})", values)
    return {row[0]: step for row, step in zip(rows, _steps(store, rows, brief=True), strict=True)}


def read_best_steps(store: Store, states: Sequence[int], where: str) -> dict[int, Step]:
    """By state, the step taken in it that had the highest return, in brief, among those of a WHERE clause."""
    chosen, values = _among(states)
    rows = store.rows(
        f"SELECT {_BRIEF} FROM steps WHERE pre IN ({chosen}) AND {where} "
        "GROUP BY pre HAVING max(return_to_go) IS NOT NULL",  # SQLite takes the other columns from the row of the max
        values,
    )
    return {row[2]: step for row, step in zip(rows, _steps(store, rows, brief=True), strict=True)}


def _steps(store: Store, rows: Sequence[tuple[Any, ...]], brief: bool) -> list[Step]:
    if not rows:
        return []
    states = read_states(store, {ref for row in rows for ref in (row[2], row[4])})
    judged = _diagnoses(row[7] for row in rows)
    if brief:
        return [_step(row, judged, (), {}, states) for row in rows]
    offers = read_offers(store, {row[11] for row in rows if row[11] is not None})
    parsed = [json.loads(f"[{row[8]},{row[9]}]") for row in rows]  # one call for two columns: it adds up
    numbers = sorted({number for keys, _ in parsed for number in keys})
    texts = dict(
        store.rows("SELECT id, text FROM keys WHERE id IN (SELECT value FROM json_each(?))", (_numbers(numbers),))
    )
    return [
        _step(row, judged, tuple([texts[number] for number in keys]), why, states, offers.get(row[11], ()))
        for row, (keys, why) in zip(rows, parsed, strict=True)
    ]


def _diagnoses(told: Iterable[str]) -> dict[str, Diagnosis]:
    """By what was stored: many are alike, and one call for all others adds up."""
    known = list(dict.fromkeys(told))
    return {
        one: Diagnosis(judged.pop("success"), _FAILURES[judged.pop("failure")], **judged)
        for one, judged in zip(known, json.loads(f"[{','.join(known)}]"), strict=True)
    }


def _step(
    row: tuple[Any, ...],
    diagnoses: Mapping[str, Diagnosis],
    keys: tuple[str, ...],
    why: Mapping[str, Any],
    states: Mapping[int, State],
    admissible: tuple[str, ...] = (),
) -> Step:
    ref, t, pre, action, post, reward, return_to_go, told, _, _, trajectory_id, _ = row
    return Step(
        states[pre],
        action,
        states[post],
        diagnoses[told],
        reward,
        t,
        keys,
        {**why, "trajectory": trajectory_id},
        ref,
        return_to_go,
        admissible,
    )
