"""The episode store: trajectories, steps and states as append-only rows, with their rollups.

Equal states are stored once. A step and everything that it refers to are written in one transaction, so an episode is
stored completely or not at all.
"""

import codecs
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from json.encoder import encode_basestring
from math import isfinite
from sqlite3 import Connection
from typing import Any

from hardwon.memory.errors import ConfigError, LibraryDamaged
from hardwon.memory.reasons import NO_REASONS, Reasons
from hardwon.memory.records import Diagnosis, Failure, State, Step, Trajectory
from hardwon.memory.situations.scripts import index_text

from .checksums import compute_checksum, normalize_real
from .clock import now
from .counted import TRUSTED, add_words, choose_counted_writers, is_counted, is_outnumbered, recount_words
from .database import Store
from .migrations import untrusted_digest
from .rollups import Attempts
from .worlds import place_episodes, renew as renew_worlds

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
_NEW_NAMESPACE = """
INSERT OR IGNORE INTO namespaces(id, name) SELECT 1 + max(
    (SELECT coalesce(max(id), 0) FROM namespaces), (SELECT coalesce(max(namespace), 0) FROM receipts)), ?
"""
"""Ids of forgotten namespaces are not reused, because another process may still hold such an id."""
_CHUNK = 250
"""Values looked up per statement, below SQLite's limit on parameters."""
_YES_NO = ("false", "true")
_DIAGNOSIS_FIELDS = tuple(field.name for field in fields(Diagnosis))
_STATE = "observation, facts, location, task, feedback, notes, signature"
_FAILURES = {failure.value: failure for failure in Failure}
_STEP = "steps.id, t, pre, action, post, reward, return_to_go, diagnosis, keys, why, trajectory_id, offer"
# The same columns as in _STEP, so that both kinds of row are unpacked alike.
BEST_STEP = "SELECT id FROM steps WHERE pre = {state} AND {where} ORDER BY return_to_go DESC, id LIMIT 1"
"""SQL query for the id of the step with the highest return that was taken in a state, by one lookup in an index."""
_BRIEF = _STEP.replace("keys, why", "'', ''").replace("offer", "NULL")


def dumps(value: Any) -> str:
    """Return JSON that is identical for equal values."""
    return plain_json(_ENCODER.encode(value))


def plain(text: str) -> str:
    r"""Return a text with lone surrogates, for example from file names, escaped as `\udcff`."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def plain_json(text: str) -> str:
    """Return JSON in which a lone surrogate becomes the same escape once the JSON is decoded."""
    return text if text.isascii() else text.encode(errors=_ESCAPE_TWICE).decode()


def _escape_twice(error: UnicodeError) -> tuple[str, int]:
    """Replace lone surrogates with escapes whose backslash is itself escaped for JSON."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(f"\\\\u{ord(half):04x}" for half in error.object[error.start : error.end]), error.end


_ESCAPE_TWICE = "hardwon.escape_twice"
codecs.register_error(_ESCAPE_TWICE, _escape_twice)


def namespace_id(connection: Connection, name: str) -> int:
    """Return the id of a namespace, creating it if needed."""
    connection.execute(_NEW_NAMESPACE, (name,))
    (number,) = connection.execute("SELECT id FROM namespaces WHERE name = ?", (name,)).fetchone()
    return int(number)


def log_change(
    connection: Connection, namespace: int, what: str, ref: str, op: str, detail: Any = None, *, at: str | None = None
) -> None:
    """Append an entry to the change log, whose sequence numbers only increase; without `at`, with the current time."""
    row = (at or now(), namespace, what, ref, op, dumps(detail) if detail else "{}")
    # Two statements, because the checksum covers `seq`, which SQLite assigns on insertion.
    seq = connection.execute(
        "INSERT INTO changes(at, namespace, what, ref, op, detail) VALUES (?, ?, ?, ?, ?, ?)", row
    ).lastrowid
    connection.execute("UPDATE changes SET checksum = ? WHERE seq = ?", (compute_checksum((seq, *row)), seq))


def is_recorded(connection: Connection, namespace: int, trajectory: Trajectory) -> bool:
    """Return whether this episode is in the episode store."""
    row = connection.execute(
        "SELECT task, n_steps FROM trajectories WHERE namespace = ? AND id = ?", (namespace, trajectory.id)
    ).fetchone()
    if row:
        refuse_other_episode(trajectory, *row)
    return row is not None


def refuse_other_episode(trajectory: Trajectory, task: str, n_steps: int) -> None:
    """Check that the stored episode with the same id is this episode."""
    if (task, n_steps) != (plain(trajectory.task), len(trajectory.steps)):
        raise ConfigError(
            f"another episode has the id {trajectory.id!r}. Use a different id, or none to have one assigned."
        )


class EpisodeBatch:
    """The episodes that one transaction stores: collected by `add`, written in a few statements by `write`.

    The steps of an excluded episode (success is None) are stored for audit, without keys and attempts.
    """

    def __init__(self, connection: Connection, namespace: int, key_ids: "KeyIds", discount: float) -> None:
        self._connection = connection
        self._namespace = namespace
        self._key_ids = key_ids
        self._discount = discount
        self._episodes: list[tuple[Trajectory, str]] = []
        newest = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'steps'").fetchone()
        # Ids can be assigned in advance: this transaction holds the write lock, so no other writer can use them.
        self._next = newest[0] + 1 if newest else 1

    def add(self, trajectory: Trajectory, recorded_at: str) -> Trajectory:
        """Add an episode that has an id; return it as it will be stored, with step ids and returns."""
        returns, is_filed = trajectory.learned_returns(self._discount), trajectory.success is not None
        steps = tuple(
            Step(
                step.pre,
                plain(step.action),
                step.post,
                step.diagnosis,
                step.reward,
                t,
                step.keys if is_filed else (),
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
        """Write the collected episodes and everything derived from them."""
        connection, namespace = self._connection, self._namespace
        episodes = [episode for episode, _ in self._episodes]
        connection.executemany(_INSERT, [self._build_row(*recorded) for recorded in self._episodes])
        writers = self._read_writers()
        before = choose_counted_writers(writers)
        names = [_name_witness(episode) for episode in episodes]
        # In the order of the episodes, so that replicas of one log give a writer the same number.
        if new := [(namespace, name) for name in dict.fromkeys(names) if name not in writers]:
            connection.executemany("INSERT INTO writers(namespace, name) VALUES (?, ?)", new)
            writers = self._read_writers()
        self._write_steps(episodes, [writers[name] if name else 0 for name in names])
        counted = choose_counted_writers(writers)
        if is_outnumbered(connection, namespace, before, counted):
            recount_words(connection, namespace, counted)
            renew_worlds(connection, namespace)
        else:
            add_words(connection, namespace, [episode for episode in episodes if is_counted(episode, counted)])
            place_episodes(connection, namespace, episodes, counted)
        for episode, at in self._episodes:
            log_change(connection, namespace, "trajectory", episode.id, "recorded", at=at)
        self._episodes.clear()

    def _read_writers(self) -> dict[str, int]:
        """Return the numbers of the namespace's writers by name; see `_name_witness`."""
        query = "SELECT name, id FROM writers WHERE namespace = ?"
        return dict(self._connection.execute(query, (self._namespace,)).fetchall())

    def _build_row(self, trajectory: Trajectory, at: str) -> tuple[Any, ...]:
        row = (
            trajectory.id,
            self._namespace,
            at,
            trajectory.task,
            None if trajectory.success is None else int(bool(trajectory.success)),
            normalize_real(trajectory.score),
            normalize_real(trajectory.total_reward),
            trajectory.arm,
            int(trajectory.seed),
            trajectory.ending,
            len(trajectory.steps),
            dumps(dict(trajectory.meta)),
            plain(trajectory.writer),
            trajectory.trust,
        )
        return (*row, compute_checksum(row))

    def _write_steps(self, episodes: Sequence[Trajectory], witnesses: Sequence[int]) -> None:
        """Write the steps with everything they refer to; each episode has the number of its writer as witness."""
        connection, namespace = self._connection, self._namespace
        states = self._write_states(episodes)
        steps = [step for episode in episodes for step in episode.steps]
        keys = self._key_ids.of(connection, [key for step in steps for key in step.keys])
        offers = write_offers(connection, namespace, dict.fromkeys([step.admissible for step in steps]))
        attempts = Attempts(connection, namespace)
        # the steps that enter recall and summaries: those of trusted episodes that are not excluded
        tried = attempts.count([step for episode in episodes if is_counted(episode, TRUSTED) for step in episode.steps])
        rows = []
        for episode, witness in zip(episodes, witnesses, strict=True):
            refs = states[is_untrusted(episode)]
            for step in episode.steps:
                row = (
                    step.id,
                    namespace,
                    episode.id,
                    step.t,
                    refs[id(step.pre)],
                    step.action,
                    refs[id(step.post)],
                    normalize_real(step.reward),
                    normalize_real(step.return_to_go or 0.0),
                    step.diagnosis.failure.value,
                    _encode_diagnosis(step.diagnosis),
                    f"[{','.join([keys[key] for key in step.keys])}]" if step.keys else "[]",
                    "{}" if step.why is NO_REASONS else dumps(step.why.to_dict(with_trajectory=False)),
                    witness,
                    offers.get(step.admissible),
                )
                rows.append((*row, compute_checksum(row), tried.get(step.id)))
        connection.executemany(_INSERT_STEP, rows)
        attempts.write()

    def _write_states(self, episodes: Sequence[Trajectory]) -> tuple[dict[int, int], dict[int, int]]:
        """Write the states of trusted and of untrusted episodes; return the ids of each by object identity.

        Trusted and untrusted steps share no rows: an untrusted state in the search index would push out trusted ones.
        """
        states: tuple[dict[int, State], dict[int, State]] = {}, {}
        for episode in episodes:
            of_trust = states[is_untrusted(episode)]
            for step in episode.steps:
                of_trust[id(step.pre)], of_trust[id(step.post)] = step.pre, step.post
        refs: tuple[dict[int, int], dict[int, int]] = {}, {}
        for untrusted in (False, True):
            if own := states[untrusted]:  # most batches hold no untrusted episode
                ids = _write_states(self._connection, self._namespace, own.values(), untrusted)
                refs[untrusted].update(zip(own, ids, strict=True))
        return refs


_INSERT = (
    "INSERT INTO trajectories(id, namespace, recorded_at, task, success, score, total_reward, arm, seed, ending, "
    "n_steps, meta, writer, trust, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_INSERT_STEP = (
    "INSERT INTO steps(id, namespace, trajectory_id, t, pre, action, post, reward, return_to_go, failure, "
    "diagnosis, keys, why, witness, offer, checksum, attempt) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def witness_of(writer: str) -> str:
    """Return the credential behind a writer's name: of a token its name, and of other writers only the interface.

    An operator names a token. The rest of `mcp:CLIENT` or `import:FILE` comes from the client, who could pose as
    several writers with it.
    """
    return plain(writer if writer.startswith("token:") else writer.partition(":")[0])


def _name_witness(episode: Trajectory) -> str:
    """Return the name under which the writer of an episode is numbered; that of all trusted writers is empty.

    A file with their episodes is not one of an untrusted writer alone.
    """
    return witness_of(episode.writer) if is_untrusted(episode) else ""


def is_untrusted(episode: Trajectory) -> bool:
    """Return whether an episode's text may not be shown."""
    return episode.trust != "trusted"


def _encode_diagnosis(diagnosis: Diagnosis) -> str:
    """Return the same JSON as `dumps` for a diagnosis, with a fast path for the common case."""
    # Building the text by hand is three times as fast as `json` and is done for every recorded step.
    # Not isinstance: a subclass such as np.float64 has a repr that is not JSON.
    if type(diagnosis.progress) is not float or not isfinite(diagnosis.progress):
        return dumps({name: getattr(diagnosis, name) for name in _DIAGNOSIS_FIELDS})
    diff = _ENCODER.encode(diagnosis.diff) if diagnosis.diff else "{}"
    evidence, failure = encode_basestring(diagnosis.evidence), diagnosis.failure.value
    loop, stagnant = _YES_NO[bool(diagnosis.loop)], _YES_NO[bool(diagnosis.stagnant)]
    success = _YES_NO[bool(diagnosis.success)]
    return plain_json(
        f'{{"diff":{diff},"evidence":{evidence},"failure":"{failure}","loop":{loop},"progress":{diagnosis.progress!r},'
        f'"stagnant":{stagnant},"success":{success}}}'
    )


def _write_states(connection: Connection, namespace: int, states: Collection[State], untrusted: bool) -> list[int]:
    """Write the states that are not stored yet; return the ids of all states, in order."""
    contents = list(map(_encode_state, states))
    # the same JSON as that of `dumps`, three times as fast
    listed = [f"[{','.join(map(encode_basestring, content))}]".encode() for content in contents]
    digests = [hashlib.blake2b(text, digest_size=16).digest() for text in listed]
    if untrusted:
        digests = list(map(untrusted_digest, digests))
    query = f"SELECT digest, id FROM states WHERE namespace = {namespace:d} AND digest IN ({{}})"
    ids = _read_in(connection, query, digests)
    # Ids are assigned here rather than by SQLite, because a row's checksum includes its id.
    (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM states").fetchone()
    rows, texts, base = [], [], first_row(namespace)
    for state, content, digest in zip(states, contents, digests, strict=True):
        # An equal state earlier in this batch is found too, because its digest was just added.
        if digest not in ids:
            ids[digest] = newest = newest + 1
            row = (newest, namespace, digest, *content)
            rows.append((*row, compute_checksum(row), int(untrusted)))
            texts.append((base + newest, index_text(plain(state_text(state)))))
    if rows:
        connection.executemany(
            f"INSERT INTO states(id, namespace, digest, {_STATE}, checksum, untrusted) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
        index = "testimony" if untrusted else "states"
        connection.executemany(f"INSERT INTO {index}_text(rowid, text) VALUES (?, ?)", texts)
    return [ids[digest] for digest in digests]


def _read_in(connection: Connection, query: str, values: Sequence[Any]) -> dict[Any, int]:
    """Return the rows of a query with an IN list, read in chunks. A JSON list cannot be used: texts may contain NUL."""
    rows: dict[Any, int] = {}
    for at in range(0, len(values), _CHUNK):
        chunk = values[at : at + _CHUNK]
        rows.update(connection.execute(query.format(",".join("?" * len(chunk))), chunk).fetchall())
    return rows


def _encode_state(state: State) -> tuple[str, ...]:
    facts = dumps(dict(state.facts)) if state.facts else "{}"
    notes = dumps(list(state.notes)) if state.notes else "[]"
    observation, location, task, feedback = map(plain, (state.observation, state.location, state.task, state.feedback))
    return (observation, facts, location, task, feedback, notes, state.signature)


ROW_BITS = 40
"""Bits of a row id of a text index below the number of the namespace: ids up to 10^12, in up to 8 million namespaces.

All namespaces share the text indexes. Their rows are ranges, and FTS5 looks up a word in one range without reading the
others."""


def first_row(namespace: int) -> int:
    """Return the row id of id 0 of a namespace in the text indexes. The row id of another id is larger by this id."""
    return namespace << ROW_BITS


def last_row(namespace: int) -> int:
    """Return the largest row id of a namespace in the text indexes."""
    return (namespace + 1 << ROW_BITS) - 1


def state_text(state: State) -> str:
    """Return the text of a state for search. It omits the task, which all states of an episode share."""
    return f"{state.observation}\n{state.feedback}"


class KeyIds:
    """Ids of key texts, so that the keys of a step take only a few bytes."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def of(self, connection: Connection, texts: Iterable[str]) -> dict[str, str]:
        """Return a mapping from key texts to ids (as digits) that includes `texts`; new keys get an id."""
        if new := [text for text in dict.fromkeys(texts) if text not in self._ids]:
            # Look up by the stored form: different texts may be equal once their lone surrogates are escaped.
            stored = list(map(plain, new))
            ids = _read_in(connection, "SELECT text, id FROM keys WHERE text IN ({})", stored)
            (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM keys").fetchone()
            rows = []
            for text in stored:
                if text not in ids:
                    ids[text] = newest = newest + 1
                    rows.append((newest, text, compute_checksum((newest, text))))
            connection.executemany("INSERT INTO keys(id, text, checksum) VALUES (?, ?, ?)", rows)
            self._ids.update(zip(new, map(str, map(ids.__getitem__, stored)), strict=True))
        return self._ids

    def forget(self) -> None:
        """Clear the cache after a transaction that was rolled back."""
        self._ids.clear()


def write_offers(
    connection: Connection, namespace: int, offers: Iterable[tuple[str, ...]]
) -> dict[tuple[str, ...], int]:
    """Store new lists of admissible actions, each once, and return the id of each list. An empty one has no id."""
    digests: dict[tuple[str, ...], bytes] = {}
    texts: dict[bytes, str] = {}
    for actions in filter(None, offers):
        # A lone surrogate, for example from a file name, cannot be encoded as UTF-8 and is replaced.
        listed = json.dumps(actions, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
        digests[actions] = digest = hashlib.blake2b(listed, digest_size=16).digest()
        texts[digest] = listed.decode()
    if not texts:
        return {}
    query = f"SELECT digest, id FROM offers WHERE namespace = {namespace:d} AND digest IN ({{}})"
    ids = _read_in(connection, query, list(texts))
    (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM offers").fetchone()
    rows = []
    for digest, text in texts.items():
        if digest not in ids:
            ids[digest] = newest = newest + 1
            row = (newest, namespace, digest, text)
            rows.append((*row, compute_checksum(row)))
    connection.executemany("INSERT INTO offers(id, namespace, digest, actions, checksum) VALUES (?, ?, ?, ?, ?)", rows)
    return {actions: ids[digest] for actions, digest in digests.items()}


def read_offers(store: Store, ids: Collection[int]) -> dict[int, tuple[str, ...]]:
    """Return lists of admissible actions by id."""
    if not ids:
        return {}
    rows = store.rows(
        "SELECT id, actions FROM offers WHERE id IN (SELECT value FROM json_each(?))", (_encode_ids(ids),)
    )
    return {number: tuple(json.loads(text)) for number, text in rows}


def read_states(store: Store, ids: Collection[int]) -> dict[int, State]:
    """Return states by id."""
    chosen, values = _format_in(ids)
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
        raise LibraryDamaged(
            f"a row of the table states is not a valid state ({error}). Run: hardwon memory verify"
        ) from error


def _format_in(ids: Collection[int]) -> tuple[str, tuple[Any, ...]]:
    """Return the inside of an SQL `IN (...)` and its parameters. Up to 16 ids are passed singly, which is faster."""
    if len(ids) > 16:
        return "SELECT value FROM json_each(?)", (_encode_ids(ids),)
    return ",".join("?" * len(ids)), tuple(ids)


def _encode_ids(ids: Iterable[int]) -> str:
    """Return ids as a JSON list."""
    return f"[{','.join(map(str, ids))}]"


def read_steps(store: Store, where: str, parameters: tuple[Any, ...]) -> list[Step]:
    """Return the steps that a query selects, with their states."""
    return _build_steps(store, store.rows(f"SELECT {_STEP} FROM steps WHERE {where}", parameters))


def read_brief_steps(store: Store, ids: Sequence[int]) -> dict[int, Step]:
    """Return steps by id, without keys and reasons."""
    chosen, values = _format_in(ids)
    rows = store.rows(f"SELECT {_BRIEF} FROM steps WHERE id IN ({chosen})", values)
    return {row[0]: step for row, step in zip(rows, _build_steps(store, rows, is_brief=True), strict=True)}


def read_best_steps(store: Store, states: Sequence[int], where: str) -> dict[int, Step]:
    """Return, for each state, the step with the highest return among those that match `where`."""
    best = BEST_STEP.format(state="json_each.value", where=where)
    rows = store.rows(
        f"SELECT {_BRIEF} FROM steps WHERE id IN (SELECT ({best}) FROM json_each(?))", (_encode_ids(states),)
    )
    return {row[2]: step for row, step in zip(rows, _build_steps(store, rows, is_brief=True), strict=True)}


def _build_steps(store: Store, rows: Sequence[tuple[Any, ...]], *, is_brief: bool = False) -> list[Step]:
    if not rows:
        return []
    states = read_states(store, {ref for row in rows for ref in (row[2], row[4])})
    diagnoses = _decode_diagnoses(row[7] for row in rows)
    if is_brief:
        return [_build_step(row, diagnoses, (), {}, states) for row in rows]
    offers = read_offers(store, {row[11] for row in rows if row[11] is not None})
    parsed = [json.loads(f"[{row[8]},{row[9]}]") for row in rows]  # one json call for both columns is faster
    numbers = sorted({number for keys, _ in parsed for number in keys})
    texts = dict(
        store.rows("SELECT id, text FROM keys WHERE id IN (SELECT value FROM json_each(?))", (_encode_ids(numbers),))
    )
    return [
        _build_step(row, diagnoses, tuple([texts[number] for number in keys]), why, states, offers.get(row[11], ()))
        for row, (keys, why) in zip(rows, parsed, strict=True)
    ]


def _decode_diagnoses(stored: Iterable[str]) -> dict[str, Diagnosis]:
    """Return diagnoses by their stored text."""
    # Many steps have equal diagnoses: decode each distinct text once, all in one json call.
    texts = list(dict.fromkeys(stored))
    return {
        text: Diagnosis(values.pop("success"), _FAILURES[values.pop("failure")], **values)
        for text, values in zip(texts, json.loads(f"[{','.join(texts)}]"), strict=True)
    }


def _build_step(
    row: tuple[Any, ...],
    diagnoses: Mapping[str, Diagnosis],
    keys: tuple[str, ...],
    why: Mapping[str, Any],
    states: Mapping[int, State],
    admissible: tuple[str, ...] = (),
) -> Step:
    ref, t, pre, action, post, reward, return_to_go, diagnosis, _, _, trajectory_id, _ = row
    return Step(
        states[pre],
        action,
        states[post],
        diagnoses[diagnosis],
        reward,
        t,
        keys,
        Reasons.of({**why, "trajectory": trajectory_id}),
        ref,
        return_to_go,
        admissible,
    )
