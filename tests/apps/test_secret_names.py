"""A secret in a name, such as an id, a session, a title or the name of a file, is not stored, by any door."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from mcp import Client
from tests.apps.coding_agents.test_hooks import Session
from tests.apps.importers.test_versions import MAKERS
from typer.testing import CliRunner

from hardwon.apps import importers
from hardwon.apps.cli.app import app
from hardwon.apps.http.app import create_app
from hardwon.apps.mcp_server import build
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError
from hardwon.runtime.integrations.langgraph_store import HardwonStore

SECRET = "ghp_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


STEP = {"action": SECRET, "result": SECRET, "failed": True}


def call_mcp(folder: Path, monkeypatch: Any) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("record", {"task": SECRET, "steps": [STEP], "success": False, "episode_id": SECRET}),
        ("add", {"kind": "insight", "title": SECRET, "body": SECRET, "tags": [SECRET]}),
        ("feedback", {"item_id": SECRET, "helped": True}),
        ("grade", {"episode_id": SECRET, "success": True, "why": SECRET}),
    ]

    async def talk(server: Any) -> None:
        async with Client(server) as client:
            for name, arguments in calls:
                await client.call_tool(name, arguments)

    with ExperienceLibrary.open(folder / "e.db") as library:
        asyncio.run(talk(build(library)))
        assert library.episodes.count() == 1


def call_http(folder: Path, monkeypatch: Any) -> None:
    state = {"observation": SECRET, "task": SECRET, "facts": {SECRET: SECRET}, "signature": SECRET}
    step = {"pre": state, "action": SECRET, "post": state, "diagnosis": {"success": True}}
    episode, item = {"task": SECRET, "steps": [step], "success": True}, {"kind": "insight", "title": SECRET}
    with TestClient(create_app(folder / "e.db"), base_url="http://127.0.0.1:8420") as client:
        assert client.post("/v1/episodes", json={"episodes": [episode]}).status_code == 200
        assert client.post("/v1/items", json={"items": [{**item, "tags": [SECRET]}]}).status_code == 200
        for path, body, namespace in (
            ("episodes", {"episodes": [{**episode, "id": SECRET}]}, "default"),
            ("episodes", {"episodes": [episode]}, SECRET),
            ("items", {"items": [{**item, "id": SECRET}]}, "default"),
            ("items", {"items": [item]}, SECRET),
        ):
            answer = client.post(f"/v1/{path}", json=body, headers={"Hardwon-Namespace": namespace})
            assert answer.status_code == (422 if namespace == "default" else answer.status_code)
            client.post(f"/v1/{path}", json=body, params={"namespace": namespace})
        assert client.post("/v1/namespaces", json={"name": SECRET}).status_code == 422


def call_hooks(folder: Path, monkeypatch: Any, agent: str = "claude-code") -> None:
    session = Session(folder, monkeypatch, agent=agent, session=SECRET)
    session.transcript = folder / "t.jsonl"
    session.play(f"use {SECRET}")
    shutil.rmtree(folder / "home")  # the journal is what the agent sent, for a week and for its user only


def call_cursor(folder: Path, monkeypatch: Any) -> None:
    call_hooks(folder, monkeypatch, "cursor")


def call_cli(folder: Path, monkeypatch: Any) -> None:
    runner, path, out = CliRunner(), str(folder / "e.db"), folder / "out"
    ExperienceLibrary.open(path).close()
    assert runner.invoke(app, ["serve", "token", "add", path, "--name", SECRET]).exit_code == 2
    assert runner.invoke(app, ["memory", "checkout", path, str(out)]).exit_code == 0
    (out / "insight").mkdir(exist_ok=True)
    for name, front in (("a", f"id: {SECRET}\n"), (SECRET, "")):
        file = out / "insight" / f"{name}.md"
        file.write_text(f"---\n{front}kind: insight\ntitle: {SECRET}\ntags: [{SECRET}]\n---\n")
        assert runner.invoke(app, ["memory", "commit", path, str(out)]).exit_code == (2 if front else 0)
        file.unlink(missing_ok=True)


def call_store(folder: Path, monkeypatch: Any) -> None:
    with ExperienceLibrary.open(folder / "e.db") as library:
        store = HardwonStore(library)
        for namespace, key in ((("a", SECRET), "k"), (("a",), SECRET)):
            with pytest.raises(ConfigError, match="contains a secret"):
                store.put(namespace, key, {"n": 1})
            store.delete(namespace, key)  # one that an earlier version stored


def call_importers(folder: Path, monkeypatch: Any) -> None:
    with ExperienceLibrary.open(folder / "e.db") as library:
        for make in MAKERS:
            file = folder / f"{SECRET}.jsonl"
            text = "\n".join(map(json.dumps, make(3, session=SECRET)))
            file.write_text(text.replace("c-0", SECRET).replace("u-0", SECRET))
            importers.write(library, importers.read(file)[1], source="file")
            file.unlink()
        assert library.episodes.count() == len(MAKERS) - 1  # two of them log the same request


DOORS = {
    "MCP": call_mcp, "HTTP": call_http, "Claude Code": call_hooks, "Cursor": call_cursor, "CLI": call_cli,
    "LangGraph store": call_store, "importers": call_importers,
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
def test_a_secret_in_a_name_is_not_stored(door, tmp_path, monkeypatch):
    DOORS[door](tmp_path, monkeypatch)
    for path in tmp_path.rglob("*"):
        assert SECRET not in str(path)
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()
