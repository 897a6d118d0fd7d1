"""The client of one agent: what it tells the bank, what it counts, and what its policy and environment see."""

import asyncio
import threading
from typing import Any

import pytest
from tests.runtime.teams.conftest import Takes

from hardwon.memory import Diagnosis, State, Step
from hardwon.memory.bank import Entry
from hardwon.runtime import AdmitAll, ToolEnvironment
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.teams.reading import ReadingPolicy
from hardwon.runtime.teams.sharing import (
    HOW,
    PULLED,
    BankClient,
    SharedEnvironment,
    SharedPolicy,
    format_entry,
    get_value,
)
from hardwon.runtime.teams.tuning import TUNING

NOW = State("a library", task="find the spoon")


def take(action="look", feedback="", after="a shelf"):
    return Step(NOW, action, State(after, feedback=feedback, task=NOW.task), Diagnosis(True))


def sit(bank, **options):
    return BankClient(bank, "us", AdmitAll(), threads=False, **options)


# -- reading


def test_a_reading_policy_is_shown_the_newest_fitting_entry_once_in_an_episode(bank):
    bank.put("them", "look -> the spoon is here", "in the drawer")
    bank.put("them", "dig -> a garden fork", "in the garden")
    inner = Takes(*"abcd")
    policy = ReadingPolicy(inner, sit(bank))
    policy.decide(Context(NOW))
    policy.decide(Context(NOW, history=(take(""),)))
    assert len(bank.pulls()) == 1
    bank.put("them", "look -> another spoon", "on the table")
    policy.decide(Context(NOW, history=(take(""), take(""))))
    policy.decide(Context(NOW))  # a new episode
    assert [context.guidance for context in inner.seen] == [
        "in the drawer", "in the drawer", "on the table", "on the table"
    ]  # fmt: skip
    assert len(bank.pulls()) == 3


def test_a_hint_of_the_member_stays_beside_the_entry(bank):
    inner, hinted = Takes("a", "b"), Context(NOW, guidance="look twice")
    policy = ReadingPolicy(inner, sit(bank))
    policy.decide(hinted)
    bank.put("them", "look -> the spoon is here", "in the drawer")
    policy.decide(hinted)
    assert [context.guidance for context in inner.seen] == ["look twice", "look twice\nin the drawer"]


def test_without_a_fitting_entry_nothing_is_shown(bank):
    bank.put("them", "dig -> a garden fork", "in the garden")
    inner = Takes("a")
    ReadingPolicy(inner, sit(bank)).decide(Context(NOW))
    assert inner.seen[0].guidance is None


def test_an_entry_that_is_gone_leaves_what_was_shown(bank, monkeypatch):
    inner, client = Takes("a", "b"), sit(bank)
    policy = ReadingPolicy(inner, client)
    bank.put("them", "look -> the spoon is here", "in the drawer")
    policy.decide(Context(NOW))
    bank.put("them", "look -> another spoon", "on the table")

    async def find_nothing(entry):
        return None

    monkeypatch.setattr(client, "pull", find_nothing)
    policy.decide(Context(NOW))
    assert inner.seen[1].guidance == "in the drawer"


# -- the client


def test_the_value_of_a_step_is_its_message_or_else_what_is_seen():
    assert get_value([take(feedback="It creaks.")]) == "It creaks."
    assert get_value([take()]) == "a shelf"


@pytest.mark.parametrize("threads", [True, False])
def test_the_bank_is_asked_in_threads_unless_told_otherwise(threads):
    asked = []

    class Empty:
        def entries(self, after=0):
            asked.append(threading.get_ident())
            return []

    empty: Any = Empty()
    client = BankClient(empty, "us", AdmitAll()) if threads else BankClient(empty, "us", AdmitAll(), threads=False)
    asyncio.run(client.look())
    assert [thread != threading.get_ident() for thread in asked] == [threads]


def test_the_cost_of_a_step_is_its_time_beside_the_mean(bank):
    """Worked example: after steps of 1 and 3 seconds, the last one cost 1.5; without times, all cost 1."""
    client = sit(bank)
    asyncio.run(client.share([take()]))
    for seconds in (1.0, 3.0):
        client.took(seconds)
    asyncio.run(client.share([take()]))
    assert [shared.candidate.cost for shared in client.shared] == [1.0, 1.5]
    assert 0.0 <= client.admission_s < 5.0


def test_a_pull_says_whose_entry_it_was(bank):
    """An entry that this client has not seen has its number for a name."""
    events: list[Any] = []
    client = sit(bank, watch=events.append)
    own, other = bank.put("us", "own key", "x"), bank.put("them", "their key", "y")
    asyncio.run(client.look())
    late = bank.put("them", "late key", "z")
    for entry in (own, other, late):
        asyncio.run(client.pull(entry))
    assert [(event.what, event.text, event.entry) for event in events] == [
        ("own", "own key", own), ("pulled", "their key", other), ("pulled", str(late), late)
    ]  # fmt: skip


# -- the policy


def test_after_the_last_pull_nothing_more_is_offered(bank):
    entries = [bank.put("them", f"look {n} -> spoon {n}", f"value {n}") for n in range(TUNING.max_pulls + 2)]
    inner = Takes(*(f"pull {entry}" for entry in entries[: TUNING.max_pulls]), "wait")
    assert SharedPolicy(inner, sit(bank)).decide(Context(NOW, ("wait",))).action == "wait"
    offered = [sum(action.startswith("pull") for action in context.actions) for context in inner.seen]
    assert offered == [6, 5, 4, 3, 0]


def test_guidance_stays_before_what_was_looked_up(bank):
    entry = bank.put("them", "look -> the spoon", "in the drawer")
    inner = Takes(f"pull {entry}", "wait")
    SharedPolicy(inner, sit(bank)).decide(Context(NOW, ("wait",), guidance="try the kitchen"))
    assert inner.seen[1].guidance == f"try the kitchen\n\n{PULLED}\n[{entry}] look -> in the drawer"


TOOLS = {"look": {"type": "object"}}


@pytest.mark.parametrize(
    ("is_open", "actions", "tools", "has_tool", "has_manual"),
    [
        (True, (), TOOLS, True, True),
        (True, (), {}, False, True),
        (True, ("wait",), TOOLS, False, False),
        (False, (), TOOLS, False, False),
    ],
)
def test_pulls_are_explained_where_there_is_a_bank_and_no_list(bank, is_open, actions, tools, has_tool, has_manual):
    """Where actions are listed, a pull is one of them."""
    inner = Takes("wait")
    SharedPolicy(inner, sit(bank if is_open else None)).decide(Context(NOW, actions, tools=tools))
    (shown,) = inner.seen
    assert ("pull" in shown.tools, HOW in shown.manual) == (has_tool, has_manual)


def test_an_entry_in_a_list_is_an_action():
    entry = Entry(3, "them", "look -> the spoon is in the drawer of the kitchen")
    assert format_entry(entry, listed=True).startswith("pull 3: look -> the spoon")
    assert format_entry(entry).startswith("[3] look -> the spoon")


# -- the environment


def test_an_environment_with_a_client_is_awaited_and_described_as_before(bank):
    def look(at: str) -> str:
        """Look."""
        return f"nothing at {at}"

    tools, client = ToolEnvironment([look]), sit(bank)
    environment = SharedEnvironment(tools, client)
    assert environment.waits
    assert environment.describe() == tools.describe() != ""
    assert environment.tool_schemas() == tools.tool_schemas() != {}
    environment.reset("find the spoon")
    assert "nothing at it" in environment.step('look(at="it")')[0].feedback
    assert client.calls == 1
    assert 0.0 <= client._costs[0] < 5.0


def test_an_environment_without_a_description_has_none_at_a_client(bank, rooms):
    environment = SharedEnvironment(rooms(), sit(bank))
    assert (environment.describe(), environment.tool_schemas()) == ("", {})
