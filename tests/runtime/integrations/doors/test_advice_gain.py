"""Whether advice helps is measured in every door of an agent of one's own: in one run of ten nothing is shown."""

import random
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from tests.apps.coding_agents.test_hooks import Session
from tests.runtime.integrations.scripted import call, create_agent, model

from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.errors import CallForbidden
from hardwon.memory.values.effects import measure_advice
from hardwon.runtime import ExperienceMiddleware, FunctionEpisode, remember
from hardwon.runtime.integrations.tool_run import SOURCE
from hardwon.runtime.loop import holdout
from hardwon.runtime.loop.tuning import TUNING

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
    monkeypatch.setattr("hardwon.runtime.integrations.tool_run.LOOP", replace(TUNING, measured_from=1))
    path = tmp_path / "work.db"
    assert not run(path, monkeypatch)
    counts = []
    for chance in (0.0, 1.0):
        monkeypatch.setattr(holdout, "TUNING", replace(TUNING, withhold=chance))
        assert run(path, monkeypatch) == (chance == 0.0)
        with ExperienceLibrary.open(path) as library:
            advice = library.admin.stats()["advice"]
            counts.append((advice["shown"], advice["withheld"]))
    assert counts == [(1, 0), (1, 1)]


@pytest.mark.parametrize("run", [run_middleware, run_functions, run_hooks])
def test_a_new_library_shows_what_it_has(run, tmp_path, monkeypatch):
    """Whoever tries it sees advice at once; 20 episodes later, one run in ten measures."""
    monkeypatch.setattr(holdout, "TUNING", replace(TUNING, withhold=1.0))
    path = tmp_path / "work.db"
    run(path, monkeypatch)
    assert run(path, monkeypatch)
    with ExperienceLibrary.open(path) as library:
        assert library.admin.stats()["advice"]["shown"] == 0


@remember
def pay_back(to: str) -> str:
    if to != "account":
        raise ValueError("unknown")
    return "paid"


def play(library, *targets):
    """Return the outcome of a run whose agent pays back to each of these, and then has its say."""
    with FunctionEpisode(library, ASKED, guardrails="block") as episode:
        for to in targets:
            with suppress(ValueError, CallForbidden):
                pay_back(to)
    return library.episodes.get(episode.id).success


@pytest.mark.parametrize("is_refused", [True, False])
@pytest.mark.parametrize(
    ("follows", "works", "recovers"), [(0.6, 1, 0.5), (0.9, 0.9, 0.1), (0.5, 0.6, 0.6), (0.6, 0.3, 0.8)]
)
def test_the_interval_holds_where_guardrails_refuse(library, follows, works, recovers, is_refused):
    """Advice names the account, which works with some chance. Without it the agent tries the card in vain, and recovers
    with some chance. Refused runs are neither left out of the 500 of each deployment nor won by giving up."""
    if is_refused:
        condition, forbids = {"text": "Request"}, 'pay_back(to="card")'
        ref = library.add(Item("guardrail", "no card", "unknown", condition=condition, forbids=forbids, confidence=0.9))
        library.items.update(ref.item_id, pinned=True)
    outcomes = {  # by whether the advice is followed and whether the run is won in truth
        (True, True): play(library, "account"), (True, False): play(library, "acount"),
        (False, True): play(library, "card", "account"), (False, False): play(library, "card", "card"),
    }  # fmt: skip
    gain, rng, held = follows * (works - recovers), random.Random(0), 0
    for _ in range(60):
        runs = []
        for shown in (rng.random() >= 0.1 for _ in range(500)):
            is_followed = shown and rng.random() < follows
            outcome = outcomes[is_followed, rng.random() < (works if is_followed else recovers)]
            runs += [] if outcome is None else [(1, False, shown, float(outcome), 0)]
        measured = measure_advice(runs)
        assert measured.shown + measured.withheld == 500
        held += measured.low <= gain <= measured.high
    assert held >= 57
