"""What an agent's token reads is general: no answer holds another customer's name, invoice or account."""

import asyncio
import json

import pytest
from fastapi.testclient import TestClient as Plain
from mcp import Client

from hardwon.apps import mcp_server
from hardwon.apps.http.access.auth import Tokens
from hardwon.apps.http.app import create_app
from hardwon.apps.shared.general_search import search_general
from hardwon.memory import ExperienceLibrary, Item, State
from hardwon.memory.errors import LibraryForbidden
from hardwon.memory.remote import RemoteLibrary
from hardwon.runtime.environments.calls import Call
from hardwon.runtime.guidance.abstraction import abstract_recollection
from hardwon.runtime.guidance.base import lines_of
from hardwon.runtime.integrations.tool_episode import ToolEpisode

PEOPLE = [
    ("Mia Torres", "INV-8841", "DE-4471"),
    ("Olaf Berg", "INV-1702", "SE-9920"),
    ("Zoë Chan", "INV-6530", "HK-3141"),
]
VALUES = [word for person in PEOPLE for value in person for word in (value, *value.split())]
REQUEST = "Request: Refund invoice INV-5000 of Ann Wood to account FR-1000"
STATE = State(REQUEST, task="Refund invoice INV-5000 of Ann Wood to account FR-1000")


def record_desk(library):
    """Record twelve refunds of three customers by a trusted writer: one tool works, one always fails."""
    for number in range(12):
        name, invoice, account = PEOPLE[number % 3]
        task = f"Refund invoice {invoice} of {name} to account {account}"
        episode, calls = ToolEpisode(library, task), list[Call]()
        for tool, error in (("refund", f"{name} has no open invoice {invoice}"), ("credit", "")):
            before = episode.state(calls)
            arguments = {"invoice": invoice, "customer": name, "account": account}
            calls.append(Call(tool, arguments, "" if error else f"credited {account}", error))
            episode.add_answer(before, calls)
        library.record(episode.trajectory(True, ending="success"))
        library.evolve()


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    path = tmp_path_factory.mktemp("shop") / "library.db"
    with ExperienceLibrary.open(path) as library:
        record_desk(library)
        # A guardrail on one customer, as the rules write it.
        library.add(
            Item(
                "guardrail", "Do not `refund(customer=Mia Torres)`", "Mia Torres has no open invoice.",
                condition={"text": "refund"}, forbids="refund(invoice={1}, customer={2}, account={3})",
                source="experience", writer="rules", confidence=0.9,
            )
        )  # fmt: skip
        library.add(
            Item(
                "skill", "Credit Mia Torres at DE-4471", "Worked for Olaf Berg, too.",
                steps=("find Mia Torres", "send DE-4471"), condition={"text": "refund"}, source="experience",
                writer="rules", tags=("Torres",), locations=("DE-4471",), verify={"text": "Olaf Berg"},
            )
        )  # fmt: skip
    return path


@pytest.fixture
def tokens(shop, tmp_path):
    tokens = Tokens(tmp_path / "tokens")
    tokens.add("admin", write=True)
    return tokens


@pytest.fixture
def client(shop, tokens):
    app = create_app(shop, tokens=tokens, local=False, runs=shop.parent)
    with Plain(app, base_url="http://127.0.0.1:8420") as made:
        yield made


@pytest.fixture
def agent(client, tokens):
    """Calls with the token of an agent."""
    headers = {"Authorization": f"Bearer {tokens.add('agent', read=True, record=True)}"}

    def call(method, path, body=None):
        return client.request(method, path, json=body, headers=headers)

    return call


def planted(text):
    return [value for value in VALUES if value.lower() in text.lower()]


def ask(action="refund(invoice='INV-5000', customer='Ann Wood', account='FR-1000')"):
    state = {"observation": STATE.observation, "task": STATE.task}
    return {"state": state, "action": action, "actions": {action: ""}}


def test_recall_is_general_and_keeps_counts_and_outcomes(agent):
    body = {name: value for name, value in ask().items() if name != "action"}
    answer = agent("POST", "/v1/recall", {**body, "k": 20})
    told = answer.json()
    assert planted(answer.text) == []
    assert any(line.startswith("- guardrail: Do not `refund(") for line in told["lines"])
    assert any("Failed in " in line for line in told["lines"])
    assert any(line.startswith("- remedy: Use `credit(") and "worked in 8 of 8" in line for line in told["lines"])
    assert all(hit["what"]["pre"]["observation"] == "" for hit in told["steps"])
    assert max(len(hit["what"]["why"]["like"]) for hit in told["steps"]) > 1


@pytest.mark.parametrize("level", ["step", "task"])
@pytest.mark.parametrize("query", [{"text": "refund of Mia"}, {"text": "Torres INV-8841"}, {"text": "credit"}])
def test_recall_by_text_reveals_no_more_than_the_question(agent, level, query):
    answer = agent("POST", "/v1/recall", {**query, "level": level, "k": 20})
    assert set(planted(answer.text)) <= set(planted(query["text"]))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/items?limit=100"), ("GET", "/v1/items?status=all"), ("GET", "/v1/search?text=refund&k=50"),
        ("GET", "/v1/summaries"), ("GET", "/v1/stats"), ("GET", "/v1/events?follow=false&after=0"),
        ("GET", "/v1/about"), ("GET", "/v1/verify"), ("GET", "/v1/namespaces"),
    ],
)  # fmt: skip
def test_other_answers_are_general(agent, method, path):
    answer = agent(method, path)
    assert answer.status_code == 200
    assert planted(answer.text) == []


@pytest.mark.parametrize("how", ["hybrid", "dense", "text"])
@pytest.mark.parametrize("value", ["Torres", "INV-8841", "Mia", "SE-9920", "DE-4471"])
def test_search_ranks_by_nothing_that_is_hidden(agent, value, how):
    """A word of another customer finds what a word that nobody wrote finds, alone and beside others."""
    for rest in ("", "refund failed", "credit"):
        path = f"/v1/search?k=50&how={how}&text="
        assert agent("GET", f"{path}{value} {rest}").json() == agent("GET", f"{path}Xyzzy {rest}").json()


@pytest.mark.parametrize("level", ["step", "task"])
@pytest.mark.parametrize("value", ["Torres", "INV-8841", "Mia", "SE-9920", "Olaf"])
def test_recall_by_text_ranks_by_nothing_that_is_hidden(agent, value, level):
    """A guess is answered like a word that nobody wrote: in hits, similarities, lines, path and tokens."""
    for rest in ("", "refund failed", "credit"):
        asked = {"k": 50, "level": level, "actions": ask()["actions"]}
        answers = [agent("POST", "/v1/recall", {**asked, "text": f"{word} {rest}"}).json() for word in (value, "Xyzzy")]
        assert answers[0] == answers[1]


def test_recall_by_text_finds_general_words_and_their_stems(agent):
    told = agent("POST", "/v1/recall", {"text": "refunding", "k": 20, "kinds": ["guardrail"]}).json()
    assert told["path"] == "hybrid"
    assert {hit["what"]["kind"] for hit in told["items"]} == {"guardrail"}
    assert any(hit["what"]["action"].startswith("refund(") for hit in told["steps"])
    assert told["lines"]
    assert 0 < agent("POST", "/v1/recall", {"text": "refunding", "k": 20, "budget_tokens": 40}).json()["tokens"] <= 40
    assert agent("POST", "/v1/recall", {"text": "refunding", "k": 0}).json()["items"] == []


def test_a_forgotten_or_retired_item_is_not_found_again(tmp_path):
    """The index of general texts is kept between requests, and it must not outlive its texts."""
    with ExperienceLibrary.open(tmp_path / "a.db") as library:
        items = [Item("insight", f"the {word} door opens outward") for word in ("red", "blue")]
        gone, kept = (str(library.add(item).item_id) for item in items)
        assert {hit.what.id for hit in search_general(library, "which doors open", 5)} == {gone, kept}
        library.admin.forget(text="the red door")
        assert {hit.what.id for hit in search_general(library, "which doors open", 5)} == {kept}
        library.items.update(kept, title="the green gate opens inward")
        assert not search_general(library, "blue door", 5)
        library.items.retire(kept, "rusty")
        assert not search_general(library, "green gate", 5)


def test_search_finds_general_words(agent, client, tokens):
    """Forms of actions with their outcomes, and items; whoever may read the log searches its words."""
    found = agent("GET", "/v1/search?text=refund&k=50").json()["hits"]
    assert {hit["type"] for hit in found} == {"item", "step"}
    assert all("refund" in json.dumps(hit["what"]) for hit in found)
    assert [hit["similarity"] for hit in found] == sorted((hit["similarity"] for hit in found), reverse=True)
    (step,) = (hit["what"] for hit in agent("GET", "/v1/search?text=refund&among=steps").json()["hits"])
    assert step["diagnosis"]["success"] is False
    guardrails = agent("GET", "/v1/search?text=refund&among=items&kind=guardrail").json()["hits"]
    assert {hit["what"]["kind"] for hit in guardrails} == {"guardrail"}
    assert agent("GET", "/v1/search?text=Torres").json()["hits"] == []
    headers = {"Authorization": f"Bearer {tokens.add('person', read=True)}"}
    assert "Torres" in client.get("/v1/search?text=Torres", headers=headers).text


def test_every_item_is_general_by_itself(agent, shop):
    with ExperienceLibrary.open(shop, read_only=True) as library:
        refs = [item.id for item in library.items.find(status=None)]
    assert refs
    for ref in refs:
        assert planted(agent("GET", f"/v1/items/{ref}").text) == []
        assert planted(agent("GET", f"/v1/items/{ref}/usages").text) == []


def test_check_is_typed_and_its_cause_general(agent):
    body = {name: value for name, value in ask().items() if name != "actions"}
    answer = agent("POST", "/v1/check", {**body, "about_to_run": False})
    told = answer.json()
    assert (told["allowed"], told["blocked"], told["warned"]) == (False, True, False)
    assert told["items"]
    assert told["cause"]
    assert planted(answer.text) == []
    insisted = agent("POST", "/v1/check", {**body, "refused": 3}).json()
    assert (insisted["allowed"], insisted["blocked"], insisted["warned"]) == (True, False, True)
    free = agent("POST", "/v1/check", {**body, "action": "sleep()"}).json()
    assert (free["allowed"], free["blocked"], free["warned"], free["items"]) == (True, False, False, [])


def test_offered_skills_are_general(agent):
    answer = agent("POST", "/v1/offered", {"state": ask()["state"]})
    assert answer.json()["items"]
    assert planted(answer.text) == []


def test_raw_needs_the_right_to_read_the_log(client, tokens, agent):
    body = {**{name: value for name, value in ask().items() if name != "action"}, "raw": True}
    assert agent("POST", "/v1/recall", body).status_code == 403
    for rights in ({}, {"read": True, "record": True, "log": True}, {"write": True}):
        headers = {"Authorization": f"Bearer {tokens.add(f'rights {rights}', **rights)}"}
        answer = client.post("/v1/recall", json=body, headers=headers)
        assert "Torres" in answer.text
        assert "Torres" not in client.post("/v1/recall", json={**body, "raw": False}, headers=headers).text


def test_lines_are_those_of_the_middleware(agent, shop):
    """The same code renders both, and rendering the abstracted records changes nothing."""
    with ExperienceLibrary.open(shop, read_only=True) as library:
        found = library.recall(STATE, k=20)
    hint = [line.text for line in lines_of(found, STATE)]
    body = {"state": ask()["state"], "k": 20}
    assert agent("POST", "/v1/recall", body).json()["lines"] == hint
    general = abstract_recollection(found, STATE)
    assert [line.text for line in lines_of(general, STATE)] == hint
    assert abstract_recollection(general, STATE) == general


def test_remote_library_is_general_unless_asked(shop, serving, tmp_path):
    tokens = Tokens(tmp_path / "tokens")
    agent, auditor = tokens.add("agent", read=True, record=True), tokens.add("auditor")
    with serving(shop, tokens=tokens) as url:
        with RemoteLibrary(url, agent) as library:
            found = library.recall(STATE, k=20)
            assert planted(repr(found)) == []
            assert planted(repr((library.offered(STATE), library.items.find(), library.search("refund")))) == []
            with pytest.raises(LibraryForbidden, match="may not read the log"):
                library.episodes.find()
        with RemoteLibrary(url, agent, raw=True) as library, pytest.raises(LibraryForbidden):
            library.recall(STATE)
        with RemoteLibrary(url, auditor, raw=True) as library:
            assert planted(repr(library.recall(STATE, k=20)))


@pytest.mark.parametrize("tool", ["recall", "check"])
def test_mcp_is_general_as_well(shop, tool):
    async def call(library):
        async with Client(mcp_server.build(library)) as client:
            arguments = {"task": STATE.task, **({"action": ask()["action"]} if tool == "check" else {"k": 20})}
            return await client.call_tool(tool, arguments)

    with ExperienceLibrary.open(shop, read_only=True) as library:
        answer = asyncio.run(call(library))
    text = json.dumps(answer.structured_content, ensure_ascii=False)
    assert ("credit(" if tool == "recall" else "Failed in ") in text
    assert planted(text) == []


def test_dashboard_needs_the_right_to_read_the_log(client, tokens):
    from hardwon.apps.dashboard.frame import Room

    for rights, allowed in (({"read": True, "record": True}, False), ({"read": True, "log": False}, False), ({}, True)):
        tokens.add(f"rights {rights}", **rights)
        caller = tokens.callers()[-1]
        reading = Room(client.app, caller, "default").read(lambda library: library.items.find())
        if allowed:
            assert asyncio.run(reading)
        else:
            with pytest.raises(LibraryForbidden, match="may not read the log"):
                asyncio.run(reading)
