"""No input is a failure of the server: what cannot be is refused by a problem that names it; damage has a name."""

import functools
import json
import operator
import os
import re
import shutil
import sqlite3
from typing import Any

import pytest
from fastapi.testclient import TestClient as Plain

from hardwon.apps.http.app import create_app
from hardwon.apps.http.routes import bodies
from hardwon.memory import errors

STATE = {"observation": "a", "task": "b"}
STEP = {"pre": STATE, "action": "wait", "post": STATE, "diagnosis": {"success": True}}
EPISODE = {"task": "t", "steps": [STEP], "success": True}
ITEM = {"kind": "insight", "title": "Keys hang by the door"}
BODIES: dict[str, Any] = {
    "/v1/recall": {"state": STATE, "k": 3, "actions": {"wait": ""}, "after": "x", "kinds": ["insight"]},
    "/v1/check": {"state": STATE, "action": "wait"},
    "/v1/check-plan": {"state": STATE, "actions": ["wait"]},
    "/v1/offered": {"state": STATE, "kinds": ["skill"]},
    "/v1/foresee": {
        "state": STATE,
        "actions": ["wait"],
        "trail": {
            "done": ["wait"],
            "visits": [{"state": STATE, "actions": ["wait"]}],
            "moves": [["a", "wait", "b"]],
            "tried": [["a", "wait"]],
        },
    },
    "/v1/keys": {"state": STATE, "action": "wait", "counts": "1"},
    "/v1/context": {"state": STATE, "action": "wait"},
    "/v1/episodes": {"episodes": [{**EPISODE, "id": "e", "meta": {"a": 1}, "seed": 1, "arm": "x"}]},
    "/v1/items": {"items": [{**ITEM, "condition": {"text": "x"}, "provenance": [1], "ttl": 5, "score": 0.5}]},
    "/v1/items/rewrite": {"ids": ["in-1"], "item": ITEM},
    "/v1/items/in-1/feedback": {"helped": True, "episode": "e"},
    "/v1/items/in-1/pin": {"pinned": True},
    "/v1/items/in-1/retire": {"why": "because"},
    "/v1/episodes/e/reading": {"operations": [{"item": ITEM, "indices": [0]}], "shown": ["in-1"]},
    "/v1/namespaces": {"name": "acme"},
    "/v1/bank/entries?task=t": {"team": "a", "key": "b", "value": "c"},
    "/v1/bank/pull?task=t": {"entry": 1, "reader": "a"},
    "/v1/bank/promote?task=t": {"item": ITEM, "episode": "e"},
}
PLAIN = [
    "null", "true", "3.5", '"x"', "-1", "1" + "0" * 30, "[]", "{}", '"\\ud800"', '"a\\u0000b"',
    '{"": {"": [[], null]}}',
]  # fmt: skip
EXTREME = [
    "1" + "0" * 5000, "-" + "9" * 40, "1e999", "NaN", "-Infinity", '{"\\udfff": 1}', '["\\ud83d"]',
    "[" * 10_000 + "]" * 10_000, '{"a":' * 10_000 + "1" + "}" * 10_000, "[" * 900 + "]" * 900,
    '{"a":' * 90 + "1" + "}" * 90, '"' + "x" * 30_000 + '"',
]  # fmt: skip
VALUES = [*PLAIN, *EXTREME]
IDS = [
    "%00", "a%00b", "x" * 5000, "%ff%fe", "%ED%A0%80", "..%2f..", "'%20OR%201=1", "%25%5F", "in-%F0%9F%92%A9", "-1",
    "1e99", "9" * 40, "step:" + "9" * 40, "attempt:-1", "step:x", "NaN", "%0a%0d", "None", "[]", "%7B%7D", "*",
    "?", "%",
]  # fmt: skip


def leaves(value, path=()):
    """Every place in a JSON value at which something else may be put."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in inner:
        yield from leaves(one, (*path, name))


def put(value, path, mark):
    """The value as JSON, with a mark at one place."""
    if not path:
        return mark
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], mark)
    return copy


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    with Plain(
        create_app(folder / "library.db", runs=folder, rate=1e9),
        base_url="http://127.0.0.1:8420",
        raise_server_exceptions=False,
    ) as made:
        yield made


def refusal(answer):
    """What is wrong with an answer, if anything is."""
    if answer.status_code >= 500:
        return f"{answer.status_code} {answer.text[:300]}"
    if answer.status_code >= 400:
        if answer.headers["content-type"] != "application/problem+json":
            return f"{answer.status_code} {answer.headers['content-type']}"
        detail = answer.json()["detail"]
        if len(detail) > 2000 or "Traceback" in detail or not detail.strip():
            return f"{answer.status_code} {detail[:300]}"
    return None


@pytest.mark.parametrize("path", BODIES)
def test_any_value_at_any_place_of_a_body(client, path):
    wrong = []
    for number, place in enumerate(leaves(BODIES[path])):
        marked = json.dumps(put(BODIES[path], place, "@MARK@"))
        # what is no JSON of a sane size is refused before anybody looks at its place: a third of it at each one
        for value in (*PLAIN, *EXTREME[number % 3 :: 3]):
            body = marked.replace('"@MARK@"', value)
            answer = client.post(path, content=body.encode(), headers={"Content-Type": "application/json"})
            if problem := refusal(answer):
                wrong.append((place, value[:40], problem))
    assert not wrong, wrong[:10]


def test_any_value_of_a_changed_field(client):
    (added,) = client.post("/v1/items", json={"items": [{**ITEM, "trust": "trusted"}]}).json()["admissions"]
    wrong = []
    for field in ("title", "body", "score", "ttl", "tags", "condition", "steps", "verify", "scope", "unknown", "trust"):
        for value in VALUES:
            body = f'{{"{field}": {value}}}'
            answer = client.patch(
                f"/v1/items/{added['item_id']}", content=body, headers={"Content-Type": "application/json"}
            )
            if problem := refusal(answer):
                wrong.append((field, value[:40], problem))
    assert not wrong, wrong[:10]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "application/json"),
        (b"\xff\xfe{}", "application/json"),
        (b'{"text": "\xff"}', "application/json"),
        (b"{", "application/json"),
        (b"[" * 200_000, "application/json"),
        (b"text=x", "application/x-www-form-urlencoded"),
        (b'{"text": "x"}', "text/plain"),
        (b'{"text": "x"}', "application/json; charset=utf-16"),
        ('{"text": "x"}'.encode("utf-16"), "application/json"),
        (b"--x\r\n\r\n", "multipart/form-data; boundary=x"),
        (b'{"text": "x"}', "\x80"),
        (b'{"text": "x"}', ""),
        (b'{"text": "x", "text": 5}', "application/json"),
    ],
)
def test_any_body_of_any_kind(client, body, kind):
    for path in BODIES:
        answer = client.post(path, content=body, headers={"Content-Type": kind.encode("latin-1")})
        assert refusal(answer) is None
    assert refusal(client.post("/v1/import", content=body, headers={"Content-Type": kind.encode("latin-1")})) is None


@pytest.mark.parametrize("line", VALUES)
def test_any_line_of_an_import(client, line):
    for body in (line, f'{{"kind": "item", "item": {line}}}', f'{{"type": "episode", "episode": {line}}}'):
        assert refusal(client.post("/v1/import", content=body.encode())) is None


def test_any_id_in_a_path(client):
    told = client.get("/openapi.json").json()["paths"]
    wrong = []
    for path, calls in told.items():
        if "{" not in path:
            continue
        for value in IDS:
            for method in calls:
                url = re.sub(r"{\w+(:path)?}", value.replace("\\", ""), path) + "?follow=false"
                answer = client.request(method.upper(), url, json={} if method in ("post", "patch") else None)
                if problem := refusal(answer):
                    wrong.append((method, path, value[:40], problem))
    assert not wrong, wrong[:10]


def test_any_value_of_a_parameter(client):
    told = client.get("/openapi.json").json()["paths"]
    wrong = []
    for path, calls in told.items():
        if "get" not in calls or "{" in path:
            continue
        for parameter in calls["get"].get("parameters", []):
            for value in IDS:
                url = f"{path}?follow=false&text=x&task=t&id=1&{parameter['name']}={value}"
                if parameter["name"] == "follow":
                    continue
                if problem := refusal(client.get(url)):
                    wrong.append((path, parameter["name"], value[:40], problem))
    assert not wrong, wrong[:10]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"text": "a", "k": true}', ["k", "True"]),
        ('{"text": "a", "k": 2.0}', ["k", "2.0"]),
        ('{"text": "a", "k": "5"}', ["k", "'5'"]),
        ('{"text": "a", "k": -3}', ["k", "-3"]),
        (f'{{"text": "a", "k": 1{"0" * 30}}}', ["k", "1.000e+30", "smaller"]),
        ('{"text": "a", "k": NaN}', ["NaN"]),
        ('{"text": "\\ud800"}', ["text", "\\ud800"]),
        ('{"text": "a", "colour": 1}', ["colour", "no such field", "There are: state, text, task"]),
        ('{"txt": "a"}', ["body.txt: there is no such field. Did you mean 'text'?"]),
        ('{"state": {"observaton": "a"}}', ["body.state.observaton", "Did you mean 'observation'?"]),
        (f'{{"state": {"[" * 10_000}{"]" * 10_000}}}', ["flatter"]),
        (f'{{"text": "[", "state": {"[" * 64}{"]" * 64}}}', ["64 levels", "flatter"]),
        ("{'text': 1}", ["not JSON", "'text'"]),
    ],
)
def test_problem_names_the_value_and_the_next_step(client, body, words):
    answer = client.post("/v1/recall", content=body, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500
    assert all(word in answer.json()["detail"] for word in words), answer.json()["detail"]


def test_what_a_missing_part_of_a_body_has_is_named(client):
    answers = client.post("/v1/items/st-1/retire"), client.post("/v1/episodes", json={"episodes": [{"steps": [{}]}]})
    assert answers[0].json()["detail"] == "body: it is required. Send it, an object with: why."
    details = answers[1].json()["detail"].split(" body.")
    assert "body.episodes.0.task: it is required. Send it." in details
    assert "episodes.0.steps.0.pre: it is required. Send it, an object with: observation, " in " ".join(details)


def test_a_field_of_a_list_is_named_with_the_closest_one(client):
    step = {"pre": {"observation": "a"}, "acton": "look", "post": {"observation": "a"}}
    answer = client.post("/v1/episodes", json={"episodes": [{"task": "t", "steps": [step], "success": True}]})
    assert "body.episodes.0.steps.0.acton: there is no such field. Did you mean 'action'?" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("/v1/items?limt=3", "query.limt: there is no such field. Did you mean 'limit'?"),
        ("/v1/stats?namespce=x", "query.namespce: there is no such field. Did you mean 'namespace'?"),
        ("/v1/events?follow=false&since=3&limit=1", "query.since: there is no such field. There are: "),
        ("/v1/search?q=spoon", "query.q: there is no such field. There are: text, "),
        ("/v1/why?words=spoon", "query.words: there is no such field. There are: about, "),
    ],
)
def test_an_unknown_parameter_of_an_address_is_named_with_the_closest_one(client, address, words):
    answer = client.get(address)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(words), answer.json()["detail"]


# ---- damage


DAMAGE = [
    "UPDATE items SET record = '{'",
    "UPDATE items SET record = '[1]'",
    "UPDATE trajectories SET meta = '{nope'",
    "UPDATE steps SET diagnosis = 'x', why = 'x', keys = 'x'",
    "UPDATE steps SET diagnosis = '[]', why = '5', keys = '{}'",
    "UPDATE states SET facts = '{', notes = '{'",
    "UPDATE changes SET detail = '{'",
    "UPDATE attempts SET failures = '{'",
    "UPDATE vectors SET vector = x'00'",
    "DROP TABLE usages",
    "DROP TABLE items",
]


def harm(path, damage):
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(damage)
        connection.commit()
    finally:
        connection.close()


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_of_the_library_has_a_name(own, damage):
    """A problem of the class of an error, which says what is damaged; never a bare failure."""
    is_of_schema = damage.startswith("DROP")
    if not is_of_schema:
        harm(own, damage)
    known = {name for name, one in vars(errors).items() if isinstance(one, type)}
    with Plain(create_app(own), base_url="http://127.0.0.1:8420", raise_server_exceptions=False) as client:
        told = client.get("/openapi.json").json()["paths"]
        if is_of_schema:  # such a file is not opened at all, so the server has it open already
            harm(own, damage)
        wrong = []
        state = {"observation": "You are in the pantry.", "task": "eat the apple"}
        calls: list[tuple[str, str, object]] = [
            ("GET", path, None) for path, one in told.items() if "get" in one and "events" not in path
        ]
        calls += [("POST", path, body) for path, body in BODIES.items()] + [("POST", "/v1/recall", {"state": state})]
        for method, path, body in calls:
            url = path.replace("{item_id}", "gu-").replace("{episode_id}", "x").replace("{ref}", "step:1")
            url = url.replace("{summary_id}", "1")
            answer = client.request(method, f"{url}{'&' if '?' in url else '?'}text=x&id=1", json=body)
            if answer.status_code >= 500 and answer.json()["error"] not in known:
                wrong.append((method, path, answer.status_code, answer.text[:200]))
        assert not wrong, wrong


WIDE = "x" * 200_001
TRAILS: dict[str, Any] = {
    "done": {"done": [WIDE]},
    "visited": {"visits": [{"state": {**STATE, "observation": WIDE}}]},
    "possible": {"visits": [{"state": STATE, "actions": [WIDE]}]},
    "moves": {"moves": [["a", "wait", WIDE]]},
    "tried": {"tried": [["a", WIDE]]},
    "empty moves": {"moves": [["", "", ""]] * 70_000},
    "empty texts": {"done": [""] * 200_001},
}
LONG = [
    *((f"/v1/{path}", "state") for path in ("check", "keys", "context", "foresee", "recall")),
    *((f"/v1/{path}", name) for path in ("check-plan", "foresee") for name in ("plan", "empty")),
    *(("/v1/recall", name) for name in ("facts", "notes", "keys", "actions", "after", "text", "name")),
    *(("/v1/foresee", name) for name in TRAILS),
]


@pytest.mark.parametrize(("path", "name"), LONG)
def test_a_lookup_has_an_upper_length(client, path, name):
    """Its time grows with its text, and other callers wait for it."""
    text = WIDE
    fields: dict[str, Any] = {
        "state": {"observation": text},
        "facts": {"facts": {"a": text}},
        "notes": {"notes": [text[:9], text]},
    }
    others: dict[str, Any] = {
        "keys": {"actions": {text: ""}},
        "actions": {"actions": {"x": text}},
        "name": {"task": text},
        "after": {"after": text},
        "text": {"text": text, "state": None},
    }
    others |= {kind: {"trail": trail} for kind, trail in TRAILS.items()}
    others["plan"] = {"actions": ["x", text]}
    others["empty"] = {"actions": [""] * 200_001}
    body = {**BODIES[path], "state": {**STATE, **fields.get(name, {})}} | others.get(name, {})
    answer = client.post(path, json=body)
    assert answer.status_code == 422
    assert "200,000" in answer.json()["detail"].replace("200000", "200,000")


TYPED_STEP = {
    "pre": STATE, "action": "look", "post": STATE, "reward": 0.5, "t": 0, "return_to_go": 0.5, "id": 1,
    "diagnosis": {"success": True, "progress": 0.5, "stagnant": False, "loop": False},
}  # fmt: skip
TYPED_EPISODE = {"task": "t", "steps": [TYPED_STEP], "success": True, "score": 0.5, "seed": 3}
TYPED: dict[str, dict[str, Any]] = {
    "/v1/episodes": {"episodes": [TYPED_EPISODE]},
    "/v1/items": {"items": [{"kind": "insight", "title": "x", "score": 0.5, "pinned": False, "provenance": [1]}]},
    "/v1/check": {"state": STATE, "action": "look", "about_to_run": False, "again": False, "refused": 0},
    "/v1/recall": {"state": STATE, "k": 3, "budget_tokens": 100, "raw": False},
    "/v1/offered": {"state": STATE, "masked": False, "raw": False},
}


@pytest.mark.parametrize("path", TYPED)
def test_a_value_has_its_type_of_json(client, path):
    """As /openapi.json says: no text is a number, and no number is true."""
    assert client.post(path, json=TYPED[path]).is_success
    wrong: list[Any] = []
    for place in leaves(TYPED[path]):
        value = functools.reduce(operator.getitem, place, TYPED[path])
        if not isinstance(value, int | float):
            continue
        for other in ("1", "true", 1 if isinstance(value, bool) else True):
            answer = client.post(path, json=put(TYPED[path], place, other))
            if answer.status_code != 422:
                wrong.append((place, other, answer.status_code))
    assert not wrong
    whole = {**TYPED_EPISODE, "seed": 3.0}
    assert client.post("/v1/episodes", json={"episodes": [whole]}).is_success, "3.0 is a whole number in JSON"


def test_null_is_the_default_of_a_field_that_exists(client):
    """And is described so; one that does not exist is refused whatever it is."""
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    for path, body in TYPED.items():
        assert client.post(path, json={**body, "x": None}).status_code == 422
    for name, schema in schemas.items():
        optional = set(schema.get("properties", ())) - set(schema.get("required", ()))
        if name.endswith(("Asked", "Told", "Rewriting", "Pinned", "Pull", "Promotion")) and name != "ToldItem":
            described = {
                field for field in optional if {"type": "null"} in schema["properties"][field].get("anyOf", ())
            }
            assert described == optional, name
    given = {**BODIES["/v1/recall"], **dict.fromkeys(schemas["RecallAsked"]["properties"]), "state": STATE}
    assert client.post("/v1/recall", json=given).is_success


@pytest.mark.parametrize(
    ("value", "levels"),
    [([], 1), (["[[[", "]]"], 1), ({"{": ['\\"[', [{}]]}, 4), ([["\\"], {"a": {"]": "}"}}], 3), (["é[", "\n]["], 1)],
)
def test_levels_are_those_of_lists_and_objects(value, levels):
    for body in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert bodies._measure_depth(body.encode()) == levels


def test_a_look_ahead_has_a_largest_number_of_places(client):
    """Its time grows with their square: 45,000 short names took 73 s."""
    visits = [{"state": {**STATE, "location": str(number)}} for number in range(1001)]
    body = {**BODIES["/v1/foresee"], "trail": {"visits": visits}}
    assert client.post("/v1/foresee", json=body).status_code == 422
    body["trail"] = {"visits": visits[:1000]}
    assert client.post("/v1/foresee", json=body).status_code == 200


TROUBLE = {
    "deleted": lambda file: file.unlink(),
    "replaced": lambda file: shutil.copy(file, file.with_suffix(".new")) and file.with_suffix(".new").replace(file),
    "folder deleted": lambda file: shutil.rmtree(file.parent),
    "emptied": lambda file: file.write_bytes(b""),
    "cut": lambda file: os.truncate(file, file.stat().st_size // 2),
    "of zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "another file": lambda file: file.write_bytes(b"no library" * 1000),
    "damaged row": lambda file: harm(file, "UPDATE items SET record = '{'"),
    "damaged schema": lambda file: harm(file, "DROP TABLE usages"),
    "tokens": lambda file: file.with_name(file.name + ".tokens").write_text("{[["),
    "nothing": lambda file: None,
}


@pytest.mark.parametrize("kind", TROUBLE)
def test_a_client_gets_the_name_of_the_library_and_no_folder(own, kind, caplog):
    """Of an error of the library, its token file or an import. The log has the whole path."""
    gone = kind in ("deleted", "replaced", "folder deleted")
    damaged = {"damaged row": {200, 500}, "of zeros": {200, 503}, "cut": {503}, "emptied": {503}}
    with Plain(create_app(own), base_url="http://127.0.0.1:8420", raise_server_exceptions=False) as client:
        assert client.get("/v1/stats").status_code == 200
        for _ in range(3 * gone):
            assert client.post("/v1/recall", json={"state": STATE}).status_code == 200
        TROUBLE[kind](own)
        answers = [
            client.get(path) for path in ("/v1/items", "/v1/stats", "/v1/verify", "/healthz", "/v1/explain/step:9")
        ]
        answers += [client.get("/v1/items?namespace=other"), client.post("/v1/import", content=b"{nope}")]
        answers += [client.post("/v1/items", json={"items": [ITEM]}, headers={"Idempotency-Key": "k"})]
        answers += [client.post("/v1/recall", json={"state": STATE}) for _ in range(2 * gone)]
    if gone:
        assert {answer.status_code for answer in answers} == {503}
        assert own.exists() == (kind == "replaced")
    statuses = {answer.status_code for answer in answers if answer.status_code != 404} - {400, 422}
    assert statuses <= damaged.get(kind, statuses)
    assert max(statuses) == max(damaged.get(kind, statuses))
    for answer in answers:
        assert own.parent.name not in answer.text
        assert "/tmp/" not in answer.text
    refused = [answer.json()["detail"] for answer in answers if answer.status_code >= 400]
    assert refused
    if kind not in ("damaged row", "damaged schema", "tokens", "nothing"):
        assert any(own.name in detail for detail in refused), refused
        assert str(own) in caplog.text
