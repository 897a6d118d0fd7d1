"""A server that may lose what it acknowledged is reported, and a killed process loses no steps."""

import signal
import subprocess
import sys

import pytest
from tests import warm
from tests.memory.fleet.server import PrivateServer
from tests.memory.fleet.test_trouble import connect

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import LibraryUnreachable
from hardwon.memory.fleet import session


def test_settings_that_lose_entries_are_named_once(server, url, tmp_path, caplog):
    """The server of the tests has `fsync = off`; the other setting may belong to a role or a database."""
    server.sql(f"ALTER DATABASE {url.partition('?')[0].rpartition('/')[2]} SET synchronous_commit = off")
    for _ in range(2):
        with connect(url, tmp_path) as library:
            risks = session.list_risks(library._file.log.read)
    assert [risk.partition(" ")[0] for risk in risks] == ["fsync", "synchronous_commit"]
    for risk in risks:
        assert caplog.text.count(risk) == 1
    assert library.path in caplog.text


def test_a_server_that_keeps_everything_is_not_mentioned(server, tmp_path, caplog):
    own = PrivateServer(server.binaries)
    own.options = ()
    try:
        own.create()
        own.start()
        with connect(own.url(), tmp_path) as library:
            assert session.list_risks(library._file.log.read) == ()
    finally:
        own.remove()
    assert " is off" not in caplog.text


def test_a_server_that_goes_away_is_no_reason_not_to_open(url, tmp_path, monkeypatch):
    def fail(read):
        raise LibraryUnreachable("gone")

    monkeypatch.setattr(session, "list_risks", fail)
    with connect(url, tmp_path) as library:
        assert library.admin.position == 0


PROGRAM = """
import sys, threading, time
sys.path.insert(0, {root!r})
from tests.conftest import Rooms, Script
from hardwon.memory import ExperienceLibrary
from hardwon.runtime import Agent, FunctionEpisode, remember

library = ExperienceLibrary.open({url!r}, replica={replica!r})

def hang():
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):  # it writes the steps
            thread.join()
    print("ready", flush=True)
    time.sleep(100)

@remember
def wait():
    "Wait."

def use_functions():
    with FunctionEpisode(library, "go to the golden room"):
        wait()
        wait()
        hang()

def use_agent():
    Agent(Script("wait"), library, Rooms(faults={{3: hang}})).run()

{run}()
"""


@pytest.mark.parametrize("run", ["use_functions", "use_agent"])
def test_a_killed_process_leaves_its_steps_to_the_next_on_its_host(url, tmp_path, run):
    replica = tmp_path / "replica"
    code = PROGRAM.format(url=url, replica=str(replica), root=str(warm.ROOT), run=run)
    with warm.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    assert len(list(replica.glob("*.runs/*.jsonl"))) == 1
    ExperienceLibrary.open(url, replica=replica).close()
    with ExperienceLibrary.open(url, replica=tmp_path / "other") as library:  # it is in the database
        (row,) = library.episodes.find()
    assert (row["success"], row["ending"], row["n_steps"]) == (None, "abandoned", 2)
    assert not list(replica.glob("*.runs"))
