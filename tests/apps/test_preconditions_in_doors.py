"""A call that failed until something else was done is warned of where it is made, in every door, once in a turn."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from mcp import Client
from tests.apps.coding_agents.test_hooks import Session
from tests.apps.proxy import conftest as proxies
from tests.apps.proxy.test_proxy import run_agent
from tests.apps.test_fixes_in_doors import (
    CARD,
    CHECK,
    CHECKED,
    GIFT,
    LAST,
    UNCHECKED,
    ask,
    ask_http,
    is_error,
    write,
)
from tests.runtime.integrations.scripted import create_agent, model

from hardwon.apps import mcp_server
from hardwon.apps.http.app import create_app
from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.remote import RemoteLibrary
from hardwon.runtime import ExperienceMiddleware, FunctionEpisode, remember
from hardwon.runtime.environments.calls import Call, build_state
from hardwon.runtime.integrations.tool_episode import WARNED
from hardwon.runtime.loop import holdout
from hardwon.runtime.loop.tuning import TUNING

upstream, proxied = proxies.upstream, proxies.proxied
FIRST = "First `check_order(order={order})`, then `refund"
OTHER = "check_order", {"order": "Y-1"}, "paid in May"
"""The same call about another order prepares nothing."""


@pytest.fixture(autouse=True)
def nothing_is_withheld(monkeypatch):
    monkeypatch.setattr(holdout, "is_withheld", lambda *_: False)
    monkeypatch.setattr("hardwon.runtime.loop.advisor.is_withheld", lambda *_: False)


def find_warning(text):
    """Return the warning in what an agent was shown at a call."""
    return str(text).partition(WARNED)[2]


def call_middleware(path, calls, opener=ExperienceLibrary.open, **settings):
    with opener(path) as library:
        from langchain_core.messages import AIMessage
        from langchain_core.tools import tool

        results: list[str] = [result for *_, result in calls]

        @tool
        def refund(order: str, to: str = "") -> str:
            """Refund an order."""
            return results.pop(0)

        @tool
        def check_order(order: str) -> str:
            """Check an order."""
            return results.pop(0)

        script = [
            AIMessage("", tool_calls=[{"name": name, "args": {"order": LAST, **given}, "id": str(n)}])
            for n, (name, given, _) in enumerate(calls)
        ]
        agent = create_agent(
            model(*script, AIMessage("Done.")), [refund, check_order],
            middleware=[ExperienceMiddleware(library, **settings)],
        )  # fmt: skip
        out = agent.invoke({"messages": [("user", ask(LAST))]})
        return [find_warning(message.text) for message in out["messages"] if message.type == "tool"]


def call_functions(path, calls):
    results = [result for *_, result in calls]

    @remember
    def refund(order, to=None):
        return results.pop(0)

    @remember
    def check_order(order):
        return results.pop(0)

    tools, said = {"refund": refund, "check_order": check_order}, []
    with ExperienceLibrary.open(path) as library, FunctionEpisode(library, ask(LAST)) as episode:
        for name, given, _ in calls:
            count = len(episode.warnings)
            tools[name](**{"order": LAST, **given})
            said.append(find_warning("".join(episode.warnings[count:])))
    return said


def call_hooks(path, calls, monkeypatch):
    session = Session(path.parent, monkeypatch)
    path.rename(session.library)
    session.send("SessionStart", source="startup")
    session.send("UserPromptSubmit", prompt=ask(LAST))
    said = []
    for name, given, result in calls:
        answer = {"error": result} if is_error(result) else {"response": result}
        before, _ = session.call(name, {"order": LAST, **given}, **answer)
        assert "permissionDecision" not in str(before)
        said.append(find_warning(before.get("hookSpecificOutput", {}).get("additionalContext", "")))
    return said


def call_mcp(path, calls):
    async def talk():
        async with Client(mcp_server.build(library, trust="own")) as client:
            for n, (name, given, _) in enumerate(calls):
                seen = "\n".join(f"> {write(done, LAST, arguments)}\n{result}" for done, arguments, result in calls[:n])
                body = {"action": write(name, LAST, given), "task": ask(LAST), "situation": seen}
                check = (await client.call_tool("check", body)).structured_content
                assert check["allowed"]
                assert check["warned"] == bool(check["reason"])
                said.append(check["reason"])

    said: list[str] = []
    with ExperienceLibrary.open(path) as library:
        asyncio.run(talk())
    return said


def call_http(path, calls):
    said = []
    with TestClient(create_app(Path(path)), base_url="http://127.0.0.1") as client:
        for n, (name, given, _) in enumerate(calls):
            made = [Call(done, {"order": LAST, **arguments}, result, result if is_error(result) else "")
                    for done, arguments, result in calls[:n]]  # fmt: skip
            state = build_state(ask(LAST), made, "")
            body = {
                "state": {"observation": state.observation, "task": state.task},
                "action": write(name, LAST, given), "about_to_run": True,
            }  # fmt: skip
            verdict = client.post("/v1/check", json=body).json()
            assert (verdict["allowed"], verdict["blocked"]) == (True, False)
            assert verdict["warned"] == bool(verdict["cause"])
            said.append(verdict["cause"])
    return said


def call_proxy(calls, proxied, upstream, **settings):
    def answer(body):
        n = sum(message["role"] == "tool" for message in body["messages"])
        if n == len(calls):
            return "Done."
        name, given, _ = calls[n]
        return [proxies.call(name, f"c{n}", order=LAST, **given)]

    results = [result for *_, result in calls]
    upstream.answer = answer
    run_agent(proxied(**settings), upstream, ask(LAST), lambda *_: results.pop(0))
    seen = upstream.requests[-1]["messages"]
    return [find_warning(message["content"]) for message in seen if message["role"] == "tool"]


STATELESS = ("mcp", "http")
"""Doors that know of a turn only what the caller says."""


@pytest.fixture
def follow(tmp_path, monkeypatch, request):
    """Return a function that makes calls in a door, with a library in which `refund` needs `check_order`."""

    def follow(door, calls, lesson=(UNCHECKED, CHECK, CHECKED)):
        path = tmp_path / "work.db"
        with ExperienceLibrary.open(path, "hashing") as library:
            list(ask_http(library, lesson))
        match door:
            case "hooks":
                return call_hooks(path, calls, monkeypatch)
            case "served":
                with request.getfixturevalue("serving")(path) as url:
                    return call_middleware(url, calls, RemoteLibrary)
            case "proxy":
                return call_proxy(calls, request.getfixturevalue("proxied"), request.getfixturevalue("upstream"))
        return globals()[f"call_{door}"](path, calls)

    return follow


DOORS = ("middleware", "served", "functions", "hooks", "proxy", *STATELESS)


@pytest.mark.parametrize("door", DOORS)
def test_a_call_without_its_precondition_is_warned_of_once(follow, door):
    said = follow(door, (UNCHECKED, UNCHECKED, CHECK, CHECKED))
    assert FIRST in said[0]
    assert LAST not in said[0]
    assert [bool(text) for text in said] == [True, door in STATELESS, False, False]


@pytest.mark.parametrize("door", DOORS)
def test_a_call_whose_precondition_is_met_is_not_warned_of(follow, door):
    assert follow(door, (CHECK, CHECKED)) == ["", ""]


def test_what_was_done_for_another_thing_is_no_precondition(tmp_path):
    path = tmp_path / "work.db"
    with ExperienceLibrary.open(path, "hashing") as library:
        list(ask_http(library, (UNCHECKED, CHECK, CHECKED)))
    assert FIRST in call_middleware(path, (OTHER, UNCHECKED))[1]


def test_a_call_that_works_all_the_same_is_not_warned_of_below_its_answer(tmp_path):
    path = tmp_path / "work.db"
    with ExperienceLibrary.open(path, "hashing") as library:
        list(ask_http(library, (UNCHECKED, CHECK, CHECKED)))
    assert call_middleware(path, (CHECKED,)) == [""]


@pytest.mark.parametrize("door", ["middleware", "hooks", "mcp"])
def test_an_argument_that_fails_is_warned_of_in_the_same_way(follow, door):
    said = follow(door, (CARD, GIFT), lesson=(CARD, GIFT))
    assert 'Use `refund(order={order}, to="gift_card")`' in said[0]
    assert said[1] == ""


def test_a_warning_is_recorded_as_shown(tmp_path):
    path = tmp_path / "work.db"
    with ExperienceLibrary.open(path, "hashing") as library:
        list(ask_http(library, (UNCHECKED, CHECK, CHECKED)))
        (remedy,) = library.items.find(["remedy"])
        count = len(library.items.usages(remedy.id))
    call_middleware(path, (UNCHECKED, CHECK, CHECKED), guidance=Silent())
    with ExperienceLibrary.open(path) as library:
        assert [usage["mode"] for usage in library.items.usages(remedy.id)[count:]] == ["recalled"]


def test_a_lesson_that_is_withheld_is_not_said_at_the_call_either(tmp_path, monkeypatch):
    path = tmp_path / "work.db"
    with ExperienceLibrary.open(path, "hashing") as library:
        list(ask_http(library, (UNCHECKED, CHECK, CHECKED)))
    monkeypatch.setattr("hardwon.runtime.integrations.tool_run.LOOP", replace(TUNING, measured_from=0))
    monkeypatch.setattr("hardwon.runtime.loop.holdout.is_withheld", lambda *_: True)
    assert call_middleware(path, (UNCHECKED, CHECK, CHECKED)) == ["", "", ""]


def test_guardrails_that_are_off_say_nothing(tmp_path):
    path = tmp_path / "work.db"
    with ExperienceLibrary.open(path, "hashing") as library:
        list(ask_http(library, (UNCHECKED, CHECK, CHECKED)))
    assert call_middleware(path, (UNCHECKED,), guardrails=False) == [""]


def test_games_are_not_warned(library):
    """An environment lists what is possible now."""
    steps = ("open {1}", "take pie from {1}")
    library.add(
        Item("remedy", "First `open X`", "It works then.", steps=steps, repairs="precondition", source="person")
    )
    assert library.check(build_state("Bake.", (), ""), "take pie from oven").item_id is None


class Silent:
    def propose(self, context):
        return None
