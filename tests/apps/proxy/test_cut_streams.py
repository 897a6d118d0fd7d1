"""An upstream server that dies within a response: the client gets what came, and no run ends with it."""

import contextlib
import json
import socket
import threading
from typing import Any

import httpx
import openai
import pytest

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
FRAMES = {
    "close": lambda data: b"Connection: close\r\n\r\n" + data,
    "chunks": lambda data: (
        b"Transfer-Encoding: chunked\r\n\r\n" + (b"%x\r\n%b\r\n" % (len(data), data) if data else b"")
    ),
    "length": lambda data: b"Content-Length: 99999\r\n\r\n" + data,
}
"""Ways to tell the end of a response; with the first one, a server that dies cannot be told from one that ends."""
QUESTION = [{"role": "user", "content": "Refund Ada's order."}]


def event(value, name=""):
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(delta, reason=None, at=0):
    choice = {"index": at, "delta": delta, "finish_reason": reason}
    return event({"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


def chat_events():
    function = {"name": "refund", "arguments": ""}
    first = {"index": 0, "id": "call-1", "type": "function", "function": function}
    yield chunk({"role": "assistant", "content": ""})
    yield chunk({"content": "I will "})
    yield chunk({"tool_calls": [first]})
    yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"order": 1}'}}]})
    yield chunk({}, "tool_calls")
    yield b"data: [DONE]\n\n"


def response_events():
    value: dict[str, Any] = {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": [], "tools": [],
        "parallel_tool_calls": True, "tool_choice": "auto",
    }  # fmt: skip
    part = {"type": "output_text", "text": "Done", "annotations": []}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
    begun = {**value, "status": "in_progress"}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": {**message, "content": []}},
        {"type": "response.output_item.done", "output_index": 0, "item": message},
        {"type": "response.completed", "response": {**value, "status": "completed", "output": [message]}},
    ]
    for number, entry in enumerate(events):
        yield event({**entry, "sequence_number": number}, entry["type"])


@contextlib.contextmanager
def dying(data, frame="close", head=HEAD):
    """A server that sends a head and these bytes to every request and closes the connection in order."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection:
                    request = b""
                    while b"\r\n\r\n" not in request:
                        request += connection.recv(65536)
                    fields, _, body = request.partition(b"\r\n\r\n")
                    size = int(fields.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                    while len(body) < size:
                        body += connection.recv(65536)
                    connection.sendall(head + FRAMES[frame](data))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(20)


def cuts(events):
    """Return prefixes of a stream: nothing, then half of each event, and all events up to it."""
    whole = b""
    for part in events:
        yield whole
        yield whole + part[: len(part) // 2]
        whole += part


CHAT = list(chat_events())
RESPONSE = list(response_events())


def consume(client, kind, **options):
    if kind == "chat":
        tools = [{"type": "function", "function": {"name": "refund", "parameters": {"type": "object"}}}]
        stream = client.chat.completions.create(model="m", messages=QUESTION, stream=True, tools=tools, **options)
    else:
        stream = client.responses.create(model="m", input=QUESTION, stream=True, **options)
    return list(stream)


@pytest.mark.parametrize("cut", list(cuts(CHAT[:-1])), ids=lambda cut: f"{len(cut)}-bytes")
def test_a_chat_that_ends_before_its_answer_is_an_error_in_block_mode(proxied, library, cut):
    """At every point: before the first event, within one, and between two."""
    with dying(cut) as url, pytest.raises(openai.APIError, match="broke off"):
        consume(proxied(url=url, mode="block"), "chat")
    assert library.episodes.find() == []


@pytest.mark.parametrize("cut", list(cuts(RESPONSE)), ids=lambda cut: f"{len(cut)}-bytes")
def test_a_response_that_ends_before_its_answer_is_an_error_in_block_mode(proxied, library, cut):
    with dying(cut) as url, pytest.raises(openai.APIError, match="broke off"):
        consume(proxied(url=url, mode="block"), "responses")
    assert library.episodes.find() == []


def read_raw(client, route, **options):
    """Return the bytes of a response, and whether its connection broke."""
    body = {"model": "m", "stream": True, "messages": QUESTION, "input": QUESTION, **options}
    data = b""
    with httpx.stream("POST", f"{client.base_url}{route}", json=body) as response:
        assert response.status_code == 200
        try:
            for part in response.iter_raw():
                data += part
        except httpx.RemoteProtocolError:
            return data, True
    return data, False


@pytest.mark.parametrize("mode", ["warn", None])
@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize(("route", "events"), [("chat/completions", CHAT[:-1]), ("responses", RESPONSE)])
def test_nothing_is_added_to_a_response_that_breaks_off(proxied, library, route, events, frame, mode):
    """The connection breaks as that of the server did, and an end in order is one."""
    for cut in list(cuts(events))[::3]:
        with dying(cut, frame) as url:
            assert read_raw(proxied(url=url, mode=mode), route) == (cut, frame != "close")
    assert library.episodes.find() == []


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("route", ["chat/completions", "responses", "files"])
def test_a_body_that_breaks_off_passes_as_far_as_it_came(proxied, route, frame):
    head = HEAD.replace(b"text/event-stream", b"application/json")
    with dying(b'{"id": "c-1", "choi', frame, head) as url:
        assert read_raw(proxied(url=url), route, stream=False) == (b'{"id": "c-1", "choi', frame != "close")


def test_several_answers_of_which_one_is_cut_pass_as_they_came(proxied):
    parts = b"".join([chunk({"content": "a"}, at=0), chunk({"content": "b"}, at=1), chunk({}, "stop", at=0)])
    with dying(parts) as url:
        assert read_raw(proxied(url=url), "chat/completions", n=2) == (parts, False)


@pytest.mark.parametrize("mode", ["warn", "block"])
def test_whole_answers_are_passed_on_even_without_an_end_mark(proxied, mode):
    with dying(b"".join(CHAT[:-1])) as url:
        assert consume(proxied(url=url, mode=mode), "chat")[-1].choices[0].finish_reason == "tool_calls"
    with dying(b"".join(RESPONSE)) as url:
        assert consume(proxied(url=url, mode=mode), "responses")[-1].type == "response.completed"
