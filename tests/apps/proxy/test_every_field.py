"""Every field of streams, answers and requests is left out, replaced or joined by others, and no byte changes."""

import copy
import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from tests.apps.proxy.conftest import TOOLS, serving
from tests.apps.proxy.test_bytes import FRAMES, ROUTES, WHOLE, list_places
from tests.apps.proxy.test_cut_streams import CHAT, RESPONSE, event

MESSAGE: dict[str, dict[str, Any]] = {
    "message_start": {"message": {"id": "m-1", "role": "assistant", "content": []}},
    "content_block_start": {"index": 0, "content_block": {"type": "tool_use", "id": "t-1", "name": "refund"}},
    "content_block_delta": {"index": 0, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
    "message_delta": {"delta": {"stop_reason": "tool_use"}},
    "message_stop": {},
}
MESSAGES = [event({"type": kind, **fields}, kind) for kind, fields in MESSAGE.items()]
STREAMS = {"chat/completions": CHAT, "responses": RESPONSE, "messages": MESSAGES}
TEXTS: dict[str, list[bytes]] = {
    "chat/completions": [*CHAT[:2], event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}), CHAT[-1]],
    "responses": RESPONSE,
}
ENDS = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}
LEFT_OUT = object()
ODD: list[Any] = [LEFT_OUT, None, 5, "", "\ud800", [], {"index": None}, [None, {"type": 1}]]
CALL = {"id": "c1", "type": "function", "function": {"name": "refund", "arguments": '{"order": 1}'}}
REQUESTS: dict[str, Any] = {
    "chat/completions": {
        "model": "m", "n": 1, "tools": TOOLS[:1],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Refund."}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "refunded"},
        ],
    },
    "responses": {
        "model": "m", "store": False, "instructions": "Be kind.", "previous_response_id": "resp_0",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Refund."}]},
            {"type": "function_call", "call_id": "c1", "name": "refund", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "refunded"},
        ],
    },
}  # fmt: skip


def vary(value, odd):
    """Yield copies of a value: each with one place changed in one way, or one object with a further field."""
    for *path, last in list_places(value):
        for part in odd:
            changed = copy.deepcopy(value)
            inner = changed
            for name in path:
                inner = inner[name]
            if part is LEFT_OUT:
                del inner[last]
            else:
                inner[last] = part
            yield changed
        if isinstance(inner, dict):
            inner["x-other"] = {"a": [1, None]}
            yield changed


@pytest.fixture
def server():
    """A server that answers with `pieces`, as the type `kind`, and keeps the bodies of requests."""

    told = SimpleNamespace(kind="text/event-stream", pieces=[b"{}"], bodies=[])

    async def answer(request):
        told.bodies.append(await request.body())
        if len(told.pieces) == 1:
            return Response(told.pieces[0], media_type=told.kind)
        return StreamingResponse(iter(told.pieces), media_type=told.kind)

    with serving(Starlette(routes=[Route("/v1/{path:path}", answer, methods=["POST"])])) as url:
        told.url = f"{url}/v1"
        yield told


@pytest.fixture
def post(proxied, server):
    base = proxied(url=server.url).base_url
    with httpx.Client() as client:
        yield lambda route, **body: client.post(f"{base}{route}", **body)


@pytest.mark.parametrize("route", STREAMS)
def test_every_field_of_a_stream_passes(post, server, route):
    stream = STREAMS[route]
    for at, part in enumerate(stream):
        head, _, data = part.partition(b"data: ")
        if not data.startswith(b"{"):
            continue
        odd = [head + b"data: " + json.dumps(value).encode() + b"\n\n" for value in vary(json.loads(data), ODD)]
        server.pieces = [b"".join([*stream[:at], *odd, *stream[at:]])]
        assert post(route, json=ROUTES.get(route, ROUTES["chat/completions"])).content == server.pieces[0], part


@pytest.mark.parametrize("route", ROUTES)
def test_every_field_of_a_stream_without_calls_passes_where_calls_are_ruled_on(proxied, server, route):
    """All of an event before it, and each in its place."""
    base, stream = proxied(mode="block", url=server.url).base_url, TEXTS[route]
    with httpx.Client() as client:
        for at, part in enumerate(stream):
            head, _, data = part.partition(b"data: ")
            values = vary(json.loads(data), ODD) if data.startswith(b"{") else ()
            odd = [head + b"data: " + json.dumps(value).encode() + b"\n\n" for value in values]
            for parts, rest in ((odd, stream[at:]), *(([one], stream[at + 1 :]) for one in odd)):
                server.pieces = [b"".join([*stream[:at], *parts, *rest])]
                assert client.post(f"{base}{route}", json=ROUTES[route]).content == server.pieces[0], parts


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("route", STREAMS)
def test_bytes_pass_however_they_are_cut(post, server, route, end):
    data = b"".join([*STREAMS[route][:2], *FRAMES.values(), b"data: \xff\xfe\n\n", *STREAMS[route][2:]])
    data = data.replace(b"\n", ENDS[end])
    for size in (1, 7, len(data)):
        server.pieces = [data[at : at + size] for at in range(0, len(data), size)]
        assert post(route, json=ROUTES.get(route, ROUTES["chat/completions"])).content == data


@pytest.mark.parametrize("route", WHOLE)
def test_every_field_of_an_answer_passes(post, server, route):
    server.kind = "application/json"
    for value in vary(WHOLE[route], [LEFT_OUT, None, "\ud800"]):
        server.pieces = [json.dumps(value, indent=1).encode()]
        assert post(route, json={**ROUTES[route], "stream": False}).content == server.pieces[0]


@pytest.mark.parametrize("route", REQUESTS)
def test_every_field_of_a_request_passes(post, server, route):
    server.kind = "application/json"
    for value in vary(REQUESTS[route], [LEFT_OUT, None, {"a": 1.50}]):
        data = json.dumps(value, separators=(" , ", ":  ")).encode()
        post(route, content=data)
        assert server.bodies.pop() == data


@pytest.mark.parametrize("route", STREAMS)
def test_headers_of_a_response_pass_and_only_the_episode_is_added(post, server, route):
    body: dict[str, Any] = {"json": ROUTES.get(route, ROUTES["chat/completions"])}
    direct, through = httpx.post(f"{server.url}/{route}", **body).headers.raw, post(route, **body).headers.raw
    assert [name for name, _ in through if name != b"x-hardwon-episode"] == [name for name, _ in direct]
    assert {*direct} - {*through} <= {pair for pair in direct if pair[0] == b"date"}
