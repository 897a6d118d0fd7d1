"""Faults of a shared library: a server that dies, processes that die or stop, a restored copy. Nothing is lost.

The parts that take longer than seconds are marked `slow`; `make test-fleet` runs them.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from tests import warm
from tests.memory.fleet.server import PrivateServer
from tests.memory.upkeep.digest import compute_digest

from hardwon.memory import ExperienceLibrary, State
from hardwon.memory.errors import LibraryUnreachable, LibraryUnwritable
from hardwon.memory.fleet import session
from hardwon.memory.fleet.library import FleetLibrary

DRAWER = State("You see a wooden drawer. It is closed.", task="find the spoon")


@pytest.fixture
def own_server(server) -> Iterator[PrivateServer]:
    """A server that the test may kill."""
    own = PrivateServer(server.binaries)
    try:
        own.create()
        own.start()
        yield own
    finally:
        own.remove()


def connect(url, folder) -> FleetLibrary:
    library = ExperienceLibrary.open(url, replica=folder)
    assert isinstance(library, FleetLibrary)
    return library


def kill_under_load(server, tmp_path, episode, kills):
    """Return the ids that were acknowledged and those that were tried while the server was killed again and again."""
    acknowledged, attempted, done = [], [], threading.Event()

    def write(who, library):
        number = 0
        while not done.is_set():
            ref = f"{who}-{number}"
            attempted.append(ref)
            while True:  # the same id again: what was written is not written twice
                try:
                    library.record(episode("open drawer", id=ref))
                    acknowledged.append(ref)
                    break
                except LibraryUnreachable:
                    if done.wait(0.02):
                        break
            number += 1

    # opened before the first kill: to open a new replica needs the server
    libraries = [connect(server.url(), tmp_path / "writer") for _ in range(3)]
    threads = [threading.Thread(target=write, args=each) for each in enumerate(libraries)]
    for thread in threads:
        thread.start()
    for _ in range(kills):
        time.sleep(0.4)
        server.kill()
        server.start()
    time.sleep(0.4)
    done.set()
    for thread in threads:
        thread.join()
    for library in libraries:
        library.close()
    return acknowledged, attempted


@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_a_killed_server_loses_nothing_and_writes_nothing_twice(own_server, tmp_path, episode, kills):
    acknowledged, attempted = kill_under_load(own_server, tmp_path, episode, kills)
    with connect(own_server.url(), tmp_path / "old") as library:
        stored = [row["id"] for row in library.episodes.find()]
        assert len(acknowledged) > 10 * kills
        assert set(acknowledged) <= set(stored) <= set(attempted)
        assert len(stored) == len(set(stored))
        with connect(own_server.url(), tmp_path / "new") as fresh:
            assert fresh.admin.query(compute_digest) == library.admin.query(compute_digest)
        with connect(own_server.url(), tmp_path / "writer") as writer:
            assert writer.admin.query(compute_digest) == library.admin.query(compute_digest)


@pytest.mark.parametrize("seconds", [1.2, pytest.param(30.0, marks=pytest.mark.slow)])
def test_reading_goes_on_while_the_server_is_down(own_server, tmp_path, episode, seconds):
    """A write fails at once and clearly; what was written before is there; the handle recovers by itself."""
    with connect(own_server.url(), tmp_path / "a") as library:
        library.record(episode("open drawer", id="e1"))
        assert library.recall(DRAWER).steps
        own_server.kill()
        began = time.monotonic()
        for call in (lambda: library.record(episode("close drawer", id="e2")), library.evolve):
            with pytest.raises(LibraryUnreachable, match="Start the server"):
                call()
        assert library.recall(DRAWER).steps
        assert library.episodes.get("e1")
        assert time.monotonic() - began < 5
        time.sleep(seconds)
        assert library.recall(DRAWER).steps
        assert library.admin.stats()["staleness_s"] > seconds - 0.2
        own_server.start()
        library.record(episode("close drawer", id="e2"))
        assert library.episodes.count() == 2
        library.admin.sync()
        assert library.admin.staleness_s < 1


FOLLOW = """
import sys, time
from hardwon.memory import ExperienceLibrary
from hardwon.memory.fleet import follower
follower.PAGE = 3
apply = follower.Replica.apply
def show(self, entries):
    print("applying", flush=True)
    return apply(self, entries)
follower.Replica.apply = show
ExperienceLibrary.open(sys.argv[1], replica=sys.argv[2])
time.sleep(60)
"""


@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_a_killed_follower_continues(url, tmp_path, episode, kills):
    """Killed while it applies, each time a little later."""
    with connect(url, tmp_path / "writer") as writer:
        writer.record_many([episode(f"open drawer {number}", id=f"e{number}") for number in range(600)])
        for attempt in range(kills):
            command = [sys.executable, "-c", FOLLOW, url, str(tmp_path / "copy")]
            with warm.Popen(command, stdout=subprocess.PIPE) as child:
                assert child.stdout is not None
                for _ in range(3 + attempt % 4):
                    assert child.stdout.readline() == b"applying\n"
                time.sleep(0.001 * (attempt % 5))
                child.kill()
        with connect(url, tmp_path / "copy") as copy, connect(url, tmp_path / "fresh") as fresh:
            assert (
                copy.admin.query(compute_digest)
                == fresh.admin.query(compute_digest)
                == writer.admin.query(compute_digest)
            )


LEAD = """
import os, signal, sys
from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.errors import LeaseLost
from hardwon.memory.fleet import log
log.LEASE_S = 1.0
with ExperienceLibrary.open(sys.argv[1], replica=sys.argv[2]) as library:
    try:
        with library._file.log.change() as term:
            library.admin.sync()
            os.kill(os.getpid(), signal.SIGSTOP)
            library._file.log.append("items", [("late", b"")], term=term)
    except LeaseLost as error:
        print("refused:", error, flush=True)
"""


def test_a_stopped_process_loses_the_lock_and_its_late_write(url, tmp_path, episode):
    """Stopped in the middle of a change of items, as by a debugger or a suspended laptop."""
    from hardwon.memory import Item

    child = warm.Popen([sys.executable, "-c", LEAD, url, str(tmp_path / "a")], stdout=subprocess.PIPE, text=True)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    with connect(url, tmp_path / "b") as library:
        began = time.monotonic()
        assert library.add(Item("insight", "wash the carrot first", "rinse it in cold water")).status == "added"
        assert time.monotonic() - began < 10
        child.send_signal(signal.SIGCONT)
        output, _ = child.communicate(timeout=60)
        assert output.startswith("refused:")
        library.admin.sync()
        assert len(library.items.find()) == 1


def test_dump_and_restore_into_a_fresh_server(own_server, server, tmp_path, episode):
    """Old and new replicas read old and new rows."""
    dump = own_server.folder / "dump"
    with connect(own_server.url(), tmp_path / "old") as library:
        library.record_many([episode(f"open drawer {number}", id=f"e{number}") for number in range(12)])
        library.evolve()
        before = library.admin.query(compute_digest)
    own_server.run("pg_dump", "-Fc", "-f", str(dump), own_server.url())
    own_server.remove_data()
    own_server.create()
    own_server.start()
    own_server.run("pg_restore", "-d", own_server.url(), str(dump))
    with connect(own_server.url(), tmp_path / "old") as old, connect(own_server.url(), tmp_path / "new") as new:
        assert old.admin.query(compute_digest) == new.admin.query(compute_digest) == before
        new.record_many([episode(f"close drawer {number}", id=f"f{number}") for number in range(12)])
        old.record(episode("kick drawer", id="g"))
        old.admin.sync()
        new.admin.sync()
        assert old.episodes.count() == new.episodes.count() == 25
        assert old.admin.query(compute_digest) == new.admin.query(compute_digest)


def test_a_slow_transaction_elsewhere_holds_up_nobody(url, server, tmp_path, episode):
    """Order by transaction ids would wait for any writing transaction of the server."""
    import psycopg

    with psycopg.connect(server.url()) as other, connect(url, tmp_path / "a") as library:
        other.execute("CREATE TABLE IF NOT EXISTS slow (a int)")
        library.record(episode("open drawer"))
        began = time.monotonic()
        assert library.episodes.count() == 1
        assert time.monotonic() - began < 2
        other.rollback()


@pytest.mark.slow
def test_eight_processes_through_two_replicas(url, tmp_path):
    """4,000 of 4,000 episodes on both, and the digests are equal."""
    from tests.memory.fleet.test_shared import CHILD

    count = 500
    children = [
        warm.Popen([sys.executable, "-c", CHILD, url, str(tmp_path / f"r{who % 2}"), str(who), str(count)])
        for who in range(8)
    ]
    assert [child.wait(1200) for child in children] == [0] * 8
    with connect(url, tmp_path / "r0") as one, connect(url, tmp_path / "r1") as two:
        assert one.episodes.count() == two.episodes.count() == 8 * count
        assert one.admin.query(compute_digest) == two.admin.query(compute_digest)


def test_a_server_that_hangs_holds_up_nobody_for_long(own_server, tmp_path, episode, monkeypatch):
    """Its machine answers, so no limit of the network applies."""
    monkeypatch.setattr(session, "ANSWER_S", 2.0)
    library = connect(f"{own_server.url()}&connect_timeout=2", tmp_path / "replica")
    library.record(episode("open drawer", id="before"))
    assert library.admin.sync() == 1
    own_server.send_all(signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(LibraryUnreachable, match="does not answer"):
            library.record(episode("close drawer", id="during"))
        assert time.monotonic() - began < 30
        assert library.recall(DRAWER).steps
    finally:
        own_server.send_all(signal.SIGCONT)
    library.record(episode("close drawer", id="during"))
    library.admin.sync()
    assert {row["id"] for row in library.episodes.find()} == {"before", "during"}
    library.close()


def test_the_disk_of_the_replica_is_full(url, tmp_path, episode):
    """The write is in the log, so it is acknowledged; the replica catches up when there is space."""
    with connect(url, tmp_path / "a") as library:
        run = library._file.follower._store.connection.execute
        (pages,) = run("PRAGMA page_count").fetchone()
        run(f"PRAGMA max_page_count = {pages}")  # SQLite then fails as on a full disk
        for number in range(20):
            library.record(episode(f"open drawer {number} " + "x" * 9000, id=f"e{number}"))
        with pytest.raises(LibraryUnwritable, match=r"library-k\d+\.db.* full.*[Ff]ree"):
            library.admin.sync()
        run(f"PRAGMA max_page_count = {100 * pages}")
        assert library.admin.sync() == 20
        assert library.episodes.count() == 20
        assert library.admin.verify() == []
