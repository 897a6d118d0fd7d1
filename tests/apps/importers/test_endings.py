"""How runs of logs end, in every format: only a whole answer after working calls is a success."""

import json
from typing import Any

import pytest
from tests.runtime.interfaces.ending_cases import COMPLETED_MESSAGES, UNFINISHED_MESSAGES

from hardwon.apps import importers

ASK = {"role": "user", "content": "Refund A-1."}
FUNCTION = {"name": "refund", "arguments": '{"order": "A-1"}'}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": FUNCTION}]}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "refunded"}
TALK = [ASK, CALL, RESULT]
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "refund", "input": {}}]}
USED = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "refunded"}]}
ITEMS = [
    ASK, {"type": "function_call", "call_id": "1", "name": "refund", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "refunded"},
]  # fmt: skip
ITEM = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}


@pytest.fixture
def outcome(library, tmp_path):
    """Imports lines and returns the success of the only episode."""

    def read(*lines):
        path = tmp_path / "log.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)))
        form, logged = importers.read(path)
        importers.write(library, logged, source=form, trust="trusted")
        (row,) = library.episodes.find()
        return library.episodes.get(row["id"]).success

    return read


@pytest.mark.parametrize("fields", UNFINISHED_MESSAGES[::5], ids=repr)
def test_a_conversation_whose_last_message_is_no_answer_is_no_success(outcome, fields):
    assert outcome({"messages": [*TALK, {"role": "assistant", **fields}]}) is not True


@pytest.mark.parametrize("fields", COMPLETED_MESSAGES[::5], ids=repr)
def test_a_conversation_with_a_whole_answer_is_a_success(outcome, fields):
    assert outcome({"messages": [*TALK, {"role": "assistant", **fields}]}) is True


DONE = {"role": "assistant", "content": "Done."}


@pytest.mark.parametrize(
    ("line", "success"),
    [
        ({"messages": TALK}, None),
        ({"messages": [ASK, CALL, RESULT, {**CALL, "tool_calls": [{"id": "2", "function": FUNCTION}]}]}, None),
        ({"messages": TALK, "choices": [{"message": DONE, "finish_reason": "length"}]}, None),
        ({"messages": TALK, "choices": [{"message": DONE, "finish_reason": "stop"}]}, True),
        ({"messages": [*TALK, DONE], "finish_reason": "length"}, None),
        ({"messages": [*TALK, DONE], "finish_reason": "length", "success": True}, True),
        ({"messages": [*TALK, DONE], "status": "interrupted"}, None),
        ({"messages": [*TALK, DONE], "error": "GraphInterrupt(())"}, None),
        ({"messages": [ASK, USE, USED, {**DONE, "stop_reason": "max_tokens"}]}, None),
        ({"messages": [ASK, USE, USED, {**DONE, "stop_reason": "end_turn"}]}, True),
        ({"messages": [ASK, USE, USED], **DONE, "type": "message", "stop_reason": "refusal"}, None),
        ({"input": ITEMS, "output": [ITEM], "status": "completed"}, True),
        ({"input": ITEMS, "output": [ITEM], "status": "incomplete"}, None),
        ({"input": ITEMS, "output": [{**ITEM, "status": "incomplete"}]}, None),
        ({"input": ITEMS, "output": [], "status": "cancelled"}, None),
    ],
)
def test_a_line_says_how_it_ended(outcome, line, success):
    assert outcome(line) is success


def test_an_answer_that_came_later_completes_the_episode(library, tmp_path):
    path = tmp_path / "log.jsonl"
    for talk, success in ((TALK, None), ([*TALK, DONE], True)):
        path.write_text(json.dumps({"messages": talk}))
        form, logged = importers.read(path)
        importers.write(library, logged, source=form, trust="trusted")
        (row,) = library.episodes.find()
        assert library.episodes.get(row["id"]).success is success


def claude(kind, uuid, message):
    return {"type": kind, "uuid": uuid, "sessionId": "s", "message": message}


@pytest.mark.parametrize(
    ("last", "success"),
    [
        ((), None),
        ((claude("user", "u3", {"role": "user", "content": "[Request interrupted by user]"}),), None),
        ((claude("assistant", "a2", {**DONE, "stop_reason": "max_tokens"}),), None),
        ((claude("assistant", "a2", {**DONE, "content": "API Error: 529", "stop_reason": "stop_sequence"}),), None),
        ((claude("assistant", "a2", {**DONE, "stop_reason": "end_turn"}),), True),
    ],
)
def test_a_turn_of_a_transcript_ends_with_an_answer(outcome, last, success):
    begun = (claude("user", "u1", ASK), claude("assistant", "a1", USE), claude("user", "u2", USED))
    assert outcome(*begun, *last) is success


RUN = {"id": "t", "trace_id": "t", "run_type": "chain", "start_time": "2026-01-01T00:00:00Z"}
TOOL = {**RUN, "id": "r", "parent_run_id": "t", "run_type": "tool", "name": "refund", "outputs": {"output": "refunded"}}


@pytest.mark.parametrize(
    ("fields", "success"),
    [
        ({}, True),
        ({"status": "success", "end_time": "2026-01-01T00:00:09Z"}, True),
        ({"status": "pending", "end_time": None}, None),
        ({"status": "interrupted"}, None),
        ({"outputs": {"__interrupt__": [{"value": "ok?"}]}}, None),
        ({"error": "GraphInterrupt((Interrupt(value='ok?'),))", "status": "error"}, None),
        ({"error": "CancelledError()", "status": "error"}, None),
        ({"error": "GraphRecursionError('25')", "status": "error"}, False),
        ({"outputs": {"messages": [*TALK, {**DONE, "response_metadata": {"finish_reason": "length"}}]}}, None),
        ({"outputs": {"generations": [[{"text": "It", "generation_info": {"finish_reason": "length"}}]]}}, None),
        ({"outputs": {"messages": TALK}}, None),
        ({"outputs": {"messages": [*TALK, DONE]}}, True),
    ],
)
def test_a_trace_of_langsmith_ends_by_its_root(outcome, fields, success):
    assert outcome({**RUN, "inputs": {"input": "Refund."}, **fields}, {**TOOL, "inputs": {"order": "A"}}) is success


@pytest.mark.parametrize("error", ["GraphInterrupt((Interrupt(value='ok?'),))", "ParentCommand(Command(goto='b'))"])
def test_a_call_that_an_interrupt_ended_is_none_in_any_trace(library, tmp_path, error):
    """The run that goes on has it again."""
    span = {"traceId": "t", "spanId": "1", "name": "execute_tool refund", "startTimeUnixNano": "1"}
    named = {"attributes": [{"key": "gen_ai.tool.name", "value": {"stringValue": "refund"}}]}
    root = {**RUN, "inputs": {"input": "Refund."}}
    traces: list[list[Any]] = [
        [root, {**TOOL, "inputs": {"order": "A"}}, {**TOOL, "id": "s", "error": error, "outputs": None}],
        [
            AGENT,
            {**ACTED, "parent_observation_id": "o1"},
            {**ACTED, "id": "o4", "level": "ERROR", "status_message": error},
        ],
        [
            {**span, **named},
            {**span, **named, "spanId": "2", "parentSpanId": "1", "status": {"code": 2, "message": error}},
        ],
    ]
    for trace in traces:
        path = tmp_path / "log.jsonl"
        path.write_text("\n".join(map(json.dumps, trace)))
        form, logged = importers.read(path)
        importers.write(library, logged, source=form, trust="trusted")
    assert [(row["n_steps"], row["success"]) for row in library.episodes.find()] == [(1, True)] * 3


ROW = {"trace_id": "t", "start_time": "2026-01-01 00:00:00.000000"}
AGENT = {**ROW, "id": "o1", "type": "AGENT", "name": "support", "input": "Refund."}
ACTED = {**ROW, "id": "o2", "type": "TOOL", "name": "refund", "input": "{}", "output": "refunded"}


def generation(**output):
    return {**ROW, "id": "o3", "type": "GENERATION", "parent_observation_id": "o1", "output": json.dumps(output)}


@pytest.mark.parametrize(
    ("rows", "success"),
    [
        ([AGENT, ACTED], True),
        ([{**AGENT, "end_time": None}, ACTED], None),
        ([{**AGENT, "level": "ERROR", "status_message": "GraphInterrupt(())"}, ACTED], None),
        ([{**AGENT, "level": "ERROR", "status_message": "no"}, ACTED], False),
        ([AGENT, ACTED, generation(**DONE)], True),
        ([AGENT, ACTED, generation(**DONE, response_metadata={"finish_reason": "length"})], None),
        ([AGENT, ACTED, generation(**CALL)], None),
    ],
)
def test_a_trace_of_langfuse_ends_by_its_root_or_its_last_answer(outcome, rows, success):
    assert outcome(*rows) is success


def span(ref, start, parent, **attributes):
    context = {"trace_id": "t", "span_id": ref}
    return {"context": context, "parent_id": parent, "name": "x", "start_time": start, "attributes": attributes}


@pytest.mark.parametrize(
    ("reasons", "success"), [(["stop"], True), ('["length"]', None), (["tool_calls"], None), (["content_filter"], None)]
)
def test_a_trace_of_otel_ends_by_the_last_reason_to_stop(outcome, reasons, success):
    call = {"gen_ai.tool.name": "refund", "gen_ai.tool.call.arguments": "{}", "gen_ai.tool.call.result": "refunded"}
    spans = [span("1", 1000, None), span("2", 1001, "1", **{"gen_ai.response.finish_reasons": ["tool_calls"]})]
    spans += [span("3", 1002, "1", **call), span("4", 1003, "1", **{"gen_ai.response.finish_reasons": reasons})]
    assert outcome(*spans) is success
