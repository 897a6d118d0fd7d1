"""Every door of the applications answers within its deadline while another process holds the library's lock."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

import pytest
from fastapi.testclient import TestClient
from mcp import Client
from tests import warm
from tests.memory.storage.locking import hold

from hardwon.apps import mcp_server
from hardwon.apps.http.app import create_app
from hardwon.apps.http.state import shelf
from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.errors import LibraryBusy
from hardwon.memory.storage import database
from hardwon.runtime.integrations.functions import FunctionEpisode, remember

HARDWON = [sys.executable, "-c", "from hardwon.apps.cli.app import main; main()"]
PROMPT = {"hook_event_name": "UserPromptSubmit", "session_id": "s", "cwd": "/", "prompt": "find the spoon"}
COMMANDS = {
    "search": [*HARDWON, "memory", "search", "{}", "kettle"],
    "ls": [*HARDWON, "memory", "ls", "{}"],
    "stats": [*HARDWON, "memory", "stats", "{}"],
    "verify": [*HARDWON, "memory", "verify", "{}"],
    "hook": [sys.executable, "-m", "hardwon.apps.coding_agents.hook", "claude-code", "--library", "{}"],
}
SAYS = {"stats": "insight", "verify": "is sound", "hook": "look(place="}


@remember
def look(place: str) -> str:
    """Look at a place."""
    return f"You see a copper kettle on the {place}."


@pytest.fixture
def filled(path, episode):
    """Return the path of a library with episodes, of which one waits in the buffer, and an item."""
    with ExperienceLibrary.open(path) as library:
        for _ in range(4):
            with FunctionEpisode(library, "find the spoon"):
                look("stove")
        library.add(Item("insight", "A copper kettle stands beside the stove"))
    library = ExperienceLibrary.open(path)
    library.record(episode(see="You see a copper kettle beside a lamp."))
    library._file.store.close()  # as a kill does
    return path


@pytest.mark.timeout(50)  # a writer waits for 60 s
@pytest.mark.parametrize("how", ["IMMEDIATE", "EXCLUSIVE"])
def test_commands_and_hooks_answer_while_the_library_is_locked(filled, tmp_path, how):
    environment = {**os.environ, "HARDWON_HOME": str(tmp_path / "home"), "COLUMNS": "200"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with hold(filled, how), ExitStack() as stack:
        processes = {
            name: stack.enter_context(
                warm.Popen([part.format(filled) for part in command], env=environment, text=True, **pipes)
            )
            for name, command in COMMANDS.items()
        }
        for name, process in processes.items():
            output, errors = process.communicate(json.dumps(PROMPT) if name == "hook" else "", timeout=40)
            assert (process.returncode, errors.replace("items 1-1 of 1\n", "")) == (0, ""), name
            assert SAYS.get(name, "copper kettle") in output, name


@pytest.mark.timeout(50)
def test_the_server_answers_while_the_library_is_locked(filled, monkeypatch):
    """A write is refused after a while, with a status that says to try again."""
    monkeypatch.setattr(shelf, "WRITE_S", 0.02)
    with TestClient(create_app(filled), base_url="http://127.0.0.1:8420") as client, hold(filled):
        answer = client.post("/v1/recall", json={"state": {"observation": "copper kettle", "task": "find the spoon"}})
        assert (answer.status_code, bool(answer.json()["steps"])) == (200, True)
        assert client.get("/v1/items").json()
        assert client.post("/v1/namespaces", json={"name": "new"}).status_code == 503
        assert client.get("/healthz").status_code == 200


@pytest.mark.timeout(50)
def test_mcp_answers_while_the_library_is_locked(filled, monkeypatch):
    monkeypatch.setattr(mcp_server, "CALL_S", 0.02)

    async def talk(library):
        async with Client(mcp_server.build(library)) as client:
            asked = {"task": "find the spoon", "situation": "You see a copper kettle."}
            steps = {"task": "find the spoon", "steps": [{"action": "look", "result": "a pan"}], "success": True}
            return [await client.call_tool("recall", asked), await client.call_tool("record", steps)]

    with ExperienceLibrary.open(filled) as library:
        library.recall("warm up")
        with hold(filled):
            recalled, recorded = asyncio.run(talk(library))
    assert not recalled.is_error
    assert recorded.is_error
    assert "locked by another writer" in recorded.content[0].text


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_a_program_keeps_for_itself_is_refused_within_seconds(filled, monkeypatch, read_only):
    """Such a program keeps readers out, too, which a writer never does."""
    monkeypatch.setattr(database, "HELD_S", 0.05)
    holder = sqlite3.connect(filled, isolation_level=None)
    try:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        holder.execute("COMMIT")
        holder.execute("SELECT count(*) FROM sqlite_master")
        began = time.monotonic()
        with pytest.raises(LibraryBusy, match=r"another writer for 0\.05 s"):
            ExperienceLibrary.open(filled, read_only=read_only)
        assert time.monotonic() - began < database.BUSY_TIMEOUT_S / 2, "it waited as long as for a writer"
    finally:
        holder.close()
    with ExperienceLibrary.open(filled, read_only=read_only) as library:
        assert library._file.store.connection.execute("PRAGMA busy_timeout").fetchone() == (60_000,)
