"""What a token may do: read, record, write; who an item's writer is; and feedback, which nobody gives too often."""

import subprocess
import sys

import pytest
from fastapi.testclient import TestClient as Plain
from tests import warm

from hardwon.apps.http.access.auth import Tokens
from hardwon.apps.http.app import create_app
from hardwon.apps.shared.feedback import Feedback
from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.errors import TooMuchFeedback
from hardwon.memory.remote import RemoteLibrary
from hardwon.memory.trust.tuning import TUNING as TRUST
from hardwon.memory.values.tuning import TUNING
from hardwon.runtime.agent import Agent

STATE = {"observation": "You are in the pantry.", "task": "eat the apple"}
STEP = {"pre": STATE, "action": "wait", "post": STATE, "diagnosis": {"success": True}, "keys": ["*", "bite raw potato"]}
EPISODE = {"task": "eat the apple", "steps": [STEP], "success": True, "score": 1.0}
ITEM = {"kind": "insight", "title": "Keys hang by the door"}
WHY = {"why": "tried"}

READS = [
    ("GET", "/v1/stats", None), ("GET", "/v1/items", None), ("GET", "/v1/items/{item}", None),
    ("GET", "/v1/search?text=x", None), ("GET", "/v1/verify", None), ("GET", "/v1/events?follow=false", None),
    ("POST", "/v1/recall", {"text": "x"}), ("POST", "/v1/check", {"state": STATE, "action": "wait"}),
    ("POST", "/v1/check-plan", {"state": STATE, "actions": ["wait"]}), ("POST", "/v1/offered", {"state": STATE}),
    ("POST", "/v1/foresee", {"state": STATE, "actions": ["wait"]}),
    ("POST", "/v1/keys", {"state": STATE, "action": "wait"}),
    ("POST", "/v1/context", {"state": STATE, "action": "wait"}), ("GET", "/v1/summaries", None),
    ("GET", "/metrics", None), ("GET", "/v1/bank/entries?task=t", None),
]  # fmt: skip
LOGS = [
    ("GET", "/v1/items/{item}/history", None), ("GET", "/v1/episodes", None), ("GET", "/v1/episodes/{episode}", None),
    ("GET", "/v1/steps?id=1", None), ("GET", "/v1/clusters", None),
    ("GET", "/v1/export", None), ("GET", "/v1/explain/{item}", None), ("GET", "/v1/guardrails", None),
    ("GET", "/v1/why?about=x", None),
    ("GET", "/v1/runs", None), ("POST", "/v1/recall", {"text": "x", "raw": True}),
    ("POST", "/v1/foresee", {"state": STATE, "actions": ["wait"], "raw": True}),
    ("POST", "/v1/offered", {"state": STATE, "raw": True}), ("GET", "/v1/items?text=potato", None),
    ("GET", "/v1/items?location=pantry", None), ("GET", "/v1/items?tag=bite", None),
    ("GET", "/v1/episodes/{episode}/grades", None),
]  # fmt: skip
RECORDS = [
    ("POST", "/v1/episodes", {"episodes": [EPISODE]}), ("POST", "/v1/items/{item}/feedback", {"helped": True}),
    ("POST", "/v1/episodes/{episode}/grade", {"success": True}),  # without `write`: of an episode of one's own
]  # fmt: skip
WRITES = [
    ("POST", "/v1/items", {"items": [ITEM]}), ("POST", "/v1/items", {"items": [{**ITEM, "trust": "trusted"}]}),
    ("PATCH", "/v1/items/{item}", {"body": "x"}), ("POST", "/v1/items/{item}/pin", {}),
    ("POST", "/v1/items/{item}/retire", WHY), ("POST", "/v1/items/{item}/release", WHY),
    ("POST", "/v1/items/{item}/undo", None), ("POST", "/v1/items/rewrite", {"ids": ["{item}"], "item": ITEM}),
    ("POST", "/v1/episodes/{episode}/reading", {"operations": [{"item": ITEM}]}), ("POST", "/v1/evolve", None),
    ("POST", "/v1/import", None), ("POST", "/v1/bank/entries?task=t", {"team": "a", "key": "k", "value": "v"}),
    ("POST", "/v1/bank/pull?task=t", {"entry": 1, "reader": "a"}), ("DELETE", "/v1/bank/entries?task=t", None),
    ("POST", "/v1/bank/promote?task=t", {"item": ITEM, "episode": "{episode}"}),
]  # fmt: skip


@pytest.fixture
def tokens(own):
    return Tokens.beside(own)


@pytest.fixture
def client(own, tokens):
    tokens.add("admin", write=True)
    app = create_app(own, tokens=tokens, local=False, runs=own.parent)
    with Plain(app, base_url="http://127.0.0.1:8420", raise_server_exceptions=False) as made:
        yield made


@pytest.fixture
def calls(client, tokens, own):
    """Makes a call with a token that has some rights; returns its status."""
    secrets = {
        "read": tokens.add("reader", log=False), "log": tokens.add("auditor"),
        "record": tokens.add("collector", record=True),
        "both": tokens.add("agent", read=True, record=True), "write": tokens.add("writer", write=True),
    }  # fmt: skip
    with ExperienceLibrary.open(own, read_only=True) as library:
        names = {"{item}": library.items.find()[0].id, "{episode}": library.episodes.find(limit=1)[0]["id"]}

    def call(rights, method, path, body):
        for name, value in names.items():
            path = path.replace(name, value)
        if isinstance(body, dict) and "ids" in body:
            body = {**body, "ids": [names["{item}"]]}
        headers = {"Authorization": f"Bearer {secrets[rights]}"}
        return client.request(method, path, json=body, headers=headers)

    return call


@pytest.mark.parametrize(
    ("which", "allowed"),
    [
        (READS, {"read", "log", "both", "write"}),
        (LOGS, {"log", "write"}),
        (RECORDS, {"record", "both", "write"}),
        (WRITES, {"write"}),
    ],
    ids=["reads", "logs", "records", "writes"],
)
def test_every_call_needs_its_right(calls, which, allowed):
    wrong = []
    for method, path, body in which:
        for rights in ("read", "log", "record", "both", "write"):
            answer = calls(rights, method, path, body)
            refused = answer.status_code == 403 and answer.json()["error"] == "LibraryForbidden"
            if refused == (rights in allowed) or answer.status_code >= 500:
                wrong.append((rights, method, path, answer.status_code, answer.text[:200]))
    assert not wrong


def test_every_route_of_the_api_is_in_these_lists(client, tokens):
    """A route that is added has to say which right it needs."""
    tried = {path.partition("?")[0].replace("{item}", "{item_id}").replace("{episode}", "{episode_id}")
             for _, path, _ in READS + LOGS + RECORDS + WRITES}  # fmt: skip
    told = client.get("/openapi.json", headers={"Authorization": f"Bearer {tokens.add('x')}"}).json()["paths"]
    # These need no more than `about`; ids, counts and scores alone are no words of an episode.
    known = {
        "/v1/namespaces", "/v1/about", "/healthz", "/v1/items/{item_id}/usages", "/v1/items/{item_id}/effects",
        "/v1/items/{item_id}/usefulness", "/v1/summaries/{summary_id}/evidence", "/v1/runs/{name}/events",
        "/v1/bank/pulls",
    }  # fmt: skip
    assert set(told) - {path.replace("{ref}", "{item_id}") for path in tried} - known == {"/v1/explain/{ref}"}


def test_what_is_refused_names_the_rights_and_the_next_step(calls):
    detail = calls("both", "POST", "/v1/items", {"items": [ITEM]}).json()["detail"]
    assert "may not write" in detail
    assert "read and record" in detail
    assert "token add" in detail


def test_item_waits_in_quarantine_unless_a_writer_says_it_is_trusted(calls, own):
    calls("write", "POST", "/v1/items", {"items": [ITEM]})
    calls("write", "POST", "/v1/items", {"items": [{"kind": "insight", "title": "A lamp is red", "trust": "trusted"}]})
    with ExperienceLibrary.open(own, read_only=True) as library:
        found = {item.title: item for item in library.items.find(status=None) if item.kind == "insight"}
    assert (found[ITEM["title"]].status, found[ITEM["title"]].trust) == ("quarantined", "untrusted")
    assert (found["A lamp is red"].status, found["A lamp is red"].trust) == ("active", "trusted")


@pytest.mark.parametrize("told", ["rules", "user", "token:admin", "person"])
def test_client_does_not_choose_the_writer_of_an_item(calls, own, told):
    calls("write", "POST", "/v1/items", {"items": [{**ITEM, "writer": told}]})
    with ExperienceLibrary.open(own, read_only=True) as library:
        (item,) = library.items.find(status="quarantined")
    assert item.writer == "token:writer"


def test_recorder_makes_no_namespace_but_its_own(client, tokens):
    anywhere = {"Authorization": f"Bearer {tokens.add('anywhere', record=True)}"}
    own = {"Authorization": f"Bearer {tokens.add('acme', namespaces=['acme'], record=True)}"}
    body = {"episodes": [EPISODE]}
    assert client.post("/v1/episodes?namespace=new", json=body, headers=anywhere).status_code == 404
    assert client.post("/v1/episodes?namespace=acme", json=body, headers=own).status_code == 200
    assert client.post("/v1/episodes?namespace=acme-2", json=body, headers=own).status_code == 403


def test_agent_runs_with_the_rights_to_read_and_record(own, serving, script, rooms):
    """Whole episodes over the wire: the server distils what it records."""
    secret = Tokens.beside(own).add("agent", namespaces=["rooms"], read=True, record=True)
    with serving(own) as url, RemoteLibrary(url, token=secret, namespace="rooms") as library:
        assert not library.admin.read_only
        agent = Agent(script("wait", "go east"), library, rooms(), max_steps=3)
        for seed in range(3):
            agent.run(seed=seed)
        agent.close()
        assert library.episodes.count() == 3


# ---- programs without a token


def test_episodes_without_a_token_are_not_trusted_unless_the_operator_says_so(tmp_path):
    """Nobody asked the program who it is: the library may be one that others are shown."""
    for name, trust in (("default", "untrusted"), ("own", "trusted")):
        path = tmp_path / f"{name}.db"
        app = create_app(path, trust="trusted") if name == "own" else create_app(path)
        with Plain(app, base_url="http://127.0.0.1:8420") as client:
            (ref,) = client.post("/v1/episodes", json={"episodes": [EPISODE]}).json()["ids"]
        with ExperienceLibrary.open(path, read_only=True) as library:
            episode = library.episodes.get(ref)
        assert (episode.writer, episode.trust) == ("http", trust)


def test_words_of_a_program_without_a_token_are_not_recalled(tmp_path):
    """A page, a script, a tool of this machine: what it calls a result is shown to nobody."""
    path, said = tmp_path / "library.db", "The safe opens with 4711 to the left."
    step = {**STEP, "pre": {**STATE, "observation": said}, "action": f'note(text="{said}")'}
    with Plain(create_app(path), base_url="http://127.0.0.1:8420") as client:
        for _ in range(5):
            client.post("/v1/episodes", json={"episodes": [{**EPISODE, "steps": [step, step]}]})
        client.post("/v1/evolve")
        found = client.post("/v1/recall", json={"state": step["pre"], "k": 10}).json()
    assert found["steps"]
    assert not any(word in str(found) for word in ("4711", "safe opens"))


def test_trust_without_tokens_is_refused_where_there_were_some(own, hardwon):
    Tokens.beside(own).add("ci")
    refused = hardwon("serve", own, "--trust", "trusted", "--port", "0", expect=2)
    assert "--trust trusted is for programs without a token" in refused.stderr


# ---- feedback


def test_feedback_moves_the_score_once_in_an_episode(calls, own):
    with ExperienceLibrary.open(own, read_only=True) as library:
        (first, second, *_), item = library.episodes.find(), library.items.find()[0]
    path = f"/v1/items/{item.id}/feedback"
    one = calls("both", "POST", path, {"helped": False, "episode": first["id"]})
    assert one.json()["score"] == pytest.approx(item.score * 0.9, abs=1e-3)
    again = calls("both", "POST", path, {"helped": False, "episode": first["id"]})
    assert (again.status_code, again.json()["error"]) == (429, "TooMuchFeedback")
    assert "in this episode" in again.json()["detail"]
    assert calls("both", "POST", path, {"helped": False, "episode": second["id"]}).status_code == 200
    assert calls("both", "POST", path, {"helped": True, "episode": "none such"}).status_code == 404


def test_pace_of_feedback_is_limited_for_each_client(library, monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.time", lambda: now)
    items = [library.add(Item("insight", f"Drawer {word} holds spoons")).item_id for word in ("red", "blue", "tall")]
    given = Feedback(a_minute=2)
    for item in items[:2]:
        given.give(library, item, True, client="a", episode="1")
    with pytest.raises(TooMuchFeedback, match="60 s"):
        given.give(library, items[2], True, client="a", episode="1")
    given.give(library, items[2], True, client="b", episode="1")
    now = 61.0
    given.give(library, items[2], True, client="a", episode="1")


_RATER = """
import sys
from hardwon.apps.shared.feedback import Feedback
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import TooMuchFeedback
given = Feedback()
with ExperienceLibrary.open(sys.argv[1]) as library:
    allowed = 0
    for item in library.items.find():
        try:
            given.give(library, item.id, True, client="ci", episode="")
            allowed += 1
        except TooMuchFeedback:
            pass
print(allowed)
"""


def test_pace_of_feedback_is_one_over_all_processes(path):
    """Two processes of one server share the twenty ratings of a minute."""
    words = ("red", "blue", "tall", "old", "wet", "dry", "far", "odd", "raw", "big", "new", "hot", "icy", "low", "sad")
    with ExperienceLibrary.open(path) as library:
        library.items.add_many(
            [Item("insight", f"The {word} drawer holds {thing}") for word in words for thing in ("oil", "ink")]
        )
        assert len(library.items.find()) > 20
    command = [sys.executable, "-c", _RATER, str(path)]
    with (
        warm.Popen(command, stdout=subprocess.PIPE) as one,
        warm.Popen(command, stdout=subprocess.PIPE) as two,
    ):
        counts = [int(process.communicate(timeout=60)[0]) for process in (one, two)]
    assert sum(counts) == 20
    with ExperienceLibrary.open(path) as library, pytest.raises(TooMuchFeedback, match="in a minute"):
        library.admin.count_rating("ci", most=20)


def test_untrusted_feedback_moves_an_item_within_bounds_that_outlive_the_server(path):
    """Servers restart, episodes go on: no number of words of untrusted writers takes a person's item out of recall."""
    item = Item("insight", "Drawer red holds spoons", source="person", score=0.6)
    with ExperienceLibrary.open(path) as library:
        ref = str(library.add(item).item_id)
    for restart in range(5):
        with ExperienceLibrary.open(path) as library:
            given = Feedback()
            for n in range(3):
                given.give(library, ref, False, client="mcp", episode=f"{restart}.{n}", trusted=False)
    with ExperienceLibrary.open(path) as library:
        assert library.items.get(ref).score == pytest.approx(0.6 - TRUST.max_opinion_change)
        with pytest.raises(TooMuchFeedback, match="for this episode"):
            Feedback().give(library, ref, False, client="mcp", episode="0.0", trusted=False)
        for n in range(30):
            Feedback().give(library, ref, False, client=f"token:{n}", episode="", trusted=False)
        assert library.items.get(ref).score >= TUNING.masking_score
        assert library.recall("where are spoons in the red drawer?").items
        assert library.admin.verify() == []


def test_check_counts_nothing_for_a_token_that_may_only_read(client, tokens, own):
    """Otherwise a reader could bring about a trial, or put one off."""
    guard = Item("guardrail", "no", "it hurts", condition={"text": "pantry"}, forbids="wait", confidence=0.9)
    with ExperienceLibrary.open(own) as library:
        ref = str(library.add(guard).item_id)
    for rights, counted in (({}, 0), ({"read": True, "record": True}, 2)):
        token = tokens.add(f"client-{counted}", **rights)
        headers = {"Authorization": f"Bearer {token}"}
        for _ in range(2):
            answer = client.post("/v1/check", json={"state": STATE, "action": "wait"}, headers=headers)
            assert answer.json()["allowed"] is False
        with ExperienceLibrary.open(own) as library:
            assert library.items.standing(ref).refused == counted


@pytest.mark.parametrize(("rights", "trust"), [("record", "untrusted"), ("both", "untrusted"), ("write", "trusted")])
def test_episodes_are_trusted_only_with_the_right_to_write(calls, own, rights, trust):
    """A token that may record reports what happened; its words and keys are not believed."""
    assert calls(rights, "POST", "/v1/episodes", {"episodes": [{**EPISODE, "id": "sent"}]}).status_code == 200
    with ExperienceLibrary.open(own, read_only=True) as library:
        sent = next(row for row in library.episodes.find() if row["id"] == "sent")
        assert sent["trust"] == trust
