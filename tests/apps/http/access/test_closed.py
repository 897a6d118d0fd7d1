"""A library that once had a token stays closed, whatever becomes of the token file; so do open connections."""

import asyncio
import json
import os
import sqlite3
import threading
import time

import httpx
import pytest
from tests.apps.http.local import TestClient, bearer

from hardwon.apps.http.access.auth import LOCAL, Tokens
from hardwon.apps.http.access.gate import RevocableSocket
from hardwon.apps.http.app import create_app
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError


@pytest.fixture
def tokens(empty):
    return Tokens.beside(empty)


def deleted(file):
    file.unlink()


def emptied(file):
    file.write_text("")


def cut(file):
    file.write_bytes(file.read_bytes()[:20])


def damaged(file):
    file.write_bytes(b"\xff\xfe{[[[")


def of_another_shape(file):
    file.write_text('{"tokens": 5}')


def without_tokens(file):
    file.write_text('{"tokens": []}')


def a_folder(file):
    file.unlink()
    file.mkdir()


def a_link_to_nothing(file):
    file.unlink()
    file.symlink_to(file.with_name("nowhere"))


WAYS = [deleted, emptied, cut, damaged, of_another_shape, without_tokens, a_folder, a_link_to_nothing]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("running", [True, False])
def test_nothing_that_happens_to_the_token_file_opens_the_server(empty, tokens, way, running):
    """While it runs, and for a server that starts afterwards."""
    tokens.add("me", write=True)
    if running:
        with TestClient(create_app(empty), raise_server_exceptions=False) as client:
            assert client.get("/v1/stats").status_code == 401
            way(tokens.path)
            assert client.get("/v1/stats").status_code == 401
            assert client.post("/v1/items", json={"items": []}).status_code == 401
            assert client.get("/healthz").status_code == 200
    else:
        way(tokens.path)
        with TestClient(create_app(empty), raise_server_exceptions=False) as client:
            assert client.get("/v1/stats").status_code == 401


def test_revoking_the_last_token_opens_nothing(empty, tokens):
    tokens.add("me")
    with TestClient(create_app(empty)) as client:
        tokens.revoke("me")
        assert client.get("/v1/stats").status_code == 401
    assert tokens.callers() == []
    with TestClient(create_app(empty)) as client:
        assert client.get("/v1/stats").status_code == 401


def test_new_token_is_the_way_back(empty, tokens):
    tokens.add("me")
    tokens.revoke("me")
    with TestClient(create_app(empty)) as client:
        assert client.get("/v1/stats", headers=bearer(tokens.add("me"))).status_code == 200
        tokens.path.unlink()
        assert client.get("/v1/stats", headers=bearer(tokens.add("again"))).status_code == 200


def test_restored_token_file_is_followed(empty, tokens):
    """Also where its size and its time are those of before."""
    secret = tokens.add("me")
    with TestClient(create_app(empty)) as client:
        assert client.get("/v1/stats", headers=bearer(secret)).status_code == 200
        text, status = tokens.path.read_text(), tokens.path.stat()
        tokens.path.write_text("x" * len(text))
        os.utime(tokens.path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert client.get("/v1/stats", headers=bearer(secret)).status_code == 401
        tokens.path.write_text(text)
        os.utime(tokens.path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert client.get("/v1/stats", headers=bearer(secret)).status_code == 200


def test_token_file_of_an_earlier_version_is_read_and_closes(empty, tokens):
    """It has no rights but `write`, and the library has no note of it yet."""
    secret = tokens.add("old", write=True)
    rows = json.loads(tokens.path.read_text())["tokens"]
    for row in rows:
        del row["rights"]
    tokens.path.write_text(json.dumps({"tokens": rows}))
    with sqlite3.connect(empty) as connection:
        connection.execute("DELETE FROM meta WHERE name = 'had_tokens'")
    connection.close()
    with TestClient(create_app(empty)) as client:
        assert client.post("/v1/items", json={"items": []}, headers=bearer(secret)).status_code == 200
    tokens.path.unlink()
    with TestClient(create_app(empty)) as client:
        assert client.get("/v1/stats").status_code == 401


def test_damaged_token_file_is_not_written_over(tokens):
    tokens.add("me")
    damaged(tokens.path)
    with pytest.raises(ConfigError, match="does not hold tokens"):
        Tokens(tokens.path).add("other")
    with pytest.raises(ConfigError, match="token add"):
        Tokens(tokens.path).callers()


def test_tokens_made_and_revoked_at_once_are_all_there(empty):
    """No writer loses what another one wrote, in particular not a revocation."""
    Tokens.beside(empty).add("leaving")

    def work(number):
        mine = Tokens.beside(empty)
        mine.add(f"t{number}")
        if number == 3:
            mine.revoke("leaving")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {caller.name for caller in Tokens.beside(empty).callers()} == {f"t{number}" for number in range(8)}


# ---- what comes through a proxy


@pytest.mark.parametrize(
    "header",
    [
        "X-Forwarded-For", "x-forwarded-host", "Forwarded", "X-Real-IP", "Via", "CF-Connecting-IP", "True-Client-IP",
        "X_Forwarded_For", "WL-Proxy-Client-IP", "X-Remote-Addr", "DO-Connecting-IP", "X-Arr-ClientIP", "X-Vercel-Id",
        "Tailscale-User-Login",
    ],
)  # fmt: skip
def test_open_server_refuses_what_came_through_a_proxy(empty, tokens, header):
    with TestClient(create_app(empty)) as client:
        refused = client.get("/v1/stats", headers={header: "203.0.113.9"})
        assert (refused.status_code, refused.headers["content-type"]) == (403, "application/problem+json")
        assert header.lower() in refused.json()["detail"]
        assert "token add" in refused.json()["detail"]
        known = {header: "203.0.113.9", **bearer(tokens.add("me"))}
        assert client.get("/v1/stats", headers=known).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["[", "[::1", "evil.example:8420", "127.0.0.1@evil.example", "", "127.0.0.1.", "127.0.0.1.evil.example", "0.0.0.0"],
)
def test_any_other_name_is_misdirected(empty, host):
    with TestClient(create_app(empty)) as client:
        assert client.get("/v1/stats", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("origin", ["null", "http://[", "https://evil.example", "http://127.0.0.1:1", "file://"])
def test_any_other_origin_is_refused(empty, origin):
    with TestClient(create_app(empty)) as client:
        assert client.get("/v1/stats", headers={"Origin": origin}).status_code == 403
        assert client.get("/v1/stats", headers={"Origin": "http://127.0.0.1:8420"}).status_code == 200


# ---- connections that stay open


def test_stream_ends_when_its_token_is_revoked(own, serving):
    tokens = Tokens.beside(own)
    secret = tokens.add("me")
    tokens.add("other")
    with (
        serving(own) as url,
        httpx.Client(timeout=20) as client,
        client.stream("GET", f"{url}/v1/events", headers=bearer(secret)) as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines) == ": hardwon"
        began = time.monotonic()
        tokens.revoke("me")
        list(lines)
        assert time.monotonic() - began < 15


def test_stream_of_an_open_server_ends_when_it_gets_tokens(own, serving):
    with serving(own) as url, httpx.Client(timeout=20) as client, client.stream("GET", f"{url}/v1/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": hardwon"
        Tokens.beside(own).add("me")
        list(lines)


def test_websocket_ends_when_its_token_is_revoked():
    allowed, sent = True, []

    async def talk():
        nonlocal allowed
        messages = [{"type": "websocket.connect"}, {"type": "websocket.receive", "text": "hello"}]

        async def receive():
            if messages:
                return messages.pop(0)
            await asyncio.sleep(3600)
            return {}

        async def send(message):
            sent.append(message)

        watched = RevocableSocket(receive, send, lambda: allowed)
        heard = [await watched.receive(), await watched.receive()]
        allowed = False
        began = time.monotonic()
        heard.append(await watched.receive())
        await watched.send({"type": "websocket.send", "text": "secret"})
        watched.close()
        return [message["type"] for message in heard], time.monotonic() - began

    heard, took = asyncio.run(talk())
    assert heard == ["websocket.connect", "websocket.receive", "websocket.disconnect"]
    assert [(message["type"], message["code"]) for message in sent] == [("websocket.close", 1008)]
    assert took < 5


def test_local_caller_is_known_while_there_were_never_tokens(empty, tokens):
    with ExperienceLibrary.open(empty):
        assert LOCAL in tokens
        Tokens.beside(empty).add("me")
        assert LOCAL not in tokens


# ---- the command


def test_owner_is_told_the_way_back(hardwon, empty):
    hardwon("serve", "token", "add", empty, "--name", "ci")
    gone = hardwon("serve", "token", "revoke", empty, "ci").stdout
    assert "last token" in gone
    assert "hardwon serve token add" in gone
    listed = hardwon("serve", "token", "list", empty).stdout
    assert "nobody" in listed
    assert "hardwon serve token add" in listed


def test_rights_are_given_by_options(hardwon, hardwon_json, empty):
    for name, options in {
        "reader": (), "collector": ("--record",), "agent": ("--read", "--record"), "admin": ("--write",),
        "program": ("--no-log",), "scribe": ("--record", "--log"),
    }.items():  # fmt: skip
        hardwon("serve", "token", "add", empty, "--name", name, *options)
    told = {one["name"]: one["rights"] for one in hardwon_json("serve", "token", "list", empty)["tokens"]}
    assert told == {
        "reader": ["read", "log"], "collector": ["record"], "agent": ["read", "record"],
        "admin": ["read", "log", "record", "write"], "program": ["read"], "scribe": ["read", "log", "record"],
    }  # fmt: skip
    assert "read and record" in hardwon("serve", "token", "list", empty).stdout
