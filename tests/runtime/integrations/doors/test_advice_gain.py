"""Whether advice helps is measured in every door of an agent of one's own: in one run of ten nothing is shown."""

from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from tests.apps.coding_agents.test_hooks import Session
from tests.runtime.integrations.scripted import call, create_agent, model

from hardwon.memory import ExperienceLibrary
from hardwon.runtime import ExperienceMiddleware, FunctionEpisode, remember
from hardwon.runtime.integrations.tool_run import SOURCE
from hardwon.runtime.loop import holdout

ASKED = "Refund the order."


@tool
def refund(order: str) -> str:
    """Refund an order."""
    return "refunded"


def run_middleware(path, monkeypatch):
    """Return whether the model read advice."""
    chat = model(call("refund", "1", order="A-1"), AIMessage("Done."))
    with ExperienceLibrary.open(path) as library:
        create_agent(chat, [refund], middleware=[ExperienceMiddleware(library)]).invoke({"messages": [("user", ASKED)]})
    return any(SOURCE in message.text for messages in chat.metadata["seen"] for message in messages)


def run_functions(path, monkeypatch):
    @remember
    def pay_back(order: str) -> str:
        return "paid"

    with ExperienceLibrary.open(path) as library, FunctionEpisode(library, ASKED) as episode:
        hint = episode.hint
        pay_back("A-1")
    return SOURCE in hint


def run_hooks(path, monkeypatch):
    return SOURCE in str(Session(path.parent, monkeypatch, session=uuid4().hex).play(ASKED))


@pytest.mark.parametrize("run", [run_middleware, run_functions, run_hooks])
def test_advice_is_shown_or_withheld_and_the_library_knows_which(run, tmp_path, monkeypatch):
    monkeypatch.setattr("hardwon.runtime.integrations.tool_run.MEASURED_FROM", 1)
    path = tmp_path / "work.db"
    assert not run(path, monkeypatch)
    counts = []
    for chance in (0.0, 1.0):
        monkeypatch.setattr(holdout, "WITHHOLD", chance)
        assert run(path, monkeypatch) == (chance == 0.0)
        with ExperienceLibrary.open(path) as library:
            advice = library.admin.stats()["advice"]
            counts.append((advice["shown"], advice["withheld"]))
    assert counts == [(1, 0), (1, 1)]


@pytest.mark.parametrize("run", [run_middleware, run_functions, run_hooks])
def test_a_new_library_shows_what_it_has(run, tmp_path, monkeypatch):
    """Whoever tries it sees advice at once; 20 episodes later, one run in ten measures."""
    monkeypatch.setattr(holdout, "WITHHOLD", 1.0)
    path = tmp_path / "work.db"
    run(path, monkeypatch)
    assert run(path, monkeypatch)
    with ExperienceLibrary.open(path) as library:
        assert library.admin.stats()["advice"]["shown"] == 0
