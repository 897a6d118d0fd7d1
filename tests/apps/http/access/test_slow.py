"""Clients that send or read too slowly are cut off, and the others are served meanwhile. A real server on loopback."""

import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest

pytest.importorskip("uvicorn")

from hardwon.apps.http.access.patience import PatientProtocol
from hardwon.memory import Item
from hardwon.memory.library import ExperienceLibrary


class Hasty(PatientProtocol):
    """The same with limits that a test can wait for."""

    headers_s, body_s, read_s = 0.6, 0.6, 0.6


@pytest.fixture
def address(empty, serving):
    with serving(empty, protocol=Hasty, rate=1e6) as url:
        yield url


def connected(address):
    parts = urlsplit(address)
    made = socket.create_connection((parts.hostname, parts.port))
    made.settimeout(10)
    return made


def is_cut_off(connection):
    """Whether the server ends the connection, and after how many seconds."""
    began = time.monotonic()
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return None
    return time.monotonic() - began


def test_headers_that_do_not_end_are_not_waited_for(address):
    with connected(address) as silent, connected(address) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        assert httpx.get(f"{address}/healthz").status_code == 200
        assert is_cut_off(silent) < 8
        assert is_cut_off(slow) < 8


def test_a_byte_now_and_then_does_not_prolong_it(address):
    with connected(address) as slow:
        began = time.monotonic()
        try:
            for byte in b"GET /healthz HTTP/1.1\r\nX-Slow: " + b"x" * 200:
                slow.sendall(bytes([byte]))
                time.sleep(0.1)
        except OSError:
            pass
        assert time.monotonic() - began < 15


def test_second_request_of_a_connection_is_not_waited_for_either(address):
    with connected(address) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200" in slow.recv(65536)
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        assert is_cut_off(slow) < 8


@pytest.mark.parametrize("length", [b"Content-Length: 1000", b"Transfer-Encoding: chunked"])
def test_body_that_does_not_come_is_not_waited_for(address, length):
    with connected(address) as slow:
        slow.sendall(b"POST /v1/recall HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n")
        slow.sendall(length + b"\r\n\r\n")
        assert is_cut_off(slow) < 8


@pytest.mark.parametrize(
    "request_line", [b"POST / HTTP/1.1\r\nContent-Length: 2", b"GET / HTTP/1.1\r\n" + b"\r\n".join([b"A: b"] * 200)]
)
def test_a_websocket_that_cannot_begin_ends(address, request_line):
    """It would be held forever, and the server could not shut down in order."""
    with connected(address) as odd:
        odd.sendall(request_line + b"\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n")
        odd.sendall(b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n{}")
        assert is_cut_off(odd) < 8


def test_slow_but_steady_body_arrives(address):
    """More than the limit in all, as every part of it prolongs the time."""
    body = b'{"text": "' + b"x" * 4000 + b'"}'
    with connected(address) as steady:
        steady.sendall(b"POST /v1/recall HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n")
        steady.sendall(b"Content-Length: %d\r\n\r\n" % len(body))
        for at in range(0, len(body), 800):
            steady.sendall(body[at : at + 800])
            time.sleep(0.25)
        assert b"200 OK" in steady.recv(65536)


def test_answer_that_takes_long_is_not_cut_off(address):
    """The client waits, not the server."""
    with httpx.stream("GET", f"{address}/v1/events", timeout=10) as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": hardwon"
        began = time.monotonic()
        httpx.post(f"{address}/v1/items", json={"items": [{"kind": "insight", "title": "A red lamp"}]})
        while "added" not in next(lines):
            pass
        time.sleep(1.0)
        httpx.post(f"{address}/v1/items", json={"items": [{"kind": "insight", "title": "A blue box"}]})
        while "added" not in next(lines):
            pass
        assert time.monotonic() - began > 0.9


def test_answer_that_nobody_reads_is_cut_off(empty, serving):
    with ExperienceLibrary.open(empty) as library:
        for number in range(12):
            library.add(Item("insight", f"Drawer {number} holds {number} spoons", "word " * 80_000))
    with serving(empty, protocol=Hasty) as address:
        parts = urlsplit(address)
        unread = socket.socket()
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread.connect((parts.hostname, parts.port))
        unread.sendall(b"GET /v1/items HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        time.sleep(3)
        got = 0
        unread.settimeout(10)
        try:
            while part := unread.recv(1 << 20):
                got += len(part)
        except ConnectionError:
            pass
        unread.close()
        assert got < 4_000_000
        assert len(httpx.get(f"{address}/v1/items", timeout=20).content) > 4_500_000


@pytest.mark.parametrize("path", ["/healthz", "/v1/items", "/nowhere"])
def test_a_client_that_ends_its_side_gets_its_answer(address, path):
    """And then the connection ends."""
    with connected(address) as half:
        half.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        half.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: half.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 ")
    assert answer.endswith(b"}")


@pytest.mark.parametrize(
    "sent",
    ["", "GET /healthz HTTP/1.1\r\nHo", "POST /v1/recall HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"],
    ids=["nothing", "headers", "body"],
)
def test_a_request_that_ends_in_its_middle_is_not_waited_for(address, sent):
    with connected(address) as half:
        half.sendall(sent.encode())
        half.shutdown(socket.SHUT_WR)
        assert is_cut_off(half) < 5
