"""The health check says when recall is off; a client that goes away ends the request to the server."""

import asyncio
import sqlite3
import threading

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from tests.apps.proxy.conftest import serving

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


def test_a_locked_library_is_an_outage(proxied, tmp_path, monkeypatch):
    """Another program may hold it for itself."""
    released = threading.Event()
    client = proxied(patience_s=0.2)
    monkeypatch.setattr("hardwon.memory.ExperienceLibrary.recall", lambda *_, **__: released.wait(100))
    health = get_health(client)
    released.set()
    assert (health["recall"], "does not answer" in health["why"]) == ("off", True)


def test_an_error_of_the_library_is_named(proxied, monkeypatch):
    def fail(*_, **__):
        raise sqlite3.OperationalError("database is locked")

    client = proxied()
    monkeypatch.setattr("hardwon.memory.ExperienceLibrary.recall", fail)
    assert get_health(client)["why"] == "OperationalError: database is locked"


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
            httpx.post(f"{client.base_url}chat/completions", json=body, timeout=httpx.Timeout(60, read=0.5))
        assert gone.wait(20)
