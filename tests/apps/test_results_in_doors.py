"""One rule about results in every door of the apps: hooks, MCP, the proxy, and each format that can be imported."""

import asyncio
import json
from typing import Any

import pytest
from mcp import Client
from tests.runtime.interfaces.result_cases import FAILED, WORKED

from hardwon.apps import importers
from hardwon.apps.coding_agents.events import read_event
from hardwon.apps.mcp_models import StepTaken
from hardwon.apps.mcp_server import build
from hardwon.apps.proxy.chat import ChatCompletions
from hardwon.memory import ExperienceLibrary
from hardwon.runtime.integrations.tool_episode import iter_calls

CASES = [*((text, True) for text in FAILED[::9]), *((text, False) for text in WORKED[::9])]
"""Some of the texts: `tests/runtime/interfaces` has the rule itself, and a door only has to ask it."""
TEXTS = [text for text, _ in CASES]
ASK = {"role": "user", "content": "Act."}


def answers_of(library, path):
    """Return whether each call of an imported file failed, by its argument."""
    form, logged = importers.read(path)
    importers.write(library, logged, source=form, trust="trusted")
    (row,) = library.episodes.find()
    steps = library.episodes.get(row["id"]).steps
    return form, [not step.diagnosis.success for step in steps]


def openai(n, text):
    call = {"id": f"c{n}", "type": "function", "function": {"name": "act", "arguments": json.dumps({"n": n})}}
    return [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": f"c{n}", "content": text}]


def anthropic(n, text):
    use = {"type": "tool_use", "id": f"c{n}", "name": "act", "input": {"n": n}}
    result = {"type": "tool_result", "tool_use_id": f"c{n}", "content": [{"type": "text", "text": text}]}
    return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]


def responses(n, text):
    return [
        {"type": "function_call", "call_id": f"c{n}", "name": "act", "arguments": json.dumps({"n": n})},
        {"type": "function_call_output", "call_id": f"c{n}", "output": text},
    ]


def claude(n, text):
    return [
        {"type": kind, "uuid": f"{kind}{n}", "sessionId": "s", "message": message}
        for kind, message in zip(("assistant", "user"), anthropic(n, text), strict=True)
    ]


def langsmith(n, text):
    outputs = {"output": {"type": "tool", "content": text, "tool_call_id": f"c{n}", "status": "success"}}
    run = {"id": f"r{n}", "trace_id": "t", "parent_run_id": "t", "run_type": "tool", "name": "act"}
    return [{**run, "start_time": f"2026-01-01T00:00:00.{n:06d}", "inputs": {"n": n}, "outputs": outputs}]


def langfuse(n, text):
    row = {"id": f"o{n:04d}", "trace_id": "t", "type": "TOOL", "name": "act", "input": json.dumps({"n": n})}
    return [{**row, "start_time": f"2026-01-01 00:00:00.{n:06d}", "output": text}]


def otel(n, text):
    attributes = {
        "gen_ai.tool.name": "act",
        "gen_ai.tool.call.arguments": f'{{"n": {n}}}',
        "gen_ai.tool.call.result": text,
    }
    context = {"trace_id": "t", "span_id": f"s{n:04d}"}
    return [{"context": context, "name": "execute_tool act", "start_time": 1000 + n, "attributes": attributes}]


def codex(n, text):
    return [{"type": "response_item", "payload": item} for item in responses(n, text)]


FORMATS = {
    "openai": lambda body: [{"messages": [ASK, *body]}],
    "anthropic": lambda body: [{"messages": [ASK, *body]}],
    "responses": lambda body: [{"input": [ASK, *body], "output": []}],
    "claude-code": lambda body: [{"type": "user", "uuid": "u", "sessionId": "s", "message": ASK}, *body],
    "langsmith": lambda body: [{"id": "t", "trace_id": "t", "run_type": "chain", "inputs": {"input": "Act."}}, *body],
    "langfuse": lambda body: body,
    "otel": lambda body: body,
    "codex": lambda body: [
        {"type": "session_meta", "payload": {"id": "s"}},
        {"type": "event_msg", "payload": {"type": "user_message", "message": "Act."}},
        *body,
    ],
}
WRITERS = [openai, anthropic, responses, claude, langsmith, langfuse, otel, codex]


@pytest.mark.parametrize(("form", "write"), list(zip(FORMATS, WRITERS, strict=True)), ids=list(FORMATS))
def test_an_import_reads_every_result_by_the_rule(tmp_path, form, write):
    body = [entry for n, text in enumerate(TEXTS) for entry in write(n, text)]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, FORMATS[form](body))))
    with ExperienceLibrary.open(tmp_path / "work.db") as library:
        known, failed = answers_of(library, path)
    assert known == form
    assert dict(zip(TEXTS, failed, strict=True)) == dict(CASES)


@pytest.mark.parametrize(("text", "is_failed"), CASES)
@pytest.mark.parametrize("content", [str, lambda text: [{"type": "text", "text": text}]], ids=["text", "blocks"])
def test_a_hook_reads_the_response_of_a_tool(text, is_failed, content):
    value = {"hook_event_name": "PostToolUse", "session_id": "s", "tool_name": "act", "tool_response": content(text)}
    assert bool(read_event("claude-code", json.dumps(value)).error) is is_failed


def test_the_output_of_a_command_that_worked_is_no_failure():
    value = {"hook_event_name": "PostToolUse", "session_id": "s", "tool_name": "Bash",
             "tool_response": {"stdout": "Error: an old log", "stderr": "", "interrupted": False}}  # fmt: skip
    assert read_event("claude-code", json.dumps(value)).error == ""


def test_the_proxy_reads_the_messages_of_its_clients():
    body = {"model": "m", "messages": [ASK, *(m for n, text in enumerate(TEXTS) for m in openai(n, text))]}
    calls = iter_calls(ChatCompletions().read_request(body).messages)
    assert dict(zip(TEXTS, (bool(call.error) for call in calls), strict=True)) == dict(CASES)


def test_a_step_of_mcp_without_a_mark_is_read_by_its_result(library):
    steps: list[dict[str, Any]] = [{"action": f"act(n={n})", "result": text} for n, text in enumerate(TEXTS)]
    steps += [
        {"action": "act()", "result": "Error: old", "failed": False},
        {"action": "act()", "result": "no", "failed": True},
    ]

    async def record():
        async with Client(build(library)) as client:
            await client.call_tool("record", {"task": "Act.", "steps": steps, "success": True})

    asyncio.run(record())
    recorded = library.episodes.get(library.episodes.find()[0]["id"]).steps
    failed = [not step.diagnosis.success for step in recorded]
    assert dict(zip(TEXTS, failed, strict=False)) == dict(CASES)
    assert failed[-2:] == [False, True]
    assert StepTaken(action="act()", result="").failed is None


@pytest.mark.parametrize(
    ("result", "text", "is_failed"),
    [
        ({"ok": False, "message": "no seat"}, '"message": "no seat"', True),
        ([{"type": "text", "text": "Error: no seat"}], "Error: no seat", True),
        (7, "7", False),
    ],
)
def test_a_client_of_mcp_may_send_a_result_as_it_came(library, result, text, is_failed):
    async def record():
        async with Client(build(library, trust="trusted")) as client:
            steps = [{"action": "act()", "result": result}]
            return await client.call_tool("record", {"task": "Act.", "steps": steps, "success": True})

    assert not asyncio.run(record()).is_error
    (step,) = library.episodes.get(library.episodes.find()[0]["id"]).steps
    assert text in step.post.observation
    assert step.diagnosis.success is not is_failed
