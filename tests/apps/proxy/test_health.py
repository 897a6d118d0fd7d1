"""The health check says when recall is off; a client that goes away ends the request to the server."""

import asyncio
import contextlib
import sqlite3
import threading
import time

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from tests.apps.proxy.conftest import serving

from hardwon.memory import Item

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def get_health(client):
    return httpx.get(str(client.base_url).replace("/v1/", "/healthz"), timeout=60).json()


def test_a_deleted_library_is_an_outage(proxied, tmp_path):
    client = proxied()
    assert get_health(client)["recall"] == "on"
    (tmp_path / "work.db").unlink()
    health = get_health(client)
    assert (health["status"], health["library"], health["recall"]) == ("ok", "unavailable", "off")
    assert "work.db" in health["why"]


@contextlib.contextmanager
def locking(path, *pragmas):
    """Hold a library as another program would."""
    other = sqlite3.connect(path, isolation_level=None)
    try:
        for pragma in pragmas:
            other.execute(pragma)
        other.execute("BEGIN EXCLUSIVE")
        yield
    finally:
        other.close()


def test_a_library_that_another_program_holds_for_itself_is_an_outage_until_it_is_free(
    proxied, upstream, library, tmp_path, monkeypatch
):
    library.add(Item("strategy", "Say hello back.", "Say hello.", "Hello"))
    library.close()
    monkeypatch.setattr("hardwon.apps.proxy.library_access.RETRY_S", 0.0)
    began = time.monotonic()
    with locking(tmp_path / "work.db", "PRAGMA locking_mode=EXCLUSIVE"):
        client = proxied()
        health = get_health(client)
        client.chat.completions.create(**BODY)
    assert (health["recall"], "locked" in health["why"]) == ("off", True)
    assert time.monotonic() - began < 30, "it waited for the lock"
    assert get_health(client)["recall"] == "on"
    client.chat.completions.create(**BODY)
    assert [len(body["messages"]) for body in upstream.requests] == [1, 2]


def test_a_writer_turns_recall_off_neither_in_health_nor_in_fact(proxied, upstream, library, tmp_path):
    library.add(Item("strategy", "Say hello back.", "Say hello.", "Hello"))
    client = proxied()
    with locking(tmp_path / "work.db"):
        assert get_health(client)["recall"] == "on"
        client.chat.completions.create(**BODY)
    assert [len(body["messages"]) for body in upstream.requests] == [2]


def test_an_error_of_the_library_is_named(proxied, monkeypatch):
    def fail(*_, **__):
        raise sqlite3.OperationalError("database is locked")

    client = proxied()
    monkeypatch.setattr("hardwon.memory.ExperienceLibrary.recall", fail)
    assert get_health(client)["why"] == "OperationalError: database is locked"


def test_a_library_that_does_not_answer_is_an_outage(proxied, library):
    client = proxied(opener=lambda: library, patience_s=0.05)
    with library._file.lock:
        health = get_health(client)
    assert (health["recall"], "does not answer in 0.05 s" in health["why"]) == ("off", True)


@pytest.mark.parametrize("mode", ["warn", "block"])
@pytest.mark.parametrize("body", [BODY, {**BODY, "stream": True}, {**BODY, "n": 2}])
def test_a_client_that_leaves_ends_the_request_to_the_server(proxied, upstream, mode, body):
    """The server notices that nobody waits for its answer any more."""
    gone = threading.Event()

    async def wait(request):
        while not await request.is_disconnected():
            await asyncio.sleep(0.01)
        gone.set()
        return Response(b"")

    with serving(Starlette(routes=[Route("/v1/{path:path}", wait, methods=["POST"])])) as url:
        client = proxied(url=f"{url}/v1", mode=mode)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{client.base_url}chat/completions", json=body, timeout=httpx.Timeout(60, read=0.2))
        assert gone.wait(20)


def test_a_client_that_leaves_within_a_stream_ends_it_at_the_server(proxied):
    gone = threading.Event()

    async def send(request):
        async def events():
            try:
                while True:
                    yield b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
                    await asyncio.sleep(0.01)
            finally:
                gone.set()

        return StreamingResponse(events(), media_type="text/event-stream")

    with serving(Starlette(routes=[Route("/v1/{path:path}", send, methods=["POST"])])) as url:
        address = f"{proxied(url=f'{url}/v1').base_url}chat/completions"
        with httpx.stream("POST", address, json={**BODY, "stream": True}, timeout=60) as response:
            assert next(response.iter_raw())
        assert gone.wait(20)
