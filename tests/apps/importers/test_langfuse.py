"""Langfuse's documented exports: rows of the blob storage, pages of the API, and a downloaded trace."""

import json
from typing import Any

import pytest

from hardwon.apps import importers
from hardwon.apps.importers.langfuse import is_row
from hardwon.memory import Failure

ROOT = {"id": "o-1", "trace_id": "t-1", "type": "AGENT", "name": "support", "start_time": "2026-01-01 00:00:00.000000"}
ASKED = {**ROOT, "input": json.dumps({"input": "Refund Ada's order."}), "output": "Done."}


def tool(number, name="refund", **fields):
    return {
        "id": f"o-{number}", "trace_id": "t-1", "parent_observation_id": "o-1", "type": "TOOL", "name": name,
        "start_time": f"2026-01-01 00:00:0{number}.000000", "input": json.dumps({"order": "A-1"}), "output": "refunded",
        **fields,
    }  # fmt: skip


FAILED = tool(2, level="ERROR", status_message="no such order", output=None)
SCORE = {"id": "s-1", "trace_id": "t-1", "name": "solved", "data_type": "BOOLEAN", "value": 1, "source": "ANNOTATION"}
ROWS: list[dict[str, Any]] = [tool(3), FAILED, ASKED, SCORE]  # exports do not keep the order of time


def camel(row):
    def name(key):
        first, *rest = key.split("_")
        return first + "".join(map(str.capitalize, rest))

    return {name(key): value for key, value in row.items()}


def write(tmp_path, *lines):
    path = tmp_path / "langfuse.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


TRACE = {"id": "t-1", "timestamp": "2026-01-01T00:00:00Z", "name": "support", "input": {"input": "Refund Ada's order."}}
PLAIN = {**TRACE, "observations": [camel(row) for row in ROWS[:3]], "scores": [camel(SCORE)]}
NESTED = {"trace": TRACE, "observations": [camel(row) for row in ROWS[:3]], "scores": [camel(SCORE)]}


@pytest.mark.parametrize(
    "lines",
    [ROWS, [camel(row) for row in ROWS], [{"data": [camel(row) for row in ROWS], "meta": {}}], [PLAIN], [NESTED]],
    ids=["blob-storage", "camel-case", "api-page", "trace", "nested-trace"],
)
def test_every_export_is_the_same_episode(library, tmp_path, lines):
    known, logged = importers.read(write(tmp_path, *lines))
    importers.write(library, logged, source=known, trust="trusted")
    (row,) = library.episodes.find()
    episode = library.episodes.get(row["id"])
    assert (known, episode.task, episode.success) == ("langfuse", "Refund Ada's order.", True)
    assert [step.action for step in episode.steps] == ['refund(order="A-1")'] * 2
    assert [step.diagnosis.failure is Failure.NONE for step in episode.steps] == [False, True]
    assert "no such order" in episode.steps[0].diagnosis.evidence
    assert episode.meta["trace"] == "t-1"


def test_without_tool_observations_the_messages_of_the_longest_generation_are_read(library, tmp_path):
    asked = {"role": "user", "content": "Refund Ada's order."}
    calls = [{"id": "c", "type": "function", "function": {"name": "refund", "arguments": '{"order": "A-1"}'}}]
    talk = [asked, {"role": "assistant", "content": "", "tool_calls": calls}]
    answered = [*talk, {"role": "tool", "tool_call_id": "c", "content": "refunded"}]
    base = {"trace_id": "t-2", "type": "GENERATION", "name": "llm"}
    lines = [
        {**base, "id": "1", "start_time": "1", "input": [asked], "output": talk[1]},
        {
            **base,
            "id": "2",
            "start_time": "2",
            "input": {"messages": answered},
            "output": {"role": "assistant", "content": "Done."},
        },
    ]
    known, logged = importers.read(write(tmp_path, *lines))
    importers.write(library, logged, source=known, trust="trusted")
    episode = library.episodes.get(library.episodes.find()[0]["id"])
    assert (episode.task, [step.action for step in episode.steps]) == ("Refund Ada's order.", ['refund(order="A-1")'])


@pytest.mark.parametrize(
    ("scores", "success", "score"),
    [
        ([{"data_type": "NUMERIC", "value": 0.4}], False, 0.4),
        ([{"data_type": "CATEGORICAL", "string_value": "correct"}], True, 1.0),
        ([{"data_type": "NUMERIC", "value": 1, "source": "EVAL"}, {**SCORE, "value": 0}], False, 0.0),
    ],
)
def test_an_annotation_counts_before_an_evaluator(library, tmp_path, scores, success, score):
    lines = [ASKED, tool(3), *({"trace_id": "t-1", "id": f"s-{n}", **row} for n, row in enumerate(scores))]
    known, logged = importers.read(write(tmp_path, *lines))
    importers.write(library, logged, source=known, trust="trusted")
    (row,) = library.episodes.find()
    assert (bool(row["success"]), row["score"]) == (success, score)


@pytest.mark.parametrize("value", [7, [], {"trace_id": "t"}, {"trace_id": "t", "run_type": "tool"}, {"data": []}])
def test_other_values_are_not_taken_for_langfuse(value):
    assert not is_row(value)
