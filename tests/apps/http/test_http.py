"""The API by its routes, in process: what the library says is what is sent, and every error is a problem."""

import json
import re
from pathlib import Path

import pytest
from tests.apps.http.local import TestClient

from hardwon.apps.http.app import create_app
from hardwon.memory import ExperienceLibrary, Item, State
from hardwon.memory.errors import (
    ConfigError,
    LibraryError,
    LibraryReadOnly,
    LibraryUnwritable,
    MissingExtra,
    UnknownName,
)


@pytest.fixture
def client(path):
    """A client of a new library's API, on this machine, without tokens."""
    with TestClient(create_app(path), raise_server_exceptions=False) as made:
        yield made


@pytest.fixture(scope="module")
def reader(learnt):
    """A client of a library with forty episodes; only to be read."""
    with TestClient(create_app(learnt, read_only=True), raise_server_exceptions=False) as made:
        yield made


def pantry(**also):
    seen = "You are in the pantry. You see a raw potato and a box that is closed. In it is an apple."
    return {"observation": seen, "location": "pantry", "task": "eat the apple", **also}


# ---- what the library says


def test_recall_is_the_library_s_own(reader, learnt):
    answer = reader.post("/v1/recall", json={"state": pantry(), "actions": {"wait": "", "open box": ""}, "raw": True})
    with ExperienceLibrary.open(learnt, read_only=True) as library:
        found = library.recall(State(**pantry()), actions={"wait": "", "open box": ""})
    told = answer.json()
    assert answer.status_code == 200
    assert told["path"] == found.path
    assert {name: one["value"] for name, one in told["estimates"].items()} == {
        name: one.value for name, one in found.estimates.items()
    }
    assert [hit["what"]["id"] for hit in told["steps"]] == [hit.what.id for hit in found.steps]


@pytest.mark.parametrize("pinned", [False, True])
def test_what_a_run_insists_on_is_let_through_or_over(own, pinned):
    """A client that says how often its run was refused the action never gets stuck."""
    asked = {"state": pantry(), "action": "bite raw potato"}
    with TestClient(create_app(own), raise_server_exceptions=False) as client:
        first, last, looked = (
            client.post("/v1/check", json={**asked, **more}).json()
            for more in ({"about_to_run": False}, {}, {"about_to_run": False, "refused": 3})
        )
        assert (last["allowed"], last["over"], looked["allowed"]) == (False, False, False)
        if pinned:
            for ref in first["items"]:
                client.post(f"/v1/items/{ref}/pin", json={})
        assert not client.post("/v1/check", json={**asked, "refused": 2}).json()["allowed"]
        last = client.post("/v1/check", json={**asked, "refused": 3}).json()
    assert (last["allowed"], last["over"]) == (not pinned, pinned)
    assert (last["items"], last["trial"], last["cause"]) == (first["items"], False, first["cause"])


def test_item_is_added_edited_pinned_undone_and_retired(client):
    (added,) = client.post("/v1/items", json={"items": [{"kind": "insight", "title": "Keys hang by the door"}]}).json()[
        "admissions"
    ]
    at = f"/v1/items/{added['item_id']}"
    assert client.get(at).json()["source"] == "client"
    assert client.patch(at, json={"body": "Look left."}).json()["body"] == "Look left."
    assert client.post(f"{at}/pin", json={}).json()["pinned"]
    assert client.post(f"{at}/undo").json()["pinned"] is False
    assert client.post(f"{at}/retire", json={"why": "not so"}).json()["status"] == "retired"
    assert [row["op"] for row in client.get(f"{at}/history").json()["rows"]][-1] == "retired"


def test_quarantined_item_is_released_with_a_reason(client, path):
    with ExperienceLibrary.open(path) as library:
        (one,) = library.items.add_many([Item("insight", "The door opens inwards", trust="untrusted")])
    answer = client.post(f"/v1/items/{one.item_id}/release", json={"why": "tried it"})
    assert (answer.json()["status"], answer.json()["trust"]) == ("active", "trusted")


def test_items_are_filtered_and_paged(reader):
    every = reader.get("/v1/items", params={"status": "all"}).json()
    page = reader.get("/v1/items", params={"status": "all", "limit": 2, "offset": 1, "sort": "new"}).json()
    assert page["total"] == every["total"] >= 2
    assert len(page["items"]) <= 2
    only = reader.get("/v1/items", params={"kind": "guardrail"}).json()["items"]
    assert {item["kind"] for item in only} == {"guardrail"}


def test_import_trusts_nobody_who_does_not_ask_for_it(reader, client):
    client.post("/v1/import", content=reader.get("/v1/export").content)
    assert client.get("/v1/items").json()["total"] == 0
    assert client.get("/v1/items", params={"status": "quarantined"}).json()["total"] > 0


def test_explanation_is_that_of_the_command_line(reader):
    row = reader.get("/v1/episodes", params={"limit": 1}).json()["rows"][0]
    told = reader.get(f"/v1/explain/{row['id']}").json()["episode"]
    assert told["steps"][0]["why"].keys() >= {"rests_on", "blocked", "recalled"}
    assert reader.get(f"/v1/explain/step:{told['steps'][0]['id']}").json()["step"]["action"]


def test_read_makes_no_namespace_and_write_does(client):
    assert client.get("/v1/stats", params={"namespace": "acme"}).status_code == 404
    client.post("/v1/items", params={"namespace": "acme"}, json={"items": [{"kind": "insight", "title": "A lamp"}]})
    assert client.get("/v1/namespaces").json() == {"namespaces": ["acme", "default"]}
    assert client.get("/v1/items").json()["total"] == 0


# ---- events


def events_of(text):
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("id:")]
    return [(lines[1].removeprefix("event: "), json.loads(lines[2].removeprefix("data: "))) for lines in blocks]


def test_change_log_is_streamed_and_goes_on_where_it_was(client):
    client.post("/v1/items", json={"items": [{"kind": "insight", "title": "A red lamp"}]})
    first = events_of(client.get("/v1/events", params={"after": 0, "follow": False}).text)
    assert [(kind, event["op"]) for kind, event in first] == [("item", "added")]
    client.post("/v1/items", json={"items": [{"kind": "insight", "title": "A blue box"}]})
    again = client.get("/v1/events", params={"follow": False}, headers={"Last-Event-ID": str(first[-1][1]["seq"])})
    assert len(events_of(again.text)) == 1


def test_metrics_of_a_run_are_streamed(path, tmp_path):
    run = tmp_path / "runs" / "coin"
    run.mkdir(parents=True)
    line = {"iteration": 1, "kind": "train", "loss": 0.5}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n" + '{"iteration": 2, "ki', encoding="utf-8")
    with TestClient(create_app(path, runs=tmp_path / "runs")) as client:
        assert [one["name"] for one in client.get("/v1/runs").json()["runs"]] == ["coin"]
        text = client.get("/v1/runs/coin/events", params={"follow": False}).text
        assert client.get("/v1/runs/../../etc/events").status_code == 404
    assert events_of(text) == [("train", line)]


# ---- problems


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("x"), 422),
        (UnknownName("x"), 404),
        (LibraryReadOnly("x"), 403),
        (LibraryUnwritable("x"), 503),
        (MissingExtra("x"), 501),
        (LibraryError("x"), 500),
    ],
)
def test_status_follows_the_kind_of_error(error, status):
    from hardwon.apps.http.access.problems import status_of

    assert status_of(error) == status


def test_problem_has_the_words_of_the_error(client):
    answer = client.get("/v1/items/in-nothing")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert (told["error"], told["request_id"]) == ("UnknownName", answer.headers["x-request-id"])
    assert "in-nothing" in told["detail"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"state": {"observation": "a"}, "text": "b"}, "either a state or a text"),
        ({"state": {"observation": "a", "colour": "red"}}, "colour"),
        ({"text": "a", "k": 100_000}, "k:"),
    ],
)
def test_wrong_call_is_told_what_is_wrong(client, body, words):
    answer = client.post("/v1/recall", json=body)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]


def test_number_beyond_64_bits_is_the_callers_fault(client):
    episode = {"task": "t", "steps": [], "success": True, "seed": 2**70}
    assert client.post("/v1/episodes", json={"episodes": [episode]}).status_code == 422


def test_read_only_server_refuses_writes(reader):
    answer = reader.post("/v1/items", json={"items": [{"kind": "insight", "title": "x"}]})
    assert (answer.status_code, answer.json()["error"]) == (403, "LibraryReadOnly")


# ---- what is seen of it


def test_request_id_is_kept_or_made(client):
    assert client.get("/healthz", headers={"X-Request-ID": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert len(client.get("/healthz", headers={"X-Request-ID": "bad id\n"}).headers["x-request-id"]) == 32


def test_figures_count_by_route_and_not_by_id(client):
    client.get("/v1/items/one"), client.get("/v1/items/two")
    client.post("/v1/recall", json={"text": "x"})
    text = client.get("/metrics").text
    assert 'hardwon_http_requests_total{method="GET",route="/v1/items/{item_id}",status="404"} 2.0' in text
    assert "hardwon_recall_seconds_count 1.0" in text
    assert 'hardwon_episodes{namespace="default"} 0.0' in text


def test_description_loads_nothing_from_elsewhere(client):
    """The pages of Swagger and ReDoc would: they are not served."""
    told = client.get("/openapi.json").json()
    assert {"/v1/recall", "/v1/items/{item_id}", "/healthz"} <= told["paths"].keys()
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404
    assert told["components"]["securitySchemes"]["token"]["scheme"] == "bearer"


def test_the_first_example_of_the_page_finds_its_item(client):
    """The bodies of the page's own two commands, as a reader would send them."""
    page = (Path(__file__).parents[3] / "docs" / "http.md").read_text(encoding="utf-8")
    item, question = re.findall(r"/v1/(?:items|recall) .*?-d '(\{.*\})'", page)[:2]
    assert client.post("/v1/items", json=json.loads(item)).is_success
    found = client.post("/v1/recall", json=json.loads(question)).json()
    assert [hit["what"]["title"] for hit in found["items"]] == ["Spoons lie in drawers"]
