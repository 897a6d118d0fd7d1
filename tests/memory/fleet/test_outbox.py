"""Episodes that are recorded while the server cannot be reached arrive later, each once."""

import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from tests import warm
from tests.memory.fleet.test_trouble import own_server
from tests.memory.upkeep.digest import compute_digest

from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.errors import ConfigError, KeyTaken, LibraryUnreachable
from hardwon.memory.fleet.library import FleetLibrary
from hardwon.memory.fleet.outbox import Outbox

__all__ = ["own_server"]


def connect(url, folder, **options) -> FleetLibrary:
    library = ExperienceLibrary.open(url, replica=folder, **options)
    assert isinstance(library, FleetLibrary)
    return library


def wait_until_sent(library: FleetLibrary) -> None:
    until = time.monotonic() + 30
    while library.admin.stats()["outbox"] and time.monotonic() < until:
        time.sleep(0.05)
    assert library.admin.stats()["outbox"] == 0


def test_episodes_wait_for_the_server_and_arrive_in_order(own_server, tmp_path, episode):
    with connect(own_server.url(), tmp_path / "a", outbox=True) as library:
        library.record(episode("open drawer", id="e0"))
        own_server.kill()
        began = time.monotonic()
        for number in range(1, 30):
            assert library.record(episode(f"open drawer {number}", id=f"e{number}")) == f"e{number}"
        library.record(episode("open drawer 3", id="e3"))  # a caller that repeats it
        ref = library.record(episode("close drawer"))
        assert time.monotonic() - began < 10
        assert library.admin.stats()["outbox"] == 30
        with pytest.raises(KeyTaken, match="'e3'"):
            library.record(episode("kick drawer", id="e3"))
        with pytest.raises(LibraryUnreachable):  # computed at the end of the log, which nobody knows now
            library.add(Item("insight", "wash the carrot first", "rinse it in cold water"))
        own_server.start()
        wait_until_sent(library)
        library.admin.sync()
        assert [row["id"] for row in library.episodes.find()][::-1] == [f"e{n}" for n in range(30)] + [ref]
        library.record(episode("open drawer", id="after"))
        assert library.episodes.get("after")
        with connect(own_server.url(), tmp_path / "b") as other:
            assert other.admin.query(compute_digest) == library.admin.query(compute_digest)


WRITE = """
import os, signal, sys
from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.fleet.outbox import Outbox
url, replica, where = sys.argv[1:]
library = ExperienceLibrary.open(url, replica=replica, outbox=True)
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if where == "before sending":
    Outbox.send = lambda self, log: None
elif where == "after the commit":
    Outbox._remove = die
library._file.outbox.put([])
append = library._file.log.append
def refuse(*_, **__):
    from hardwon.memory.errors import LibraryUnreachable
    raise LibraryUnreachable("the network stopped")
library._file.log.append = refuse
for number in range(5):
    pre, post = State(f"room {number}", task="t"), State("hall", task="t")
    library.record(Trajectory("t", (Step(pre, "go", post, Diagnosis(True), 1.0),), True, id=f"e{number}"))
    print("recorded", flush=True)
library._file.log.append = append
library._file.follower.wake()
if where == "before sending":
    die()
import time; time.sleep(30)
"""


@pytest.mark.parametrize("where", ["before sending", "after the commit"])
def test_a_killed_process_leaves_its_episodes_to_the_next(url, tmp_path, where):
    """After the commit, the episodes are in the log and in the outbox; they are not written twice."""
    command = [sys.executable, "-c", WRITE, url, str(tmp_path / "a"), where]
    with warm.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.read().count(b"recorded") == 5
        assert child.wait(60) == -signal.SIGKILL
    assert Outbox(tmp_path / "a").count() == 5
    with connect(url, tmp_path / "a") as library:  # without the option: what waits is sent anyway
        until = time.monotonic() + 20
        while Outbox(tmp_path / "a").count() and time.monotonic() < until:
            time.sleep(0.05)
        assert Outbox(tmp_path / "a").count() == 0
        assert library.admin.sync() == 5
        assert library.episodes.count() == 5


class Network:
    """A connection to the server that can be cut after a statement was sent, before its answer arrives."""

    def __init__(self, folder, server):
        self.folder, self._target = folder, str(server.folder / ".s.PGSQL.5432")
        folder.mkdir()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / ".s.PGSQL.5432"))
        self._listening.listen()
        self.cut_after: bytes | None = None
        self.cuts = 0
        self._ends = [self._listening]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
            self._ends += [client, server]
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
            threading.Thread(target=self._copy, args=(server, client), daemon=True).start()

    def _forward(self, client, server):
        while data := self._receive(client):
            try:
                server.sendall(data)
            except OSError:
                return
            if self.cut_after is not None and self.cut_after in data:
                self.cut_after, self.cuts = None, self.cuts + 1
                client.shutdown(socket.SHUT_RDWR)  # the server goes on and commits; the client never hears of it
                time.sleep(0.2)
                return
        server.close()

    def _copy(self, server, client):
        while data := self._receive(server):
            try:
                client.sendall(data)
            except OSError:
                return
        client.close()

    @staticmethod
    def _receive(end):
        try:
            return end.recv(65536)
        except OSError:
            return b""

    def close(self):
        for end in self._ends:
            end.close()

    def url(self, url):
        return url.split("?")[0] + f"?host={self.folder}"


@pytest.mark.parametrize("outbox", [True, False])
def test_a_network_that_stops_in_the_middle_of_a_commit(server, url, tmp_path, episode, outbox):
    """The server has committed, and the client does not know."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory(prefix="hw-", dir="/tmp") as short:
        network = Network(Path(short) / "n", server)
        with connect(network.url(url), tmp_path / "a", outbox=outbox) as library:
            errors = []
            for number in range(6):
                network.cut_after = b"INSERT INTO hardwon.log"
                try:
                    library.record(episode(f"open drawer {number}", id=f"e{number}"))
                except LibraryUnreachable as error:
                    errors.append(str(error))
                    library.record(episode(f"open drawer {number}", id=f"e{number}"))
            assert network.cuts >= 1
            assert bool(errors) != outbox
            assert all(re.search(r"does not answer \(.*Start the server, then try again", text) for text in errors)
            network.cut_after = None
            if outbox:
                wait_until_sent(library)
            # a change of items asks whether it was committed
            network.cut_after = b"INSERT INTO hardwon.log"
            try:
                library.add(Item("insight", "wash the carrot first", "rinse it in cold water"))
            except LibraryUnreachable:  # cut before the commit: nothing was written
                library.add(Item("insight", "wash the carrot first", "rinse it in cold water"))
            library.admin.sync()
            assert (library.episodes.count(), len(library.items.find())) == (6, 1)
            assert library.admin.position == 7
        network.close()
        with connect(url, tmp_path / "b") as other:
            assert (other.episodes.count(), other.admin.position) == (6, 7)


def test_an_id_that_is_taken_does_not_hold_up_the_others(own_server, tmp_path, episode, caplog):
    with connect(own_server.url(), tmp_path / "a", outbox=True) as library:
        library.record(episode("open drawer", id="e1"))
        own_server.kill()
        library.record_many([episode("close drawer", id="x1"), episode("kick drawer", id="e1")])
        library.record(episode("close drawer", id="x2"))
        own_server.start()
        wait_until_sent(library)
        library.admin.sync()
        assert {row["id"] for row in library.episodes.find()} == {"e1", "x1", "x2"}
        (problem,) = library.admin.verify()
        assert problem.where == "outbox e1"
        assert "other content" in problem.what
    assert "stays in" in caplog.text


def test_an_outbox_is_private_and_needs_a_database(url, tmp_path):
    with connect(url, tmp_path / "a", outbox=True) as library:
        assert library._file.outbox is not None
        assert library._file.outbox.path.stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError, match="Only a database"):
        ExperienceLibrary.open(tmp_path / "file.db", outbox=True)
