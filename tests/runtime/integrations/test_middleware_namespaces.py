"""The middleware with many users and threads: each has a namespace and episodes of their own."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt
from tests.runtime.integrations.scripted import BOOKS_SEVEN, GUARD, call, calls, create_agent, last, model, ran

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime import ExperienceMiddleware
from hardwon.runtime.integrations import middleware as module, namespaces

# ---- many at once


@dataclass
class User:
    """The context of a run."""

    name: str


def test_every_user_has_experience_of_their_own(library, desk):
    middleware = ExperienceMiddleware(library, namespace=lambda context: context.name)

    def run(name):
        chat = model(*BOOKS_SEVEN)
        agent = create_agent(chat, desk.tools, middleware=[middleware], context_schema=User)
        agent.invoke({"messages": [("user", f"A table for {name}.")]}, context=User(name))
        return chat.metadata["seen"][0]

    assert [len(run(name)) for name in ("ada", "grace", "ada")] == [1, 1, 2]
    middleware.close()
    with ExperienceLibrary.open(library.path, namespace="ada", read_only=True) as of_ada:
        assert of_ada.admin.stats()["episodes"] == 2
    assert library.admin.stats()["episodes"] == 0


def test_a_namespace_that_cannot_be_told_is_refused(library, desk):
    """Somebody else's experience would be used otherwise."""
    agent = create_agent(
        model(*BOOKS_SEVEN),
        desk.tools,
        middleware=[ExperienceMiddleware(library, namespace=lambda context: context.name)],
    )
    with pytest.raises(ConfigError, match="cannot determine the namespace from the context None"):
        agent.invoke({"messages": [("user", "A table.")]})


def test_many_threads_share_one_middleware(library, desk):
    middleware = ExperienceMiddleware(library, namespace=lambda context: context.name)

    def run(n):
        agent = create_agent(model(*BOOKS_SEVEN), desk.tools, middleware=[middleware], context_schema=User)
        agent.invoke({"messages": [("user", f"Table {n}.")]}, context=User(f"user {n % 3}"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(24)))
    middleware.close()
    for n in range(3):
        with ExperienceLibrary.open(library.path, namespace=f"user {n}", read_only=True) as own:
            assert own.admin.stats()["episodes"] == 8
            assert own.admin.verify() == []


def test_parallel_calls_of_a_resumed_run_share_one_rebuilt_episode(library, monkeypatch):
    """Two tool calls arrive at once in a process that did not begin the run: neither loses the other's steps."""
    middleware, inside = ExperienceMiddleware(library), threading.Barrier(2, timeout=0.3)
    begin = middleware._begin

    def wait_for_the_other(*arguments, **options):
        with suppress(threading.BrokenBarrierError):  # broken if the other call is kept out
            inside.wait()
        return begin(*arguments, **options)

    monkeypatch.setattr(middleware, "_begin", wait_for_the_other)
    state = {"hardwon_episode": "resumed", "messages": [HumanMessage("Book a table."), call("book", table=6)]}
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: middleware._find_run(state, None), range(2))
    assert first is second


def test_namespaces_beyond_those_kept_open_are_closed(library, desk, monkeypatch):
    monkeypatch.setattr(namespaces, "OPEN_NAMESPACES", 2)
    middleware = ExperienceMiddleware(library, namespace=lambda context: context.name)
    for n in range(4):
        agent = create_agent(model(*BOOKS_SEVEN), desk.tools, middleware=[middleware], context_schema=User)
        agent.invoke({"messages": [("user", "A table.")]}, context=User(f"user {n}"))
    assert list(middleware._libraries._opened) == ["user 2", "user 3"]
    middleware.close()


def test_beyond_a_limit_the_oldest_run_that_waits_for_a_person_is_recorded(library, desk, monkeypatch):
    monkeypatch.setattr(module, "OPEN_EPISODES", 2)
    middleware = ExperienceMiddleware(library)

    @tool
    def ask(question: str) -> str:
        """Ask a person."""
        return str(interrupt(question))

    for n in range(4):
        script = call("book", "1", table=7), call("ask", "2", question="Is seven all right?")
        saver = InMemorySaver()
        agent = create_agent(model(*script), [*desk.tools, ask], middleware=[middleware], checkpointer=saver)
        agent.invoke({"messages": [("user", f"Table {n}.")]}, {"configurable": {"thread_id": "1"}})
    assert len(middleware._open) == 2
    rows = [(row["task"], row["success"], row["ending"]) for row in library.episodes.find()]
    assert rows == [("Table 1.", None, "abandoned"), ("Table 0.", None, "abandoned")]


@pytest.mark.parametrize("name", ["", None, 7])
def test_a_namespace_is_a_text_that_is_not_empty(library, name):
    with pytest.raises(ConfigError, match="return a non-empty string"):
        namespaces.Namespaces(library, lambda context: name).of("a context")


def test_all_namespaces_are_closed_at_the_end_but_the_own_library(library):
    opened = namespaces.Namespaces(library, str)
    other = opened.of("another")
    opened.release(other)
    opened.close()
    assert opened._opened == {}
    with pytest.raises(Exception, match="closed"):
        other.admin.stats()
    assert library.admin.stats()["episodes"] == 0


def test_the_oldest_threads_are_forgotten_beyond_those_remembered(library, monkeypatch):
    monkeypatch.setattr(namespaces, "FINISHED", 2)
    known = namespaces.Namespaces(library, None)
    for thread in "abca":
        known.remember(library, thread, f"episode of {thread}")
    assert [known.find_run(library, thread) for thread in "ca"] == ["episode of c", "episode of a"]
    with pytest.raises(UnknownName):
        known.find_run(library, "b")


def test_an_ordinary_run_logs_nothing(library, desk, caplog):
    ran(library, desk, *BOOKS_SEVEN, guardrails="block")
    assert caplog.text == ""


REJECTION = ToolMessage("The user rejected this call: too early.", tool_call_id="1", status="error")


def test_calls_that_were_made_before_a_run_are_no_steps_of_it(library, desk):
    agent = create_agent(model(call("book", "2", table=8), AIMessage("Done.")), desk.tools,
                         middleware=[ExperienceMiddleware(library)])  # fmt: skip
    before = [("user", "A table."), call("book", table=7), ToolMessage("table 7 is yours", tool_call_id="1")]
    agent.invoke({"messages": before})
    assert [step.action for step in last(library).steps] == ["book(table=8)"]


def test_a_resumed_run_knows_which_calls_were_answered(library):
    """A rejection among them is not recorded twice."""
    state = {"messages": [HumanMessage("A table."), call("book", table=7), REJECTION, call("book", "2", table=8)]}
    run = ExperienceMiddleware(library)._begin("resumed", state, None, resumed=True)
    assert run.answered == {"1"}
    assert [step.action for step in run.episode.steps] == ["book(table=7)"]


@pytest.mark.parametrize(("guardrails", "booked"), [("block", []), (False, [7])])
def test_a_call_beside_one_of_an_unknown_tool_is_refused_when_its_tool_runs(library, desk, guardrails, booked):
    """Together they go on to the agent, which reports the unknown one."""
    library.add(GUARD)
    ran(library, desk, calls(call("book", table=7), call("fly", "2")), AIMessage("Done."), guardrails=guardrails)
    assert desk.booked == booked
