"""Who may call: tokens and their scopes, the gate of a local server, limits, and what is written of a request."""

import json
import logging

import pytest
from tests.apps.http.local import TestClient, bearer

from hardwon.apps.http.access.auth import Tokens
from hardwon.apps.http.access.limits import Rates
from hardwon.apps.http.app import create_app
from hardwon.apps.http.state.watch import JsonLines
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError, UnknownName

ITEM = {"items": [{"kind": "insight", "title": "Keys hang by the door"}]}


@pytest.fixture
def tokens(path):
    with ExperienceLibrary.open(path):
        pass
    return Tokens.beside(path)


@pytest.fixture
def client(path, tokens):
    with TestClient(create_app(path, tokens=tokens, local=False), raise_server_exceptions=False) as made:
        yield made


def test_token_is_kept_as_a_hash(tokens):
    secret = tokens.add("ci")
    assert secret not in tokens.path.read_text(encoding="utf-8")
    assert tokens.path.stat().st_mode & 0o077 == 0
    assert tokens.caller(secret).name == "ci"


def test_each_name_once(tokens):
    tokens.add("ci")
    with pytest.raises(ConfigError, match="'ci'"):
        tokens.add("ci")


@pytest.mark.parametrize("name", ["x" * 5000, "a\x1b[2J", "\ud800", ".."])
def test_a_name_is_a_writer_that_every_list_can_show(tokens, name):
    with pytest.raises(ConfigError, match="token name"):
        tokens.add(name)
    if name != "..":
        with pytest.raises(ConfigError, match="namespace"):
            tokens.add("a", namespaces=[name * 300])
    assert tokens.callers() == []


def test_revoking_what_is_not_there_lists_what_is(tokens):
    tokens.add("ci")
    with pytest.raises(UnknownName, match="ci"):
        tokens.revoke("cj")


def test_nobody_comes_in_without_a_token(client):
    """Not even while there is none, where other machines can reach the server."""
    answer = client.get("/v1/stats")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert client.get("/v1/stats", headers=bearer("hardwon_wrong")).status_code == 401
    assert client.get("/metrics").status_code == 401
    assert client.get("/openapi.json").status_code == 401
    assert client.get("/healthz").status_code == 200


def test_running_server_follows_the_file(client, tokens):
    secret = tokens.add("ci")
    assert client.get("/v1/stats", headers=bearer(secret)).status_code == 200
    tokens.revoke("ci")
    assert client.get("/v1/stats", headers=bearer(secret)).status_code == 401


def test_token_is_for_its_namespaces_exactly(client, tokens):
    """`acme` is not the beginning of `acme-corp`, nor the other way round."""
    secret = tokens.add("acme", namespaces=["acme"], write=True)
    assert client.post("/v1/items?namespace=acme", json=ITEM, headers=bearer(secret)).status_code == 200
    for other in ("default", "acme-corp", "acm", ""):
        assert client.get("/v1/stats", params={"namespace": other}, headers=bearer(secret)).status_code == 403
    assert client.get("/v1/namespaces", headers=bearer(secret)).json() == {"namespaces": ["acme"]}
    assert client.get("/v1/stats?namespace=acme", headers=bearer(secret)).json()["namespaces"] == ["acme"]
    assert client.get("/metrics", headers=bearer(secret)).status_code == 403
    assert client.get("/v1/runs", headers=bearer(secret)).status_code == 403


def test_unknown_namespace_names_no_other(client, tokens):
    tokens.add("admin", write=True)
    secret = tokens.add("acme", namespaces=["acme"])
    answer = client.get("/v1/stats?namespace=acme", headers=bearer(secret))
    assert answer.status_code == 404
    assert "default" not in answer.json()["detail"]


# ---- a local server without tokens


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_requests_marked_as_of_another_site_are_refused(path, site):
    """A request without an origin too, such as an image; a link to a page of the dashboard is fine."""
    with TestClient(create_app(path)) as client:
        marked = {"Sec-Fetch-Site": site}
        assert client.get("/v1/stats", headers=marked).status_code == 403
        frame = {**marked, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
        assert client.get("/v1/stats", headers=frame).status_code == 403
        link = {**marked, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert client.get("/v1/stats", headers=link).status_code == 200
        assert client.post("/v1/items", json=ITEM, headers=link).status_code == 403
        assert client.get("/v1/stats", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_local_server_with_tokens_asks_for_one(path, tokens):
    secret = tokens.add("me")
    with TestClient(create_app(path, tokens=tokens)) as client:
        assert client.get("/v1/stats").status_code == 401
        assert client.get("/v1/stats", headers=bearer(secret)).status_code == 200


# ---- limits


@pytest.mark.parametrize("told", [True, False])
def test_body_that_is_too_large_is_refused(path, told):
    """Whether it says how large it is or not."""
    body = json.dumps({"text": "x" * 5000}).encode()
    with TestClient(create_app(path, max_body_bytes=1000)) as client:
        content = body if told else iter([body[:600], body[600:]])
        answer = client.post("/v1/recall", content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")


def test_caller_who_asks_too_often_has_to_wait(path):
    with TestClient(create_app(path, rate=2)) as client:
        answers = [client.get("/healthz") for _ in range(6)]
    assert [answer.status_code for answer in answers[:4]] == [200] * 4
    assert answers[5].status_code == 429
    assert int(answers[5].headers["retry-after"]) >= 1


def test_rate_fills_up_again():
    rates = Rates(10)
    assert [rates.wait_s("a", now=0.0) for _ in range(20)] == [0.0] * 20
    assert rates.wait_s("a", now=0.0) == pytest.approx(0.1)
    assert rates.wait_s("b", now=0.0) == 0.0
    assert rates.wait_s("a", now=0.2) == 0.0


# ---- the log


def test_line_of_the_log_has_the_caller_and_no_secret(client, tokens, caplog):
    secret = tokens.add("ci")
    with caplog.at_level(logging.INFO, "hardwon.http"):
        client.get("/v1/items/x", headers=bearer(secret))
    (record,) = [record for record in caplog.records if hasattr(record, "told")]
    line = json.loads(JsonLines().format(record))
    assert (line["caller"], line["method"], line["path"], line["status"]) == ("ci", "GET", "/v1/items/x", 404)
    assert line["ms"] >= 0
    assert secret not in json.dumps(line)
