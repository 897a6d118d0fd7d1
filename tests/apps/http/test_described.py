"""What a program that was never here reads: the OpenAPI description, and answers for paths that do not exist."""

import pytest
from fastapi.testclient import TestClient as Plain
from pydantic import TypeAdapter

from hardwon.apps.http.app import create_app
from hardwon.memory import ExperienceLibrary, Hit

STATE = {
    "observation": "You are in the pantry. You see a raw potato and a box that is closed. In it is an apple.",
    "location": "pantry",
    "task": "eat the apple",
}


@pytest.fixture(scope="module")
def client(learnt):
    with Plain(create_app(learnt, read_only=True), base_url="http://127.0.0.1:8420") as made:
        yield made


@pytest.fixture(scope="module")
def described(client):
    return client.get("/openapi.json").json()


def parts(schema):
    """Every schema inside a schema."""
    if isinstance(schema, dict):
        yield schema
        for inner in schema.values():
            yield from parts(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from parts(inner)


def resolved(schema, described):
    name = schema.get("$ref", "").rpartition("/")[2]
    return described["components"]["schemas"][name] if name else schema


def test_choice_between_records_names_the_field_that_tells_them_apart(described):
    """A generator that finds none makes a guess, or no type at all."""
    for part in parts(described):
        choices = [resolved(one, described) for one in part.get("anyOf", []) + part.get("oneOf", [])]
        objects = [one for one in choices if one.get("type") == "object"]
        assert all("properties" in one or len(objects) == 1 for one in objects), part
        assert len(objects) < 2 or part.get("discriminator", {}).get("propertyName"), part


def test_no_two_schemas_have_one_title(described):
    """Generators name classes by the title, and leave out both."""
    titles = [one.get("title", name) for name, one in described["components"]["schemas"].items()]
    assert len(titles) == len(set(titles))
    assert all(one == name for one, name in zip(titles, described["components"]["schemas"], strict=True))


def test_answer_of_recall_is_described_down_to_its_records(described):
    told = described["paths"]["/v1/recall"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    recalled = resolved(told, described)["properties"]
    for name, what in (("items", "Item"), ("steps", "Step")):
        hit = resolved(recalled[name]["items"], described)
        assert hit["properties"]["type"]["const"] == what.lower()
        assert hit["properties"]["what"]["$ref"].endswith(f"/{what}")


def test_every_answer_says_its_type(client):
    recalled = client.post("/v1/recall", json={"state": STATE}).json()
    found = client.get("/v1/search", params={"text": "apple"}).json()["hits"]
    assert recalled["steps"]
    assert {hit["type"] for hit in recalled["steps"]} == {"step"}
    assert {hit["type"] for hit in recalled["items"]} <= {"item"}
    assert all((hit["type"] == "step") == ("action" in hit["what"]) for hit in found)


def test_types_make_no_difference_to_the_library_s_own_client(client, learnt):
    found = client.get("/v1/search", params={"text": "apple"}).json()["hits"]
    with ExperienceLibrary.open(learnt, read_only=True) as library:
        assert TypeAdapter(list[Hit]).validate_python(found) == library.search("apple")


# ---- paths that do not exist


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/html,application/xhtml+xml"])
@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/v1/recal", "/v1/recall"),
        ("/v1/item", "/v1/items"),
        ("/v1/episode/abc", "/v1/episodes/{episode_id}"),
        ("/v1/chekc", "/v1/check"),
        ("/v1/bank", "/v1/bank/"),
        ("/v1", "/openapi.json"),
        ("/v1/", "/openapi.json"),
        ("/v1/%00", "/openapi.json"),
        ("/v1/" + "x" * 3000, "/openapi.json"),
    ],
)
def test_unknown_path_of_the_api_names_the_nearest(client, path, near, accept):
    answer = client.get(path, headers={"Accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert near in answer.json()["detail"]


def test_method_that_a_path_has_not_names_those_that_it_has(client):
    answer = client.get("/v1/recall")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert "POST" in answer.json()["detail"]


def test_a_body_that_is_sent_as_a_form_names_the_header(client):
    """As curl does unless it is told otherwise."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = client.post("/v1/recall", content=b'{"text": "x"}', headers=form)
    assert answer.status_code == 422
    assert answer.json()["detail"] == "body: it is not read as JSON. Send the header `Content-Type: application/json`."
