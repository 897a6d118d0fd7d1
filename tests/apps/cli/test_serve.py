"""`hardwon serve` as a process: pages and API of one library, who may listen where, and how it stops."""

import re
import shutil
import signal
import sys
import time

import httpx
import pytest
from tests import warm

from hardwon.apps.http.access.auth import Tokens
from hardwon.memory import ExperienceLibrary
from hardwon.memory.remote import RemoteLibrary

HTML = {"Accept": "text/html"}
HARDWON = "from hardwon.apps.cli.app import main; main()"


class Served:
    """A server on a port of its own, its log in a file beside the library."""

    def __init__(self, path, *options):
        command = [sys.executable, "-c", HARDWON, "serve", str(path), "--port", "0", *options]
        self.log = path.with_suffix(".log")
        with self.log.open("w") as written:
            self.process = warm.Popen(command, stderr=written)
        while "\n" not in self.log.read_text():
            assert self.process.poll() is None
            time.sleep(0.05)
        self.first = self.log.read_text().splitlines()[0]
        self.url = self.first.partition(": ")[2].split("/   ")[0]
        self.client = httpx.Client(base_url=self.url, timeout=30, transport=httpx.HTTPTransport(retries=20))
        while True:
            try:
                assert self.client.get("/healthz").status_code == 200
                return
            except httpx.TransportError:
                time.sleep(0.05)

    def page(self, path, **options):
        return self.client.get(path, **{**options, "headers": {**HTML, **options.get("headers", {})}})

    def stop(self):
        """Its exit code and the rest of its log."""
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=20), self.log.read_text()


@pytest.fixture(scope="module")
def server(learnt, tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    shutil.copy(learnt, folder / "library.db")
    made = Served(folder / "library.db", "--runs", str(folder))
    yield made
    code, log = made.stop()
    assert code == 0, log


def test_address_is_told_first(server):
    assert server.first.startswith("Dashboard and API of")


@pytest.mark.parametrize("path", ["/", "/items", "/items?text=potato&how=dense", "/episodes", "/runs"])
def test_page_is_there_and_asks_no_other_host(server, path):
    answer = server.page(path)
    assert answer.status_code == 200
    assert "<h1>" in answer.text or "h1" in answer.text
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    addresses = re.findall(r"""(?:src|href|from|import)\s*[=(]?\s*["'](?:https?:)?//([^/"']+)""", answer.text)
    assert set(addresses) <= {server.url.removeprefix("http://")}


@pytest.mark.parametrize("path", ["/items/in-none", "/episodes/none", "/steps/999999", "/runs/none", "/situations/x"])
def test_what_is_not_there_is_a_page_of_its_own(server, path):
    answer = server.page(path)
    assert answer.status_code == 404
    assert "Not found" in answer.text


def test_unknown_namespace_makes_none(server):
    assert server.page("/?namespace=nobody").status_code == 404
    assert server.client.get("/v1/namespaces").json() == {"namespaces": ["default"]}


def test_words_of_a_library_are_never_markup(server):
    """An environment's words reach the page; they must not reach the browser as scripts."""
    with RemoteLibrary(server.url) as library:
        from hardwon.memory import Item

        ref = library.add(Item("insight", "<img src=x onerror=alert(1)> </script><script>alert(2)</script>")).item_id
        assert ref
        text = server.page(f"/items/{ref}").text
        library.items.retire(ref, "tested")
    assert "<img src=x" not in text
    assert "<script>alert(2)" not in text


def test_token_opens_the_pages_by_a_cookie(own):
    secret = Tokens.beside(own).add("me")
    server = Served(own)
    try:
        asked = server.page("/items")
        assert (asked.status_code, asked.headers["location"]) == (303, "/login?next=/items")
        assert server.client.get("/_nicegui_ws/").status_code in (401, 404)
        assert server.client.post("/login", data={"token": "wrong", "next": "/"}).status_code == 401
        let_in = server.client.post("/login", data={"token": secret, "next": "//evil.example/"})
        assert let_in.headers["location"] == "/"
        assert {"httponly", "samesite=strict"} <= {
            part.strip().lower() for part in let_in.headers["set-cookie"].split(";")
        }
        assert server.page("/items").status_code == 200
        assert "Retire" not in server.page(f"/items/{_an_item(server)}").text  # it may only read
        other = Tokens.beside(own).add("other", namespaces=["acme"])
        refused = server.page("/items", headers={"Cookie": f"hardwon_token={other}"})
        assert refused.status_code == 404  # its own namespace, which is not there yet, and not the default one
        assert "acme" in refused.text
        Tokens.beside(own).add("another"), Tokens.beside(own).revoke("me")
        assert server.page("/items").status_code == 303
    finally:
        assert server.stop()[0] == 0


def _an_item(server):
    return server.client.get("/v1/items").json()["items"][0]["id"]


def test_a_second_ctrl_c_ends_it_at_once(own):
    made = Served(own)
    with made.client.stream("GET", "/v1/events") as stream:
        next(stream.iter_lines())
        for _ in range(2):
            made.process.send_signal(signal.SIGINT)
            time.sleep(0.02)
        code = made.process.wait(timeout=20)
    log = made.log.read_text()
    assert code == 130
    assert log.endswith("interrupted.\n")
    assert "Traceback" not in log


def test_it_stops_while_a_stream_is_open(own):
    """SIGTERM ends streams that would go on for ever, and the library is sound after it."""
    server = Served(own, "--no-dashboard")
    assert server.page("/").status_code == 404
    with httpx.Client(base_url=server.url, timeout=30) as client, client.stream("GET", "/v1/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": hardwon"
        began = time.monotonic()
        code, _ = server.stop()
        assert code == 0
        assert time.monotonic() - began < 25
        list(lines)
    with ExperienceLibrary.open(own) as library:
        assert library.admin.verify() == []


def test_it_does_not_listen_beyond_this_machine_without_a_token(hardwon, empty):
    refused = hardwon("serve", empty, "--host", "0.0.0.0", "--port", "0", expect=2)
    assert "hardwon serve token add" in refused.stderr


def test_port_that_is_taken_is_told(hardwon, server, path):
    refused = hardwon("serve", path, "--port", server.url.rpartition(":")[2], expect=2)
    assert "--port" in refused.stderr


def test_tokens_are_made_listed_and_revoked(hardwon, empty):
    assert "only this machine" in hardwon("serve", "token", "list", empty).stdout
    secret = hardwon("serve", "token", "add", empty, "--name", "ci", "-n", "acme", "--write").stdout.strip()
    assert [(one.namespaces, one.write) for one in Tokens.beside(empty).callers()] == [(("acme",), True)]
    assert Tokens.beside(empty).caller(secret)
    listed = hardwon("serve", "token", "list", empty).stdout
    assert "ci" in listed
    assert secret not in listed
    hardwon("serve", "token", "revoke", empty, "ci")
    assert Tokens.beside(empty).callers() == []


def test_options_may_come_before_the_library(hardwon, path):
    """`hardwon serve --read-only LIBRARY` is `hardwon serve start --read-only LIBRARY`."""
    refused = hardwon("serve", "--read-only", path, expect=1)
    assert "no library" in refused.stderr


PATHS = ["/", "/items", "/episodes/none", "/nowhere", "/login", "/logout", "/v1/stats", "/v1/nowhere", "/healthz"]


@pytest.mark.parametrize("path", [*PATHS, "/_nicegui/nowhere.js", "/openapi.json", "/v1/items/none", "/metrics"])
def test_every_answer_carries_the_same_security_headers(server, path):
    """Pages, the login, problems and errors alike."""
    wanted = server.page("/").headers
    for answer in (server.page(path), server.client.get(path), server.client.post(path, content=b"x")):
        for name in ("content-security-policy", "x-content-type-options", "x-frame-options", "referrer-policy"):
            assert answer.headers[name] == wanted[name], (path, name)
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/recall", "/api/items", "/v2/recall", "/v1/nowhere", "/v1/recall"])
def test_program_is_never_answered_with_a_page(server, path):
    answer = server.client.get(path, headers={"Accept": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (
        405 if path == "/v1/recall" else 404,
        "application/problem+json",
    )
    assert "/v1/" in answer.json()["detail"] or "openapi.json" in answer.json()["detail"]


def test_person_is_answered_with_a_page(server):
    assert server.page("/nowhere").headers["content-type"].startswith("text/html")
