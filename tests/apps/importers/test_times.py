"""Calls and traces in the order of their moments, in whatever form a program writes times."""

import json

import pytest

from hardwon.apps import importers

WRITTEN = {
    "offset": ["2026-01-01T11:30:00+02:00", "2026-01-01T10:00:00Z", "2026-01-01T10:00:00.500Z"],
    "space": ["2026-01-01T09:30:00", "2026-01-01 10:00:00", "2026-01-01 10:00:01.5"],
    "seconds": [999_999_999, 1_767_261_600, 1_767_261_600.5],
    "text of numbers": ["999999999", "1767261600", "1767261600500"],
    "mixed": [1_767_259_800_000, "2026-01-01T10:00:00Z", 1_767_261_600_500_000_000],
    "mail": ["Thu, 1 Jan 2026 11:30:00 +0200", "Thu, 01 Jan 2026 10:00:00 GMT", "Thu, 01 Jan 2026 05:00:01 EST"],
    "slashes": ["31/12/2025 23:00:00", "2026/01/01 10:00:00", "1/1/2026, 10:00:01 AM"],
    "web server": ["01/Jan/2026:11:30:00 +0200", "01/Jan/2026:10:00:00 +0000", "01/Jan/2026:10:00:01 +0000"],
    "browser": ["Thu Jan 01 2026 11:30:00 GMT+0200 (CET)", "Jan 1, 2026, 10:00 AM", "Thu Jan  1 10:00:01 2026"],
    "database": [
        {"$date": "2026-01-01T09:30:00Z"},
        {"$date": {"$numberLong": "1767261600000"}},
        "2026-01-01T11:00:00Z",
    ],
    "days of the year": ["2026-001T11:30:00+02:00", "2026-001T10:00:00Z", "2026001T100001Z"],
    "parts": [{"seconds": 1767259800, "nanos": 0}, {"seconds": "1767261600", "nanos": 1}, [1767261600, 2]],
    "Firestore": [{"_seconds": 1767259800, "_nanoseconds": 9}, {"_seconds": 1767261600}, {"_seconds": 1767261601}],
    "Java": [[2026, 1, 1, 9, 30], [2026, 1, 1, 10, 0, 0], [2026, 1, 1, 10, 0, 0, 5]],
    "objects": [
        {"value": "2026-01-01 09:30:00"},
        {"N": "1767261600"},
        {"date": "2026-01-01 10:00:01", "timezone": "UTC"},
    ],
    "JavaScript": ["/Date(1767259800000+0200)/", "/Date(1767261600000)/", "new Date(1767261601000)"],
    "digits": [20260101093000, "20260101100000", "20260101100000500"],
    "names of files": ["2026-01-01T09-30-00", "20260101_100000", "2026-01-01_10-00-01"],
    "units": ["1767259800 s", "1767261600000ms", "@1767261601"],
    "midnight": ["2025-12-31T24:00:00Z", "2026-01-01T00:00:01Z", "[01/Jan/2026:10:00:00 +0000]"],
    "dashes": ["2026-01-01T10:00:00+01:00", "2026–01–01 10:00", "2026-01-01T10:00:00−05:00"],
    "nanoseconds": ["999999999999999999", "1767261600000000000", "1767261600500000000"],
}


def langsmith(n, at, trace="t"):
    run = {"trace_id": trace, "parent_run_id": "root", "run_type": "tool", "outputs": {"output": f"found {n}"}}
    return {**run, "id": f"r-{n}", "name": "look", "start_time": at, "inputs": {"at": n}}


def langfuse(n, at, trace="t"):
    row = {"trace_id": trace, "type": "TOOL", "name": "look", "output": f"found {n}"}
    return {**row, "id": f"o-{n}", "start_time": at, "input": json.dumps({"at": n})}


def otel(n, at, trace="t"):
    content = {"gen_ai.tool.name": "look", "gen_ai.tool.call.arguments": json.dumps({"at": n})}
    attributes = {**content, "gen_ai.tool.call.result": f"found {n}"}
    span = {"name": "execute_tool look", "context": {"trace_id": trace, "span_id": f"s-{n}"}, "parent_id": "s"}
    return {**span, "start_time": at, "attributes": attributes}


def read(tmp_path, lines):
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return list(importers.read(path)[1])


@pytest.mark.parametrize("times", WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize("make", [langsmith, langfuse, otel])
def test_calls_are_ordered_by_the_moment(tmp_path, make, times):
    (episode,) = read(tmp_path, [make(n, times[n]) for n in (2, 0, 1)])
    assert [call.arguments["at"] for call in episode.calls] == [0, 1, 2]


@pytest.mark.parametrize("make", [langsmith, langfuse, otel])
def test_a_call_without_a_time_stays_behind_the_one_before_it(tmp_path, make):
    times = [(1, "2026-01-01T10:00:00Z"), (2, None), (3, "2026-01-01T10:01:00Z"), (0, "2026-01-01T11:00:00+02:00")]
    (episode,) = read(tmp_path, [make(n, at) for n, at in times])
    assert [call.arguments["at"] for call in episode.calls] == [0, 1, 2, 3]


@pytest.mark.parametrize("times", WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize("make", [langsmith, langfuse, otel])
def test_traces_are_ordered_by_the_moment(tmp_path, make, times):
    """Exports of LangSmith begin with the newest trace."""
    found = read(tmp_path, [make(n, times[n], f"t-{n}") for n in (2, 1, 0)])
    assert [episode.ref for episode in found] == ["t-0", "t-1", "t-2"]


@pytest.mark.parametrize("times", WRITTEN.values(), ids=WRITTEN)
def test_lines_of_sessions_are_ordered_by_the_moment(tmp_path, times):
    def line(n, at):
        block = {"type": "tool_use", "id": f"c-{n}", "name": "look", "input": {"at": n}}
        return [
            {"type": "assistant", "uuid": f"a-{n}", "sessionId": "s", "timestamp": at,
             "message": {"role": "assistant", "content": [block]}},
            {"type": "user", "uuid": f"u-{n}", "sessionId": "s", "timestamp": at,
             "message": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c-{n}", "content": ""}]}},
        ]  # fmt: skip

    ask = {"type": "user", "uuid": "u", "sessionId": "s", "message": {"role": "user", "content": "Look."}}
    (episode,) = read(tmp_path, [ask, *(one for n in (2, 0, 1) for one in line(n, times[n]))])
    assert [call.arguments["at"] for call in episode.calls] == [0, 1, 2]


@pytest.mark.parametrize("times", WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize("name", ["timestamp", "created_at", "created", "createdAt", "ts", "@timestamp"])
def test_conversations_are_ordered_by_the_moment(tmp_path, times, name):
    def talk(n):
        call = {"id": "c", "function": {"name": "look", "arguments": json.dumps({"at": n})}}
        return [
            {"role": "user", "content": f"Look at {n}."}, {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "found"}, {"role": "assistant", "content": "Done."},
        ]  # fmt: skip

    found = read(tmp_path, [{"messages": talk(n), name: times[n]} for n in (2, 0, 1)])
    assert [episode.task for episode in found] == [f"Look at {n}." for n in range(3)]
    starts = [episode.meta["started_at"] for episode in found]
    assert starts == sorted(starts)
    messages = [{**message, name: times[n]} for n in (2, 0, 1) for message in talk(n)]
    assert [episode.task for episode in read(tmp_path, messages)] == [f"Look at {n}." for n in range(3)]


@pytest.mark.parametrize("times", WRITTEN.values(), ids=WRITTEN)
def test_rollouts_are_ordered_by_the_moment(tmp_path, times):
    def line(n, kind, **payload):
        return {"timestamp": times[n], "type": kind, "payload": payload}

    def rollout(n):
        call = {"name": "look", "arguments": json.dumps({"at": n}), "call_id": f"c-{n}"}
        return [
            line(n, "session_meta", id=f"s-{n}"), line(n, "event_msg", type="user_message", message=f"Look at {n}."),
            line(n, "response_item", type="function_call", **call),
            line(n, "response_item", type="function_call_output", call_id=f"c-{n}", output="found"),
        ]  # fmt: skip

    found = read(tmp_path, [one for n in (2, 0, 1) for one in rollout(n)])
    assert [episode.task for episode in found] == [f"Look at {n}." for n in range(3)]
