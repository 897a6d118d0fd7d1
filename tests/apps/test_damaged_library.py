"""A library whose file is cut, emptied or overwritten, before or while it is used, is named in every door."""

import asyncio
import json
import os
import re
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from langchain_core.messages import HumanMessage
from mcp import Client
from tests import warm
from tests.apps.proxy.conftest import Upstream, serving
from tests.apps.test_locked_library import PROMPT, filled, look
from tests.runtime.integrations.scripted import create_agent, model
from typer.testing import CliRunner

from hardwon.apps import mcp_server
from hardwon.apps.cli.app import app
from hardwon.apps.proxy.app import create_proxy
from hardwon.apps.proxy.library_access import LibraryAccess
from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.memory.errors import NotALibrary
from hardwon.runtime import ExperienceMiddleware, FunctionEpisode

__all__ = ["filled"]
NEXT = "Restore a copy|restore a copy|delete the file"


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)
    os.utime(path, (0, 0))  # nobody is making it now


def overwrite(path: Path, beginning: bytes) -> None:
    with path.open("r+b") as file:
        file.write(beginning)


DAMAGE = {
    "cut": lambda path: cut(path, path.stat().st_size // 2),
    "cut to a byte": lambda path: cut(path, 1),
    "emptied": lambda path: cut(path, 0),
    "of zeros": lambda path: overwrite(path, bytes(path.stat().st_size)),
    "without a first page": lambda path: overwrite(path, bytes(4096)),
    "without a schema": lambda path: overwrite(path, path.read_bytes()[:100] + b"\xff" * 3996),
}
WHILE_OPEN = {
    **DAMAGE,
    "of another library": lambda path: write_other(path, path.stat().st_size),
    "of a longer library": lambda path: write_other(path, 0),
}


def write_other(path: Path, size: int) -> None:
    """Write another library into the file, as `cp` does."""
    with ExperienceLibrary.open(path.with_name("other.db")) as library:
        library.record_many([Trajectory(f"task {number}", (), True) for number in range(400)])
    other = path.with_name("other.db").read_bytes()
    overwrite(path, other[: size or None].ljust(size, b"\0"))


COMMANDS = (
    *(
        "stats",
        "ls",
        "verify",
        "search ? kettle",
        "show ? step:1",
        "why ? kettle",
        "clusters",
        "guardrails",
        "history ? i",
    ),
    *(
        "evolve",
        "repair",
        "reembed",
        "grade ? e --score 1",
        "checkout ? {}/folder",
        "import ? {}/in.jsonl",
        "retire ? i --why x",
    ),
    *("forget ? --text kettle --yes", "export ? {}/out.jsonl"),
)


@pytest.fixture
def whole(filled):
    """A library whose experience is in the file and not in its log."""
    with ExperienceLibrary.open(filled) as library:
        library.recall("kettle")
        library._file.store.shrink(rewrite=False)
    return filled


@pytest.mark.parametrize("kind", DAMAGE)
def test_every_command_names_the_file_and_the_next_step(whole, tmp_path, kind):
    with ExperienceLibrary.open(whole) as library:
        library.admin.export_jsonl(tmp_path / "in.jsonl")
    DAMAGE[kind](whole)
    content = whole.read_bytes()
    for command in COMMANDS:
        verb, *rest = command.format(tmp_path).split()
        result = CliRunner().invoke(app, ["memory", verb, str(whole), *rest[1:]])
        assert (result.exit_code, type(result.exception)) == (1, SystemExit), command
        words = " ".join(result.stderr.split())
        assert re.search(f"{NEXT}|is damaged|was changed|Correct the path", words), (command, words)
        assert whole.name in words or verb == "export", command
    assert whole.read_bytes() == content


@pytest.mark.parametrize("kind", DAMAGE)
def test_the_next_prompt_of_a_coding_agent_goes_on(whole, tmp_path, kind):
    DAMAGE[kind](whole)
    command = [sys.executable, "-m", "hardwon.apps.coding_agents.hook", "claude-code", "--library", str(whole)]
    environment = {**os.environ, "HARDWON_HOME": str(tmp_path / "home")}
    done = warm.run(command, input=json.dumps(PROMPT), env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert "Traceback" not in done.stderr


def ask_over_mcp(library, damage):
    """Return the errors of tools after a damage."""

    async def talk():
        asked = {"task": "find the spoon", "situation": "You see a copper kettle."}
        steps = {"task": "find the spoon", "steps": [{"action": "look", "result": "a pan"}], "success": True}
        async with Client(mcp_server.build(library)) as client:
            assert not (await client.call_tool("recall", asked)).is_error
            damage()
            return [await client.call_tool(name, given) for name, given in (("recall", asked), ("record", steps))]

    return [answer.content[0].text for answer in asyncio.run(talk()) if answer.is_error]


@pytest.mark.parametrize("kind", WHILE_OPEN)
def test_nothing_is_acknowledged_after_the_file_was_cut_or_overwritten(whole, kind):
    """By a tool of MCP, the middleware or a function; the agent goes on."""
    with closing(ExperienceLibrary.open(whole)) as library:
        agent = create_agent(model("Done."), [], middleware=[ExperienceMiddleware(library)])
        words = ask_over_mcp(library, lambda: WHILE_OPEN[kind](whole))
        assert len(words) == 2
        assert all(re.search(f"{whole.name}.*({NEXT})", each) for each in words), words
        assert agent.invoke({"messages": [HumanMessage("find the spoon")]})["messages"][-1].content == "Done."
        with FunctionEpisode(library, "find the spoon"):
            assert look("stove") == "You see a copper kettle on the stove."
        with pytest.raises(NotALibrary, match=NEXT):
            library.episodes.count()


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_proxy_does_not_start_with_a_damaged_library(whole, kind):
    DAMAGE[kind](whole)
    with pytest.raises(NotALibrary, match=f"{whole.name}.*({NEXT})"):
        LibraryAccess(lambda: ExperienceLibrary.open(whole))


@pytest.mark.parametrize("kind", WHILE_OPEN)
def test_a_proxy_answers_and_its_health_says_why(whole, kind):
    body = {"model": "m", "messages": [{"role": "user", "content": "find the spoon"}]}
    with serving(Upstream().app) as url:
        proxy = create_proxy(LibraryAccess(lambda: ExperienceLibrary.open(whole)), f"{url}/v1")
        with serving(proxy) as address, httpx.Client(base_url=address, timeout=60) as client:
            assert client.get("/healthz").json()["recall"] == "on"
            WHILE_OPEN[kind](whole)
            assert "done" in client.post("/v1/chat/completions", json=body).text
            health = client.get("/healthz").json()
    assert (health["status"], health["recall"]) == ("ok", "off")
    assert re.search(f"{whole.name}.*({NEXT})", health["why"])
