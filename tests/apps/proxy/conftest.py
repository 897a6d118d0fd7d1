"""A scripted OpenAI-compatible server, and the proxy in front of it, both over real HTTP."""

import asyncio
import contextlib
import json
import socket
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
from hardwon.apps.proxy.token_file import TokenFile
from hardwon.memory import ExperienceLibrary

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("refund", "find")
]


def call(name, call_id, **arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


class Upstream:
    """Answers each request with the value that `answer(body)` returns: a text, a list of calls, or a Response."""

    def __init__(self):
        self.requests, self.headers = [], []
        self.answer = lambda body: "done"
        self.extra = {}
        self.gate = threading.Event()
        self.gate.set()
        self.break_off = False
        self.url = ""
        routes = [
            Route("/v1/chat/completions", self.complete, methods=["POST"]),
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
        choice = {"index": 0, "message": message, "finish_reason": reason, **self.extra.get("choice", {})}
        top = {name: value for name, value in self.extra.items() if name != "choice"}
        return JSONResponse({**common, "object": "chat.completion", "choices": [choice], **top})

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
        yield chunk({}, reason)
        yield "data: [DONE]\n\n"


@contextlib.contextmanager
def serving(app):
    """Serve an application on a free port in a thread, and yield its address."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
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


@pytest.fixture
def upstream():
    fake = Upstream()
    with serving(fake.app) as fake.url:
        yield fake


@pytest.fixture
def proxied(tmp_path, upstream):
    """Open proxies: `proxied(mode="block")` returns an OpenAI client whose base URL is a new proxy."""
    with contextlib.ExitStack() as stack:

        def start(
            *, opener=None, tokens=None, extra_body=None, url=None, timeout_s=200.0, patience_s=200.0, **settings
        ):
            access = LibraryAccess(opener or (lambda: ExperienceLibrary.open(tmp_path / "work.db")))
            options: Any = settings
            app = create_proxy(
                access,
                url or f"{upstream.url}/v1",
                settings=ProxySettings(**options),
                tokens=None if tokens is None else TokenFile(tokens),
                extra_body=extra_body,
                timeout_s=timeout_s,
                patience_s=patience_s,
            )
            address = stack.enter_context(serving(app))
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
