"""A tool that one result named, and that the agent then used once, is named to nobody who may not read the log."""

import asyncio
import json

import pytest
from fastapi.testclient import TestClient
from mcp import Client

from hardwon.apps.http.access.auth import Tokens
from hardwon.apps.http.app import create_app
from hardwon.apps.mcp_server import build
from hardwon.memory import ExperienceLibrary

ASK = "Refund order A-99 of Zoe"


def tell(library, trust, told):
    """Record twenty refunds, and episodes in which a result named another tool."""

    async def talk():
        async with Client(build(library, trust=trust)) as client:
            for n in range(20 + told):
                call = {"action": f'refund(order="A-{n}")', "result": "refunded"}
                error = {**call, "result": "Error: use zebra_tool", "failed": True}
                steps = [call] if n < 20 else [error, {"action": 'zebra_tool(kestrel="x")', "result": "done"}]
                await client.call_tool("record", {"task": f"Refund order A-{n}", "steps": steps, "success": True})

    asyncio.run(talk())


def ask_mcp(library, trust):
    async def talk():
        async with Client(build(library, trust=trust)) as client:
            return await client.call_tool("recall", {"task": ASK, "k": 20})

    return json.dumps(asyncio.run(talk()).structured_content)


@pytest.mark.parametrize("trust", ["own", "trusted", "untrusted"])
@pytest.mark.parametrize(("told", "is_named"), [(1, False), (3, True)])
def test_a_tool_that_a_result_named_waits_for_three_requests(tmp_path, trust, told, is_named):
    path = tmp_path / "shop.db"
    with ExperienceLibrary.open(path) as library:
        tell(library, trust, told)
        answers = {"mcp": ask_mcp(library, "untrusted")}
    tokens = Tokens.beside(path)
    headers = {"Authorization": f"Bearer {tokens.add('reader', log=False)}"}
    with TestClient(create_app(path, read_only=True, tokens=tokens), base_url="http://127.0.0.1:8420") as client:
        state = {"observation": f"Request: {ASK}", "task": ASK}
        answers["recall"] = client.post("/v1/recall", json={"state": state, "k": 20}, headers=headers).text
        answers["question"] = client.post("/v1/recall", json={"text": "zebra", "k": 20}, headers=headers).text
        answers["summaries"] = client.get("/v1/summaries", headers=headers).text
        answers["search"] = client.get("/v1/search?text=zebra", headers=headers).text
    assert "refund" in answers["mcp"]
    names = {door for door, answer in answers.items() if "zebra_tool" in answer}
    assert bool(names) is is_named
    # Untrusted episodes have no summaries.
    assert ({"summaries", "search"} <= names) is (is_named and trust != "untrusted")
