"""How the middleware reads the messages of a run: each once, and always as if it had read all of them."""

import pytest
from hypothesis import given, strategies as st
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from tests.runtime.integrations.scripted import call, create_agent, model

from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.runtime import ExperienceMiddleware
from hardwon.runtime.guidance.base import RetrievalGuidance
from hardwon.runtime.integrations import middleware_run
from hardwon.runtime.integrations.middleware_run import ActiveRun
from hardwon.runtime.integrations.tool_episode import ToolEpisode, normalize_message, split_at_request
from hardwon.runtime.integrations.tool_run import ToolRun
from hardwon.runtime.loop.advisor import Advisor


def begin(kind, library):
    advisor = Advisor(library, RetrievalGuidance(), False)
    return kind(library, ToolEpisode(library, "Book."), "0", advisor, None, False, 5, Trajectory("Book.", (), None))


def read(library, *requests):
    """Read growing conversations with the middleware's run, and anew each time; returns what both found."""
    run, found = begin(ActiveRun, library), []
    for messages in requests:
        plain = begin(ToolRun, library)
        expected = plain.follow(split_at_request([normalize_message(message) for message in messages])[1])
        found.append((run.follow(messages), run.calls, expected, plain.calls))
    return found


def answer(ref, text="done", status="success"):
    return ToolMessage(text, tool_call_id=ref, status=status)


def parallel(*refs):
    return AIMessage("", tool_calls=[{"name": "book", "args": {"table": ref}, "id": ref} for ref in refs])


MESSAGES = st.one_of(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(lambda refs: parallel(*refs)),
    st.sampled_from("abc").map(answer),
    st.sampled_from("abc").map(lambda ref: answer(ref, "error: no", "error")),
    st.just("more").map(AIMessage),
    st.just("Now another one.").map(HumanMessage),
)


@given(parts=st.lists(st.lists(MESSAGES, max_size=4), max_size=5), cut=st.integers(0, 5))
def test_what_is_read_piece_by_piece_is_what_is_read_at_once(parts, cut):
    """Also if ids repeat, answers are late, and another middleware takes messages away."""
    whole = [HumanMessage("Book.")]
    requests = []
    for part in parts:
        whole = [*whole, *part]
        requests.append(whole)
    requests += [whole[:1] + whole[1 + cut :], whole]
    with ExperienceLibrary.open(":memory:") as library:
        for state, calls, expected, all_calls in read(library, *requests):
            assert calls == all_calls
            assert state == expected


@pytest.mark.parametrize("count", [5, 40])
def test_each_message_is_read_once(library, desk, monkeypatch, count):
    reads = []

    def normalize(message):
        reads.append(message)
        return normalize_message(message)

    monkeypatch.setattr(middleware_run, "normalize_message", normalize)
    script = [call("book", str(n), table=n + 10) for n in range(count)]
    agent = create_agent(model(*script, AIMessage("Done.")), desk.tools, middleware=[ExperienceMiddleware(library)])
    agent.invoke({"messages": [("user", "Book tables.")]}, {"recursion_limit": 10 * count})
    assert len(reads) == 1 + 2 * count


def test_a_middleware_that_shortens_the_messages_costs_reading_and_no_step(library, desk):
    class Shortens(AgentMiddleware):
        def wrap_model_call(self, request, handler):
            kept = [message for message in request.messages if message.type == "human"] + request.messages[-2:]
            return handler(request.override(messages=kept if len(request.messages) > 3 else request.messages))

    script = [call("book", str(n), table=n + 10) for n in range(6)]
    middleware = [Shortens(), ExperienceMiddleware(library)]
    agent = create_agent(model(*script, AIMessage("Done.")), desk.tools, middleware=middleware)
    agent.invoke({"messages": [("user", "Book tables.")]})
    episode = library.episodes.get(library.episodes.find()[0]["id"])
    assert [step.action for step in episode.steps] == [f"book(table={n + 10})" for n in range(6)]
