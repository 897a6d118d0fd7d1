"""Why the agent was told something, or why not, and whether it helps: the same answers in every door."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from mcp import Client

from hardwon.apps import mcp_server
from hardwon.apps.dashboard.episode_pages import _render_question
from hardwon.apps.http.app import create_app
from hardwon.apps.shared.explain import explain_advice
from hardwon.memory import Diagnosis, ExperienceLibrary, Item, Reasons, State, Step, Trajectory

TASK = "refund an order"
HERE = State("A counter. The order was paid by card.", task=TASK)


@pytest.fixture
def filled(tmp_path):
    """A library with a lesson that its second episode did not show."""
    path = tmp_path / "work.db"
    with ExperienceLibrary.open(path) as library:
        lesson = library.add(Item("insight", "Ask for the receipt.", when_to_use="an order was paid by card")).item_id
        assert lesson is not None
        for name, why in (("told", Reasons(recalled=(lesson,))), ("not-told", Reasons(advice="withheld"))):
            step = Step(HERE, "refund()", HERE, Diagnosis(True), why=why)
            library.episodes.receive([Trajectory(TASK, (step,), True, id=name)], writer="mcp", trust="trusted")
    return path, lesson


WITHHELD = "Not shown: all advice was withheld in this episode at random, to measure whether it helps."


def ask_mcp(path, arguments: dict[str, str], trust) -> dict[str, Any]:
    async def talk():
        with ExperienceLibrary.open(path) as library:
            async with Client(mcp_server.build(library, trust=trust)) as client:
                return await client.call_tool("why", arguments)

    answer = asyncio.run(talk())
    if answer.is_error:
        return {"error": answer.content[0].text}
    return dict(answer.structured_content)


def test_the_command_says_why(filled, hardwon, hardwon_json):
    path, lesson = filled
    assert hardwon_json("memory", "why", path, "receipt")["says"] == WITHHELD  # of the newest episode
    told = hardwon_json("memory", "why", path, lesson, "--at", "told")
    assert [stage["passed"] for stage in told["stages"]] == [True, True, True, True, None]
    printed = " ".join(hardwon("memory", "why", path, "receipt", "--at", "step:2").stdout.split())
    assert WITHHELD in printed
    assert "recalled yes" in printed


def test_a_lesson_that_came_too_late_and_waits_in_quarantine_will_not_be_told_later(filled, hardwon_json):
    path, _ = filled
    with ExperienceLibrary.open(path) as library:
        late = Item("insight", "Coins jam", provenance=(1,), source="client", trust="untrusted", writer="http")
        ref = library.add(late).item_id
    answer = hardwon_json("memory", "why", path, ref, "--at", "told")["says"]
    assert answer.startswith("Not indexed: it was learned at ")
    assert answer.endswith("; now it is quarantined.")


def test_without_words_it_is_about_the_first_lesson_that_was_told(filled, hardwon, hardwon_json):
    """As somebody asks who knows no id yet; where none was told, words are needed."""
    path, lesson = filled
    assert hardwon_json("memory", "why", path, "--at", "told") == hardwon_json(
        "memory", "why", path, lesson, "--at", "told"
    )
    problem = hardwon("memory", "why", path, expect=2)
    withheld = "all advice was withheld at random, to measure whether it helps"
    assert f"no lesson was told in episode not-told: {withheld}. Name another episode" in problem.stderr


def test_words_need_no_quotes_and_no_order(filled, hardwon, hardwon_json):
    """As a person types them."""
    path, lesson = filled
    assert hardwon_json("memory", "why", path, "the receipt", "--at", "told")["item"] == lesson
    assert hardwon_json("memory", "why", path, "RECEIPT", "ask")["item"] == lesson
    assert "Ask for the receipt" in hardwon("memory", "search", path, "receipt", "card").stdout


def test_http_says_why(filled):
    path, lesson = filled
    with TestClient(create_app(path, read_only=True), base_url="http://127.0.0.1:8420") as client:
        assert client.get("/v1/why", params={"about": lesson}).json()["says"] == WITHHELD
        told = client.get("/v1/why", params={"about": lesson, "episode": "told"}).json()
        assert told["stages"][3] == {"name": "shown", "passed": True, "evidence": "the agent read it before step 0"}
        assert client.get("/v1/why", params={"episode": "told"}).json() == told  # its first lesson
        assert client.get("/v1/why", params={"about": lesson, "episode": "nobody"}).status_code == 404


def test_a_trusted_mcp_client_is_told_why(filled):
    path, lesson = filled
    assert ask_mcp(path, {"about": "receipt"}, "trusted")["says"] == WITHHELD
    assert ask_mcp(path, {"about": lesson, "episode_id": "told"}, "trusted")["stages"][3]["passed"]


def test_another_mcp_client_is_told_the_stage_without_words_of_others(filled):
    """Of its own episodes, and by the id of a lesson: words would let it search what others recorded."""
    path, lesson = filled
    answer = ask_mcp(path, {"about": lesson}, "untrusted")
    assert answer["stages"][-1] == {"name": "shown", "passed": False}
    assert answer["says"] == "Not shown"
    assert "evidence" not in str(answer)
    assert "receipt" not in str(answer)
    assert ask_mcp(path, {"episode_id": "told"}, "untrusted")["item"] == lesson
    problem = ask_mcp(path, {"about": "receipt"}, "untrusted")["error"]
    assert "there is no lesson 'receipt'. Give an id that `recall` returned; words are for a server" in problem
    with ExperienceLibrary.open(path) as library:
        library.record(Trajectory(TASK, (Step(HERE, "secret()", HERE, Diagnosis(True)),), True, id="private"))
    assert "you recorded no episode" in ask_mcp(path, {"about": lesson, "episode_id": "private"}, "untrusted")["error"]


def test_an_mcp_client_over_stdin_is_told_why_of_its_own_calls(tmp_path):
    """Other writers' words stay out of the evidence: a rule that quotes an order of theirs is not quoted."""
    path = tmp_path / "work.db"
    with ExperienceLibrary.open(path) as library:
        title, steps = "First `lease(host={host})`, then deploy", ("lease(host={1})", "deploy(host={1})")
        remedy = Item("remedy", title, steps=steps, repairs="tool_error")
        lessons = [
            str(library.add(each).item_id) for each in (remedy, replace(remedy, title="Pay", steps=('pay(to="Ada")',)))
        ]
        step = Step(HERE, 'deploy(host="web")', HERE, Diagnosis(False), why=Reasons(recalled=tuple(lessons)))
        library.episodes.receive([Trajectory(TASK, (step,), False)], writer="mcp", trust="trusted")
    own, others = (ask_mcp(path, {"about": lesson}, "own") for lesson in lessons)
    done = 'the agent did `deploy(host="web")` at step 0, which failed'
    assert own["says"] == f"Not followed: {done}, and not `lease(host={{host}})` first."
    assert title in own["title"]
    assert others["says"] == "Not followed"
    assert "Ada" not in str(others)
    assert others["stages"][3]["evidence"] == "the agent read it before step 0"


@pytest.mark.parametrize(("trust", "is_told"), [("own", True), ("trusted", True), ("untrusted", False)])
def test_what_an_mcp_client_recalled_is_told_in_the_episode_that_it_records_next(filled, trust, is_told):
    """Over stdin it is one client. Of several over HTTP, one may recall and another record."""
    path, lesson = filled
    step = {"action": "refund()", "result": "paid"}

    async def talk():
        with ExperienceLibrary.open(path) as library:
            library.items.update(lesson, pinned=True)
            async with Client(mcp_server.build(library, trust=trust)) as client:
                recalled = await client.call_tool("recall", {"task": TASK, "situation": "an order was paid by card"})
                for _ in range(2):
                    await client.call_tool("record", {"task": TASK, "steps": [step, step], "success": True})
            newest = [library.episodes.get(row["id"]) for row in library.episodes.find(limit=2)]
            return recalled, [[step.why.recalled for step in episode.steps] for episode in newest]

    recalled, (second, first) = asyncio.run(talk())
    assert [item["id"] for item in recalled.structured_content["items"]] == [lesson]
    assert first == [(lesson,) if is_told else None, None]
    assert second == [None, None]
    assert "no lesson was told" in ask_mcp(path, {}, trust)["error"]


def test_the_dashboard_says_why(filled):
    path, lesson = filled

    class Room:
        namespace = "default"

        def link(self, path, **query):
            return path

    with ExperienceLibrary.open(path) as library:
        text = str(_render_question(Room(), lesson, explain_advice(library, lesson)))  # type: ignore[arg-type]
    assert WITHHELD in text
    assert f'value="{lesson}"' in text
    assert f'About: Ask for the receipt. <a href="/items/{lesson}">' in text


def test_every_door_says_whether_advice_helps(filled, hardwon):
    """In the same words."""
    path, _ = filled
    with ExperienceLibrary.open(path) as library:
        says = library.admin.stats()["advice"]["says"]
    assert says.startswith("not measured yet: 0 episodes were drawn to have advice, 1 to have none")
    assert says in " ".join(hardwon("memory", "stats", path).stdout.split())
    with TestClient(create_app(path, read_only=True), base_url="http://127.0.0.1:8420") as client:
        assert client.get("/v1/stats").json()["advice"]["says"] == says
