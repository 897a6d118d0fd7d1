"""Faults of a store in a shared library: servers and processes that die, wrong clocks, copies, and forgetting."""

import signal
import sys
import time
from pathlib import Path

import pytest
from langgraph.store.base import GetOp, PutOp
from tests import warm
from tests.memory.fleet.conftest import server, url
from tests.memory.fleet.test_shared import settle
from tests.memory.fleet.test_trouble import own_server
from tests.memory.fleet.test_upkeep import read_payloads
from tests.memory.upkeep.digest import compute_digest
from tests.runtime.integrations.stores.test_langgraph_store import ServerClock
from tests.runtime.integrations.stores.test_shared_store import ADA, connect, count_entries, read
from typer.testing import CliRunner

from hardwon.apps.cli.app import app
from hardwon.memory.errors import LibraryUnreachable
from hardwon.memory.fleet import snapshots
from hardwon.memory.fleet.application import values as module
from hardwon.memory.fleet.log import Log

__all__ = ["connect", "own_server", "server", "url"]


def test_reading_goes_on_while_the_server_is_down(connect, own_server, monkeypatch):
    monkeypatch.setattr(module, "STEP", 0.0)  # each read would put the end off
    library, store = connect("a", own_server.url())
    store.put(ADA, "k", {"n": 1}, ttl=5)
    store.get(ADA, "k")
    own_server.stop()
    for write in (
        lambda: store.batch([PutOp(ADA, "k", {"n": 2}), PutOp(ADA, "new", {"n": 2})]),
        lambda: store.delete(ADA, "k"),
        lambda: store.batch([GetOp(ADA, "k"), PutOp(ADA, "new", {"n": 2})]),
    ):
        with pytest.raises(LibraryUnreachable, match="Start the server"):
            write()
    assert read(store) == {(ADA, "k"): {"n": 1}}
    assert store.get(ADA, "k").value == {"n": 1}
    own_server.start()
    library.admin.sync()
    assert read(store) == read(connect("b", own_server.url())[1]) == {(ADA, "k"): {"n": 1}}
    store.put(ADA, "k", {"n": 3})
    assert read(store) == {(ADA, "k"): {"n": 3}}


def test_reading_does_not_wait_for_a_server_that_is_down(connect, own_server, monkeypatch):
    """To put the end of a value off is an attempt to connect, which takes seconds over a network."""
    monkeypatch.setattr(module, "STEP", 0.0)
    library, store = connect("a", own_server.url())
    store.put(ADA, "k", {"n": 1}, ttl=5)
    store.get(ADA, "k")
    own_server.stop()
    until = time.monotonic() + 20
    while library._file.log.fileno() is not None and time.monotonic() < until:  # its follower notices
        time.sleep(0.01)
    monkeypatch.setattr(library._file.log, "append", None)
    assert store.get(ADA, "k").value == {"n": 1}


def test_a_process_starts_while_the_server_is_down(connect, own_server):
    library, store = connect("a", own_server.url())
    store.put(ADA, "k", {"n": 1})
    library.admin.sync()
    store.close()
    library.close()
    own_server.stop()
    _, store = connect("a", own_server.url(), outbox=True)
    assert read(store) == {(ADA, "k"): {"n": 1}}
    with pytest.raises(LibraryUnreachable):
        store.put(ADA, "k", {"n": 2})
    own_server.start()
    store.put(ADA, "k", {"n": 3})
    assert read(store) == {(ADA, "k"): {"n": 3}}


KILLED = """
import os, signal, sys
from hardwon.memory import ExperienceLibrary
from hardwon.memory.fleet import library as module
from hardwon.memory.fleet.follower import Follower
from hardwon.runtime import HardwonStore
Follower.start = lambda self: None  # nothing is applied but by reading
library = ExperienceLibrary.open(sys.argv[1], replica=sys.argv[2])
store = HardwonStore(library, index=None)
store.put(("users", "ada"), "k", {"n": 1})
store.get(("users", "ada"), "k")
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
setattr(*{"before": (library._file.log, "append"), "after": (library._file, "note_write"),
          "within": (module.Follower, "catch_up")}[sys.argv[3]], die)
store.put(("users", "ada"), "k", {"n": 2})
store.get(("users", "ada"), "k")
"""


@pytest.mark.parametrize(("where", "n"), [("before", 1), ("after", 2), ("within", 2)])
def test_a_process_killed_between_append_and_apply(connect, url, tmp_path, where, n):
    child = warm.run([sys.executable, "-c", KILLED, url, str(tmp_path / "killed"), where], timeout=120)
    assert child.returncode == -signal.SIGKILL
    (one, of_one), (two, of_two) = connect("killed"), connect("b")
    assert len(settle(one, two)) == 1
    assert read(of_one) == read(of_two) == {(ADA, "k"): {"n": n}}


ANYTHING = """
import random, sys
from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.fleet.application import values
from hardwon.runtime import HardwonStore
url, replica, who, count = sys.argv[1:]
values.STEP, choose = 0.0, random.Random(int(who))
with ExperienceLibrary.open(url, replica=replica) as library, HardwonStore(library) as store:
    for number in range(int(count)):
        key, what = str(choose.randint(0, 20)), choose.random()
        path = ("users", key[0])
        if what < 0.5:
            store.put(path, key, {"n": number, "who": who}, ttl=choose.choice([None, 0.005, 0.01, 5]))
        elif what < 0.6:
            store.delete(path, key)
        elif what < 0.8:
            store.get(path, key)
        elif what < 0.9:
            store.search(("users",), query=f"n {number}")
        elif what < 0.95:
            store.sweep_ttl()
        elif what < 0.98 or who != "0":
            library.add(Item("insight", f"title {who} {number}", "text"))
        else:
            library.admin.forget(text=f"nobody wrote {number}")
"""


@pytest.mark.parametrize("count", [40, pytest.param(300, marks=pytest.mark.slow)])
def test_processes_do_anything_and_replicas_end_equal(connect, url, tmp_path, count):
    """Two share a replica; forgetting erases what the others may not have applied yet."""
    children = [
        warm.Popen([sys.executable, "-c", ANYTHING, url, str(tmp_path / f"r{who % 2}"), str(who), str(count)])
        for who in range(4)
    ]
    assert [child.wait(300) for child in children] == [0] * 4
    hosts = [connect(folder) for folder in ("r0", "r1", "new")]
    assert len(settle(*(library for library, _ in hosts))) == 1


# ---- time


@pytest.fixture
def host(monkeypatch):
    """Set the clock of this host wrong by hours, from now on."""
    real = time.time

    def shift(hours):
        monkeypatch.setattr(time, "time", lambda: real() + 3600 * hours)

    return shift


@pytest.mark.parametrize("hours", [-5, 5])
def test_values_expire_by_the_clock_of_the_server(connect, host, url, monkeypatch, hours):
    clock = ServerClock(url, monkeypatch)
    (one, of_one), (two, of_two) = connect("a"), connect("b")
    host(hours)
    of_one.put(ADA, "k", {"n": 1}, ttl=60)
    of_one.put(ADA, "for ever", {"n": 2})
    host(-hours)
    settle(one, two)
    assert len(read(of_two)) == 2
    created = of_two.get(ADA, "k", refresh_ttl=False).created_at
    host(0)
    assert abs(created.timestamp() - time.time()) < 600
    host(hours)
    clock.forward(50)
    settle(one, two)
    assert len(read(of_two)) == 2  # reading puts the end off, on both hosts
    clock.forward(50)
    settle(one, two)
    host(-hours)
    assert len(read(of_one)) == 2
    clock.forward(61)
    settle(one, two)
    assert [key for _, key in read(of_one)] == [key for _, key in read(of_two)] == ["for ever"]
    assert (of_two.sweep_ttl(), of_two.sweep_ttl()) == (1, 0)
    assert len(settle(one, two)) == 1
    assert one._file.store.rows("SELECT key FROM langgraph_values") == [("for ever",)]


def test_reading_often_is_one_entry_in_a_while(connect, url, monkeypatch):
    clock = ServerClock(url, monkeypatch)
    library, store = connect()
    store.put(ADA, "k", {"n": 1}, ttl=100)
    for _ in range(3):
        store.get(ADA, "k")
    assert count_entries(library) == 1
    clock.forward(6)
    library.admin.sync()
    for _ in range(3):
        store.get(ADA, "k")
    assert count_entries(library) == 2


def test_a_late_read_does_not_touch_a_newer_value(connect, monkeypatch):
    """It names the value that was read: the one that replaced it meanwhile has an end of its own."""
    (one, of_one), (two, of_two) = connect("a"), connect("b")
    of_one.put(ADA, "k", {"n": 1}, ttl=100)
    settle(one, two)
    monkeypatch.setattr(module, "STEP", 0.0)
    with two._file.follower._lock:
        of_one.put(ADA, "k", {"n": 2}, ttl=1)
        before = one._file.store.rows("SELECT id, expires_at FROM langgraph_values") if read(of_one) else []
        of_two.get(ADA, "k")
    assert len(settle(one, two)) == 1
    assert count_entries(one) == 4
    assert one._file.store.rows("SELECT id, expires_at FROM langgraph_values")[0][0] == before[0][0]


# ---- copies, and forgetting


def test_a_new_replica_begins_from_a_snapshot(connect, monkeypatch):
    one, of_one = connect("a")
    for n in range(120):
        of_one.put(ADA, str(n % 50), {"n": n}, index=["n"])
    position = one.admin.store_snapshot()
    of_one.put(ADA, "after", {"n": 0})
    fetched, fetch = [], Log.fetch

    def fetch_and_note(self, after, *limit):
        fetched.append(after)
        return fetch(self, after, *limit)

    monkeypatch.setattr(Log, "fetch", fetch_and_note)
    two, of_two = connect("b")
    assert min(fetched) == position
    assert len(settle(one, two)) == 1
    assert [item.key for item in of_two.search((), limit=100)] == [item.key for item in of_one.search((), limit=100)]
    of_two.put(ADA, "7", {"n": -1})
    assert len(settle(one, two)) == 1


def test_many_writes_store_a_snapshot(connect, monkeypatch):
    """Nobody learns items here, who would store it."""
    monkeypatch.setattr(module, "MANY", 10)
    monkeypatch.setattr(snapshots, "MANY", 10)
    library, store = connect()
    for n in range(10):
        store.put(ADA, str(n), {"n": n})
    until = time.monotonic() + 60
    while snapshots.find(library._file.log) is None and time.monotonic() < until:
        time.sleep(0.01)
    snapshot = snapshots.find(library._file.log)
    assert snapshot is not None
    assert snapshot.position == 10


def test_a_damaged_replica_gets_its_values_back(connect, episode):
    library, store = connect()
    library.record(episode("open drawer"))
    store.put(ADA, "k", {"n": 1})
    before = (read(store), library.admin.query(compute_digest))
    library._file.store.connection.execute("UPDATE attempts SET n = n + 7")
    library._file.store.connection.execute("DELETE FROM langgraph_values")
    library._file.discard()
    assert library.admin.repair()
    assert (read(store), library.admin.query(compute_digest)) == before


def test_exports_leave_values_out(connect, episode, tmp_path):
    library, store = connect()
    library.record(episode("open drawer"))
    store.put(ADA, "k", {"text": "zebra"})
    assert library.admin.export_jsonl(tmp_path / "out.jsonl") == 1
    assert "zebra" not in (tmp_path / "out.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "deleted before"])
def test_a_forgotten_value_leaves_every_replica_and_the_log(connect, url, tmp_path, kept):
    """A value that was deleted from the store stays in the log until then."""
    (one, of_one), (two, of_two) = connect("a"), connect("b")
    of_one.put(ADA, "k", {"text": "the zebra password"})
    of_one.put(ADA, "other", {"text": "tea"})
    if not kept:
        of_one.delete(ADA, "k")
    settle(one, two)
    assert "zebra" in read_payloads(url)
    command = ["memory", "forget", url, "--text", "Zebra", "--yes", "--json"]
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = CliRunner().invoke(app, command, env=environment)
    assert done.exit_code == 0, done.output
    assert ("langgraph_values" in done.output, "log entries" in done.output) == (kept, True)
    assert len(settle(one, two)) == 1
    assert read(of_one) == read(of_two) == {(ADA, "other"): {"text": "tea"}}
    assert "zebra" not in read_payloads(url)
    assert CliRunner().invoke(app, command, env=environment).output.count("log entries") == 0
    for library in (one, two):
        library.close()
        assert b"zebra" not in Path(library.admin.replica).read_bytes()
    three, of_three = connect("c")
    four, _ = connect("a")
    assert len(settle(three, four)) == 1
    assert read(of_three) == {(ADA, "other"): {"text": "tea"}}


def test_forgetting_a_namespace_forgets_its_values(connect, url, episode):
    (one, of_one), (_, of_two) = connect("a", namespace="one"), connect("b", namespace="two")
    for store in (of_one, of_two):
        store.put(ADA, "k", {"text": "the zebra password"}, index=["text"])
    assert one.admin.forget(namespace="one").counts["langgraph_values"] == 1
    assert (read(of_one), len(read(of_two))) == ({}, 1)
    of_one.put(ADA, "k", {"n": 1})
    again, of_again = connect("c", namespace="one")
    assert len(settle(one, again)) == 1
    assert read(of_again) == {(ADA, "k"): {"n": 1}}
    assert read_payloads(url).count("zebra") == 1
    of_one.delete(ADA, "k")  # nothing is left to forget but the log
    assert one.admin.forget(namespace="one", dry_run=True).counts == {"log entries": 2}
    assert one.admin.forget(namespace="one").erased
    assert one.admin.forget(namespace="one", dry_run=True).counts == {}


def test_a_replica_that_was_away_meets_erased_values(connect, episode):
    """They are in the snapshot that replaces them."""
    one, of_one = connect("a")
    one.record(episode("open drawer", id="e1"))
    late, of_late = connect("late")
    late.admin.sync()
    of_late.close()
    late.close()
    of_one.put(ADA, "k", {"n": 1})
    one.admin.forget(episode="e1")
    assert snapshots.find(one._file.log) is not None
    of_one.put(ADA, "after", {"n": 2})
    late, of_late = connect("late")
    assert len(settle(one, late)) == 1
    assert read(of_late) == {(ADA, "k"): {"n": 1}, (ADA, "after"): {"n": 2}}
