"""The request in the inputs of a trace: the first message of a person, in whatever form the messages are."""

import json
from typing import Any

import pytest
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, messages_to_dict

from hardwon.apps import importers

TASK = "Refund Ada's order."
TALK = [SystemMessage("Be kind."), HumanMessage(TASK), AIMessage("Which one?"), HumanMessage("The last one.")]
FORMS = {
    "openai": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": TASK}],
    "langchain": [{"type": "system", "content": "Be kind."}, {"type": "human", "content": TASK, "id": "m-1"}],
    "dumps": [dumpd(message) for message in TALK],
    "dicts": messages_to_dict(TALK),
    "batch": [[dumpd(message) for message in TALK]],
    "pairs": [["system", "Be kind."], ["human", TASK]],
    "batch of pairs": [[["system", "Be kind."], ["user", TASK]]],
    "texts": [TASK],
    "blocks": [{"role": "user", "content": [{"type": "text", "text": TASK}]}],
    "one message": {"role": "user", "content": TASK},
}


def read(tmp_path, *lines):
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    (episode,) = importers.read(path)[1]
    return episode.task


def wrap(form):
    """The inputs of runs of a chain, a graph and a model."""
    return [{"messages": form}, {"input": {"messages": form}}, {"input": form}, {"messages": form, "query": ""}]


@pytest.mark.parametrize("inputs", [pytest.param(w, id=n) for n, form in FORMS.items() for w in wrap(form)])
def test_the_first_message_of_a_person_is_the_task_of_a_run(tmp_path, inputs):
    root = {"id": "r-1", "trace_id": "r-1", "run_type": "chain", "inputs": inputs, "outputs": {"output": "Done."}}
    call: dict[str, Any] = {
        "id": "r-2",
        "trace_id": "r-1",
        "parent_run_id": "r-1",
        "run_type": "tool",
        "name": "refund",
    }
    call |= {"inputs": {"order": "A-1"}, "outputs": {"output": "refunded"}}
    assert read(tmp_path, root, call) == TASK


@pytest.mark.parametrize("inputs", [pytest.param(w, id=n) for n, form in FORMS.items() for w in wrap(form)])
@pytest.mark.parametrize("write", [json.dumps, lambda value: value], ids=["text", "object"])
def test_the_first_message_of_a_person_is_the_task_of_an_observation(tmp_path, inputs, write):
    root = {"id": "o-1", "trace_id": "t", "type": "AGENT", "name": "a", "input": write(inputs), "output": "Done."}
    call: dict[str, Any] = {
        "id": "o-2",
        "trace_id": "t",
        "parent_observation_id": "o-1",
        "type": "TOOL",
        "name": "refund",
    }
    call |= {"input": json.dumps({"order": "A-1"}), "output": json.dumps(["refunded", "at once"])}
    assert read(tmp_path, call, root) == TASK


@pytest.mark.parametrize("inputs", [{"order": 3}, {"input": {"order": 3}}, {"messages": []}])
def test_inputs_without_a_message_are_the_task_as_they_are(tmp_path, inputs):
    root = {"id": "r-1", "run_type": "chain", "inputs": inputs}
    call = {"id": "r-2", "trace_id": "r-1", "parent_run_id": "r-1", "run_type": "tool", "name": "f", "inputs": {}}
    assert "order" in read(tmp_path, root, call) or inputs == {"messages": []}
