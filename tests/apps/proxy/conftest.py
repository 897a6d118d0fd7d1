"""A scripted OpenAI-compatible server, and the proxy in front of it, both over real HTTP."""

import asyncio
import contextlib
import functools
import json
import socket
import ssl
import threading
import time
from typing import Any

import openai
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from hardwon.apps.proxy.app import create_proxy
from hardwon.apps.proxy.conversations import ProxySettings
from hardwon.apps.proxy.library_access import LibraryAccess
from hardwon.apps.proxy.serving import NO_OWN_HEADERS
from hardwon.memory import ExperienceLibrary

read_certificates = functools.cache(ssl.create_default_context)

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("refund", "find")
]


def call(name, call_id, **arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def output_call(name, call_id, **arguments):
    """Return a call as an output item of the Responses API."""
    text = json.dumps(arguments)
    fields = {"id": f"fc_{call_id}", "call_id": call_id, "name": name, "arguments": text}
    return {"type": "function_call", **fields, "status": "completed"}


def output_message(text):
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}


class Upstream:
    """Answers each request with the value that `answer(body)` returns: a text, a list of calls, or a Response."""

    def __init__(self):
        self.requests, self.headers = [], []
        self.answer = lambda body: "done"
        self.extra = {}
        self.gate = threading.Event()
        self.gate.set()
        self.break_off = self.end_early = False
        self.url = ""
        routes = [
            Route("/v1/chat/completions", self.complete, methods=["POST"]),
            Route("/v1/responses", self.respond, methods=["POST"]),
            Route("/v1/Chat/completions", self.complete, methods=["POST"]),
            Route("/v1/chat/completions/", self.complete, methods=["POST"]),
            Route("/v1/responses/", self.respond, methods=["POST"]),
            Route("/v1/models", lambda request: JSONResponse({"object": "list", "data": [{"id": "m"}]})),
        ]
        self.app = Starlette(routes=routes)

    async def complete(self, request):
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        answer = self.answer(body)
        if isinstance(answer, Response):
            return answer
        if asyncio.iscoroutine(answer):
            answer = await answer
        calls = answer if isinstance(answer, list) else None
        message = {"role": "assistant", "content": None if calls else answer}
        if calls:
            message["tool_calls"] = calls
        reason = "tool_calls" if calls else "stop"
        common = {"id": "c-1", "created": 1, "model": "m"}
        if body.get("stream"):
            return StreamingResponse(self.stream(common, message, reason), media_type="text/event-stream")
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return JSONResponse({**common, "object": "chat.completion", "choices": [choice], **self.extra})

    async def respond(self, request):
        """Answer a request of the Responses API; `answer(body)` returns output items, a text, or a Response."""
        self.headers.append(dict(request.headers))
        body = await request.json()
        self.requests.append(body)
        answer = self.answer(body)
        if isinstance(answer, Response):
            return answer
        output = answer if isinstance(answer, list) else [output_message(answer)]
        value = {
            "id": f"resp_{len(self.requests)}", "object": "response", "created_at": 1, "model": "m",
            "status": "completed", "output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
            "conversation": {"id": body["conversation"]} if body.get("conversation") else None, **self.extra,
        }  # fmt: skip
        if body.get("stream"):
            return StreamingResponse(self.stream_response(value), media_type="text/event-stream")
        return JSONResponse(value)

    async def stream_response(self, value):
        number = iter(range(10_000))

        def event(kind, **fields):
            data = {"type": kind, "sequence_number": next(number), **fields}
            return f"event: {kind}\ndata: {json.dumps(data)}\n\n"

        begun = {**value, "status": "in_progress", "output": []}
        yield event("response.created", response=begun)
        yield event("response.in_progress", response=begun)
        for at, item in enumerate(value["output"]):
            place = {"output_index": at, "item_id": item["id"]}
            if item["type"] == "message":
                part = item["content"][0]
                begun = {**item, "status": "in_progress", "content": []}
                yield event("response.output_item.added", output_index=at, item=begun)
                yield event("response.content_part.added", **place, content_index=0, part={**part, "text": ""})
                for letter in part["text"]:
                    yield event("response.output_text.delta", **place, content_index=0, delta=letter, logprobs=[])
                    while not self.gate.is_set():
                        await asyncio.sleep(0.01)
            elif item["type"] == "function_call":
                yield event("response.output_item.added", output_index=at, item={**item, "arguments": ""})
                for letter in item["arguments"]:
                    yield event("response.function_call_arguments.delta", **place, delta=letter)
            else:
                yield event("response.output_item.added", output_index=at, item=item)
            yield event("response.output_item.done", output_index=at, item=item)
        if self.break_off:
            raise RuntimeError("the server dies")
        if self.end_early:
            return
        yield event(f"response.{value['status']}", response=value)

    async def stream(self, common, message, reason):
        def chunk(delta, reason=None):
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            value = {**common, "object": "chat.completion.chunk", "choices": [choice]}
            return f"data: {json.dumps(value)}\n\n"

        yield chunk({"role": "assistant", "content": ""})
        for letter in message["content"] or "":
            yield chunk({"content": letter})
            while not self.gate.is_set():
                await asyncio.sleep(0.01)
        for index, entry in enumerate(message.get("tool_calls", ())):
            first = {**entry, "index": index, "function": {"name": entry["function"]["name"], "arguments": ""}}
            yield chunk({"tool_calls": [first]})
            for letter in entry["function"]["arguments"]:
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": letter}}]})
        if self.break_off:
            raise RuntimeError("the server dies")
        if self.end_early:
            return
        yield chunk({}, reason)
        yield "data: [DONE]\n\n"


@contextlib.contextmanager
def serving(app, **options):
    """Serve an application on a free port in a thread, and yield its address."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1, **options))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()


@pytest.fixture(autouse=True)
def _nothing_is_withheld(monkeypatch):
    """Show every item: the random holdout would hide some from a run in ten."""
    monkeypatch.setattr("hardwon.runtime.loop.advisor.is_withheld", lambda *_: False)


@pytest.fixture(autouse=True)
def _certificates_are_read_once(monkeypatch):
    """Reading them takes longer than a test, and every HTTP client does it."""
    monkeypatch.setattr("ssl.create_default_context", read_certificates)


@pytest.fixture
def upstream():
    fake = Upstream()
    with serving(fake.app) as fake.url:
        yield fake


@pytest.fixture
def proxied(tmp_path, upstream):
    """Open proxies: `proxied(mode="block")` returns an OpenAI client whose base URL is a new proxy."""
    with contextlib.ExitStack() as stack:

        def start(*, opener=None, url=None, timeout_s=200.0, patience_s=200.0, **settings):
            access = LibraryAccess(opener or (lambda: ExperienceLibrary.open(tmp_path / "work.db")))
            options: Any = settings
            app = create_proxy(
                access,
                url or f"{upstream.url}/v1",
                settings=ProxySettings(**options),
                timeout_s=timeout_s,
                patience_s=patience_s,
            )
            address = stack.enter_context(serving(app, **NO_OWN_HEADERS))
            client = openai.OpenAI(api_key="sk-secret-key", base_url=f"{address}/v1", max_retries=0)
            return stack.enter_context(client)

        yield start


@pytest.fixture
def library(tmp_path):
    with ExperienceLibrary.open(tmp_path / "work.db") as opened:
        yield opened


def wait_for(condition, seconds=200.0):
    """Return the first true value of a condition; recording happens behind the responses."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return value
