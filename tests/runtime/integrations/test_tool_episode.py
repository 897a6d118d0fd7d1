"""The steps of a request, and messages of several formats as plain dictionaries."""

from types import SimpleNamespace

import pytest

from hardwon.memory import Failure, Reasons, Verdict
from hardwon.runtime.environments.calls import Call
from hardwon.runtime.integrations.tool_episode import REFUSED, ToolEpisode, extract_text, iter_calls, normalize_message

PAID = Call("pay", {"to": "Ada"}, "paid")
BROKEN = Call("pay", {"to": "Ada"}, "it broke", "it broke")


@pytest.fixture
def episode(library):
    return ToolEpisode(library, "Pay Ada.")


@pytest.mark.parametrize(
    ("fields", "failure"),
    [({}, Failure.TOOL_ERROR), ({"invalid": True}, Failure.INVALID_ACTION), ({"outage": True}, Failure.UNAVAILABLE)],
)
def test_an_error_is_that_of_the_tool_unless_the_call_or_the_service_is_to_blame(episode, fields, failure):
    assert episode.add_answer(episode.state([]), [BROKEN], **fields).diagnosis.failure is failure
    assert episode.broken


def test_an_outage_without_an_error_is_none(episode):
    assert episode.add_answer(episode.state([]), [PAID], outage=True).diagnosis.success


def test_a_rejected_and_a_refused_call_are_failures_without_progress(episode):
    rejected = episode.add_rejection(episode.state([]), [BROKEN])
    refused = episode.add_refusal(episode.state([]), "pay()", Verdict(False, "g", "no", items=("g",)), Reasons())
    for step, failure in ((rejected, Failure.REJECTED), (refused, Failure.BLOCKED)):
        diagnosis = step.diagnosis
        assert (diagnosis.failure, diagnosis.success, diagnosis.stagnant) == (failure, False, True)
    assert refused.why.blocked == ("g",)


def test_a_refusal_is_a_failure_of_the_tool_until_it_works(episode):
    """Also in messages that are replayed."""
    told = Call("pay", {"to": "Ada"}, f"{REFUSED} pay() here (no).", "error")
    for refuse in (
        lambda: episode.add_refusal(episode.state([]), PAID.text, Verdict(False, "no"), Reasons()),
        lambda: episode.replay([told]),
    ):
        refuse()
        assert episode.judge() is False
        episode.add_answer(episode.state([]), [PAID])
        assert episode.judge() is True


def test_another_request_begins_with_a_memory_of_its_own(episode):
    """What was tried for the first one says nothing about it; before any step the memory stays."""
    first = episode.working
    episode.begin_request("Pay Bob.")
    assert episode.working is first
    episode.add_answer(episode.state([]), [PAID])
    episode.begin_request("Pay Eve.")
    assert episode.working is not first
    assert episode.working.tries_at(episode.state([]), PAID.text) == 0
    assert episode.state([]).task == "Pay Eve."


CALL = {"id": "1", "name": "pay", "arguments": {"to": "Ada"}}
ASSISTANT = {"role": "assistant", "text": "Now.", "calls": [CALL], "answers": None, "error": False, "unfinished": ""}
CALLS = [{"id": "1", "name": "pay", "args": {"to": "Ada"}}]


@pytest.mark.parametrize(
    "message",
    [
        {
            "role": "assistant",
            "content": "Now.",
            "tool_calls": [{"id": "1", "function": {"name": "pay", "arguments": '{"to": "Ada"}'}}],
        },
        {"type": "ai", "content": "Now.", "tool_calls": CALLS},
        {"type": "ai", "data": {"content": "Now.", "tool_calls": CALLS}},
        {"lc": 1, "id": ["langchain", "AIMessageChunk"], "kwargs": {"content": "Now.", "tool_calls": CALLS}},
        SimpleNamespace(type="ai", content="Now.", tool_calls=CALLS),
    ],
    ids=["openai", "plain", "dict", "dumps", "object"],
)
def test_a_message_of_any_format_is_the_same(message):
    assert normalize_message(message) == ASSISTANT


@pytest.mark.parametrize("wrong", [42, "hello", SimpleNamespace(type="ai"), SimpleNamespace(content="x")])
def test_a_value_that_is_no_message_is_an_error(wrong):
    with pytest.raises(ValueError, match="is not a message"):
        normalize_message(wrong)


def test_a_message_that_only_looks_like_a_dump_is_read_as_it_is():
    assert normalize_message({"lc": 1, "role": "user", "content": "Hi."})["text"] == "Hi."
    assert normalize_message({"kwargs": {}, "role": "user", "content": "Hi."})["text"] == "Hi."
    with pytest.raises(ValueError, match="role ''"):
        normalize_message({"lc": 1, "kwargs": {"content": "Hi."}})


def test_only_the_name_of_a_tool_is_the_call_that_it_answers():
    """In OpenAI's legacy format a function has no ids; others may have names as well."""
    assert normalize_message({"role": "function", "name": "pay", "content": "paid"})["answers"] == "pay"
    assert normalize_message({"role": "user", "name": "Ada", "content": "Hi."})["answers"] is None


def test_content_is_text():
    blocks = [{"type": "text", "text": "Look:"}, {"type": "image_url"}, "a cat", None, {"x": 1}]
    assert extract_text(blocks) == "Look:\n[image_url]\na cat\n[data]"
    assert extract_text({"a": "é"}) == '{"a": "é"}'


def answer(ref, text, error=False):
    return {"role": "tool", "text": text, "calls": [], "answers": ref, "error": error}


@pytest.mark.parametrize("ref", ["1", None, ["1", 2], 7])
def test_calls_have_the_answers_with_their_ids(ref):
    """Whatever kind of value an id is; repeated ids are answered in turn."""
    calls = [{**CALL, "id": ref}, {**CALL, "id": ref, "name": "thank"}, {**CALL, "id": "other"}]
    messages = [{**ASSISTANT, "calls": calls}, answer(ref, "paid"), answer(ref, "thanked")]
    assert [(call.name, call.result) for call in iter_calls(messages)] == [("pay", "paid"), ("thank", "thanked")]


@pytest.mark.parametrize(
    ("text", "error", "expected"), [("paid", False, ""), ("no money", True, "no money"), ("", True, "error")]
)
def test_the_error_of_a_call_is_the_text_of_its_answer(text, error, expected):
    (call,) = iter_calls([ASSISTANT, answer("1", text, error)])
    assert (call.result, call.error) == (text, expected)
