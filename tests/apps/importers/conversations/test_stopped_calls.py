"""A run whose only call was stopped before it was answered is an episode that failed, or whose outcome is unknown."""

import json
from typing import Any

import pytest

from hardwon.apps import importers

AT = "2026-01-01T00:00:00Z"
ASK = {"role": "user", "content": "Refund A-1."}
FUNCTION = {"name": "refund", "arguments": '{"order": "A-1"}'}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "c-1", "type": "function", "function": FUNCTION}]}
DONE = {"role": "assistant", "content": "Done."}
STOP = "[Request interrupted by user for tool use]"
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "t-1", "name": "refund", "input": {}}]}
USED = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t-1", "content": STOP, "is_error": True}]}
ITEM = {"type": "function_call", "call_id": "c-1", "name": "refund", "arguments": "{}"}
ROOT = {"id": "t", "trace_id": "t", "run_type": "chain", "inputs": {"input": "Refund A-1."}, "start_time": AT}
TOOL = {**ROOT, "id": "r", "parent_run_id": "t", "run_type": "tool", "name": "refund", "inputs": {"order": "A-1"}}
ROW = {"id": "o", "trace_id": "t", "type": "AGENT", "name": "a", "input": "Refund A-1."}
STEP = {**ROW, "id": "o-2", "parent_observation_id": "o", "type": "TOOL", "name": "refund", "start_time": AT}
CANCELLED = {"error": "CancelledError()", "status": "error"}


def line(kind, ref, message):
    return {"type": kind, "uuid": ref, "sessionId": "s", "message": message}


def event(kind, **payload):
    return {"timestamp": AT, "type": kind, "payload": payload}


def span(ref, parent, **attributes):
    context = {"trace_id": "5b8e", "span_id": ref}
    return {"name": "x", "context": context, "parent_id": parent, "start_time": AT, "attributes": attributes}


def say(role, **part):
    return json.dumps([{"role": role, "parts": [part]}])


CODEX = [
    event("session_meta", id="s"), event("event_msg", type="user_message", message="Refund A-1."),
    event("response_item", type="function_call", name="refund", arguments="{}", call_id="c-1"),
]  # fmt: skip
STOPPED: dict[str, list[Any]] = {
    "openai": [{"messages": [ASK, CALL]}],
    "openai, a choice": [{"messages": [ASK], "choices": [{"message": CALL, "finish_reason": "stop"}]}],
    "openai with another request": [{"messages": [ASK, CALL, {"role": "user", "content": "Stop."}]}],
    "openai, interrupted": [{"messages": [ASK, CALL, {"role": "tool", "tool_call_id": "c-1", "content": STOP}]}],
    "openai, a message per line": [ASK, CALL],
    "openai, done": [{"messages": [ASK, CALL, DONE]}],
    "anthropic": [{"messages": [ASK, USE]}],
    "responses": [{"input": [ASK], "output": [ITEM]}],
    "claude code": [line("user", "u-1", ASK), line("assistant", "a-1", USE)],
    "claude code, interrupted": [line("user", "u-1", ASK), line("assistant", "a-1", USE), line("user", "u-2", USED)],
    "codex": CODEX,
    "codex, aborted": [*CODEX, event("event_msg", type="turn_aborted", reason="interrupted")],
    "langsmith, open": [{**ROOT, "end_time": None}, {**TOOL, "outputs": None, "end_time": None}],
    "langsmith, an open tool": [{**ROOT, "end_time": AT}, {**TOOL, "outputs": None, "end_time": None}],
    "langsmith, cancelled": [{**ROOT, **CANCELLED}, {**TOOL, **CANCELLED}],
    "langsmith, messages": [{**ROOT, "outputs": {"messages": [ASK, CALL]}}],
    "langfuse, open": [{**ROW, "end_time": None}, {**STEP, "end_time": None, "output": None}],
    "langfuse, an open tool": [ROW, {**STEP, "end_time": None, "output": None}],
    "langfuse, interrupted": [ROW, {**STEP, "level": "ERROR", "status_message": "GraphInterrupt(())"}],
    "langfuse, messages": [
        ROW, {**ROW, "id": "g", "parent_observation_id": "o", "type": "GENERATION", "input": json.dumps([ASK]),
              "output": json.dumps(CALL)},
    ],
    "otel, messages": [
        span("1", None, **{
            "gen_ai.input.messages": say("user", type="text", content="Refund A-1."),
            "gen_ai.output.messages": say("assistant", type="tool_call", id="c-1", name="refund", arguments={}),
        }),
    ],
    "otel, cancelled": [
        span("1", None, **{"gen_ai.agent.description": "Refund A-1."}),
        span("2", "1", **{"gen_ai.tool.name": "refund", "error.type": "CancelledError"}),
    ],
}  # fmt: skip


@pytest.fixture
def load(library, tmp_path):
    """Imports lines, and returns the only episode."""

    def read(*lines):
        path = tmp_path / "log.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        form, logged = importers.read(path)
        importers.write(library, logged, source=form, trust="trusted")
        assert library.admin.verify() == []
        (row,) = library.episodes.find()
        return library.episodes.get(row["id"])

    return read


@pytest.mark.parametrize("lines", STOPPED.values(), ids=STOPPED)
def test_a_run_whose_only_call_was_stopped_is_recorded(load, lines):
    episode = load(*lines)
    assert (episode.task, episode.steps, episode.success) == ("Refund A-1.", (), None)
    assert load(*lines) == episode


def test_a_run_that_an_error_ended_at_its_first_call_has_failed(load):
    assert load({"messages": [ASK, CALL], "error": "TimeoutError"}).success is False


@pytest.mark.parametrize("outcome", [{}, {"reward": 1.0}])
def test_a_call_that_was_answered_later_belongs_to_the_same_episode(load, outcome):
    before = load({"messages": [ASK, CALL]})
    answer = {"role": "tool", "tool_call_id": "c-1", "content": "refunded"}
    after = load({"messages": [ASK, CALL, answer, DONE], **outcome})
    assert (after.id, len(after.steps), after.success) == (before.id, 1, True)


def test_an_open_tool_at_the_end_of_a_trace_leaves_its_outcome_open(load):
    """Also where the calls before it worked."""
    done = {**TOOL, "id": "r-1", "outputs": {"output": "ok"}, "end_time": AT}
    episode = load({**ROOT, "end_time": AT}, done, {**TOOL, "id": "r-2", "outputs": None, "end_time": None})
    assert (len(episode.steps), episode.success) == (1, None)


def test_a_file_without_any_answer_says_so(hardwon, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"messages": [ASK, CALL]}), encoding="utf-8")
    for options in (["--dry-run"], []):
        told = hardwon("memory", "import", tmp_path / "work.db", path, *options)
        assert "No tool call in it has an answer. Log tool results as well." in " ".join(told.output.split())
