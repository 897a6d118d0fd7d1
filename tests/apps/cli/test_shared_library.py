"""Commands take the address of a shared library where they take a file."""

import json
import os
import subprocess
import sys

import pytest
from tests import warm
from tests.memory.fleet.conftest import server, url
from tests.memory.upkeep.digest import compute_digest
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
        assert (library.items.get(item).status, library.items.get(item).pinned) == ("retired", True)


def test_doctor_shows_the_log_and_the_replica(shared, run):
    url, _ = shared
    report = json.loads(run("doctor", url, "--json"))["library"]
    log = report["logs"]["default"]
    assert report["sound"]
    assert (log["head"], log["position"], log["waiting"], log["leader"]) == (2, 2, 0, "")
    assert log["replica"].startswith(os.environ["XDG_CACHE_HOME"])
    assert "2 entries" in run("doctor", url)
    assert [risk.partition(" ")[0] for risk in log["risks"]] == ["fsync"]
    assert "fsync is off: a power failure may damage" in " ".join(run("doctor", url).split())


def test_doctor_shows_how_far_the_replica_was_behind(shared, run, tmp_path, episode):
    url, _ = shared
    run("doctor", url)
    with ExperienceLibrary.open(url, replica=tmp_path / "another host") as library:
        library.record_many([episode("open drawer", id=f"new{n}") for n in range(3)])
    (before,), (after,) = (
        json.loads(run("doctor", url, "--json"))["library"]["logs"].values() for _ in range(2)
    )  # fmt: skip
    assert (before["behind"], before["position"]) == (3, 5)
    assert 0 < before["lag_s"] < 600
    assert (after["behind"], after["lag_s"]) == (0, 0)
    assert "it was up to date" in " ".join(run("doctor", url).split())


def test_a_server_that_is_down_is_a_problem_with_a_next_step(run, tmp_path):
    report = json.loads(run("doctor", f"postgresql://u:hunter2@/db?host={tmp_path}", "--json", code=1))["library"]
    assert "Start the server" in report["problems"][0]["what"]
    assert "hunter2" not in json.dumps(report)


def test_a_command_that_needs_a_file_says_so(shared, run):
    url, _ = shared
    done = CliRunner().invoke(app, ["memory", "reembed", url])
    assert done.exit_code
    assert "library file" in done.output


def test_a_command_that_needs_a_shared_library_says_so(run, tmp_path):
    file = tmp_path / "library.db"
    ExperienceLibrary.open(file).close()
    for arguments in (("grant", str(file), "anna"), ("snapshot", str(file))):
        assert "needs a shared library" in run("memory", *arguments, code=2)


def test_experience_is_imported_and_forgotten(shared, run, tmp_path):
    url, _ = shared
    source = tmp_path / "x.jsonl"
    run("memory", "export", url, str(source))
    assert json.loads(run("memory", "import", url, str(source), "--dry-run", "--json"))["new"] == 0
    assert json.loads(run("memory", "import", url, str(source), "-n", "copy", "--dry-run", "--json"))["new"] == 1
    assert json.loads(run("memory", "import", url, str(source), "-n", "copy", "--json"))["lines"] >= 3
    assert json.loads(run("memory", "forget", url, "--episode", "e1", "--dry-run", "--json"))["counts"]["episodes"] == 1
    receipt = json.loads(run("memory", "forget", url, "--episode", "e1", "--yes", "--json"))
    assert receipt["erased"]
    assert receipt["episodes"] == ["e1"]
    assert json.loads(run("memory", "stats", url, "--json"))["episodes"] == 0
    assert json.loads(run("memory", "stats", url, "-n", "copy", "--json"))["episodes"] == 1
    assert "Other hosts" in run("memory", "forget", url, "--namespace", "copy", "--yes")
    assert json.loads(run("memory", "stats", url, "-n", "copy", "--json"))["episodes"] == 0


def test_a_log_of_another_program_is_imported(shared, run, tmp_path):
    url, _ = shared
    log = tmp_path / "log.jsonl"
    calls = [{"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}]
    messages = [
        {"role": "user", "content": "list the files"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
        {"role": "assistant", "content": "a.txt"},
    ]
    log.write_text(json.dumps({"messages": messages}) + "\n")
    assert json.loads(run("memory", "import", url, str(log), "--json"))["new"] == 1
    assert json.loads(run("memory", "import", url, str(log), "--json"))["new"] == 0


def test_repair_snapshot_and_grant(shared, run, server):
    url, _ = shared
    assert "No problems" in run("memory", "repair", url)
    assert json.loads(run("memory", "snapshot", url, "--json"))["position"] == 2
    role = f"anna_{os.getpid()}"
    server.sql(f"CREATE ROLE {role} LOGIN")
    assert json.loads(run("memory", "grant", url, role, "--manage", "--json"))["rights"] == ["read", "write", "manage"]
    hers = server.url(url.split("/")[3].split("?")[0], role)
    assert json.loads(run("memory", "stats", hers, "--json"))["episodes"] == 1
    assert "unknown role" in run("memory", "grant", url, "nobody_here", code=2)


def test_an_agent_learns_into_a_shared_library(url, run, tmp_path):
    """Two runs, as on two hosts, learn into one library; each plays all its episodes."""
    for name in ("one", "two"):
        options = (
            "--episodes",
            "3",
            "--eval-seeds",
            "100-101",
            "--seed",
            "0",
            "--arms",
            "step",
            "--max-steps",
            "5",
            "--json",
        )
        run("run", "textworld", "--game", "coin", "--library", url, "--out", str(tmp_path / name), *options)
        result = json.loads((tmp_path / name / "result.json").read_text())
        assert result["library"].startswith("postgresql://")
    assert json.loads(run("memory", "stats", url, "--json"))["episodes"] == 6
    rows = [json.loads(line) for line in (tmp_path / "two" / "episodes.jsonl").read_text().splitlines()]
    assert sum(row["phase"] == "learn" for row in rows) == 3


SCRIPT = """
import sys
from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from hardwon.memory import ExperienceLibrary
from hardwon.runtime import ExperienceMiddleware

class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools, **settings):
        return self

def refund(order: str) -> str:
    'Refund an order.'
    return f"{order} was refunded"

with ExperienceLibrary.open(sys.argv[1]) as library:
    for number in range(5):
        order = f"{sys.argv[2]}-{number}"
        call = AIMessage("", tool_calls=[{"name": "refund", "args": {"order": order}, "id": "1"}])
        model = Scripted(messages=iter([call, AIMessage("Done.")]))
        agent = create_agent(model, [refund], middleware=[ExperienceMiddleware(library)])
        agent.invoke({"messages": [("user", f"Refund order {order}.")]})
"""


@pytest.mark.slow
def test_one_script_learns_into_a_file_and_from_two_hosts_into_a_shared_library(url, tmp_path, monkeypatch):
    """Only the address differs. Each process has a replica of its own; both end with the same digest."""

    def start(address: str, host: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / host)}
        return warm.Popen([sys.executable, "-c", SCRIPT, address, host], env=environment)

    children = [start(str(tmp_path / "alone.db"), "alone"), start(url, "one"), start(url, "two")]
    assert [child.wait(240) for child in children] == [0] * 3
    digests = []
    for host in ("one", "two"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / host))
        assert list((tmp_path / host / "hardwon").glob("*-default/library-*.db"))
        with ExperienceLibrary.open(url) as library:
            assert library.episodes.count() == 10
            digests.append(library.admin.query(compute_digest))
    assert digests[0] == digests[1]
    with ExperienceLibrary.open(tmp_path / "alone.db") as library:
        assert library.episodes.count() == 5


def test_a_shared_library_is_served(url, tmp_path, monkeypatch, episode):
    from fastapi.testclient import TestClient

    from hardwon.apps.http.access.auth import Tokens
    from hardwon.apps.http.app import create_app

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with ExperienceLibrary.open(url, replica=tmp_path / "other") as library:
        library.record(episode("open drawer", id="e1"))
    with TestClient(create_app(url, trust="trusted"), base_url="http://127.0.0.1") as client:
        assert client.get("/healthz").json()["status"] == "ok"
        stats = client.get("/v1/stats").json()
        assert stats["episodes"] == 1
        assert b"hardwon_library_bytes" in client.get("/metrics").content
    secret = Tokens.of(url).add("ci", write=True)
    with TestClient(create_app(url), base_url="http://127.0.0.1") as client:
        path = "/v1/stats"
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"Authorization": f"Bearer {secret}"}).status_code == 200
    assert not list((tmp_path / "cache").rglob("*tokens*"))
