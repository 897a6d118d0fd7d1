"""A library in PostgreSQL behaves like one in a file, and all its replicas hold the same."""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.memory.upkeep.digest import compute_digest

from hardwon.memory import ExperienceLibrary, Failure, Item, State
from hardwon.memory.errors import (
    ConfigError,
    KeyTaken,
    LeaseLost,
    LibraryReadOnly,
    OtherReplica,
    UnknownName,
)
from hardwon.memory.fleet import log as logs
from hardwon.memory.fleet.library import FleetLibrary
from hardwon.memory.parts.admin import WriteKind
from hardwon.memory.privacy.deadlines import deadline

DRAWER = State("You see a wooden drawer. It is closed.", task="find the spoon")


def settle(*libraries: FleetLibrary) -> set[str]:
    """Return the digests after all replicas hold the whole log."""
    for library in libraries:
        library.admin.sync()
    return {library.admin.query(compute_digest) for library in libraries}


def make_item(number: int, **fields) -> Item:
    return Item("insight", f"wash vegetable number {number}", f"rinse vegetable {number} in cold water", **fields)


def test_a_handle_reads_its_own_writes(connect, episode):
    library = connect()
    ref = library.record(episode("open drawer"))
    assert library.episodes.count() == 1
    assert library.episodes.get(ref).steps[0].action == "open drawer"
    assert library.recall(DRAWER).steps


def test_a_write_while_another_read_catches_up_is_read_next(connect, episode, monkeypatch):
    library = connect()
    monkeypatch.setattr(library._file.follower, "wake", lambda: None)
    library.record(episode("open drawer", id="e1"))
    catch_up = library._file.follower.catch_up

    def catch_up_and_record():
        position = catch_up()
        monkeypatch.setattr(library._file.follower, "catch_up", catch_up)
        library.record(episode("close drawer", id="e2"))
        return position

    monkeypatch.setattr(library._file.follower, "catch_up", catch_up_and_record)
    library.admin.sync()
    assert library.episodes.count() == 2


def test_another_replica_learns_from_it(connect, episode):
    one, two = connect("a"), connect("b")
    one.record(episode("open drawer", id="e1"))
    until = time.monotonic() + 20
    while not two.episodes.count() and time.monotonic() < until:
        time.sleep(0.01)
    assert two.recall(DRAWER).steps[0].what.action == "open drawer"
    assert len(settle(one, two)) == 1


def test_what_another_host_wrote_is_known_here_by_its_id(connect, episode, monkeypatch):
    """Nobody tells this host of the writes: requests that name their ids came here first."""
    one, two = connect("a"), connect("b")
    monkeypatch.setattr(two._file.follower, "_on_notified", lambda: None)
    two._file.follower._stopping.set()
    two._file.follower.wake()
    two._file.follower._thread.join()
    reads: list[Callable[[str, str], Any]] = [
        lambda episode, item: two.grade(episode, success=False),
        lambda episode, item: two.episodes.get(episode),
        lambda episode, item: two.episodes.grades(episode),
        lambda episode, item: two.items.get(item),
        lambda episode, item: two.items.history(item),
        lambda episode, item: two.items.update(item, score=0.9),
        lambda episode, item: two.feedback(item, True, writer="someone"),
        lambda episode, item: two.admin.forget(episode=episode, dry_run=True),
    ]
    for number, read in enumerate(reads):
        ref = one.record(episode("open drawer", id=f"e{number}"))
        read(ref, one.add(make_item(number)).item_id)
    with pytest.raises(UnknownName):
        two.episodes.get("nobody")


def test_items_travel(connect, episode):
    """Every way to change an item, from two handles in turn, ends in the same items on both."""
    one, two = connect("a"), connect("b")
    for number in range(3):
        one.record(episode("open drawer", id=f"e{number}"))
    added = one.add(make_item(1, provenance=(1, 2)))
    assert added.status == "added"
    two.admin.sync()
    assert two.items.get(added.item_id).provenance == (1, 2)
    two.items.update(added.item_id, body="scrub the vegetable with a brush", score=0.9)
    one.items.update(added.item_id, pinned=True)
    two.feedback(one.add(make_item(2)).item_id, True, writer="token:x", episode="e1")
    one.admin.sync()
    one.items.undo(added.item_id)
    held = one.add(make_item(3, trust="untrusted", source="import", writer="token:x"))
    two.admin.sync()
    two.items.release(held.item_id, "looks right")
    two.items.retire(one.add(make_item(4)).item_id, "not needed")
    two.items.merge([held.item_id], make_item(6))
    assert len(settle(one, two)) == 1
    assert one.items.find(status=None) == two.items.find(status=None)
    assert one.items.history(added.item_id) == two.items.history(added.item_id)
    assert [item.status for item in one.items.find(status=None)].count("retired") == 1


@pytest.mark.parametrize("part", ["take_lease", "get"])
def test_a_recall_does_not_wait_for_an_evolution(connect, episode, monkeypatch, part):
    """Neither while the server answers, nor while new episodes are loaded."""
    library, recalled = connect("a"), []
    library.record(episode("open drawer"))
    owner = library._file.log if part == "take_lease" else library.episodes
    work = getattr(owner, part)

    def recall_beside():
        with deadline(0.5):
            return library.recall(DRAWER).steps

    def work_slowly(*args):
        with ThreadPoolExecutor(1) as pool:
            recalled.append(pool.submit(recall_beside).result())
        return work(*args)

    monkeypatch.setattr(owner, part, work_slowly)
    library.evolve()
    assert recalled
    assert recalled[0]


def test_a_recall_does_not_wait_for_the_server(connect, episode, monkeypatch):
    """It goes on with what the replica holds, and knows its own writes again when the server answers."""
    library, may_answer = connect("a"), threading.Event()
    library.record(episode("open drawer"))
    assert library.recall(DRAWER).steps
    library.record(episode("close drawer"))
    assign = library._file.log.assign
    monkeypatch.setattr(library._file.log, "assign", lambda: may_answer.wait(40) and assign())
    try:
        with deadline(1.0):
            assert library.recall(DRAWER).steps
    finally:
        may_answer.set()
    assert library.episodes.count() == 2


def test_evolution_is_learned_once_and_arrives_everywhere(connect, episode):
    one, two = connect("a"), connect("b")
    for _ in range(6):
        for library in (one, two):
            bad: dict[str, Any] = {"failure": Failure.NO_EFFECT, "reward": 0.0, "success": False, "library": library}
            library.record(episode("kick drawer", "kick drawer", **bad))
            library.record(episode("open drawer", library=library))
    report = one.evolve()
    assert any(admission.status == "added" for admission in report.admissions)
    assert two.evolve().admissions == ()  # the other process has the lease
    assert len(settle(one, two)) == 1
    assert {item.id for item in two.items.find()} == {item.id for item in one.items.find()} != set()
    one.close()  # gives the lease back
    two.record(episode("open drawer"))
    two.evolve()
    assert two._file.log.read_status().term == 2


def test_credit_of_items_is_the_same_everywhere(connect, episode):
    one, two = connect("a"), connect("b")
    item = one.add(make_item(1)).item_id
    two.admin.sync()
    for number in range(8):
        library = (one, two)[number % 2]
        shown = episode("open drawer", success=number % 3 > 0)
        step = replace(shown.steps[0], why={"recalled": [item], "like": [1]} if number else {"recalled": [item]})
        library.record(replace(shown, steps=(step,)))
    assert len(settle(one, two)) == 1
    assert one.items.get(item).score != 0.5
    assert one.items.get(item) == two.items.get(item)


def test_a_bank_is_shared(connect):
    one, two = connect("a").admin.bank("cook"), connect("b").admin.bank("cook")
    first = one.put("red", "pan", "it is in the attic")
    second = two.put("blue", "salt", "it is in the barn")
    assert first < second
    assert one.pull(second, "red") == "it is in the barn"
    assert two.pull(first, "blue") == "it is in the attic"
    assert set(two.pulls()) == {(second, "red"), (first, "blue")}
    with pytest.raises(UnknownName):
        one.pull(99, "red")
    one.drop()
    two._sync()
    assert two.entries() == []


def test_recording_is_idempotent_and_another_episode_is_refused(connect, episode):
    one, two = connect("a"), connect("b")
    first = episode("open drawer", id="e1")
    assert one.record(first) == two.record(first) == one.record_many([first, first])[1] == "e1"
    assert one.episodes.count() == 1
    for other in (episode("close drawer", id="e1"), episode("open drawer", id="e1", reward=0.5)):
        with pytest.raises(KeyTaken, match="'e1'"):
            two.record(other)
    with pytest.raises(ConfigError):  # a kind of it
        one.record_many([episode("a", id="x"), episode("b", id="x")])
    assert len(settle(one, two)) == 1


class Killed(BaseException):
    """Ends a process after its write and before its answer."""


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_write_that_comes_again_to_another_host_is_done_once(is_killed, connect, episode, tmp_path, monkeypatch):
    """The first host answers, or it is killed after the write is in the log and before it notes the answer."""
    with ExperienceLibrary.open(tmp_path / "other.db") as other:
        other.record(episode("close drawer", id="other"))
        other.admin.export_jsonl(tmp_path / "export.jsonl")
    one, two = connect("a"), connect("b")
    one.add(make_item(0, id="in-0"))
    entry = one.admin.bank("t").put("team", "older", "value")
    changes = {
        "add": lambda library: library.add(make_item(1)).item_id,
        "no change": lambda library: library.add(make_item(0)).status,
        "score": lambda library: str(library.feedback("in-0", True, writer="w", episode="e").score),
    }
    others = {
        "put": lambda library: str(library.admin.bank("t").put("team", "key", "value")),
        "pull": lambda library: library.admin.bank("t").pull(entry, "reader"),
        "record": lambda library: library.record(replace(episode("open drawer"), id="")),
        "drop": lambda library: str(library.admin.bank("t").drop()),
        "import": lambda library: "" if library.admin.import_jsonl(tmp_path / "export.jsonl") is None else "lines",
    }

    kinds: dict[bool, WriteKind] = {True: "items", False: "records"}

    def end(*_):
        raise Killed

    def run_first(key, write):
        if not is_killed:
            return one.admin.once(key, "1", lambda: write(one), change=kinds[key in changes])
        if key in changes:  # the answer is computed before the write is in the log
            monkeypatch.setattr(one._file, "note_write", end)
        with pytest.raises(Killed):
            one.admin.once(
                key,
                "1",
                lambda: write(one) if key in changes else end(write(one)),
                change=kinds[key in changes],
            )
        monkeypatch.undo()
        return None

    for key, write in (changes | others).items():
        answer = run_first(key, write)
        (before,) = settle(one, two)
        assert (
            two.admin.once(key, "1", lambda write=write: write(two), change=kinds[key in changes]) == answer
            or is_killed
        )
        assert settle(one, two) == {before}, key
    for key, write in changes.items():
        with pytest.raises(KeyTaken, match="another request"):
            one.admin.once(key, "2", lambda write=write: write(one))


def test_a_late_repetition_at_another_host_undoes_no_later_write(connect, episode):
    """A client that got no answer asks again after someone else corrected its grade or wrote a new entry."""
    one, two = connect("a"), connect("b")
    one.record(episode("open drawer", id="e1"))
    writes: dict[str, tuple[WriteKind, Callable[[ExperienceLibrary], str]]] = {
        "0a": ("outcomes", lambda library: repr(library.grade("e1", success=True))),
        "0b": ("records", lambda library: str(library.admin.bank("t").drop())),  # type: ignore[func-returns-value]
    }
    answers = {
        key: one.admin.once(key, "1", lambda write=write: write(one), change=kind)
        for key, (kind, write) in writes.items()
    }
    two.grade("e1", success=False)
    two.admin.bank("t").put("team", "new", "value")
    for key, (kind, write) in writes.items():
        assert two.admin.once(key, "1", lambda write=write: write(two), change=kind) == answers[key]
    assert [library.episodes.get("e1").success for library in (one, two) if library.admin.sync()] == [False, False]
    assert [entry.key for entry in one.admin.bank("t").entries()] == ["new"]
    with pytest.raises(KeyTaken):
        two.admin.once("0a", "2", lambda: repr(two.grade("e1", success=True)), change="outcomes")
    assert len(settle(one, two)) == 1


def test_hosts_that_get_a_write_at_once_do_it_once(connect):
    libraries = [connect(f"host-{number}") for number in range(4)]

    def work(library):
        return (
            library.admin.once("abc", "1", lambda: library.add(make_item(1)).item_id),
            library.admin.once("def", "1", lambda: str(library.admin.bank("t").put("a", "k", "v")), change="records"),
        )

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(work, libraries))) == 1
    assert len(settle(*libraries)) == 1
    assert (len(libraries[0].items.find()), len(libraries[0].admin.bank("t").entries())) == (1, 1)


def test_secrets_are_redacted_before_they_leave(connect, episode, url):
    import psycopg

    from hardwon.memory.fleet.entries import unpack

    connect().record(episode("type sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"))
    with psycopg.connect(url) as connection:
        ((payload,),) = connection.execute("SELECT payload FROM hardwon.log").fetchall()
    assert "abcdefghijkl" not in str(unpack(payload))


def test_namespaces_are_apart(connect, episode):
    one, other = connect("a"), connect("b", namespace="other")
    one.record(episode("open drawer"))
    other.admin.sync()
    assert other.episodes.count() == 0


def test_a_reader_follows_and_does_not_write(connect, episode):
    writer = connect("a")
    writer.record(episode("open drawer"))
    reader = connect("b", read_only=True)
    assert reader.admin.read_only
    assert reader.recall(DRAWER).steps
    for call in (
        lambda: reader.record(episode("x")),
        lambda: reader.add(make_item(1)),
        reader.evolve,
    ):
        with pytest.raises(LibraryReadOnly, match="open for reading only"):
            call()


def test_a_new_replica_equals_an_old_one(connect, episode):
    old = connect("a")
    for number in range(30):
        old.record(episode(f"open drawer {number}"))
        if number % 10 == 9:
            old.evolve()
            old.add(make_item(number))
    new = connect("b")
    assert new.admin.position == old.admin.sync()
    assert new.admin.query(compute_digest) == old.admin.query(compute_digest)
    old.close()
    again = connect("a")
    assert again.admin.query(compute_digest) == new.admin.query(compute_digest)


def test_a_replica_belongs_to_one_namespace(connect):
    connect("a").close()
    with pytest.raises(OtherReplica, match="not of namespace 'other'"):
        connect("a", namespace="other")


def test_a_restored_older_database_is_noticed(connect, episode, url):
    """Continuing would mix two histories."""
    library = connect()
    library.record_many([episode(f"open drawer {number}") for number in range(3)])
    library.admin.sync()
    library._file.log._writer.run("DELETE FROM hardwon.positions WHERE pos > 1")
    with pytest.raises(OtherReplica, match="restored from an older copy"):
        library.admin.sync()
    library.close()
    with pytest.raises(OtherReplica, match="restored from an older copy"):
        connect()


def test_a_replica_needs_a_database(tmp_path):
    with pytest.raises(ConfigError, match="Only a database has replicas"):
        ExperienceLibrary.open(tmp_path / "library.db", replica=tmp_path)


def test_the_default_folder_is_in_the_cache(url, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with ExperienceLibrary.open(url, namespace="a/b") as library:
        assert isinstance(library, FleetLibrary)
        assert library.admin.replica.startswith(str(tmp_path / "hardwon"))
        assert library._file.log.database in library.admin.replica
        assert "a%2Fb" in library.admin.replica
        assert Path(library.admin.replica).parent.stat().st_mode & 0o077 == 0


def test_a_stopped_leader_is_refused_when_it_wakes_up(connect, episode, monkeypatch):
    """Its lease expired in the middle of learning, and another process learned meanwhile."""
    one, two = connect("a"), connect("b")
    for _ in range(6):
        bad: dict[str, Any] = {"failure": Failure.NO_EFFECT, "reward": 0.0, "success": False, "library": one}
        one.record(episode("kick drawer", "kick drawer", **bad))
        one.record(episode("open drawer", library=one))
    take = one._file.log.take_lease

    def take_and_stop(holder):
        monkeypatch.setattr(logs, "LEASE_S", 0.2)
        term = take(holder)
        time.sleep(0.3)
        assert two._file.log.take_lease("other") == term + 1
        return term

    monkeypatch.setattr(one._file.log, "take_lease", take_and_stop)
    with pytest.raises(LeaseLost, match="took over"):
        one.evolve()
    assert one.items.find() == []
    assert len(settle(one, two)) == 1


def test_handles_that_change_items_at_once_lose_nothing(connect):
    """Each change is computed at the end of the log."""
    libraries = [connect(name) for name in "abc"]
    item = libraries[0].add(make_item(0, score=0.5)).item_id

    def work(library):
        for _ in range(6):
            library.admin.sync()
            library.items.update(item, confidence=library.items.get(item).confidence)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, libraries))
    assert len(settle(*libraries)) == 1
    assert libraries[0].items.get(item).version == 1 + 18


CHILD = """
import sys
from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
url, replica, who, count = sys.argv[1:]
with ExperienceLibrary.open(url, replica=replica) as library:
    for number in range(int(count)):
        pre, post = State(f"room {number % 7}", task="t"), State(f"room {number % 5}", task="t")
        step = Step(pre, f"go {number % 3}", post, Diagnosis(True), 1.0)
        library.record(Trajectory("t", (step,), True, id=f"{who}-{number}"))
        if number % 10 == 9:
            library.evolve()
"""


def test_processes_write_through_replicas_of_their_own(url, tmp_path, connect):
    """Four processes, two replica files: every episode is on both, once."""
    count = 20
    children = [
        warm.Popen([sys.executable, "-c", CHILD, url, str(tmp_path / f"r{who % 2}"), str(who), str(count)])
        for who in range(4)
    ]
    assert [child.wait(180) for child in children] == [0] * 4
    one, two = connect("r0"), connect("r1")
    assert len(settle(one, two)) == 1
    assert one.episodes.count() == two.episodes.count() == 4 * count


def test_no_password_is_logged(server, tmp_path, caplog, episode):
    caplog.set_level(logging.DEBUG)
    database = server.create_database(f"secret_{os.getpid()}").split("@/")[1]
    url = f"postgresql://hardwon:hunter2@/{database}"
    with ExperienceLibrary.open(url, replica=tmp_path) as library:
        library.record(episode("open drawer"))
        assert "hunter2" not in library.path
        with pytest.raises(ConfigError) as caught:
            library.admin.import_jsonl(tmp_path / "missing")
    assert "hunter2" not in caplog.text + str(caught.value)


def test_importing_the_memory_does_not_import_psycopg():
    code = (
        "import sys, hardwon.memory.library, hardwon.memory.fleet.library\n"
        "assert not {'psycopg', 'zstandard'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_secret_is_no_name_of_a_namespace(url, tmp_path):
    """The server does not get it either."""
    name = "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8"
    with pytest.raises(ConfigError, match="contains a secret"):
        ExperienceLibrary.open(url, namespace=name, replica=tmp_path / "a")
    with ExperienceLibrary.open(url, replica=tmp_path / "b") as library:
        assert isinstance(library, FleetLibrary)
        assert library._file.log._reader.run("SELECT name FROM hardwon.namespaces") == [("default",)]
