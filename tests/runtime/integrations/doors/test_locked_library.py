"""Tests of agents whose library is held by another thread or process for a long time: they go on without it."""

import threading
from types import SimpleNamespace

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from tests.memory.storage.locking import hold
from tests.runtime.integrations.scripted import Model, call, create_agent, model

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import LibraryBusy
from hardwon.memory.privacy.deadlines import deadline
from hardwon.runtime.integrations import recording
from hardwon.runtime.integrations.functions import FunctionEpisode, remember
from hardwon.runtime.integrations.langgraph_store import HardwonStore
from hardwon.runtime.integrations.middleware import ExperienceMiddleware
from hardwon.runtime.integrations.recording import begin_run


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    """Wait briefly at the end of a run, and log in each test anew."""
    monkeypatch.setattr(recording, "AFTER_RUN_S", 0.02)
    monkeypatch.setattr(recording, "_reported_at", {})


@pytest.fixture
def held(library):
    """Holds the library in another thread, as one that evolves does; the event of the fixture ends it."""
    is_held, may_end = threading.Event(), threading.Event()

    def work():
        with library._file.lock:
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
def test_a_hint_a_ruling_and_a_check_end_at_the_deadline(library, held):
    run = begin_run(library, "find the spoon")
    held.begin()
    with pytest.raises(LibraryBusy):
        run.find_hint(run.get_state())
    with pytest.raises(LibraryBusy):
        run.rule_on({"id": "1", "name": "open", "args": {}})
    with pytest.raises(LibraryBusy):
        run.check("open()")


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
    assert library.episodes.count() == 1


@remember
def glance(place: str) -> str:
    """Look at a place."""
    return f"A kettle in {place}."


def run_functions(library, runs):
    for _ in range(runs):
        with FunctionEpisode(library, "find the spoon") as episode:
            glance("here")
            episode.grade(0.5)


def run_agent(library, runs):
    look = tool(glance)
    for _ in range(runs):
        chat = model(call("glance", place="here"), AIMessage("done"))
        agent = create_agent(chat, [look], middleware=[ExperienceMiddleware(library, grader=lambda state: 0.5)])
        assert agent.invoke({"messages": [("user", "find the spoon")]})["messages"][-1].content == "done"


@pytest.mark.timeout(50)  # a writer waits for 60 s
@pytest.mark.parametrize("run", [run_functions, run_agent])
def test_an_episode_that_cannot_be_recorded_is_recorded_later(path, library, caplog, run):
    """With its steps and its outcome, by the next one that opens the library; the log says it once."""
    with hold(path, "IMMEDIATE"):
        run(library, 3)
        assert library.episodes.count() == 0
    assert caplog.text.count("while the library is busy") == 1
    with ExperienceLibrary.open(path) as other:
        rows = other.episodes.find()
        assert [(row["score"], row["n_steps"], row["ending"]) for row in rows] == [(0.5, 1, "done")] * 3
        (step,) = other.episodes.get(rows[0]["id"]).steps
        assert (step.reward, step.diagnosis.success) == (0.5, True)
    library.close()
    assert not list(path.parent.glob("*.runs"))


@pytest.mark.timeout(50)
def test_a_busy_library_delays_only_the_episodes_of_the_time(path, library):
    """The next run in the same process records them."""
    with hold(path):
        run_functions(library, 1)
    run_functions(library, 1)
    assert library.episodes.count() == 2


@pytest.mark.timeout(30)
def test_a_run_in_a_new_namespace_is_kept_until_it_can_be_created(path, library):
    experience = ExperienceMiddleware(library, namespace=lambda context: "new", grader=lambda state: 0.5)
    chat = model(call("glance", place="here"), AIMessage("done"))
    agent = create_agent(chat, [tool(glance)], middleware=[experience])
    with hold(path):
        assert agent.invoke({"messages": [("user", "find the spoon")]})["messages"][-1].content == "done"
        experience.close()
        assert list(path.parent.glob("*.runs/*.jsonl"))
    with ExperienceLibrary.open(path, namespace="new") as other:
        assert [(row["score"], row["n_steps"]) for row in other.episodes.find()] == [(0.5, 1)]
    assert library.episodes.count() == 0


@pytest.mark.timeout(30)
def test_a_run_begins_while_another_thread_holds_the_library(library, held):
    held.begin()
    run_functions(library, 1)
    held.may_end.set()
    assert begin_run(library, "find the spoon").name.endswith(":0")


@pytest.mark.timeout(50)
def test_a_store_reads_and_sweeps_while_the_library_is_locked(path, library):
    """Values that a read prolongs are prolonged by a later read."""
    with HardwonStore(library, ttl={"default_ttl": 60.0, "refresh_on_read": True}) as store:
        store.put(("users",), "ada", {"likes": "tea"})
        with hold(path):
            item = store.get(("users",), "ada")
            assert item is not None
            assert item.value == {"likes": "tea"}
            assert store.search(("users",))
            assert store.sweep_ttl() == 0
        with hold(path), pytest.raises(LibraryBusy), deadline(0.01):
            store.put(("users",), "ada", {"likes": "milk"})
