"""In `block` mode no forbidden call reaches the client, however it is written, and nothing that cannot be read."""

import json
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse, Response
from tests.apps.proxy.conftest import TOOLS, output_call, output_message

from hardwon.memory import Item

BAD, GOOD = '{"order": "last"}', '{"order": "A-1"}'
CHAT = {"model": "m", "stream": True, "tools": TOOLS, "messages": [{"role": "user", "content": "Refund."}]}
RESPONSES = {"model": "m", "stream": True, "tools": TOOLS, "input": "Refund."}


def forbid(library, *actions):
    """Forbid calls for good: without a pin, a guardrail is tried again now and then."""
    for action in actions or ('refund(order="last")',):
        fields = {"forbids": action, "condition": {"text": "Request"}, "confidence": 0.9}
        library.add(Item("guardrail", f"Never {action}", "It is wrong.", "When asked for a refund", **fields))
    for item in library.items.find():
        library.items.update(item.id, pinned=True)


def part(arguments, name="refund", **fields):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **fields}


def chat_stream(*parts, reason="tool_calls", **fields):
    """Return a stream with a chunk for every list of parts."""
    deltas = [{"role": "assistant", "content": None}, *({"tool_calls": entry, **fields} for entry in parts)]
    events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    events += [{"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}] if reason else []
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def item(arguments, call_id, **fields):
    return {**output_call("refund", call_id), "arguments": arguments, **fields}


def response_stream(*events, output=(), status="completed", **fields):
    end = {"type": "response.completed", "response": {"id": "r", "status": status, "output": list(output), **fields}}
    begin = {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}}
    values = [begin, *events, end]
    return b"".join(f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode() for value in values)


def added(entry, **fields):
    return {"type": "response.output_item.added", "output_index": 0, "item": entry, **fields}


def done(entry, **fields):
    return {**added(entry, **fields), "type": "response.output_item.done"}


def arguments(text, **fields):
    return {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": text, **fields}


READ: dict[str, bytes] = {
    "index 0 for every call": chat_stream([part(GOOD, index=0, id="a")], [part(BAD, index=0, id="b")]),
    "index 0, in one chunk": chat_stream([part(GOOD, index=0, id="a"), part(BAD, index=0, id="b")]),
    "index 0, the first is forbidden": chat_stream([part(BAD, index=0, id="a")], [part(GOOD, index=0, id="b")]),
    "index null": chat_stream([part(GOOD, index=None, id="a")], [part(BAD, index=None, id="b")]),
    "no index": chat_stream([part(GOOD, id="a")], [part(BAD, id="b")]),
    "no index, in one chunk": chat_stream([part(GOOD, id="a"), part(BAD, id="b")]),
    "no index and no id": chat_stream([part(GOOD)], [part(BAD)]),
    "index 0 and empty ids": chat_stream([part(GOOD, index=0, id="")], [part(BAD, index=0, id="")]),
    "index 0 and equal ids": chat_stream([part(GOOD, index=0, id="a")], [part(BAD, index=0, id="a")]),
    "equal ids": chat_stream([part(GOOD, index=0, id="a")], [part(BAD, index=1, id="a")]),
    "another name": chat_stream([part("", "find", index=0, id="")], [part(BAD, index=0, id="")]),
    "parts with ids": chat_stream(*([part(letter, index=0, id="a")] for letter in BAD)),
    "parts without ids": chat_stream(
        [part("", index=0, id="a")], *([{"function": {"arguments": letter}}] for letter in BAD)
    ),
    "parts of two calls": chat_stream(
        [part("", id="a"), part("", id="b")],
        *([{"function": {"arguments": letter}} for letter in pair] for pair in zip(GOOD, BAD, strict=False)),
        [{"function": {"arguments": ""}}, {"function": {"arguments": BAD[len(GOOD) :]}}],
    ),
    "a name in parts": chat_stream(
        [part("", "ref", index=0, id="a")], [{"index": 0, "function": {"name": "und"}}],
        [{"index": 0, "function": {"arguments": BAD}}],
    ),
    "a name in parts, with ids": chat_stream(
        *([part(text, name, index=0, id="a")] for name, text in (("re", ""), ("fu", ""), ("nd", BAD)))
    ),
    "a name in parts, without an index": chat_stream(
        [part("", "ref", id="a")], [{"function": {"name": "und", "arguments": BAD}}]
    ),
    "a name in parts, in one chunk": chat_stream([part("", "ref", id="a"), part(BAD, "und", id="a")]),
    "a name that grows": chat_stream([part("", "ref", index=0, id="a")], [part(BAD, index=0, id="a")]),
    "a name that comes with every part": chat_stream(*([part(letter, index=0, id="a")] for letter in BAD)),
    "a byte order mark": b"\xef\xbb\xbf" + chat_stream([part(BAD, index=0, id="a")]).split(b"\n\n", 1)[1],
    "an index of text, in one chunk": chat_stream(
        [part("", "ref", index="0"), *({"index": "0", "function": x} for x in ({"name": "und"}, {"arguments": BAD}))]
    ),
    "an index of text": chat_stream([part(GOOD, index="0", id="a")], [part(BAD, index="0", id="b")]),
    "an object as arguments": chat_stream([part({"order": "last"}, index=0, id="a")]),
    "finish reason stop": chat_stream([part(BAD, index=0, id="a")], reason="stop"),
    "no finish reason": chat_stream([part(BAD, index=0, id="a")], reason=None),
    "another choice": chat_stream([part(BAD, index=0, id="a")]).replace(b's": [{"index": 0', b's": [{"index": 3'),
    "a whole message": chat_stream([part(BAD, index=0, id="a")]).replace(b'"delta"', b'"message"'),
    "ids that are numbers": chat_stream([part(GOOD, index=0, id=1)], [part(BAD, index=0, id=2)]),
    "escaped names": chat_stream([part(BAD, index=0, id="a")]).replace(b"tool_calls", b"tool\\u005fcalls"),
    "an old call": chat_stream().replace(
        b'"delta": {}', b'"delta": {"function_call": {"name": "refund", "arguments": %s}}' % json.dumps(BAD).encode()
    ),
    "equal output indexes": response_stream(
        added(item("", "a")), done(item(GOOD, "a")), added(item("", "b")), done(item(BAD, "b"))
    ),
    "no output indexes": response_stream(
        *(done(item(text, name), output_index=None) for name, text in (("a", GOOD), ("b", BAD)))
    ),
    "no ids of items": response_stream(*(done(item(text, "a", id=None)) for text in (GOOD, BAD))),
    "only the end": response_stream(output=[item(BAD, "a")]),
    "an end that leaves a call out": response_stream(done(item(BAD, "a")), output=[output_message("Hm")]),
    "an end that changes a call": response_stream(done(item(BAD, "a")), output=[item(GOOD, "a")]),
    "an end that changes a call back": response_stream(done(item(GOOD, "a")), output=[item(BAD, "a")]),
    "arguments in parts": response_stream(
        added(item("", "a")), *(arguments(letter, item_id="fc_a") for letter in BAD), done(item("", "a"))
    ),
}  # fmt: skip
UNREAD: dict[str, bytes] = {
    "calls that are no list": chat_stream(part(BAD, index=0, id="a")),
    "a function that is text": chat_stream([{"index": 0, "id": "a", "function": f"refund({BAD})"}]),
    "no JSON": chat_stream([part(BAD, index=0, id="a")]).replace(b'"choices"', b"choices"),
    "lines without a field": chat_stream([part(BAD, index=0, id="a")]).replace(b"data: {", b"{"),
    "spaces before a field": chat_stream([part(BAD, index=0, id="a")]).replace(b"data: {", b" data: {"),
    "another type": response_stream(done(item(BAD, "a", type=None))),
    "an item that is a list": response_stream(done([item(BAD, "a")])),
    "other arguments than their parts": response_stream(arguments(BAD, item_id="fc_a"), done(item(GOOD, "a"))),
    "an unknown status": response_stream(done(item(BAD, "a")), status=None),
}  # fmt: skip
REPEATED: dict[str, bytes] = {
    "no name": chat_stream([part(BAD, None, index=0, id="a")]),
    "two objects": chat_stream([part(GOOD, index=0, id="a")], [{"index": 0, "function": {"arguments": BAD}}]),
    "no object": chat_stream([part('["last"]', index=0, id="a")]),
    "half an object": chat_stream([part(BAD[:-1], index=0, id="a")]),
    "a name twice": chat_stream([part('{"order": "last", "order": "A-1"}', index=0, id="a")]),
    "arguments without a name": response_stream(arguments(BAD, item_id="x")),
}  # fmt: skip


def is_responses(data):
    return b"event: response." in data


def ask(client, data):
    """Return what the client gets; a refusal makes the model say that it cannot."""
    route, body = ("responses", RESPONSES) if is_responses(data) else ("chat/completions", CHAT)
    return httpx.post(f"{client.base_url}{route}", json=body).content


def answers(upstream, data):
    upstream.answer = lambda body: (
        Response(data, media_type="text/event-stream") if len(upstream.requests) % 2 else "It cannot be done."
    )


def test_a_forbidden_call_is_refused_in_every_form(proxied, upstream, library):
    forbid(library)
    client = proxied(mode="block")
    for name, data in READ.items():
        upstream.requests.clear()
        answers(upstream, data)
        got = ask(client, data)
        assert b"last" not in got, name
        assert len(upstream.requests) == 2, name
        assert "Not run: experience forbids" in json.dumps(upstream.requests[1]), name
        assert b'"finish_reason": "stop"' in got or b"response.completed" in got, name


@pytest.mark.parametrize(
    "route", ["chat/completions/", "Chat/completions", "%43hat/completions", "chat%2Fcompletions", "responses/"]
)
def test_another_spelling_of_a_route_passes_no_forbidden_call(proxied, upstream, library, route):
    forbid(library)
    name, body = ("only the end", RESPONSES) if route == "responses/" else ("finish reason stop", CHAT)
    answers(upstream, READ[name])
    got = httpx.post(f"{proxied(mode='block').base_url}{route}", json=body)
    assert got.status_code in (200, 400)
    assert b"last" not in got.content


def test_a_call_that_cannot_be_read_is_said_to_be_so(proxied, upstream, library):
    client = proxied(mode="block")
    for name, data in UNREAD.items():
        upstream.requests.clear()
        answers(upstream, data)
        got = ask(client, data)
        assert b"last" not in got, name
        assert b"unreadable_call" in got, name


def test_the_model_repeats_a_call_without_clear_arguments(proxied, upstream, library):
    client = proxied(mode="block")
    for name, data in REPEATED.items():
        upstream.requests.clear()
        answers(upstream, data)
        assert b"last" not in ask(client, data), name
        assert "Call it again with a name and a JSON object." in json.dumps(upstream.requests[1]), name
        upstream.answer = lambda body, data=data: Response(data, media_type="text/event-stream")
        assert b"unreadable_call" in ask(client, data), name


@pytest.mark.parametrize("mode", ["warn", "block"])
def test_allowed_calls_pass_in_every_form(proxied, upstream, library, mode):
    """Byte for byte where every reader finds the same calls; else each call gets an index of its own."""
    forbid(library)
    client = proxied(mode=mode)
    plain = chat_stream([part(GOOD, index=0, id="a")], [part("", "find", index=1, id="b")], reasoning="Hm")
    odd = chat_stream([part(GOOD, index=0, id="a", x={"s": "1"})], [part("", "find", index=0, id="b")], reasoning="Hm")
    for data in (plain, odd):
        answers(upstream, data)
        got = ask(client, data)
        upstream.requests.clear()
        if mode == "warn" or data is plain:
            assert got == data
        else:
            events = [json.loads(line[6:]) for line in got.splitlines() if line.startswith(b"data: {")]
            deltas = [event["choices"][0]["delta"] for event in events]
            (calls,) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
            assert [(call["index"], call["id"], call["function"]["name"]) for call in calls] == [
                (0, "a", "refund"), (1, "b", "find")
            ]  # fmt: skip
            assert calls[0]["x"] == {"s": "1"}
            assert [delta.get("reasoning") for delta in deltas] == [None, "Hm", "Hm", None]


def test_one_call_passes_byte_for_byte_if_only_its_number_is_missing(proxied, upstream):
    data = chat_stream([part("", id="a")], *([{"function": {"arguments": letter}}] for letter in GOOD))
    answers(upstream, data)
    assert ask(proxied(mode="block"), data) == data


def test_a_name_in_parts_passes_as_a_whole(proxied, upstream):
    """Clients that take the parts for names would call tools that do not exist."""
    answers(upstream, READ["a name in parts"])
    assert b'"name": "refund"' in ask(proxied(mode="block"), READ["a name in parts"])


@pytest.mark.parametrize("given", ["", " ", "null", "{}", None])
@pytest.mark.parametrize("stream", [True, False])
def test_a_call_without_arguments_is_one_however_it_is_written(proxied, upstream, library, given, stream):
    forbid(library, "find()")
    entry = part(given, "find", id="a")
    whole = JSONResponse({"choices": [{"index": 0, "message": {"content": None, "tool_calls": [entry]}}]})
    data = Response(chat_stream([{**entry, "index": 0}]), media_type="text/event-stream")
    upstream.answer = lambda body: "It cannot be done." if len(upstream.requests) > 1 else data if stream else whole
    httpx.post(f"{proxied(mode='block').base_url}chat/completions", json={**CHAT, "stream": stream})
    assert "Not run: experience forbids" in json.dumps(upstream.requests[1])


ENDS = ["data: [DONE]", "data: [DONE]\n", "", ": bye", "\n\n\n"]


@pytest.mark.parametrize("tail", ENDS)
def test_a_stream_without_a_forbidden_call_may_end_in_any_way(proxied, upstream, tail):
    data = chat_stream([part(GOOD, index=0, id="a")]).removesuffix(b"data: [DONE]\n\n") + tail.encode()
    answers(upstream, data)
    assert ask(proxied(mode="block"), data) == data


def test_an_error_stands_in_an_event_of_its_own(proxied, upstream):
    """The server dies after a last event without its blank line."""
    data = chat_stream(reason=None).removesuffix(b"data: [DONE]\n\n").rstrip()
    answers(upstream, data)
    got = ask(proxied(mode="block"), data)
    assert got.startswith(data + b"\n\ndata: {")
    assert b"broke off" in got


def test_whole_answers_are_ruled_on_too(proxied, upstream, library):
    forbid(library)
    client = proxied(mode="block")
    call = part(BAD, id="a")
    good, bad = (
        {"index": 0, "message": {"content": None, "tool_calls": [entry]}} for entry in (part(GOOD, id="a"), call)
    )
    for value in (
        {"choices": [bad]}, {"choices": [good, bad]}, {"choices": {"0": bad}},
        {"choices": [{"message": {"content": [{"type": "tool_use", "id": "x"}], "tool_calls": [call]}}]},
        {"choices": [{"message": {"tool_calls": {"0": call}}}]},
    ):  # fmt: skip
        upstream.requests.clear()
        upstream.answer = lambda body, value=value: (
            JSONResponse(value) if len(upstream.requests) == 1 else "It cannot be done."
        )
        got = httpx.post(f"{client.base_url}chat/completions", json={**CHAT, "stream": False})
        assert "last" not in got.text, value
        assert "unreadable_call" in got.text or len(upstream.requests) == 2, value


@pytest.mark.parametrize(
    ("form", "kind"), [("stream", "Text/Event-Stream; Charset=UTF-8"), ("whole", "application/json")]
)
def test_spellings_of_the_type_and_a_byte_order_mark_are_read(proxied, upstream, library, form, kind):
    forbid(library)
    message = {"index": 0, "message": {"content": None, "tool_calls": [part(BAD, id="a")]}}
    whole = b"\xef\xbb\xbf" + json.dumps({"choices": [message]}).encode()
    data = chat_stream([part(BAD, index=0, id="a")]) if form == "stream" else whole
    upstream.answer = lambda body: (
        Response(data, headers={"content-type": kind}) if len(upstream.requests) == 1 else "It cannot be done."
    )
    body = {**CHAT, "stream": form == "stream"}
    got = httpx.post(f"{proxied(mode='block').base_url}chat/completions", json=body)
    assert (got.status_code, len(upstream.requests)) == (200, 2)
    assert b"last" not in got.content


def test_a_model_with_ever_new_forbidden_calls_is_ended(proxied, upstream, library):
    """Each is another call, so none of them is refused three times."""
    forbid(library, *(f"refund(order={number})" for number in range(1, 10)))
    upstream.answer = lambda body: Response(
        chat_stream([part(json.dumps({"order": len(upstream.requests)}), index=0, id="a")]),
        media_type="text/event-stream",
    )
    got = ask(proxied(mode="block"), chat_stream())
    assert b"order" not in got
    assert b"This run ends here" in got
    assert len(upstream.requests) == 9


# ---- the message of a refused call


KEPT: dict[str, Any] = {
    "role": "assistant", "content": None, "refusal": None, "reasoning": "Hm. So.", "reasoning_content": "Let me see.",
    "reasoning_details": [{"type": "reasoning.text", "text": "Hm. So.", "signature": "c2ln", "index": 0}],
    "thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}], "annotations": [],
    "provider_specific_fields": {"thought_signatures": ["dGg="]},
    "tool_calls": [
        {**part(BAD, id="a"), "extra_content": {"google": {"thought_signature": "Z3M="}}, "provider_fields": {"n": 1}}
    ],
}  # fmt: skip


def test_the_model_gets_its_message_back_as_it_was(proxied, upstream, library):
    forbid(library)
    upstream.answer = lambda body: (
        JSONResponse({"choices": [{"index": 0, "message": KEPT}]}) if len(upstream.requests) == 1 else "No."
    )
    httpx.post(f"{proxied(mode='block').base_url}chat/completions", json={**CHAT, "stream": False})
    assert upstream.requests[1]["messages"][-2] == KEPT


def test_the_model_gets_its_streamed_message_back_as_it_was(proxied, upstream, library):
    forbid(library)
    detail, call = KEPT["reasoning_details"][0], KEPT["tool_calls"][0]
    deltas = [
        {"role": "assistant", "content": None, "refusal": None, "reasoning": "Hm.", "reasoning_content": "Let me"},
        {"role": "assistant", "reasoning": " So.", "reasoning_content": " see."},
        {"reasoning_details": [{**detail, "text": "Hm.", "signature": None}]},
        {"reasoning_details": [{"index": 0, "type": "reasoning.text", "text": " So.", "signature": "c2ln"}]},
        {"thinking_blocks": KEPT["thinking_blocks"], "annotations": []},
        {"provider_specific_fields": {"thought_signatures": ["dGg="]}},
        {"tool_calls": [{"index": 0, **call, "function": {"name": "refund", "arguments": '{"order"'}}]},
        {"tool_calls": [{"index": 0, "function": {"name": "refund", "arguments": ': "last"}'}}]},
    ]
    values = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    values.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    data = b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)
    answers(upstream, data)
    ask(proxied(mode="block"), data)
    assert upstream.requests[1]["messages"][-2] == KEPT


BLOCK: dict[str, Any] = {"type": "thinking", "thinking": "Hm. So.", "signature": "c2ln"}
SEQUENCES: dict[str, tuple[Any, list[Any]]] = {
    "a format with every part": (
        [{"type": "reasoning.text", "text": "Hm. So.", "format": "f-v1", "signature": "c2ln", "index": 0}],
        [
            [{"type": "reasoning.text", "text": "Hm.", "format": "f-v1", "index": 0}],
            [{"type": "reasoning.text", "text": " So.", "format": "f-v1", "index": 0}],
            [{"type": "reasoning.text", "signature": "c2ln", "format": "f-v1", "index": 0}],
        ],
    ),
    "two types with one index": (
        [
            {"type": "reasoning.summary", "summary": "Hm", "index": 0},
            {"type": "reasoning.encrypted", "data": "eA", "index": 0},
        ],
        [
            [{"type": "reasoning.summary", "summary": "Hm", "index": 0}],
            [{"type": "reasoning.encrypted", "data": "eA", "index": 0}],
        ],
    ),
    "blocks without an index": (
        [BLOCK, {**BLOCK, "thinking": "Then."}],
        [
            [{**BLOCK, "thinking": "Hm.", "signature": None}], [{**BLOCK, "thinking": " So.", "signature": ""}],
            [{**BLOCK, "thinking": ""}], [{**BLOCK, "thinking": "Then."}],
        ],
    ),
    "citations": (
        [{"type": "url_citation", "url": "a"}, {"type": "url_citation", "url": "b"}],
        [[{"type": "url_citation", "url": "a"}], [{"type": "url_citation", "url": "b"}]],
    ),
    "blocks and text": (
        [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm. So."}]}, {"type": "text", "text": "I do it."}],
        [
            [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}],
            [{"type": "thinking", "thinking": [{"type": "text", "text": " So."}]}], "I do", " it.",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("whole", "parts"), SEQUENCES.values(), ids=SEQUENCES)
def test_lists_in_parts_go_back_as_the_server_would_have_sent_them_whole(proxied, upstream, library, whole, parts):
    """OpenRouter, LiteLLM and Mistral write reasoning as such lists, and refuse what they do not know."""
    forbid(library)
    name = "content" if any(isinstance(value, str) for value in parts) else "details"
    events = [{"choices": [{"index": 0, "delta": {name: value}, "finish_reason": None}]} for value in parts]
    data = b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in events)
    data += chat_stream([part(BAD, index=0, id="a")])
    answers(upstream, data)
    ask(proxied(mode="block"), data)
    assert upstream.requests[1]["messages"][-2][name] == whole


@pytest.mark.parametrize("stream", [False, True])
def test_items_of_a_refused_call_are_repeated_as_they_were(proxied, upstream, library, stream):
    forbid(library)
    think = {
        "type": "reasoning",
        "id": "rs",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm"}],
        "x": 1,
    }
    items = [think, item(BAD, "a", namespace="shop", extra={"signature": "c2ln"}), {"type": "new_kind", "y": [2]}]
    value = {"id": "r", "status": "completed", "output": items}
    data = response_stream(*(done(entry, output_index=at) for at, entry in enumerate(items)))
    first = Response(data, media_type="text/event-stream") if stream else JSONResponse(value)
    upstream.answer = lambda body: first if len(upstream.requests) == 1 else "No."
    client = proxied(mode="block")
    httpx.post(f"{client.base_url}responses", json={**RESPONSES, "stream": stream, "store": False})
    assert upstream.requests[1]["input"][-4:-1] == items


# ---- requests whose answers nobody could rule on


@pytest.mark.parametrize(
    ("route", "data"),
    [
        ("chat/completions", {**CHAT, "n": 2}), ("chat/completions", {**CHAT, "functions": [{"name": "refund"}]}),
        ("responses", {**RESPONSES, "background": True}), ("chat/completions", b"{"), ("responses", b"\x1f\x8b"),
        ("chat/completions", {**CHAT, "messages": [{"role": "critic", "content": "x"}]}),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_followed_is_refused(proxied, upstream, library, route, data):
    content = data if isinstance(data, bytes) else json.dumps(data).encode()
    got = httpx.post(f"{proxied(mode='block').base_url}{route}", content=content)
    assert (got.status_code, got.json()["error"]["code"]) == (400, "unreadable_request")
    assert upstream.requests == []


def test_a_conversation_that_began_elsewhere_is_ruled_on(proxied, upstream, library):
    """After a restart of the proxy, for example."""
    forbid(library)
    output = {"type": "function_call_output", "call_id": "c9", "output": "refunded"}
    answers(upstream, response_stream(done(item(BAD, "a"))))
    body = {**RESPONSES, "input": [output], "previous_response_id": "resp_old"}
    got = httpx.post(f"{proxied(mode='block').base_url}responses", json=body).content
    assert b"last" not in got
    assert len(upstream.requests) == 2
