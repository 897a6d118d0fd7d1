"""An address of a shared library works wherever a path does, also while its server is down.

The tests of single commands are in `tests/apps/cli/test_shared_library.py`.
"""

import asyncio
import json
import os
import sys
import time
from dataclasses import replace

import httpx
import pytest
from tests import warm
from tests.memory.fleet.conftest import server, url
from tests.memory.fleet.test_trouble import own_server
from typer.testing import CliRunner

from hardwon.apps.cli.app import app
from hardwon.memory import ExperienceLibrary, Item
from hardwon.runtime.loop.tuning import TUNING

__all__ = ["own_server", "server", "url"]

HARDWON = [sys.executable, "-c", "from hardwon.apps.cli.app import main; main()"]
COIN = ("textworld", "--game", "coin", "--max-steps", "3", "--eval-seeds", "100")
TEST = ("--episodes", "0", "--arms", "empty,step", "--json")
PORT_S = 120.0


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A host: its caches and files, and the folder in which commands run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    yield tmp_path
    assert not [path for path in (tmp_path / "work").rglob("*") if "postgres" in str(path.relative_to(tmp_path))]


@pytest.fixture
def call(home):
    def call(*arguments, code=0):
        done = CliRunner().invoke(app, [str(each) for each in arguments])
        assert done.exit_code == code, (done.output, done.exception)
        return done

    return call


@pytest.fixture
def other(url, tmp_path):
    """The library on another host."""
    with ExperienceLibrary.open(url, replica=tmp_path / "other") as library:
        yield library


def fill(library, episode):
    library.record(episode("open drawer", id="e1"))
    return library.add(Item("insight", "wash the carrot first", "rinse the carrot in cold water")).item_id


def test_mcp(url, home, other, episode):
    from mcp import Client, StdioServerParameters

    fill(other, episode)
    server = StdioServerParameters(command=HARDWON[0], args=[*HARDWON[1:], "mcp", url], env=dict(os.environ))
    steps = [{"action": "peel(carrot)", "result": "done", "failed": False}]

    async def talk():
        async with Client(server) as client:
            recalled = await client.call_tool("recall", {"task": "wash the carrot"})
            recorded = await client.call_tool("record", {"task": "peel the carrot", "steps": steps, "success": True})
            return recalled, recorded

    recalled, recorded = asyncio.run(talk())
    assert "wash the carrot first" in (recalled.structured_content or {})["advice"]
    assert not recorded.is_error, recorded.content
    other.admin.sync()
    assert other.episodes.count() == 2


def test_a_test_without_learning(url, call, other, episode):
    fill(other, episode)
    result = json.loads(call("run", *COIN, *TEST, "--library", url).stdout)
    assert set(result["arms"]) == {"empty", "step"}
    other.admin.sync()
    assert other.episodes.count() == 1  # nothing is learned


def test_team(url, call, other):
    """The members share through the log: entries come to other hosts, and are dropped there at the end."""
    options = ("--teams", 2, "--call-s", 0.01, "--admission", "all", "--library", url, "--json")
    result = json.loads(call("team", "archive", *options).stdout)
    assert result["success"]
    assert result["shared"]
    other.admin.sync()
    assert other.admin.position > len(result["shared"])
    assert other._file.store.rows("SELECT * FROM bank_entries") == []


def test_middleware(url, home, other, monkeypatch):
    from langchain_core.messages import AIMessage
    from langchain_core.tools import ToolException, tool
    from tests.runtime.integrations.scripted import call as invoke, create_agent, model

    from hardwon.runtime import ExperienceMiddleware
    from hardwon.runtime.integrations.tool_run import SOURCE
    from hardwon.runtime.loop import holdout

    monkeypatch.setattr(holdout, "TUNING", replace(TUNING, withhold=0.0))

    @tool
    def book(table: int) -> str:
        """Book a table."""
        raise ToolException(f"table {table} is taken")

    book.handle_tool_error = True

    def play(library):
        chat = model(invoke("book", table=4), AIMessage("It is taken."))
        agent = create_agent(chat, [book], middleware=[ExperienceMiddleware(library)])
        agent.invoke({"messages": [("user", "Book a table.")]})
        return (chat.metadata or {})["seen"]

    with ExperienceLibrary.open(url) as library:
        play(library)
    other.admin.sync()
    assert other.episodes.count() == 1
    assert SOURCE in play(other)[0][0].text


def serve(address, home, *options):
    """Start `hardwon serve`; return the process and the address that it prints."""
    log = home / "serve.log"
    with log.open("w") as written:
        process = warm.Popen([*HARDWON, "serve", address, "--port", "0", *options], stderr=written)
    until = time.monotonic() + PORT_S
    while "http://" not in log.read_text() and time.monotonic() < until:
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    return process, "http://" + log.read_text().partition("http://")[2].split()[0].rstrip("/")


def fetch(address, path):
    with httpx.Client(base_url=address, timeout=60, transport=httpx.HTTPTransport(retries=20)) as client:
        answer = client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()


def test_serve_and_doctor_while_the_server_is_down(own_server, home, call, episode):
    """Every way to read works from the replica of this host; what writes says what to do."""
    address = own_server.url()
    with ExperienceLibrary.open(address) as library:
        item = fill(library, episode)
        assert library.episodes.count() == 1  # reading applies what was written
    own_server.kill()
    process, base = serve(address, home)
    try:
        assert fetch(base, "/v1/stats")["episodes"] == 1
        assert [each["id"] for each in fetch(base, "/v1/items")["items"]] == [item]
    finally:
        process.terminate()
        assert process.wait(30) == 0
    assert "not answer" in (home / "serve.log").read_text()
    assert json.loads(call("memory", "stats", address, "--json").stdout)["episodes"] == 1
    assert "wash the carrot" in call("memory", "ls", address).stdout
    assert json.loads(call("run", *COIN, *TEST, "--library", address).stdout)
    assert call("memory", "pin", address, item, code=1)
    report = json.loads(call("doctor", address, "--json", code=1).stdout)["library"]
    assert "Start the server" in report["problems"][0]["what"]


def list_calls(item, folder):
    """Return arguments of every command of `hardwon memory` that takes a library, after the address."""
    log = folder / "episodes.jsonl"
    return {
        "stats": [], "ls": [], "why": ["eat"], "show": [item], "search": ["carrot"], "guardrails": [], "clusters": [],
        "history": [item], "verify": [], "edit": [item, "--title", "wash carrots"], "pin": [item], "unpin": [item],
        "undo": [item], "evolve": [], "export": [str(log)], "import": [str(log)], "repair": [], "snapshot": [],
        "grade": ["e1", "--success"], "checkout": [str(folder / "items")], "commit": [str(folder / "items")],
        "retire": [item, "--why", "old"], "forget": ["--episode", "e1", "--yes"],
    }  # fmt: skip


def test_every_memory_command(url, call, home, other, episode):
    import typer

    calls = list_calls(fill(other, episode), home)
    commands = typer.main.get_command(app).commands["memory"].commands  # type: ignore[attr-defined]
    taking = {
        name
        for name, command in commands.items()
        if any(parameter.metavar == "LIBRARY" for parameter in command.params)
    }
    others = {"reembed", "grant", "release"}  # a file; a role; an item in quarantine
    assert taking - set(calls) - others == set()
    for name, arguments in calls.items():
        call("memory", name, url, *arguments)
    other.admin.sync()
    assert other.episodes.count() == 0


def test_the_store_of_langgraph(url, home, other):
    """Its values are on every host; a replica may be deleted."""
    from hardwon.runtime.integrations.langgraph_store import HardwonStore

    with ExperienceLibrary.open(url) as library, HardwonStore(library) as store:
        store.put(("users", "ada"), "drink", {"text": "green tea"})
    other.admin.sync()
    with HardwonStore(other) as store:
        assert [item.value for item in store.search(("users", "ada"))] == [{"text": "green tea"}]
