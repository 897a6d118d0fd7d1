"""Tests of agents whose library is held by another thread for a long time: they go on without it."""

import threading
from types import SimpleNamespace

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from tests.runtime.integrations.scripted import Model, call, create_agent

from hardwon.memory.errors import LibraryBusy
from hardwon.runtime.integrations.functions import FunctionEpisode
from hardwon.runtime.integrations.middleware import ExperienceMiddleware
from hardwon.runtime.integrations.recording import begin_run


@pytest.fixture
def held(library):
    """Holds the library in another thread, as one that evolves does; the event of the fixture ends it."""
    is_held, may_end = threading.Event(), threading.Event()

    def work():
        with library._lock:
            is_held.set()
            may_end.wait(40)

    thread = threading.Thread(target=work)

    def hold():
        thread.start()
        is_held.wait(40)

    yield SimpleNamespace(begin=hold, may_end=may_end)
    may_end.set()
    thread.join()


@pytest.mark.timeout(30)
def test_a_hint_and_a_ruling_end_at_the_deadline(library, held):
    run = begin_run(library, "find the spoon")
    held.begin()
    with pytest.raises(LibraryBusy):
        run.find_hint(run.get_state())
    with pytest.raises(LibraryBusy):
        run.rule_on({"id": "1", "name": "open", "args": {}})


@pytest.mark.timeout(30)
def test_functions_go_on_without_a_hint(library, held):
    episode = FunctionEpisode(library, "find the spoon")
    held.begin()
    assert episode.hint == ""


@pytest.mark.timeout(30)
def test_model_calls_go_on_without_the_library(library, held, caplog):
    """From the tool call on, another thread holds the library, until the model was called again."""

    @tool
    def look() -> str:
        """Look around."""
        held.begin()
        return "A kettle."

    def answer():
        yield call("look")
        held.may_end.set()
        yield AIMessage("done")

    agent = create_agent(
        Model(messages=answer(), metadata={"seen": []}), [look], middleware=[ExperienceMiddleware(library)]
    )
    result = agent.invoke({"messages": [("user", "find the spoon")]})
    assert result["messages"][-1].content == "done"
    assert "continues without experience" in caplog.text
    assert "Traceback" not in caplog.text
    assert library.episodes == 1
