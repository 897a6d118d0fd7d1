"""Failover to a standby that replicates synchronously: nothing acknowledged is lost."""

import threading
import time

import pytest
from tests.memory.fleet.server import OWNER, PrivateServer
from tests.memory.upkeep.digest import compute_digest

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import LibraryError, LibraryReadOnly


class Pair:
    """A primary and its standby, each on a Unix socket."""

    def __init__(self, binaries):
        self.primary, self.standby = PrivateServer(binaries), PrivateServer(binaries)

    def start(self):
        self.primary.create()
        self.primary.options = ("-c", "fsync=off", "-c", "synchronous_standby_names=*", "-c", "wal_level=replica")
        (self.primary.data / "pg_hba.conf").write_text("local all all trust\nlocal replication all trust\n")
        # Without the standby a commit would wait: names come with the first backup.
        self.primary.options += ("-c", "synchronous_commit=local")
        self.primary.start()
        self.standby.run(
            "pg_basebackup", "-h", str(self.primary.folder), "-U", OWNER, "-D", str(self.standby.data), "-R",
            "-X", "stream", "-c", "fast", "--no-sync",
        )  # fmt: skip
        self.standby.start()
        until = time.monotonic() + 30
        while not self.primary.sql("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"):
            assert time.monotonic() < until
            time.sleep(0.1)
        self.primary.sql("ALTER SYSTEM SET synchronous_commit = 'on'")
        self.primary.stop()
        self.primary.options = self.primary.options[:-2]
        self.primary.start()

    def promote(self):
        self.standby.run("pg_ctl", "promote", "-D", str(self.standby.data), "-w")

    def url(self):
        hosts = f"{self.primary.folder},{self.standby.folder}"
        return f"postgresql://{OWNER}@/postgres?host={hosts}&target_session_attrs=read-write"

    def remove(self):
        for server in (self.standby, self.primary):
            server.remove()


@pytest.fixture
def pair(server):
    pair = Pair(server.binaries)
    try:
        pair.start()
        yield pair
    finally:
        pair.remove()


@pytest.mark.slow
def test_a_standby_takes_over_and_nothing_is_lost(pair, tmp_path, episode):
    acknowledged, stopping = [], threading.Event()

    def write(who):
        with ExperienceLibrary.open(pair.url(), replica=tmp_path / "a") as library:
            number = 0
            while not stopping.is_set():
                try:
                    acknowledged.append(library.record(episode("open drawer", id=f"{who}-{number}")))
                    number += 1
                except LibraryError:  # the same id again
                    time.sleep(0.05)

    ExperienceLibrary.open(pair.url(), replica=tmp_path / "a").close()
    threads = [threading.Thread(target=write, args=(who,)) for who in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    pair.primary.kill()
    before = len(acknowledged)
    pair.promote()
    until = time.monotonic() + 60
    while len(acknowledged) < before + 20 and time.monotonic() < until:
        time.sleep(0.1)
    stopping.set()
    for thread in threads:
        thread.join()
    assert len(acknowledged) >= before + 20 > 20
    with ExperienceLibrary.open(pair.url(), replica=tmp_path / "a") as library:
        stored = [row["id"] for row in library.episodes.find()]
        assert set(acknowledged) <= set(stored)
        assert len(stored) == len(set(stored))
        with ExperienceLibrary.open(pair.url(), replica=tmp_path / "new") as fresh:
            assert fresh.admin.query(compute_digest) == library.admin.query(compute_digest)


@pytest.mark.slow
def test_a_standby_alone_is_not_written_to(pair, tmp_path, episode):
    with ExperienceLibrary.open(pair.url(), replica=tmp_path / "a") as library:
        library.record(episode("open drawer", id="e1"))
    with pytest.raises(LibraryReadOnly, match="target_session_attrs=read-write"):
        ExperienceLibrary.open(pair.standby.url(), replica=tmp_path / "b")
