"""A replica is a function of its log: not of the grouping of the entries, the process or the time."""

import importlib.util
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import warm

from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.memory.errors import LibraryError, NewerSchema, OtherReplica
from hardwon.memory.fleet import entries, replica as replicas
from hardwon.memory.fleet.application.batches import IDS, pack_batch
from hardwon.memory.stored_values import ValueBatch, ValueWrite

_spec: Any = importlib.util.spec_from_file_location("fleet_logs", Path(__file__).with_name("logs.py"))
logs: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(logs)

DAYS = 45
CHILD = f"""
import importlib.util, pickle, sys
spec = importlib.util.spec_from_file_location("fleet_logs", {str(Path(__file__).with_name("logs.py"))!r})
logs = importlib.util.module_from_spec(spec); spec.loader.exec_module(logs)
copy = logs.Copy(sys.argv[1])
log = pickle.load(open(sys.argv[2], "rb"))
for at in range(0, len(log), 7):
    copy.apply(log[at : at + 7])
print(copy.digest())
"""


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    writer = logs.Writer(tmp_path_factory.mktemp("writer") / "writer.db")
    writer.live(DAYS)
    return writer


@pytest.mark.parametrize("size", [2, 13, 1000])
def test_grouping_leaves_no_trace(writer, tmp_path, size):
    copy = logs.Copy(tmp_path / "copy.db")
    for at in range(0, len(writer.log), size):
        copy.apply(writer.log[at : at + size])
    assert copy.replica.position == len(writer.log)
    assert copy.digest() == writer.digest()
    kinds = Counter(entry.kind for entry in writer.log)
    assert min(kinds["items"], kinds["store"]) >= 10
    rows = copy.store.rows("SELECT key, created_at < updated_at, expires_at IS NULL FROM langgraph_values")
    assert {row[1:] for row in rows} >= {(0, 0), (1, 1)}


def test_repeated_entries_have_no_effect(writer, tmp_path):
    """Whoever is not sure whether entries were applied applies them again."""
    copy = logs.Copy(tmp_path / "copy.db")
    copy.apply(writer.log[:40])
    copy.apply(writer.log[20:60])
    copy.apply(writer.log[:60])
    copy.apply(writer.log)
    assert copy.digest() == writer.digest()


@pytest.mark.parametrize("seed", ["1", "2"])
def test_another_process_applies_the_same(writer, tmp_path, seed):
    """Sets have another order in every process."""
    import pickle

    log = tmp_path / "log"
    log.write_bytes(pickle.dumps(writer.log))
    done = warm.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "copy.db"), str(log)],
        env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.strip() == writer.digest()


def test_two_handles_on_one_file_apply_each_entry_once(writer, tmp_path):
    """Several processes of a host share a replica."""
    one, two = logs.Copy(tmp_path / "copy.db"), logs.Copy(tmp_path / "copy.db")
    for at in range(0, len(writer.log), 5):
        one.apply(writer.log[max(0, at - 5) : at + 5])
        two.apply(writer.log[: at + 5])
    assert one.digest() == two.digest() == writer.digest()


def test_a_replica_equals_the_library_that_recorded_the_same(tmp_path):
    writer = logs.Writer(tmp_path / "writer.db")
    episodes = [writer.make_episode(f"e{number}") for number in range(30)]
    for episode in episodes:
        writer.record(episode)
    assert logs.record_plainly(tmp_path / "plain.db", writer.log, episodes) == writer.digest()


def test_a_digest_sees_every_difference(writer, tmp_path):
    """One more step, another time and another score are other experience."""
    log = writer.log[:20]
    digests = set()
    for name, entry in (
        ("same", log[0]),
        ("time", replace(log[0], at="2026-01-02T00:00:00+00:00")),
        ("name", replace(log[0], key="another")),
    ):
        copy = logs.Copy(tmp_path / f"{name}.db")
        copy.apply([entry, *log[1:]])
        digests.add(copy.digest())
    assert len(digests) == 3


def test_a_gap_is_refused_and_nothing_is_applied(writer, tmp_path):
    copy = logs.Copy(tmp_path / "copy.db")
    copy.apply(writer.log[:3])
    before = copy.digest()
    with pytest.raises(LibraryError, match="at position 3 and cannot continue with 5"):
        copy.apply(writer.log[4:9])
    assert (copy.replica.position, copy.digest()) == (3, before)


def test_an_interrupted_group_leaves_nothing(writer, tmp_path, monkeypatch):
    """One transaction: a process that dies in it continues from the position of the file."""
    copy = logs.Copy(tmp_path / "copy.db")
    copy.apply(writer.log[:10])
    before = copy.digest()
    monkeypatch.setattr(replicas, "_write_origin", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        copy.apply(writer.log[10:])
    assert (copy.replica.position, copy.digest()) == (10, before)
    monkeypatch.undo()
    copy.apply(writer.log)
    assert copy.digest() == writer.digest()


def break_entry(entry, how):
    if how == "not compressed":
        return replace(entry, payload=b"\0\1\2")
    if how == "nested too deep":
        return replace(entry, payload=entries.open_codec().ZstdCompressor().compress(b"[" * (2**20)))
    values = entries.unpack(entry.payload)
    if how == "no reward":
        values[0][8][0][4] = None
    elif how == "another type":
        values = {"task": 1}
    return replace(entry, payload=entries.pack(values))


@pytest.mark.parametrize("how", ["not compressed", "nested too deep", "no reward", "another type"])
def test_a_broken_episode_does_not_stop_the_others(writer, tmp_path, how):
    """One writer's mistake must not stop a fleet, and every replica sets it aside."""
    log = list(writer.log[:12])
    at = next(place for place, entry in enumerate(log) if entry.kind == "episode" and place > 3)
    log[at] = break_entry(log[at], how)
    together, singly = logs.Copy(tmp_path / "together.db"), logs.Copy(tmp_path / "singly.db")
    together.apply(log)
    for entry in log:
        singly.apply([entry])
    assert together.digest() == singly.digest() != writer.digest()
    with ExperienceLibrary.open(together.store.path) as library:
        assert any("1 not stored" in str(problem) for problem in library.admin.verify())


GARBAGE: dict[str, Any] = {
    "no batch": {"writes": 1},
    "no value": [[["a.", "k", "{", "[]", None, {}]], [], "f", True],
    "no fields": [[["a.", "k", "{}", None, None, {}]], [], "f", True],
    "no key": [[["a.", "b", "{}", "[]", None, {}], ["a.", None, "{}", "[]", None, {}]], [], "f", True],
    "no time": [[["a.", "k", "{}", "[]", 10**400, {}]], [], "f", True],
    "no vector": [[["a.", "k", "{}", "[]", 1, {"$": "?"}]], [], "f", True],
    "no id": [[["a.", "k", "{}", "[]", 1, {}]], [["x"]], "f", True],
}


@pytest.mark.parametrize("how", GARBAGE)
def test_a_broken_batch_of_values_is_skipped_as_a_whole(writer, tmp_path, how):
    good = [entry for entry in writer.log if entry.kind == "store"][:3]
    bad = replace(good[0], payload=entries.pack(GARBAGE[how]))
    log = [replace(entry, position=place) for place, entry in enumerate((good[0], bad, *good[1:]), 1)]
    together, singly = logs.Copy(tmp_path / "together.db"), logs.Copy(tmp_path / "singly.db")
    together.apply(log)
    for entry in log:
        singly.apply([entry])
    assert together.digest() == singly.digest()
    rows = together.store.rows("SELECT path FROM langgraph_values")
    assert rows
    assert set(rows) == {("users.",)}


def test_the_id_of_a_value_is_its_place_in_the_log(writer, tmp_path):
    """So a read names one value on every replica, also on one whose version skips an entry that others apply."""
    puts = [entry for entry in writer.log if entry.kind == "store"][:2]
    first, second = (replace(entry, position=place) for place, entry in enumerate(puts, 1))
    listed = []
    for name, log in (("all", (first, second)), ("skips", (replace(first, payload=b""), second))):
        copy = logs.Copy(tmp_path / f"{name}.db")
        copy.apply(log)
        listed.append(copy.store.rows("SELECT id, key FROM langgraph_values WHERE id >= ?", (2 * IDS,)))
    assert listed[0] == listed[1] != []


def test_a_digest_sees_every_difference_of_values(tmp_path):
    """Time, order, value and vector count; the values of another namespace do not."""
    write = ValueWrite("a.", "k", "{}", "[]", 5.0, {"$": bytes(4)})
    batches = (
        [ValueBatch([write], (), "f")] * 2,
        [ValueBatch([write], (), "g")] * 2,
        [ValueBatch([write._replace(value="[]")], (), "f")] * 2,
        [ValueBatch([write._replace(vectors={"$": bytes(8)})], (), "f")] * 2,
        [ValueBatch([write], (), "f"), ValueBatch((), [IDS])],
        [ValueBatch([write, write._replace(key="l")], (), "f")] * 2,
        [ValueBatch([write._replace(key="l"), write], (), "f")] * 2,
        [ValueBatch(), ValueBatch()],
    )
    digests = []
    for number, batch in enumerate(batches):
        copy = logs.Copy(tmp_path / f"{number}.db")
        for position, each in enumerate(batch, 1):
            payload = entries.pack(pack_batch(each))
            copy.apply([entries.LogEntry(position, f"2026-01-01T00:00:0{position}+00:00", "store", "s", payload)])
        digests.append(copy.digest())
    assert len(set(digests)) == len(batches)
    assert digests[-1] == logs.Copy(tmp_path / "empty.db").digest()


def test_a_newer_format_stops_the_replica_and_says_what_to_do(writer, tmp_path):
    copy = logs.Copy(tmp_path / "copy.db")
    for newer in (replace(writer.log[0], format=99), replace(writer.log[0], kind="dream")):
        with pytest.raises(NewerSchema, match="Update your clone"):
            copy.apply([newer])
    assert copy.replica.position == 0


def test_a_file_follows_one_log(writer, tmp_path):
    copy = logs.Copy(tmp_path / "copy.db")
    copy.replica.adopt("d1", "default")
    copy.replica.adopt("d1", "default")
    with pytest.raises(OtherReplica, match="of database d1, not of namespace 'default' of database d2"):
        copy.replica.adopt("d2", "default")
    with pytest.raises(OtherReplica, match="library of its own"):
        logs.Copy(writer.store.path).replica.adopt("d1", "default")


def test_what_was_redacted_is_not_redacted_again(writer, tmp_path, monkeypatch):
    """The writer redacts; half the time of applying would go into looking a second time."""

    def refuse(*_):
        raise AssertionError("redacted again")

    monkeypatch.setattr("hardwon.memory.upkeep.write_buffer.redact_trajectory", refuse)
    copy = logs.Copy(tmp_path / "copy.db")
    copy.apply(writer.log)
    assert copy.digest() == writer.digest()


def test_a_payload_holds_no_row_number(writer):
    """Row numbers belong to one file; a caller's own value under the same key stays."""
    likes = [values for entry in writer.log if entry.kind == "episode" and (values := entries.unpack(entry.payload))[1]]
    assert likes
    for episode, places in likes:
        assert all("like" not in step[6] for step in episode[8])
        assert all(isinstance(ref, str) for listed in places.values() for ref, _ in listed)
    text = '["t",true,0.0,"",0,"",{},[],[[0,"a",0,[],0,[],{"like":["mine"]},0]],[]]'
    assert entries.unpack(entries.pack_episode_entry(text, lambda ids: {}))[0][8][0][6] == {"like": ["mine"]}


def test_an_empty_episode_is_applied(tmp_path):
    writer = logs.Writer(tmp_path / "writer.db")
    writer.record(Trajectory("t", (), True, id="e"))
    assert writer.store.rows("SELECT id, n_steps FROM trajectories") == [("e", 0)]
