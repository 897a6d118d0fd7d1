"""A server that answers wrongly, slowly or not at all: every call ends with an error that names it."""

import gzip
import time
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient
from tests.clients.misbehaving import http, misbehaving
from tests.memory.upkeep.digest import compute_digest

from hardwon.apps.http.app import create_app
from hardwon.memory import ExperienceLibrary, Item, State, Step, Trajectory, wire
from hardwon.memory.errors import HardwonError, LibraryBusy, LibraryError
from hardwon.memory.privacy.deadlines import deadline
from hardwon.memory.records import Diagnosis
from hardwon.memory.remote import RemoteLibrary
from hardwon.memory.upkeep.figures import read_clusters

ABOUT = (
    b'{"read_only": false, "rights": ["read", "write"], "embedder": "e", "fingerprint": "f", "episodes": 1, '
    b'"edition": 1}'
)
DEEP = b"[" * 200_000 + b"]" * 200_000


ANSWERS = {
    "html": http(200, b"<html>Log in</html>", Content_Type="text/html"),
    "redirect": http(307, b'{"ids": ["x"]}', Location="http://127.0.0.1:9/", Content_Type="application/json"),
    "empty": http(200, b"", Content_Type="application/json"),
    "no content": b"HTTP/1.1 204 X\r\nConnection: close\r\n\r\n",
    "no type": http(200, b"{}"),
    "no fields": http(200, b"{}", **{"Content_Type": "application/json"}),
    "other fields": http(200, b'{"message": "hello"}', Content_Type="application/json"),
    "null fields": http(
        200,
        b'{"ids": null, "admissions": null, "items": null, "rows": null, "id": null, "problems": null, '
        b'"steps": null, "hits": null, "episodes": null, "keys": null}',
        Content_Type="application/json",
    ),
    "wrong types": http(
        200,
        b'{"ids": 5, "admissions": ["a"], "items": "abc", "rows": ["abc"], "id": "five", "problems": "p", '
        b'"steps": "s", "hits": {}, "episodes": "many", "keys": 5, "shown": "often", "kind": 5, "actions": "a"}',
        Content_Type="application/json",
    ),
    "a list": http(200, b"[1]", Content_Type="application/json"),
    "null": http(200, b"null", Content_Type="application/json"),
    "deep": http(200, DEEP, Content_Type="application/json"),
    "deep error": http(500, DEEP, Content_Type="application/json"),
    "torn json": http(200, b'{"ids": [', Content_Type="application/json"),
    "no text": http(200, b"\xff\xfe{}", Content_Type="application/json"),
    "cut": http(200, ABOUT, Content_Type="application/json")[:-20],
    "gzip": http(200, gzip.compress(b" " * 10_000_000), Content_Type="application/json", Content_Encoding="gzip"),
    "huge": http(
        200, b'{"episodes": 1, "items": [], "rows": []' + b" " * 300_000 + b"}", Content_Type="application/json"
    ),
    "reset": b"",
    "no http": b"SSH-2.0-OpenSSH_9.2\r\n",
    **{
        f"wait {text}": http(429, b'{"detail": "d", "error": "LibraryError"}', Retry_After=text)
        for text in ("Wed, 21 Oct 2099 07:28:00 GMT", "1e9", "-5", "nan", "inf", "")
    },
}
FIRST = http(200, ABOUT, Content_Type="application/json")
STATE = State("a room")
EPISODE = Trajectory("t", (Step(STATE, "go", STATE, Diagnosis(True)),), True, id="e")
VERBS = {
    "record": lambda library: library.record(EPISODE),
    "add": lambda library: library.add(Item("insight", "t")),
    "feedback": lambda library: library.feedback("i", True),
    "grade": lambda library: library.grade("e", success=True),
    "pin": lambda library: library.items.update("i", pinned=True),
    "undo": lambda library: library.items.undo("i"),
    "update": lambda library: library.items.update("i", title="t"),
    "evolve": lambda library: library.evolve(),
    "put": lambda library: library.admin.bank("t").put("a", "b", "c"),
    "recall": lambda library: library.recall(STATE),
    "check": lambda library: library.check(STATE, "go"),
    "items": lambda library: library.items.find(),
    "get": lambda library: library.items.get("i"),
    "history": lambda library: library.items.history("i"),
    "trajectories": lambda library: library.episodes.find(),
    "trajectory": lambda library: library.episodes.get("e"),
    "steps": lambda library: library.episodes.steps([1]),
    "search": lambda library: library.search("a"),
    "verify": lambda library: library.admin.verify(),
    "episodes": lambda library: library.episodes.count(),
    "keys": lambda library: library.episodes.keys(STATE, "go"),
    "stats": lambda library: library.admin.stats(),
    "usefulness": lambda library: library.items.usefulness("i"),
    "clusters": lambda library: library.admin.query(read_clusters),
}


PERMITTED = {("no content", "feedback"), ("null fields", "put")}
"""A token that may not read gets no item, and a bank that holds an entry back gives no id."""


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    for name, value in {"WAIT_S": 0.0, "MOST_BYTES": 250_000, "LIMITS_S": limits_of(20.0)}.items():
        monkeypatch.setattr(wire, name, value)
    monkeypatch.setattr(wire, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda s: slept.append(s)))
    slept.clear()


slept: list[float] = []


def limits_of(seconds, *kinds):
    """Return the limits of calls: so many seconds for these kinds, or for all."""
    return {kind: seconds if kind in (kinds or wire.LIMITS_S) else limit_s for kind, limit_s in wire.LIMITS_S.items()}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_wrong_answer_is_an_error_that_names_the_server(name):
    with misbehaving(ANSWERS[name], FIRST) as url, RemoteLibrary(url) as library:
        for verb, call in VERBS.items():
            if (name, verb) in PERMITTED:
                continue
            with pytest.raises(HardwonError) as raised:
                call(library)
            assert url in str(raised.value) or name.startswith("wait"), verb
    assert max(slept, default=0) <= 10


@pytest.mark.parametrize("part", ["head", "body"])
def test_a_slow_answer_ends_in_time(part, monkeypatch):
    monkeypatch.setattr(wire, "LIMITS_S", limits_of(0.15, "query", "write"))
    content = http(200, ABOUT * 50, Content_Type="application/json")
    start = 20 if part == "head" else len(content) - 2_000
    slow = [content[:start], *(content[at : at + 1] for at in range(start, len(content)))]
    with misbehaving(slow, FIRST) as url, RemoteLibrary(url) as library:
        for call in (VERBS["record"], VERBS["items"]):
            with pytest.raises(HardwonError, match=f"{url} does not answer"):
                call(library)


def test_a_server_that_does_not_answer_ends_at_the_deadline(monkeypatch):
    """Before a model call an agent waits half a second; while one call hangs, no other one begins."""
    with misbehaving([b"H"] * 1_000, FIRST) as url, RemoteLibrary(url) as library:
        for call in (VERBS["recall"], VERBS["record"]):
            with deadline(0.05), pytest.raises(LibraryBusy, match=f"{url} does not answer in time"):
                call(library)


def test_the_rest_of_an_answer_that_nobody_waits_for_is_not_read():
    """Until that call ends, no other one begins."""
    content = http(200, ABOUT * 50, Content_Type="application/json")
    slow = [content[:-400], *(bytes((byte,)) for byte in content[-400:])]
    with misbehaving(slow, FIRST) as url, RemoteLibrary(url) as library:
        with deadline(0.1), pytest.raises(LibraryBusy):
            library.items.find()
        late = library._wire._calls._late
        assert late is not None
        assert isinstance(late.exception(timeout=2), httpx.ReadTimeout)


def test_each_kind_of_call_has_a_limit():
    """A query waits less than a write, and a write less than what reads the whole library."""
    assert 0 < wire.LIMITS_S["query"] <= wire.LIMITS_S["write"] <= wire.LIMITS_S["whole"]


@pytest.mark.parametrize("answer", ["lines", "html", "cut"])
def test_an_export_of_any_size_is_written_whole_or_not_at_all(answer, tmp_path):
    """It is not kept in memory, so the limit of an answer does not hold."""
    path = tmp_path / "export.jsonl"
    path.write_text('{"older": 1}\n')
    lines = http(200, b"{}\n" * 100_000, Content_Type="application/x-ndjson")
    content = {"lines": lines, "html": ANSWERS["html"], "cut": lines[:-20]}[answer]
    with misbehaving(content, FIRST) as url, RemoteLibrary(url) as library:
        if answer == "lines":
            assert library.admin.export_jsonl(path) == 100_000
        else:
            with pytest.raises(LibraryError, match=url):
                library.admin.export_jsonl(path)
    assert path.read_bytes() == (lines[-300_000:] if answer == "lines" else b'{"older": 1}\n')
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_whose_answer_was_lost_is_done_once(tmp_path):
    """The second attempt with the same key gets the first answer; another key or another caller does not."""
    with serve(tmp_path) as client:
        body = {"team": "a", "key": "k", "value": "v"}

        def put(key):
            return client.post("/v1/bank/entries?task=t", json=body, headers={"Idempotency-Key": key})

        first, second, other = put("1"), put("1"), put("2")
        assert first.status_code < 300
        assert (first.json(), first.status_code) == (second.json(), second.status_code)
        assert other.json()["id"] != first.json()["id"]
        assert len(client.get("/v1/bank/entries?task=t").json()["entries"]) == 2


REQUESTS: dict[str, Any] = {
    "/v1/bank/entries?task=t": [{"team": "a", "key": "k", "value": value} for value in "vw"],
    "/v1/bank/pull?task=t": [{"entry": 1, "reader": reader} for reader in "rs"],
    "/v1/items": [{"items": [{"kind": "insight", "title": f"{word} title of its own"}]} for word in ("a", "another")],
    "/v1/items/in-1/pin": [{"pinned": pinned} for pinned in (True, False)],
    "/v1/items/in-1/retire": [{"why": why} for why in ("it is old", "it is wrong")],
    "/v1/items/in-1/undo": [None, None],
    "/v1/episodes": [{"episodes": [{"task": task, "steps": [], "success": True, "score": 1.0}]} for task in "tu"],
    "/v1/import?trust=trusted": [b"", b"\n"],
    "/v1/episodes/e/grade": [{"success": True, "why": why} for why in ("it works", "it worked")],
    "/v1/evolve": [None, None],
    "/v1/namespaces": [{"name": name} for name in ("new", "other")],
    "DELETE /v1/bank/entries?task=t": [None, None],
}


@pytest.mark.parametrize("path", REQUESTS)
def test_a_key_is_that_of_one_request(path, tmp_path):
    """The same request gets the first answer. Another one, with the same key, is refused and changes nothing."""
    with ExperienceLibrary.open(tmp_path / "a.db") as local:
        local.add(Item("insight", "the first title", id="in-1"))
        local.items.update("in-1", title="the second title")
        local.record(EPISODE)
        local.admin.bank("t").put("a", "older", "v")

    def post(path, body):
        content: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
        method, _, path = path.rpartition(" ")
        answer = client.request(method or "POST", path, headers={"Idempotency-Key": "k"}, **content)
        with ExperienceLibrary.open(tmp_path / "a.db") as local:
            return answer, local.admin.query(compute_digest)

    body, other_body = REQUESTS[path]
    with serve(tmp_path) as client:
        first, digest = post(path, body)
        assert first.is_success, first.text
        others = [("/v1/items/in-1/release", {"why": "another route"}), ("/v1/items/in-2/undo", None)]
        others += [] if body is None else [(path, other_body)]
        for other in others:
            answer, after = post(*other)
            assert (answer.status_code, answer.json()["error"], after) == (422, "KeyTaken", digest)
            assert "Idempotency-Key" in answer.json()["detail"]
        again, after = post(path, body)
        assert (again.content, after) == (first.content, digest)
        assert post("/v1/bank/entries?task=t&namespace=n", REQUESTS["/v1/bank/entries?task=t"][0])[0].is_success


def serve(folder):
    return TestClient(create_app(folder / "a.db", trust="trusted"), base_url="http://127.0.0.1:8420")


WRITES = {
    "add": lambda library: library.add(Item("insight", "a title of its own")),
    "put": lambda library: library.admin.bank("t").put("a", "k", "v"),
    "pull": lambda library: library.admin.bank("t").pull(1, "b"),
    "undo": lambda library: library.items.undo("in-1"),
    "update": lambda library: library.items.update("in-1", title="a fourth title"),
    "pin": lambda library: library.items.update("in-1", pinned=True),
    "feedback": lambda library: library.feedback("in-1", True),
    "rewrite": lambda library: library.items.merge(["in-1"], Item("insight", "a title for both of them")),
    "record": lambda library: library.record(replace(EPISODE, id="e2")),
    "record without an id": lambda library: len([library.record(replace(EPISODE, id=""))]),
    "grade": lambda library: library.grade("e", success=False).success,
    "import": lambda library: library.admin.import_jsonl("export.jsonl"),
}


@pytest.mark.parametrize(("verb", "restarts"), [("add", False), *((verb, True) for verb in WRITES)])
def test_a_repeated_write_is_done_once_also_after_a_restart(verb, restarts, tmp_path, monkeypatch):
    """The first answer to each write is lost on the way; the result and the library are as if it had arrived."""
    results = []
    for loses in (False, True):
        folder = tmp_path / str(loses)
        folder.mkdir()
        with ExperienceLibrary.open(folder / "a.db") as local:
            local.record(EPISODE)
            local.add(Item("insight", "the first title", id="in-1"))
            local.items.update("in-1", title="the second title")
            local.items.update("in-1", title="a third title")
            local.admin.bank("t").put("a", "older", "v")
            local.admin.export_jsonl(folder / "export.jsonl")
        with ExitStack() as stack:
            monkeypatch.setattr(httpx.HTTPTransport, "handle_request", lossy(folder, loses, restarts, stack))
            namespace = "n" if verb == "import" else "default"
            library = stack.enter_context(RemoteLibrary("http://127.0.0.1:8420", namespace=namespace))
            monkeypatch.chdir(folder)
            result = WRITES[verb](library)
        with ExperienceLibrary.open(folder / "a.db", read_only=True) as local:
            history = [(row["op"], row["detail"]) for row in local.items.history("in-1")]
            stored = history, len(local.items.find()), len(local.episodes.find()), local.admin.bank("t").entries()
            results.append((result, *stored, local.admin.bank("t").pulls()))
    assert results[0] == results[1]


def lossy(folder, loses, restarts, stack):
    """Return a transport to a server that is started anew after the first answer to a write, which is lost."""
    servers = [stack.enter_context(serve(folder))]

    def handle(self, request):
        nonlocal loses
        headers = {name: value for name, value in request.headers.items() if name != "host"}
        path = request.url.raw_path.decode()
        answer = servers[-1].request(request.method, path, content=request.content, headers=headers)
        if loses and request.method != "GET" and not path.startswith("/v1/namespaces"):
            loses = False
            if restarts:
                servers.append(stack.enter_context(serve(folder)))
            raise httpx.ReadError("lost")
        return httpx.Response(answer.status_code, headers=answer.headers, stream=httpx.ByteStream(answer.content))

    return handle


def test_forgetting_deletes_the_answers_that_quote(tmp_path):
    with ExperienceLibrary.open(tmp_path / "a.db") as local:
        local.add(Item("insight", "the code is xylophone", id="in-1"))
    with serve(tmp_path) as client:
        change = {"title": "the code is a xylophone"}
        assert client.patch("/v1/items/in-1", json=change, headers={"Idempotency-Key": "k"}).status_code == 200
    with ExperienceLibrary.open(tmp_path / "a.db") as local:
        assert local.admin.forget(text="xylophone").erased
    assert b"xylophone" not in (tmp_path / "a.db").read_bytes()
