"""Commands take the address of a shared library where they take a file."""

import json
import os

import pytest
from tests.memory.fleet.conftest import server, url
from typer.testing import CliRunner

from hardwon.apps.cli.app import app
from hardwon.memory import ExperienceLibrary, Item

__all__ = ["server", "url"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, list(arguments))
        assert done.exit_code == code, (done.output, done.exception)
        return done.output

    return call


@pytest.fixture
def shared(url, run, episode):
    with ExperienceLibrary.open(url) as library:
        library.record(episode("open drawer", id="e1"))
        item = library.add(Item("insight", "wash the carrot first", "rinse the carrot in cold water")).item_id
    return url, item


def test_memory_commands(shared, run):
    url, item = shared
    assert json.loads(run("memory", "stats", url, "--json"))["episodes"] == 1
    assert "wash the carrot" in run("memory", "ls", url)
    run("memory", "pin", url, item)
    assert json.loads(run("memory", "history", url, item, "--json"))
    run("memory", "retire", url, item, "--why", "not needed")
    assert "sound" in run("memory", "verify", url)
    with ExperienceLibrary.open(url) as library:
        assert (library.get(item).status, library.get(item).pinned) == ("retired", True)


def test_doctor_shows_the_log_and_the_replica(shared, run):
    url, _ = shared
    report = json.loads(run("doctor", url, "--json"))["library"]
    log = report["logs"]["default"]
    assert report["sound"]
    assert (log["head"], log["position"], log["waiting"], log["leader"]) == (2, 2, 0, "")
    assert log["replica"].startswith(os.environ["XDG_CACHE_HOME"])
    text = run("doctor", url)
    assert "2 entries" in text
    assert "0 behind" in text


def test_a_server_that_is_down_is_a_problem_with_a_next_step(run, tmp_path):
    report = json.loads(run("doctor", f"postgresql://u:hunter2@/db?host={tmp_path}", "--json", code=1))["library"]
    assert "Start the server" in report["problems"][0]["what"]
    assert "hunter2" not in json.dumps(report)


def test_a_command_that_needs_a_file_says_so(shared, run, tmp_path):
    url, _ = shared
    source = tmp_path / "x.jsonl"
    run("memory", "export", url, str(source))
    for arguments in (("memory", "reembed", url), ("memory", "import", url, str(source))):
        done = CliRunner().invoke(app, list(arguments))
        assert done.exit_code
        assert "library file" in done.output
