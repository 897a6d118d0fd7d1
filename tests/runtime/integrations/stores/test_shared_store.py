"""The store of LangGraph in a shared library: every host has its values, in one order and by one clock."""

import os
import threading
import time
from typing import Any

import pytest
from langgraph.store.base import PutOp
from tests.memory.fleet.conftest import server, url
from tests.memory.fleet.test_shared import settle
from tests.runtime.integrations.stores.test_langgraph_store import counted

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import (
    ConfigError,
    LibraryError,
    LibraryForbidden,
    LibraryReadOnly,
    UnknownName,
)
from hardwon.memory.fleet.application import values as module
from hardwon.memory.fleet.application.batches import pack_batch
from hardwon.memory.fleet.log import grant
from hardwon.memory.stored_values import ValueBatch, ValueWrite
from hardwon.runtime import HardwonStore

__all__ = ["server", "url"]

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
    return library._file.log.read("SELECT count(*) FROM hardwon.log WHERE kind = 'store'")[0][0]


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
    three.admin.sync()
    assert read(of_three) == {}
    assert one.admin.verify() == two.admin.verify() == []


def test_the_later_position_wins_on_every_host(connect):
    """Neither host knew of the put of the other one; the first one decided when the value was created."""
    (one, of_one), (two, of_two) = connect("a"), connect("b")
    of_one.put(ADA, "k", {"n": 0})
    of_one.put(ADA, "older", {"n": 0})
    settle(one, two)
    with one._file.follower._lock, two._file.follower._lock:  # holds their threads up
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


def test_reading_waits_for_another_thread_that_changes_items(connect):
    """Nothing is applied within its transaction, and the write that came before must be read."""
    library, store = connect()
    store.put(ADA, "k", {"n": 1})
    assert read(store) == {(ADA, "k"): {"n": 1}}
    begun, done = threading.Event(), threading.Event()

    def change():
        with library._file.lock, library._file.store.transaction():
            begun.set()
            done.wait(20)

    thread = threading.Thread(target=change)
    thread.start()
    assert begun.wait(20)
    store.put(ADA, "k", {"n": 2})
    threading.Timer(0.3, done.set).start()
    assert read(store) == {(ADA, "k"): {"n": 2}}
    thread.join()


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


def test_a_damaged_vector_is_computed_again(connect):
    library, store = connect(index={"fields": ["text"]})
    store.put(ADA, "good", {"text": "green tea"})
    write = ValueWrite("users.ada.", "bad", '{"text": "a bus to Rome"}', '["text"]', None, {"text": bytes(3)})
    library._file.append_once("store", pack_batch(ValueBatch([write], (), library.admin.embedder.fingerprint)))
    library.admin.sync()
    found = store.search(ADA, query="a bus to Rome")
    assert [(item.key, item.score) for item in found] == [
        ("bad", pytest.approx(1.0, abs=1e-5)),
        ("good", pytest.approx(0.0, abs=1e-5)),
    ]


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


def test_roles_keep_to_their_namespace(connect, server, url, monkeypatch):
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
        assert seen == [(tenant._file.log.number,)]
        insert = "INSERT INTO hardwon.log(namespace, kind, format, key, payload) VALUES (%s, 'store', 1, 'k', '')"
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(insert, (3 - tenant._file.log.number,))
    monkeypatch.setattr(module, "STEP", 0.0)
    _, reading = connect("r", server.url(database, reads), namespace="a")
    assert reading.get(ADA, "k").value == {"text": "own"}  # it cannot put its end off, but it may read
    with pytest.raises(LibraryForbidden):
        reading.put(ADA, "k", {"n": 2})
