"""Forgetting, imports, repairs and snapshots of a shared library: every replica ends with the same."""

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests import warm
from tests.memory.fleet.test_shared import make_item, settle
from tests.memory.upkeep.digest import compute_digest

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError, LibraryError, LibraryForbidden, UnknownName
from hardwon.memory.fleet import snapshots
from hardwon.memory.fleet.entries import unpack
from hardwon.memory.fleet.library import FleetLibrary
from hardwon.memory.fleet.log import Log, grant

SECRET = "the zebra password is tangerine"


def fill(library: FleetLibrary, episode, *, count: int = 12) -> None:
    """Record a namespace with items, opinions, a bank, and one episode with words of its own."""
    for number in range(count):
        library.record(episode(f"open drawer {number % 3}", id=f"e{number}"))
    library.record(episode(f"say {SECRET}", f"You say: {SECRET}.", id="told", success=False))
    item = library.add(make_item(1)).item_id or ""
    shown = episode("open drawer 1", id="shown")
    library.record(replace(shown, steps=(replace(shown.steps[0], why={"recalled": [item]}),)))
    library.evolve()
    library.feedback(item, True, writer="token:x", episode="e1")
    library.admin.bank("cook").put("red", "pan", "it is in the attic")


def read_payloads(url: str) -> str:
    """Return everything that the log says, without hardwon."""
    import psycopg

    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT key, payload, format FROM hardwon.log").fetchall()
    return repr([(key, unpack(bytes(payload), number) if number else "") for key, payload, number in rows])


@pytest.mark.parametrize("selector", [{"episode": "told"}, {"text": "ZEBRA password"}, {"writer": "token:z"}])
def test_forgetting_reaches_every_replica_and_the_log(connect, episode, url, selector):
    one, two = connect("a"), connect("b")
    fill(one, episode)
    one.record(
        replace(episode(f"sing {SECRET}", f"You sing: {SECRET}.", id="sung"), writer="token:z", trust="untrusted")
    )
    before = one.episodes.count()
    receipt = one.admin.forget(**selector)
    assert receipt.erased
    assert receipt.counts["episodes"] == len(receipt.episodes) >= 1
    assert len(settle(one, two)) == 1
    assert one.episodes.count() == two.episodes.count() == before - len(receipt.episodes)
    assert two.admin.verify() == []
    if "text" in selector:
        assert "zebra" not in read_payloads(url)
        for library in (one, two):
            library.close()
            assert b"zebra" not in Path(library.admin.replica).read_bytes()
    new = connect("new")
    assert new.episodes.count() == before - len(receipt.episodes)
    again = connect("a")
    assert len(settle(again, new)) == 1


def test_a_dropped_bank_is_found_in_the_log_and_forgotten(connect, url):
    """No replica has it any more."""
    library = connect()
    with library.admin.bank("cook") as bank:
        bank.put("red", "pan", SECRET)
    assert library.admin.forget(text="ZEBRA", dry_run=True).counts == {"log entries": 1}
    assert library.admin.forget(text="pan of gold", dry_run=True).counts == {}
    assert library.admin.forget(text="ZEBRA").erased
    assert "zebra" not in read_payloads(url)


def test_forgetting_equals_that_of_a_file_with_the_same_experience(connect, episode, tmp_path):
    shared = connect()
    with ExperienceLibrary.open(tmp_path / "file.db") as file:
        for library in (shared, file):
            for number in range(6):
                library.record(episode(f"open drawer {number % 3}", id=f"e{number}"))
            receipt = library.admin.forget(episode="e3")
            assert receipt.episodes == ("e3",)
        assert [row["id"] for row in shared.episodes.find()] == [row["id"] for row in file.episodes.find()]
        assert [(s.signature, s.pattern, s.n) for s in shared.episodes.summaries()] == [
            (s.signature, s.pattern, s.n) for s in file.episodes.summaries()
        ]


def test_a_replica_that_was_away_continues_from_the_snapshot(connect, episode):
    """It had not applied the entries whose content was erased."""
    one = connect("a")
    one.record(episode("open drawer", id="first"))
    late = connect("late")
    late.admin.sync()
    late.close()
    fill(one, episode)
    one.admin.forget(episode="told")
    one.record(episode("close drawer", id="after"))
    late = connect("late")
    assert len(settle(one, late)) == 1
    assert late.episodes.get("after")
    assert late.recall(late.episodes.get("after").steps[0].pre).steps


def test_an_open_replica_that_meets_erased_entries_drops_what_it_remembers(connect, episode, monkeypatch):
    one, two = connect("a"), connect("b")
    fill(one, episode)
    two.admin.sync()
    assert two.recall(two.episodes.get("e1").steps[0].pre).steps
    with two._file.follower._lock:  # holds its thread up
        one.record(episode("kick drawer", id="unseen"))
        one.admin.forget(episode="unseen")
        one.admin.forget(episode="told")
    assert len(settle(one, two)) == 1
    with pytest.raises(UnknownName):
        two.episodes.get("told")
    two.record(episode("open drawer", id="mine"))
    assert len(settle(one, two)) == 1


def test_a_namespace_is_forgotten_as_a_whole(connect, episode, url):
    one, other = connect("a"), connect("b", namespace="other")
    fill(one, episode)
    fill(other, episode)
    receipt = one.admin.forget(namespace="other")
    assert receipt.counts["episodes"] == 14
    other.admin.sync()
    assert (other.episodes.count(), other.items.find()) == (0, [])
    assert one.episodes.count() == 14
    other.record(episode("open drawer", id="e1"))
    fresh = connect("c", namespace="other")
    assert len(settle(other, fresh)) == 1
    assert fresh.episodes.count() == 1
    with pytest.raises(UnknownName, match="othr"):
        one.admin.forget(namespace="othr")


def test_a_dry_run_changes_nothing(connect, episode):
    one = connect()
    fill(one, episode)
    head, digest = one.admin.sync(), one.admin.query(compute_digest)
    receipt = one.admin.forget(text="zebra", dry_run=True)
    assert receipt.dry_run
    assert receipt.episodes == ("told",)
    assert (one.admin.sync(), one.admin.query(compute_digest)) == (head, digest)
    with pytest.raises(UnknownName):
        one.admin.forget(episode="nobody")
    with pytest.raises(ConfigError):
        one.admin.forget()


def test_a_forgotten_id_may_be_recorded_again(connect, episode):
    one, two = connect("a"), connect("b")
    one.record(episode("open drawer", id="e1"))
    one.admin.forget(episode="e1")
    one.record(episode("close drawer", id="e1"))
    assert len(settle(one, two)) == 1
    assert two.episodes.get("e1").steps[0].action == "close drawer"


FORGET = """
import os, signal, sys
from hardwon.memory import ExperienceLibrary
from hardwon.memory.fleet import snapshots
from hardwon.memory.fleet.follower import Follower
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
# Its thread looks for what is half forgotten after opening, and would die before the entry is in the log.
Follower.start = lambda self: None
setattr(snapshots, sys.argv[3], die)
ExperienceLibrary.open(sys.argv[1], replica=sys.argv[2]).admin.forget(text="zebra")
"""


@pytest.mark.parametrize("where", ["list_erasable", "save", "_insert"])
def test_a_process_killed_while_it_forgets_is_finished_by_the_next(connect, episode, url, tmp_path, where):
    one = connect("a")
    fill(one, episode)
    child = warm.run([sys.executable, "-c", FORGET, url, str(tmp_path / "killed"), where], timeout=180)
    assert child.returncode == -signal.SIGKILL
    two = connect("b")
    assert len(settle(one, two)) == 1
    with pytest.raises(UnknownName):
        one.episodes.get("told")
    until = time.monotonic() + 60
    while (
        "zebra" in read_payloads(url) and time.monotonic() < until
    ):  # the entry was in the log, so opening finishes it
        time.sleep(0.05)
    assert "zebra" not in read_payloads(url)
    assert len(settle(one, connect("c"))) == 1


def test_forgetting_needs_a_right_of_its_own(connect, episode, server, url, tmp_path):
    fill(connect("a"), episode)
    name = f"hand_{os.getpid()}"
    server.sql(f"CREATE ROLE {name} LOGIN")
    tenant = server.url(url.split("/")[3].split("?")[0], name)
    grant(url, name, "default", write=True)
    with ExperienceLibrary.open(tenant, replica=tmp_path / "t") as library:
        library.record(episode("open drawer", id="mine"))
        with pytest.raises(LibraryForbidden, match="--manage"):
            library.admin.forget(episode="told")
        assert isinstance(library, FleetLibrary)
        with pytest.raises(LibraryForbidden, match="may not forget"):
            library._file.log.append("forget", [("x", b"y")])
        with pytest.raises(LibraryForbidden):
            library._file.log.write("SELECT hardwon.erase(%(namespace)s, ARRAY[1::bigint])")
        with pytest.raises(LibraryForbidden):
            library.admin.store_snapshot()
    grant(url, name, "default", write=True, manage=True)
    with ExperienceLibrary.open(tenant, replica=tmp_path / "t") as library:
        assert library.admin.forget(episode="told").erased
    with pytest.raises(UnknownName, match="nobody_there"):
        grant(url, "nobody_there", "default", write=True)


def test_an_export_is_imported_on_every_replica(connect, episode, tmp_path):
    file = tmp_path / "export.jsonl"
    with ExperienceLibrary.open(tmp_path / "file.db") as source:
        for number in range(6):
            source.record(episode(f"type sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD {number}", id=f"i{number}"))
        kept = source.add(make_item(3, provenance=(1, 2))).item_id or ""
        source.items.update(kept, pinned=True)
        lines = source.admin.export_jsonl(file)
        history = [change["op"] for change in source.items.history(kept)]
        recorded = source.episodes.find()
    one, two = connect("a"), connect("b")
    one.record(episode("open drawer", id="e1"))
    assert one.admin.import_jsonl(file) == lines
    assert one.admin.import_jsonl(file) == 0
    two.record(episode("open drawer", id="e2"))
    assert len(settle(one, two)) == 1
    assert [change["op"] for change in two.items.history(kept)] == history
    assert two.items.get(kept).pinned
    assert {row["recorded_at"] for row in two.episodes.find()} >= {row["recorded_at"] for row in recorded}
    two.record(episode("type sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD 0", id="i0"))  # it is there already
    assert two.episodes.count() == 8
    assert len(settle(one, two, connect("new"))) == 1


def test_an_untrusted_file_stays_untrusted(connect, episode, tmp_path):
    file = tmp_path / "export.jsonl"
    with ExperienceLibrary.open(tmp_path / "file.db") as source:
        source.record(episode("open drawer", id="i1"))
        item = source.add(make_item(3)).item_id
        source.admin.export_jsonl(file)
    one = connect()
    one.admin.import_jsonl(file, trust="untrusted")
    assert one.items.get(item).status == "quarantined"
    assert one.episodes.get("i1").trust == "untrusted"


@pytest.mark.parametrize("text", ["{", '{"episode": {}}\n', '{"item": 3}\n', "\0"])
def test_a_bad_file_leaves_the_log_as_it_is(connect, tmp_path, text):
    (tmp_path / "bad").write_text(text)
    one = connect()
    with pytest.raises(ConfigError):
        one.admin.import_jsonl(tmp_path / "bad")
    with pytest.raises(ConfigError):
        one.admin.import_jsonl(tmp_path / "missing")
    assert one.admin.sync() == 0


def test_a_damaged_replica_is_filled_again(connect, episode):
    one, two = connect("a"), connect("b")
    fill(one, episode)
    assert one.admin.repair() == []
    one._file.store.connection.execute("UPDATE attempts SET n = n + 7")
    one._file.discard()
    assert one.admin.verify()
    assert one.admin.repair()
    assert one.admin.verify() == []
    assert len(settle(one, two)) == 1
    one.record(episode("open drawer", id="after"))
    assert one.episodes.get("after")


def test_a_new_replica_begins_from_a_snapshot(connect, episode, monkeypatch):
    one = connect("a")
    for number in range(120):
        one.record(episode(f"open drawer {number % 9}", id=f"e{number}"))
    one.evolve()
    position = one.admin.store_snapshot()
    one.record(episode("close drawer", id="after"))
    fetched = []
    fetch = Log.fetch

    def fetch_and_note(self, after, *limit):
        fetched.append(after)
        return fetch(self, after, *limit)

    monkeypatch.setattr(Log, "fetch", fetch_and_note)
    two = connect("b")
    assert min(fetched) == position  # the entries before are in the snapshot
    monkeypatch.undo()
    assert len(settle(one, two)) == 1
    assert two.admin.verify() == []
    two.record(episode("kick drawer", id="more"))
    assert len(settle(one, two)) == 1


def test_the_learner_stores_snapshots_and_keeps_one(connect, episode, monkeypatch, url):
    monkeypatch.setattr(snapshots, "MANY", 5)
    one = connect("a")
    for round in range(3):
        one.record_many([episode(f"open drawer {n}", id=f"{round}-{n}") for n in range(8)])
        one.evolve()
        one._file.follower._work()
    until = time.monotonic() + 60  # the follower may be storing it in its thread
    while ((found := snapshots.find(one._file.log)) is None or found.position < 24) and time.monotonic() < until:
        time.sleep(0.05)
    assert found is not None
    assert found.position >= 24
    assert one._file.log.read("SELECT count(*) FROM hardwon.snapshots") == [(1,)]
    assert one._file.log.read_status().snapshot == found.position


def test_a_snapshot_that_is_requested_during_a_look_is_stored_by_the_next(connect, episode, monkeypatch):
    """The position of the look is from before the entries that made it due."""
    monkeypatch.setattr(snapshots, "MANY", 5)
    library = connect()
    follower = library._file.follower
    follower._stopping.set()
    follower.wake()
    follower._thread.join(60)  # its looks are made here
    catch_up = follower.catch_up

    def catch_up_early():
        position = catch_up()
        monkeypatch.setattr(follower, "catch_up", catch_up)
        library.record_many([episode(f"open drawer {number}", id=f"e{number}") for number in range(8)])
        follower.request_snapshot()
        return position

    monkeypatch.setattr(follower, "catch_up", catch_up_early)
    follower._work()
    assert snapshots.find(library._file.log) is None
    follower._work()
    assert library._file.log.read_status().snapshot == 8


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE hardwon.chunks SET content = 'x'",
        "DELETE FROM hardwon.chunks",
        "UPDATE hardwon.snapshots SET pos = pos + 1",
    ],
)
def test_a_damaged_snapshot_is_refused(connect, episode, server, url, damage, monkeypatch):
    monkeypatch.setattr(snapshots, "FEW", 1)
    one = connect("a")
    fill(one, episode)
    one.admin.store_snapshot()
    server.sql(damage, url.split("/")[3].split("?")[0])
    with pytest.raises(LibraryError, match=r"hardwon\.snapshots"):
        connect("b")


def test_a_grade_reaches_every_replica(connect, url, episode):
    first, second = connect("a"), connect("b")
    fill(first, episode)
    first.record(episode("open drawer 2", id="open", success=None, reward=0.0))
    second.admin.sync()
    first.grade("shown", success=False, why="the customer called", grader="ann")
    second.grade("open", success=True, grader="bob")
    given = second.grade("told", instead="ask for the key", step=0)
    assert given.admission.status == "added"
    assert len(settle(first, second)) == 1
    assert (first.episodes.get("shown").success, first.episodes.get("open").success) == (False, True)
    assert all(step.keys for step in first.episodes.get("open").steps)
    assert [grade.grader for grade in first.episodes.grades("open")] == ["bob"]
    assert first.items.get(given.admission.item_id).title == "Use `ask for the key` instead of `say tangerine`"
    assert first.grade("open", success=True, grader="bob").is_new is False
    late = connect("c")
    assert len(settle(first, second, late)) == 1
    assert late.admin.verify() == []
    with pytest.raises(UnknownName):
        first.grade("nobody", success=True)
    with pytest.raises(LibraryError):
        connect("d", read_only=True).grade("open", success=False)
