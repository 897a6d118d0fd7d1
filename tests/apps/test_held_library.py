"""Running servers, each a process of its own, answer while another process writes to their library or compacts it."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests import warm
from tests.apps.proxy.conftest import Upstream, serving
from tests.apps.test_locked_library import HARDWON, PROMPT, filled
from tests.memory.storage.locking import hold

__all__ = ["filled"]
STATE = {"observation": "You see a copper kettle.", "task": "find the spoon"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "find the spoon"}]}
STEPS = {"task": "find the spoon", "steps": [{"action": "look", "result": "a pan"}], "success": True}
BUSY = "has been locked by another writer|another writer has locked"
HOOK = [sys.executable, "-m", "hardwon.apps.coding_agents.hook", "claude-code", "--library"]
READS: dict[str, Any] = {
    "recall": lambda doors: doors.http.post("/v1/recall", json={"state": STATE}),
    "check": lambda doors: doors.http.post("/v1/check", json={"state": STATE, "action": "burn"}),
    "episodes": lambda doors: doors.http.get("/v1/episodes"),
    "search": lambda doors: doors.http.get("/v1/search?text=kettle"),
    "statistics": lambda doors: doors.http.get("/v1/stats"),
    **{
        f"page {path}": partial(lambda path, doors: doors.http.get(path, headers={"Accept": "text/html"}), path)
        for path in ("/", "/items", "/items?text=kettle&how=dense", "/episodes")
    },
    "recall over MCP": lambda doors: doors.call("recall", task="find the spoon", situation="a copper kettle"),
    "check over MCP": lambda doors: doors.call("check", task="find the spoon", action="burn"),
    "proxy": lambda doors: doors.proxy.post("/v1/chat/completions", json=CHAT),
    "health of the proxy": lambda doors: doors.proxy.get("/healthz"),
}
SAYS = {
    "check": '"allowed":true', "check over MCP": '"allowed": true', "episodes": "find the spoon", "page /map": "copper",
    "statistics": '"insight":1', "page /episodes": "find the spoon", "proxy": "done",
    "health of the proxy": '"recall":"on"',
}  # fmt: skip
WRITES: dict[str, Any] = {
    "item": lambda doors: doors.http.post("/v1/items", json={"items": [{"kind": "insight", "title": "A new lesson"}]}),
    "namespace": lambda doors: doors.http.post("/v1/namespaces", json={"name": "new"}),
    "record over MCP": lambda doors: doors.call("record", **STEPS),
}
COMPACT = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
print("begun", flush=True)
while True:
    connection.execute("VACUUM")
"""


@contextmanager
def compacting(path) -> Iterator[None]:
    """Let another process compact the file, again and again."""
    with subprocess.Popen([sys.executable, "-S", "-c", COMPACT, path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


@pytest.fixture
def doors(filled, tmp_path):
    """Start a server, a proxy, and an MCP server over standard input and output."""
    processes = []

    def start(name, *options, **pipes):
        log = tmp_path / f"{name}.log"
        with log.open("w") as stderr:
            command = [*HARDWON, name, str(filled), *options]
            processes.append(process := warm.Popen(command, stderr=stderr, text=True, **pipes))
        if "--port" not in options:
            return process
        while (address := re.search(r"http://127.0.0.1:\d+(?=/   |/v1   )", log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            time.sleep(0.02)
        return httpx.Client(base_url=address[0], timeout=60)

    def ask(method, **params):
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        stdio.stdin.write(json.dumps(request) + "\n")
        stdio.stdin.flush()
        return stdio.stdout.readline()

    def call(name, **arguments):
        return SimpleNamespace(
            text=json.loads(ask("tools/call", name=name, arguments=arguments))["result"]["content"][0]["text"]
        )

    with serving(Upstream().app) as upstream:
        stdio = start("mcp", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        http = start("serve", "--port", "0", "--runs", str(tmp_path))
        proxy = start("proxy", "--upstream", f"{upstream}/v1", "--port", "0")
        try:
            ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "t", "version": "1"})
            yield SimpleNamespace(http=http, proxy=proxy, call=call)
        finally:
            for client in (http, proxy):
                client.close()
            for process in processes:
                process.kill()
                process.communicate()


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["written", "compacted"])
def test_servers_answer_from_a_library_that_another_process_holds(filled, doors, how):
    """A read in less time than anybody waits for a lock; what cannot be written now says so."""
    with hold(filled) if how == "written" else compacting(filled):
        for name, read in READS.items():
            began = time.monotonic()
            assert SAYS.get(name, "copper kettle") in read(doors).text, name
            assert time.monotonic() - began < 5, name
        for name, write in WRITES.items() if how == "written" else ():
            assert re.search(BUSY, write(doors).text), name


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_hooks_answer_from_a_library_that_is_compacted(filled, tmp_path):
    environment = {**os.environ, "HARDWON_HOME": str(tmp_path / "home")}
    with compacting(filled):
        done = warm.run([*HOOK, str(filled)], input=json.dumps(PROMPT), env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr, "look(place=" in done.stdout) == (0, "", True)
