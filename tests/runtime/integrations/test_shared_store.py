"""The store of LangGraph in a shared library: every host has its values, in one order and by one clock."""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import GetOp, PutOp
from tests import warm
from tests.memory.fleet.conftest import server, url
from tests.memory.fleet.test_shared import settle
from tests.memory.fleet.test_trouble import own_server
from tests.memory.fleet.test_upkeep import read_payloads
from tests.runtime.integrations.test_langgraph_store import ServerClock, counted
from typer.testing import CliRunner

from hardwon.apps.cli.app import app
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import (
    ConfigError,
    LibraryError,
    LibraryForbidden,
    LibraryReadOnly,
    LibraryUnreachable,
    UnknownName,
)
from hardwon.memory.fleet import snapshots
from hardwon.memory.fleet.application import values as module
from hardwon.memory.fleet.log import Log, grant
from hardwon.runtime import HardwonStore

__all__ = ["own_server", "server", "url"]

ADA = ("users", "ada")


@pytest.fixture
def connect(url, tmp_path):
    """Open a library with its store, on a host of its own."""
    opened: list[Any] = []

    def make(folder="a", address=url, index=None, **options):
        library = ExperienceLibrary.open(address, replica=tmp_path / folder, **options)
        store = HardwonStore(library, index=index)
        opened.extend((library, store))
        return library, store

    yield make
    for each in reversed(opened):
        each.close()


def read(store):
    return {(item.namespace, item.key): item.value for item in store.search((), limit=1000)}


def count_entries(library):
    return library._log.read("SELECT count(*) FROM hardwon.log WHERE kind = 'store'")[0][0]


# ---- hosts


def test_every_host_has_the_values_of_all(connect):
    (one, of_one), (two, of_two), (three, of_three) = connect("a"), connect("b"), connect("c", namespace="other")
    of_one.batch([PutOp(ADA, "drink", {"text": "green tea"}), PutOp(ADA, "town", {"text": "Oslo"})])
    assert count_entries(one) == 1
    until = time.monotonic() + 20
    while not read(of_two) and time.monotonic() < until:  # without being asked, within the lag
        time.sleep(0.01)
    of_two.batch([PutOp(ADA, "town", None), PutOp(("users", "bob"), "drink", {"text": "milk"})])
    assert len(settle(one, two)) == 1
    assert read(of_one) == read(of_two)
    assert read(of_two) == {(ADA, "drink"): {"text": "green tea"}, (("users", "bob"), "drink"): {"text": "milk"}}
    three.sync()
    assert read(of_three) == {}
    assert one.verify() == two.verify() == []


def test_the_later_position_wins_on_every_host(connect):
    """Neither host knew of the put of the other one; the first one decided when the value was created."""
    (one, of_one), (two, of_two) = connect("a"), connect("b")
    of_one.put(ADA, "k", {"n": 0})
    of_one.put(ADA, "older", {"n": 0})
    settle(one, two)
    with one._follower._lock, two._follower._lock:  # holds their threads up
        of_two.put(ADA, "k", {"n": 1})
        of_one.put(ADA, "k", {"n": 2})
        of_two.delete(ADA, "older")
        of_one.put(ADA, "older", {"n": 3})
    assert len(settle(one, two)) == 1
    items = [[*of_one.search(ADA)], [*of_two.search(ADA)]]
    assert items[0] == items[1]
    assert [(item.key, item.value["n"]) for item in items[0]] == [("older", 3), ("k", 2)]
    older, k = items[0]
    assert (k.created_at < k.updated_at, older.created_at < older.updated_at) == (True, False)


def test_vectors_travel_and_no_other_host_computes_them(connect):
    texts = []

    def embed(given):
        texts.append(given)
        return counted(given)

    index = {"dims": 3, "embed": embed, "fields": ["text", "tags[*]"]}
    (one, of_one), (two, of_two) = connect("a", index=index), connect("b", index=index)
    of_one.put(ADA, "a", {"text": "aaab", "tags": ["c"]})
    of_one.put(ADA, "b", {"text": "b"})
    settle(one, two)
    texts.clear()
    assert [item.key for item in of_two.search(ADA, query="aaa")] == ["a", "b"]
    assert texts == [["aaa"]]
    scores = [[item.score for item in store.search(ADA, query="c")] for store in (of_one, of_two)]
    assert scores[0] == scores[1]


def test_threads_of_one_handle_read_their_own_writes(connect):
    _, store = connect()
    wrong = []

    def work(who):
        for n in range(25):
            store.put(ADA, who, {"n": n})
            if store.get(ADA, who).value != {"n": n}:
                wrong.append((who, n))

    threads = [threading.Thread(target=work, args=(who,)) for who in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_thousand_puts_are_a_thousand_values(connect):
    (one, of_one), (two, of_two) = connect("a"), connect("b")
    for n in range(500):
        of_one.put(ADA, str(n), {"n": n})
    of_one.batch([PutOp(ADA, str(n), {"n": n}) for n in range(500, 1000)])
    assert len(settle(one, two)) == 1
    assert read(of_two) == {(ADA, str(n)): {"n": n} for n in range(1000)}
    assert [item.key for item in of_two.search(ADA, limit=2)] == ["999", "998"]


# ---- writes that are refused


def test_what_no_replica_could_apply_is_not_appended(connect, monkeypatch):
    library, store = connect()
    with pytest.raises(ConfigError, match="lone surrogate"):
        store.put(ADA, "\ud83d", {"n": 1})
    with pytest.raises(TypeError):
        store.put(ADA, "k", {"n": 1}, ttl="5")
    monkeypatch.setattr(module, "LARGEST", 1000)
    with pytest.raises(ConfigError, match="Split the batch"):
        store.put(ADA, "k", {"text": "x" * 1000})
    assert count_entries(library) == 0
    store.put(ADA, "k", {"text": "x"})
    assert read(store) == {(ADA, "k"): {"text": "x"}}


def test_a_reader_writes_nothing(connect, monkeypatch):
    (writer, of_writer), (reader, of_reader) = connect("a"), connect("b", read_only=True)
    of_writer.put(ADA, "k", {"n": 1}, ttl=5)
    settle(writer, reader)
    monkeypatch.setattr(module, "STEP", 0.0)
    assert of_reader.get(ADA, "k").value == {"n": 1}
    for write in (lambda: of_reader.put(ADA, "k", {"n": 2}), lambda: of_reader.delete(ADA, "k"), of_reader.sweep_ttl):
        with pytest.raises(LibraryReadOnly):
            write()
    assert count_entries(writer) == 1


def test_a_store_without_its_library_says_so(connect):
    library, store = connect()
    store.put(ADA, "k", {"n": 1})
    library.close()
    for call in (lambda: store.put(ADA, "k", {"n": 2}), lambda: store.get(ADA, "k"), store.sweep_ttl):
        with pytest.raises(LibraryError, match=r"is closed\. Close the library after the store"):
            call()


def test_roles_keep_to_their_namespace(connect, server, url):
    import psycopg

    (_, of_a), (_, of_b) = connect("a", namespace="a"), connect("b", namespace="b")
    of_a.put(ADA, "k", {"text": "own"}, ttl=5)
    of_b.put(ADA, "k", {"text": "secret"})
    database, writes, reads = url.split("@/")[1].partition("?")[0], f"w_{os.getpid()}", f"r_{os.getpid()}"
    for name in (writes, reads):
        server.sql(f"CREATE ROLE {name} LOGIN")
        grant(url, name, "a", write=name == writes)
    tenant, store = connect("t", server.url(database, writes), namespace="a")
    assert read(store) == {(ADA, "k"): {"text": "own"}}
    store.put(ADA, "mine", {"n": 1})
    assert len(read(store)) == 2
    with pytest.raises(UnknownName):
        connect("u", server.url(database, writes), namespace="b")
    with psycopg.connect(server.url(database, writes), autocommit=True) as connection:
        seen = connection.execute("SELECT DISTINCT namespace FROM hardwon.log").fetchall()
        assert seen == [(tenant._log.number,)]
        insert = "INSERT INTO hardwon.log(namespace, kind, format, key, payload) VALUES (%s, 'store', 1, 'k', '')"
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(insert, (3 - tenant._log.number,))
    _, reading = connect("r", server.url(database, reads), namespace="a")
    assert reading.get(ADA, "k").value == {"text": "own"}  # it cannot put its end off, but it may read
    with pytest.raises(LibraryForbidden):
        reading.put(ADA, "k", {"n": 2})


# ---- faults


def test_reading_goes_on_while_the_server_is_down(connect, own_server, monkeypatch):
    monkeypatch.setattr(module, "STEP", 0.0)  # each read would put the end off
    library, store = connect("a", own_server.url())
    store.put(ADA, "k", {"n": 1}, ttl=5)
    store.get(ADA, "k")
    own_server.kill()
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
    library.sync()
    assert read(store) == read(connect("b", own_server.url())[1]) == {(ADA, "k"): {"n": 1}}
    store.put(ADA, "k", {"n": 3})
    assert read(store) == {(ADA, "k"): {"n": 3}}


def test_reading_does_not_wait_for_a_server_that_is_down(connect, own_server, monkeypatch):
    """To put the end of a value off is an attempt to connect, which takes seconds over a network."""
    monkeypatch.setattr(module, "STEP", 0.0)
    library, store = connect("a", own_server.url())
    store.put(ADA, "k", {"n": 1}, ttl=5)
    store.get(ADA, "k")
    own_server.kill()
    until = time.monotonic() + 20
    while library._log.fileno() is not None and time.monotonic() < until:  # its follower notices
        time.sleep(0.01)
    monkeypatch.setattr(library._log, "append", None)
    assert store.get(ADA, "k").value == {"n": 1}


def test_a_process_starts_while_the_server_is_down(connect, own_server):
    library, store = connect("a", own_server.url())
    store.put(ADA, "k", {"n": 1})
    library.sync()
    store.close()
    library.close()
    own_server.kill()
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
setattr(*{"before": (library._log, "append"), "after": (library, "_note_write"),
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
    assert one._store.rows("SELECT key FROM langgraph_values") == [("for ever",)]


def test_reading_often_is_one_entry_in_a_while(connect, url, monkeypatch):
    clock = ServerClock(url, monkeypatch)
    library, store = connect()
    store.put(ADA, "k", {"n": 1}, ttl=100)
    for _ in range(3):
        store.get(ADA, "k")
    assert count_entries(library) == 1
    clock.forward(6)
    library.sync()
    for _ in range(3):
        store.get(ADA, "k")
    assert count_entries(library) == 2


def test_a_late_read_does_not_touch_a_newer_value(connect, monkeypatch):
    """It names the value that was read: the one that replaced it meanwhile has an end of its own."""
    (one, of_one), (two, of_two) = connect("a"), connect("b")
    of_one.put(ADA, "k", {"n": 1}, ttl=100)
    settle(one, two)
    monkeypatch.setattr(module, "STEP", 0.0)
    with two._follower._lock:
        of_one.put(ADA, "k", {"n": 2}, ttl=1)
        before = one._store.rows("SELECT id, expires_at FROM langgraph_values") if read(of_one) else []
        of_two.get(ADA, "k")
    assert len(settle(one, two)) == 1
    assert count_entries(one) == 4
    assert one._store.rows("SELECT id, expires_at FROM langgraph_values")[0][0] == before[0][0]


# ---- copies, and forgetting


def test_a_new_replica_begins_from_a_snapshot(connect, monkeypatch):
    one, of_one = connect("a")
    for n in range(120):
        of_one.put(ADA, str(n % 50), {"n": n}, index=["n"])
    position = one.store_snapshot()
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


def test_a_damaged_replica_gets_its_values_back(connect, episode):
    library, store = connect()
    library.record(episode("open drawer"))
    store.put(ADA, "k", {"n": 1})
    before = (read(store), library.digest())
    library._store.connection.execute("UPDATE attempts SET n = n + 7")
    library._store.connection.execute("DELETE FROM langgraph_values")
    library._forget()
    assert library.repair()
    assert (read(store), library.digest()) == before


def test_exports_leave_values_out(connect, episode, tmp_path):
    library, store = connect()
    library.record(episode("open drawer"))
    store.put(ADA, "k", {"text": "zebra"})
    assert library.export_jsonl(tmp_path / "out.jsonl") == 1
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
        assert b"zebra" not in Path(library.replica).read_bytes()
    three, of_three = connect("c")
    four, _ = connect("a")
    assert len(settle(three, four)) == 1
    assert read(of_three) == {(ADA, "other"): {"text": "tea"}}


def test_forgetting_a_namespace_forgets_its_values(connect, url, episode):
    (one, of_one), (_, of_two) = connect("a", namespace="one"), connect("b", namespace="two")
    for store in (of_one, of_two):
        store.put(ADA, "k", {"text": "the zebra password"}, index=["text"])
    assert one.forget(namespace="one").counts["langgraph_values"] == 1
    assert (read(of_one), len(read(of_two))) == ({}, 1)
    of_one.put(ADA, "k", {"n": 1})
    again, of_again = connect("c", namespace="one")
    assert len(settle(one, again)) == 1
    assert read(of_again) == {(ADA, "k"): {"n": 1}}
    assert read_payloads(url).count("zebra") == 1


def test_a_replica_that_was_away_meets_erased_values(connect, episode):
    """They are in the snapshot that replaces them."""
    one, of_one = connect("a")
    one.record(episode("open drawer", id="e1"))
    late, of_late = connect("late")
    late.sync()
    of_late.close()
    late.close()
    of_one.put(ADA, "k", {"n": 1})
    one.forget(episode="e1")
    assert snapshots.find(one._log) is not None
    of_one.put(ADA, "after", {"n": 2})
    late, of_late = connect("late")
    assert len(settle(one, late)) == 1
    assert read(of_late) == {(ADA, "k"): {"n": 1}, (ADA, "after"): {"n": 2}}
