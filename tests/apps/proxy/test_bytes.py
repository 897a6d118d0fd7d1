"""What the server sends reaches the client byte for byte, and what the client sends reaches the server, hints apart."""

import gzip
import json
from typing import Any

import httpx
import pytest
from hypothesis import given, settings, strategies as st
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.apps.proxy.conftest import TOOLS, serving, wait_for
from tests.apps.proxy.test_cut_streams import CHAT, RESPONSE
from tests.apps.proxy.test_proxy import open_episodes

from hardwon.apps.proxy import exchange
from hardwon.apps.proxy.forwarding import forward_headers
from hardwon.apps.proxy.json_text import JsonObject
from hardwon.apps.proxy.streams import stream_copy
from hardwon.memory import Item

QUESTION = [{"role": "user", "content": "Refund an order."}]
ROUTES = {
    "chat/completions": {"model": "m", "stream": True, "messages": QUESTION, "tools": TOOLS},
    "responses": {"model": "m", "stream": True, "input": "Refund an order."},
}
PART = {"index": 0, "id": "c1", "type": "function", "function": {"name": "refund", "arguments": '{"order": "A-1"}'}}
USAGE = b'data: {"id":"c-1","object":"chat.completion.chunk","choices":[],"usage":{"total_tokens":3}}\n\n'


def chunk(delta, **fields):
    choice = {"index": 0, "delta": delta, "finish_reason": None, **fields}
    return {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def odd_calls(*parts):
    return [chunk({"tool_calls": [part]}) for part in parts]


ODD: dict[str, bytes] = {
    **{
        f"chunk-{number}": json.dumps(value).encode()
        for number, value in enumerate([
            *odd_calls({**PART, "index": None}, {**PART, "index": "0"}, {**PART, "index": 1.0}, {**PART, "id": None}),
            *odd_calls({**PART, "id": 7}, {**PART, "id": ["c1"]}, {**PART, "function": None}),
            *odd_calls({**PART, "function": "f"}),
            *odd_calls({name: part for name, part in PART.items() if name != "index"}, {"index": 0}, {}),
            *odd_calls({**PART, "function": {"name": None, "arguments": None}}, None, "refund", [PART]),
            *odd_calls({**PART, "function": {"name": "refund", "arguments": {"order": "A-1"}}}),
            *odd_calls({**PART, "function": {"name": {"a": 1}, "arguments": [1]}}),
            chunk({"tool_calls": None}), chunk({"tool_calls": {}}), chunk({"tool_calls": PART}),
            chunk({"tool_calls": 5}),
            chunk(None), chunk([]), chunk("text"), chunk({"content": ["a"]}), chunk({"content": {"a": 1}}),
            chunk({"content": "\ud800"}), chunk({}, index=None), chunk({}, index=[0]), chunk({}, logprobs=[1]),
            chunk({}, finish_reason=5), chunk({}, token_ids=3), chunk({}, logprobs={"content": 3}),
            {"choices": None}, {"choices": {}}, {"choices": [None]}, {"choices": ["a"]}, {"choices": 3},
            {"error": None},
            {"created": 1, "choices": []}, {}, [], [[]], "text", 5, None, True,
            {"type": None}, {"type": ["response.created"]}, {"type": "response.output_item.added", "item": None},
            {"type": "response.output_item.done", "item": 5, "output_index": None},
            {"type": "response.completed", "response": None}, {"type": "response.created", "response": []},
            {"type": "response.output_item.done", "item": {"type": ["function_call"], "call_id": {"a": 1}}},
            {"type": "response.function_call_arguments.delta", "delta": None, "item_id": []},
        ])
    },
    "huge": b'{"choices": [], "created": ' + b"9" * 5000 + b"}",
    "nan": b'{"choices": [], "created": NaN, "x": -Infinity, "y": 1e999}',
    "deep": b'{"choices": ' + b"[" * 3000 + b"]" * 3000 + b"}",
    "twice": b'{"choices": [], "choices": null}',
    "not-json": b"{",
    "not-utf-8": b'{"choices": [{"delta": {"content": "\xff\xfe"}}]}',
    "raw-surrogate": b'{"choices": [{"delta": {"content": "\xed\xa0\x80"}}]}',
    "empty": b"",
}  # fmt: skip
FRAMES = {
    "comment": b": OPENROUTER PROCESSING\n\n",
    "crlf": b'event: x\r\nid: 7\r\nretry: 10\r\ndata: {"choices": []}\r\n\r\n',
    "cr": b'data: {"choices": []}\r\r',
    "two-lines": b'data: {"choices":\ndata: []}\n\n',
    "blank-lines": b"\n\n\n\n",
    "no-space": b'data:{"choices":[]}\n\n',
    "usage": USAGE,
    "ping": b"event: ping\ndata: \n\n",
}


def wrap(data):
    return b"data: " + data + b"\n\n"


def post(client, route, **options):
    return httpx.post(f"{client.base_url}{route}", json=ROUTES[route], **options)


def through(proxied, upstream, route, data, mode="warn", media_type="text/event-stream"):
    upstream.answer = lambda body: Response(data, media_type=media_type)
    return post(proxied(mode=mode), route)


@pytest.mark.parametrize("mode", ["warn", None])
@pytest.mark.parametrize("route", ROUTES)
def test_odd_events_change_nothing(proxied, upstream, route, mode):
    """In one stream each, between the beginning and the end of an ordinary answer."""
    begin, end = (CHAT[:-1], [USAGE, CHAT[-1]]) if route == "chat/completions" else (RESPONSE[:1], RESPONSE[1:])
    client = proxied(mode=mode)
    for name, odd in {**{name: wrap(data) for name, data in ODD.items()}, **FRAMES}.items():
        data = b"".join([*begin, odd, *end])
        upstream.answer = lambda body, data=data: Response(data, media_type="text/event-stream")
        assert post(client, route).content == data, name


@pytest.mark.parametrize("tail", [b"data: [DONE]", b"data: [DONE]\n", b"", b": bye"])
def test_a_stream_may_end_in_any_way_after_its_answer(proxied, upstream, tail):
    data = b"".join(CHAT[:-1]) + tail
    assert through(proxied, upstream, "chat/completions", data).content == data


def list_places(value, path=()):
    """Return the paths of all parts of a value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for name, part in pairs for place in [(*path, name), *list_places(part, (*path, name))]]


WHOLE = {
    "chat/completions": {**chunk({}), "choices": [{"index": 0, "message": {"content": None, "tool_calls": [PART]}}]},
    "responses": json.loads(RESPONSE[-1].split(b"data: ")[1])["response"],
}


@pytest.mark.parametrize("data", [b"{", b"", b"\xff", b" \n [] ", b'{"choices": [], "choices": 1.50}', b"null"])
def test_whole_answers_of_any_form_pass(proxied, upstream, data):
    assert through(proxied, upstream, "chat/completions", data, media_type="application/json").content == data


def test_a_call_without_an_index_is_a_step(proxied, upstream, library):
    parts = [wrap(json.dumps(value).encode()) for value in odd_calls({**PART, "index": None})]
    data = b"".join([CHAT[0], *parts, *CHAT[4:]])
    client = proxied()
    upstream.answer = lambda body: (
        Response(data, media_type="text/event-stream") if len(body["messages"]) == 1 else "ok"
    )
    post(client, "chat/completions")
    answer = {"role": "tool", "tool_call_id": "c1", "content": "refunded"}
    said = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{name: PART[name] for name in PART if name != "index"}],
    }
    body = {**ROUTES["chat/completions"], "stream": False, "messages": [*QUESTION, said, answer]}
    httpx.post(f"{client.base_url}chat/completions", json=body)
    (episode,) = wait_for(lambda: open_episodes(library))
    assert [step.action for step in episode.steps] == ['refund(order="A-1")']


# ---- headers and encodings


def test_headers_pass_as_they_are(proxied, upstream):
    response = JSONResponse({"choices": []}, headers={"x-a": "1", "connection": "x-secret", "x-secret": "s"})
    response.headers.append("set-cookie", "a=1; Path=/")
    response.headers.append("set-cookie", "b=2, c")
    upstream.answer = lambda body: response
    sent = {"x-b": "2", "accept": "x/y", "cookie": "k=v", "connection": "keep-alive, x-c", "x-c": "3"}
    got = post(proxied(), "chat/completions", headers=sent)
    assert got.headers.get_list("set-cookie") == ["a=1; Path=/", "b=2, c"]
    assert (got.headers["x-a"], "x-secret" in got.headers) == ("1", False)
    (headers,) = upstream.headers
    assert (headers["x-b"], headers["accept"], headers["cookie"], "x-c" in headers) == ("2", "x/y", "k=v", False)


def test_cookies_of_one_client_reach_no_other(proxied, upstream):
    upstream.answer = lambda body: JSONResponse({"choices": []}, headers={"set-cookie": "session=secret"})
    client = proxied()
    for _ in range(2):
        post(client, "chat/completions")
    assert all("cookie" not in headers for headers in upstream.headers)


@pytest.mark.parametrize("mode", ["warn", "block"])
def test_a_server_may_compress_what_it_was_asked_not_to(proxied, upstream, mode):
    data = b"".join(CHAT)
    headers = {"content-encoding": "gzip"}
    upstream.answer = lambda body: Response(gzip.compress(data), headers=headers, media_type="text/event-stream")
    assert post(proxied(mode=mode), "chat/completions").content == data
    whole = json.dumps(WHOLE["chat/completions"]).encode()
    upstream.answer = lambda body: Response(gzip.compress(whole), headers=headers, media_type="application/json")
    assert post(proxied(mode=mode), "chat/completions").content == whole


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
def test_an_answer_without_end_takes_no_memory_and_passes(proxied, upstream, monkeypatch, kind):
    """The copy of one event, or of a body, is kept up to a limit."""
    copies: list[Any] = []

    def keep(copied: type) -> Any:
        def make(*args: Any, **options: Any) -> Any:
            copies.append(copied(*args, **options))
            return copies[-1]

        return make

    monkeypatch.setattr(stream_copy, "LARGEST", 1000)
    for name in ("StreamCopy", "BodyCopy"):
        monkeypatch.setattr(exchange, name, keep(getattr(exchange, name)))
    data = b'{"x": "' + b"a" * 300_000
    pieces = [data[at : at + 500] for at in range(0, len(data), 500)]
    upstream.answer = lambda body: StreamingResponse(iter(pieces), media_type=kind)
    assert post(proxied(), "chat/completions").content == data
    (copy,) = copies
    assert len(copy._data if kind == "application/json" else copy._buffer) < 200_000


# ---- requests


@pytest.fixture
def echo():
    """A server that keeps the bytes of requests; yield its address and the bodies."""
    bodies: list[bytes] = []

    async def keep(request):
        bodies.append(await request.body())
        return JSONResponse({"choices": []})

    with serving(Starlette(routes=[Route("/v1/{path:path}", keep, methods=["POST"])])) as url:
        yield f"{url}/v1", bodies


ODD_REQUESTS = [
    b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800 hi"}]}',
    b'{ "messages" : [ {"content":"hi","role":"user", "z": 1.50, "z": 1e2} ] ,"t": 0.10, "x": 1e400}',
    b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "seed": ' + b"9" * 5000 + b"}",
    b'{"messages": [{"role": "critic", "content": 5}], "n": [1]}',
    b'{"messages": [{"role": "user", "content": {"a": NaN}}, {"role": "tool", "tool_call_id": {}, "content": null}]}',
    b'{"messages": [{"role": "assistant", "tool_calls": [{"id": 5, "function": null}]}, {"role": "user"}]}',
    b'{"messages": [{"role": "assistant", "tool_calls": 7}]}', b'{"messages": "hi"}', b'{"messages": []}', b"{}", b"",
    b"[1]", b"{", b'{"model": "\xff"}', b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}", b"\xef\xbb\xbf{}",
    '{"messages": [{"role": "user", "content": "hi"}]}'.encode("utf-16"),
]  # fmt: skip


@pytest.mark.parametrize("data", ODD_REQUESTS, ids=range(len(ODD_REQUESTS)))
@pytest.mark.parametrize("route", ROUTES)
def test_requests_pass_byte_for_byte(proxied, echo, route, data):
    url, bodies = echo
    if route == "responses":
        data = data.replace(b'"messages"', b'"input"')
    answer = httpx.post(f"{proxied(url=url).base_url}{route}", content=data)
    assert (answer.status_code, bodies) == (200, [data])


@pytest.mark.parametrize("place", ["message", "system"])
def test_a_hint_is_the_only_change(proxied, echo, library, place):
    url, bodies = echo
    library.add(Item("strategy", "Look the order up with find before a refund.", "Use find.", "Refund an order."))
    data = (
        b'{ "z": 1.50, "z": 2e0, "messages" :[ {"content" : "Be kind. \\ud800", "role":"system", "q": 1e400},\n'
        b'  {"role":"user","content":"Refund an order."} ]\t, "model":"m","big":' + b"9" * 5000 + b" }"
    )
    httpx.post(f"{proxied(url=url, place=place).base_url}chat/completions", content=data)
    (sent,) = bodies
    assert len(sent) > len(data)
    before = b'"Be kind. \\ud800' if place == "system" else b'"q": 1e400},\n  '
    at = data.index(before) + len(before)
    assert (sent[:at], sent[len(sent) - len(data) + at :]) == (data[:at], data[at:])
    assert b"find" in sent[at : len(sent) - len(data) + at]


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"a": 1,}', '{"a" 1}', '{"a": [1,]}', '{"a": [1', "", "{} {}", "{1: 2}", "{'a': 1}"]
)
def test_what_is_no_object_is_refused(text):
    with pytest.raises(ValueError, match=r"\w"):
        JsonObject(text)


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_objects_are_read_like_everywhere(value):
    text = json.dumps({"a": value, "b": [value, {"c": value}]}, indent=1)
    read = JsonObject(text)
    assert repr(read.value) == repr(json.loads(text))
    assert read.encode(dict(read.value)).decode() == text
    changed = {**read.value, "b": [read.value["b"][0], {**read.value["b"][1], "d": 1}, 2], "e": value}
    assert repr(json.loads(read.encode(changed))) == repr(changed)


@pytest.mark.parametrize("is_read", [False, True])
def test_request_headers_pass_except_those_of_the_connection(is_read):
    """In their order and as often as they came: a dictionary would keep one of two equal names."""
    own = [(b"Authorization", b"Bearer k"), (b"X-Trace", b"1"), (b"X-Trace", b"2"), (b"Cookie", b"a=1")]
    of_connection = [
        (b"Host", b"127.0.0.1:1"), (b"Content-Length", b"9"), (b"Connection", b"keep-alive, X-Hop"), (b"X-Hop", b"h"),
        (b"Transfer-Encoding", b"chunked"), (b"Expect", b"100-continue"),
    ]  # fmt: skip
    passed = forward_headers([*own, *of_connection, (b"Accept-Encoding", b"gzip")], is_read=is_read)
    assert passed[: len(own)] == own
    assert [value for _, value in passed[len(own) :]] == [b"identity" if is_read else b"gzip"]
