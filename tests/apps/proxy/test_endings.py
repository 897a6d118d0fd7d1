"""How runs end in the proxy: only a whole answer after working calls is a success."""

import pytest
from starlette.responses import JSONResponse
from tests.apps.proxy.conftest import call, output_call, output_message, wait_for

MESSAGES = [
    {"role": "user", "content": "Refund Ada's order."},
    {"role": "assistant", "content": None, "tool_calls": [call("refund", "c1", order="A-1")]},
    {"role": "tool", "tool_call_id": "c1", "content": "refunded"},
]
CHOICES = [
    *(
        ({"message": {"content": "It"}, "finish_reason": reason}, None)
        for reason in ("length", "content_filter", "new")
    ),
    ({"message": {"content": None, "refusal": "I can't."}, "finish_reason": "stop"}, None),
    ({"message": {"content": ""}, "finish_reason": "stop"}, None),
    ({"message": {"content": "Done."}, "finish_reason": "stop"}, True),
]
REFUSAL = {**output_message("x"), "content": [{"type": "refusal", "refusal": "I can't."}]}
RESPONSES = [
    ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, output_message("It"), None),
    ({"status": "completed"}, REFUSAL, None),
    ({"status": "completed"}, {**output_message("It"), "status": "incomplete"}, None),
    ({"status": "completed"}, output_message("Done."), True),
]


def find_episode(library):
    (row,) = wait_for(library.episodes.find)
    return library.episodes.get(row["id"])


@pytest.mark.parametrize(("choice", "success"), CHOICES)
def test_a_chat_ends_by_its_last_choice(proxied, upstream, library, choice, success):
    whole = {**choice, "index": 0, "message": {"role": "assistant", **choice["message"]}}
    upstream.answer = lambda body: JSONResponse({"id": "c", "object": "chat.completion", "choices": [whole]})
    proxied().chat.completions.create(model="m", messages=MESSAGES)
    assert find_episode(library).success is success


@pytest.mark.parametrize(("fields", "item", "success"), RESPONSES)
def test_a_response_ends_by_its_status_and_its_items(proxied, upstream, library, fields, item, success):
    value = {"id": "resp_1", "object": "response", "model": "m", "output": [item], **fields}
    upstream.answer = lambda body: JSONResponse(value)
    result = {"type": "function_call_output", "call_id": "c1", "output": "refunded"}
    given = [MESSAGES[0], output_call("refund", "c1", order="A-1"), result]
    proxied().responses.create(model="m", input=given)
    assert find_episode(library).success is success
