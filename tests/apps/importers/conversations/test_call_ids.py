"""Calls whose ids are empty, missing or repeated: answers belong to them in order."""

import json

import pytest

from hardwon.apps import importers

CALLS = [("look", 0), ("look", 1), ("take", 2)]
"""Names and arguments of the calls; each is answered with its number."""


def fields(name, ref):
    return {} if ref is None else {name: ref}


def openai(ids, answer_ids):
    def call(ref, name, at):
        function = {"name": name, "arguments": json.dumps({"at": at})}
        return {"type": "function", "function": function, **fields("id", ref)}

    return [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "tool_calls": [call(ref, *made) for ref, made in zip(ids, CALLS, strict=True)]},
        *({"role": "tool", "content": f"{n}", **fields("tool_call_id", ref)} for n, ref in enumerate(answer_ids)),
    ]


def anthropic(ids, answer_ids):
    calls = [
        {"type": "tool_use", "name": name, "input": {"at": at}, **fields("id", ref)}
        for ref, (name, at) in zip(ids, CALLS, strict=True)
    ]
    answers = [
        {"type": "tool_result", "content": f"{n}", **fields("tool_use_id", ref)} for n, ref in enumerate(answer_ids)
    ]
    return [
        {"role": "user", "content": "Go."},
        *({"role": r, "content": c} for r, c in zip(("assistant", "user"), (calls, answers), strict=True)),
    ]


def responses(ids, answer_ids):
    calls = [
        {"type": "function_call", "id": f"fc_{at}", "name": name, "arguments": json.dumps({"at": at})}
        | fields("call_id", ref)
        for ref, (name, at) in zip(ids, CALLS, strict=True)
    ]
    answers = [
        {"type": "function_call_output", "id": f"fco_{n}", "output": f"{n}", **fields("call_id", ref)}
        for n, ref in enumerate(answer_ids)
    ]
    return [{"role": "user", "content": "Go."}, *calls, *answers]


@pytest.mark.parametrize("make", [openai, anthropic, responses])
@pytest.mark.parametrize(
    ("ids", "answer_ids"),
    [
        ([""] * 3, [""] * 3),
        ([None] * 3, [None] * 3),
        (["c"] * 3, ["c"] * 3),
        (["a", "b", "c"], ["", "", ""]),
        (["a", "b", "c"], [None] * 3),
        (["", "", ""], [None, None, None]),
    ],
    ids=["empty", "missing", "repeated", "empty answers", "missing answers", "both"],
)
def test_answers_belong_to_calls_in_order(tmp_path, make, ids, answer_ids):
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"messages": make(ids, answer_ids)}), encoding="utf-8")
    (episode,) = importers.read(path)[1]
    assert [(call.name, call.arguments["at"], call.result) for call in episode.calls] == [
        (name, at, str(at)) for name, at in CALLS
    ]


def test_an_answer_with_the_name_of_its_tool_and_an_empty_id_belongs_to_a_call_of_that_tool(tmp_path):
    talk = openai([""] * 3, [""] * 3)
    named = [{**message, "name": name} for message, (name, _) in zip(talk[2:], CALLS, strict=True)]
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"messages": [*talk[:2], *named[::-1]]}), encoding="utf-8")
    (episode,) = importers.read(path)[1]
    assert [call.result for call in episode.calls] == ["1", "0", "2"]


def test_an_answer_to_another_call_is_not_taken(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"messages": openai(["a", "b", "c"], ["x", "b"])}), encoding="utf-8")
    (episode,) = importers.read(path)[1]
    assert [call.arguments["at"] for call in episode.calls] == [1]


@pytest.mark.parametrize("given", ["", " ", "null", "{}", None, {}])
def test_a_call_without_arguments_is_one_however_it_is_written(tmp_path, given):
    path = tmp_path / "log.jsonl"
    call = {"id": "a", "function": {"name": "look", "arguments": given}}
    answer = {"role": "tool", "tool_call_id": "a", "content": "ok"}
    talk = [{"role": "user", "content": "Look."}, {"role": "assistant", "tool_calls": [call]}, answer]
    path.write_text(json.dumps({"messages": talk}), encoding="utf-8")
    (episode,) = importers.read(path)[1]
    assert [(found.name, found.arguments) for found in episode.calls] == [("look", {})]
