"""A seat at the bank: keys before the policy, values when asked for, calls answered by another team's."""

import asyncio
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st
from langchain_core.tools import StructuredTool
from tests.runtime.teams.conftest import Takes

from hardwon.memory import Diagnosis, Recollection, State, Step
from hardwon.memory.bank import Entry
from hardwon.runtime import AdmitAll, AdmitNone, Agent, ChatPolicy, EpisodicPolicy, Team, ToolEnvironment
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.interfaces.working_memory import WorkingMemory
from hardwon.runtime.llm.prompts import system_prompt, turn_prompt
from hardwon.runtime.teams.sharing import (
    BankClient,
    SharedEnvironment,
    SharedPolicy,
    build_key,
    count_tokens,
    format_entry,
    parse_pull,
    shorten,
)
from hardwon.runtime.teams.tuning import TUNING

KEY = "read(page=3) -> the third page says that the spoon is in the drawer beside the big stove"


def step(action="read(page=3)", told="the third page says that the spoon is in the drawer", t=0, **changes):
    state = State("a library", task="find the spoon")
    return Step(state, action, replace(state, feedback=told), Diagnosis(True), t=t, **changes)


def context(*history, actions=(), guidance=None):
    state = State("a library", task="find the spoon")
    return Context(state, actions, Recollection(), guidance, {}, history, WorkingMemory(), random.Random(0))


def decide(policy, given):
    return asyncio.run(policy.adecide(given))


# -- keys


@given(st.text(max_size=400), st.text(max_size=60))
def test_a_key_has_at_most_twenty_words_on_one_line(told, action):
    """systems.md §4: 15-20-word summary."""
    key = build_key(step(action, told))
    assert len(key.split()) <= TUNING.key_words
    assert "\n" not in key


def test_a_key_begins_with_where_and_what():
    seen = State("You are in the hall.", location="kitchen")
    moved = Step(seen, "move  east", State("You are in the hall. A coin."), Diagnosis(True))
    assert build_key(moved) == "kitchen: move east -> You are in the hall. A coin."
    assert shorten("a b c", words=2) == "a b"


def test_a_key_says_that_a_step_was_rewarded():
    """Its outcome in words may not tell; a punished step and one without a reward look alike."""
    post = State("You put the milk in the fridge.")
    held = State("You hold milk.")
    keys = [build_key(Step(held, "put milk in fridge", post, Diagnosis(True), reward)) for reward in (1.0, 0.0, -1.0)]
    assert keys[0] == "put milk in fridge (rewarded) -> You put the milk in the fridge."
    assert keys[1] == keys[2] == "put milk in fridge -> You put the milk in the fridge."


def test_a_key_says_first_what_speaks_of_the_task():
    seen = State("You are in the hall.", task="find the coin")
    entered = replace(seen, observation=f"You see a stove. {'There is a chair. ' * 9}On the table is a coin.")
    assert build_key(Step(seen, "go in", entered, Diagnosis(True))).startswith(
        "go in -> On the table is a coin. You see"
    )


@pytest.mark.parametrize("actions", [(), ("open drawer", "wait")])
def test_the_prompt_grows_by_no_more_than_the_key_for_each_entry(bank, actions):
    """systems.md §4: keys-only exposure: prompt growth per entry <= key length. In the very prompt of a chat model."""

    def length(entries):
        policy = Takes("wait")
        decide(SharedPolicy(policy, client_of(bank, "blue")), context(actions=actions))
        (seen,) = policy.seen
        assert ("the drawer" in str(seen.actions) + str(seen.guidance)) == bool(entries)
        return len(turn_prompt(seen)) + len(system_prompt("", "", seen.manual))

    sizes = [length(0)]
    for n in range(1, 12):
        bank.put("red", f"{KEY} number {n}", "a very long value " * 100)
        sizes.append(length(n))
    grown = [after - before for before, after in pairwise(sizes[1:])]
    assert max(grown) <= len(f"{KEY} number 1") + 1
    assert "very long value" not in str(length(12))


def client_of(bank, team, admission=None):
    return BankClient(bank, team, admission or AdmitNone())


def test_values_appear_only_after_a_pull(bank):
    """systems.md §4: value appears only after a pull."""
    entry = bank.put("red", KEY, "the whole account of the third page")
    policy = Takes(f"pull(entry={entry})", "open drawer")
    decision = decide(SharedPolicy(policy, client_of(bank, "blue")), context())
    before, after = policy.seen
    assert KEY[:60] in str(before.guidance)
    assert "whole account" not in str(before.guidance)
    assert f"[{entry}] read(page=3) -> the whole account of the third page" in str(after.guidance)
    assert decision.action == "open drawer"
    assert decision.why.extra["pulled"] == [entry]
    assert bank.pulls() == [(entry, "blue")]


def test_a_pulled_value_stays_before_the_policy_and_its_key_goes(bank):
    entry = bank.put("red", KEY, "the whole account")
    policy = Takes(f"pull(entry={entry})", "wait", "wait")
    shared = SharedPolicy(policy, client_of(bank, "blue"))
    decide(shared, context())
    decide(shared, context(step("wait", "nothing")))
    assert "the whole account" in str(policy.seen[-1].guidance)
    assert KEY[:60] not in str(policy.seen[-1].guidance)


def test_where_actions_are_listed_a_pull_is_one_of_them(bank):
    entry = bank.put("red", KEY, "the whole account")
    policy = Takes(f"pull {entry}: {KEY}", "wait")
    decide(SharedPolicy(policy, client_of(bank, "blue")), context(actions=("wait",)))
    assert policy.seen[0].actions == ("wait", format_entry(Entry(entry, "red", KEY), listed=True))
    assert bank.pulls() == [(entry, "blue")]


def test_where_actions_are_calls_a_pull_is_one_of_the_tools(bank):
    """A policy whose answers are bound to the schemas of tools could not pull otherwise."""
    entry = bank.put("red", KEY, "the whole account")
    look = {"look": {"type": "object", "properties": {}}}
    policy = Takes(f"pull(entry={entry})", "look()")
    decide(SharedPolicy(policy, client_of(bank, "blue")), replace(context(), tools=look))
    assert list(policy.seen[0].tools) == ["look", "pull"]
    assert bank.pulls() == [(entry, "blue")]


def test_a_chat_model_pulls_and_then_acts(bank, scripted):
    """systems.md §4: others see keys and pull values; a chat model does it by its answer."""
    entry = bank.put("red", KEY, "the whole account")
    model = scripted(f"pull(entry={entry})", 'finish(answer="the drawer")')
    decision = decide(SharedPolicy(ChatPolicy(model), client_of(bank, "blue")), context())
    assert decision.action == 'finish(answer="the drawer")'
    assert "pull(entry: integer)" in model.seen[0][0].text
    assert "the whole account" in model.seen[1][1].text
    assert decision.usage.calls == 2


def test_own_entries_are_not_shown_and_a_pull_of_one_is_flagged(bank):
    """systems.md §4: a pull by the producing team is flagged self, not cross-team."""
    mine = bank.put("blue", KEY, "mine")
    policy = Takes(f"pull(entry={mine})", "wait")
    decide(SharedPolicy(policy, client_of(bank, "blue")), context())
    assert policy.seen[0].guidance is None
    assert (bank.pulls(), bank.pulls(own=True)) == ([], [(mine, "blue")])


def test_a_number_that_is_not_there_is_no_pull(bank):
    policy = Takes("pull(entry=99)", "wait")
    decide(SharedPolicy(policy, client_of(bank, "blue")), context())
    assert "no such entry" in str(policy.seen[1].guidance)
    assert bank.pulls() == []


def test_a_policy_that_goes_on_asking_has_to_act_in_the_end(bank):
    entries = [bank.put("red", f"{KEY} {n}", "x") for n in range(9)]
    policy = Takes(*(f"pull(entry={entry})" for entry in entries))
    assert parse_pull(decide(SharedPolicy(policy, client_of(bank, "blue")), context()).action) is not None
    assert len(bank.pulls()) == 4


def test_a_policy_of_estimates_is_left_alone(bank):
    bank.put("red", KEY, "x")
    policy = Takes("wait", reads="values")
    given = context(actions=("wait",))
    decide(SharedPolicy(policy, client_of(bank, "blue")), given)
    assert policy.seen == [given]


def test_keys_that_say_the_same_are_shown_once(bank):
    bank.put("red", KEY, "x")
    bank.put("green", KEY, "x")
    client = client_of(bank, "blue")
    asyncio.run(client.look())
    assert [entry.team for entry in client.foreign_entries] == ["red"]


@pytest.mark.parametrize(
    ("action", "number"),
    [("pull(entry=12)", 12), ("pull(12)", 12), ("pull 12: read", 12), ("pull lever", None), ("pull(entry=x)", None)],
)
def test_what_asks_for_an_entry(action, number):
    assert parse_pull(action) == number


# -- sharing


def test_every_step_is_decided_on_once_and_shared_where_admitted(bank):
    """systems.md §4: per-step decision with context of query + existing keys + step; the log has all of them."""
    bank.put("red", KEY, "x")
    client = client_of(bank, "blue", AdmitAll())
    shared = SharedPolicy(Takes("wait", "wait"), client)
    first, second = step(), step("wait", "nothing", t=1)
    decide(shared, context(first))
    decide(shared, context(first, second))
    assert [(one.t, one.candidate.task, one.choice.admit) for one in client.shared] == [
        (0, "find the spoon", True),
        (1, "find the spoon", True),
    ]
    assert client.shared[0].candidate.keys == (KEY,)
    assert client.shared[1].candidate.keys == (KEY, build_key(first))
    assert bank.keys()[client.shared[1].entry] == "wait -> nothing"


def test_tokens_of_keys_are_counted_at_every_decision_and_of_values_at_every_pull(bank):
    entry = bank.put("red", KEY, "x" * 400)
    client = client_of(bank, "blue")
    shared = SharedPolicy(Takes("wait", f"pull(entry={entry})", "wait"), client)
    decide(shared, context())
    decide(shared, context(step()))
    assert client.key_tokens == 2 * count_tokens(format_entry(Entry(entry, "red", KEY)))
    assert client.value_tokens == 100


# -- calls that another team made


def pages(made, **metadata):
    def read(page: int) -> str:
        """Read a page."""
        made.append(page)
        return f"page {page} is blank"

    return ToolEnvironment([StructuredTool.from_function(read, metadata=metadata)])


def test_a_call_that_another_team_made_is_answered_from_the_bank(bank):
    """systems.md §4: the value is pulled instead of the slow call, and the environment is not called."""
    made: list[int] = []
    entry = bank.put("red", "read(page=3) -> page 3", "page 3 says: the drawer")
    client = client_of(bank, "blue")
    environment = SharedEnvironment(pages(made, readOnlyHint=True), client)
    environment.reset("find the spoon")
    state, *_ = asyncio.run(environment.astep("read(page=3)"))
    other, *_ = asyncio.run(environment.astep("read(page=33)"))
    assert state.feedback == "page 3 says: the drawer"
    assert "page 3 says: the drawer" in other.observation
    assert made == [33]
    assert bank.pulls() == [(entry, "blue")]
    assert client.calls == 1


def test_a_call_that_changes_something_is_always_made(bank):
    """Another team's booking is no booking of ours."""
    made: list[int] = []
    bank.put("red", "read(page=3) -> page 3", "page 3 says: the drawer")
    environment = SharedEnvironment(pages(made), client_of(bank, "blue"))
    environment.reset("find the spoon")
    asyncio.run(environment.astep("read(page=3)"))
    assert made == [3]
    assert bank.pulls() == []


def test_own_calls_are_not_answered_from_the_bank(bank):
    made: list[int] = []
    bank.put("blue", "read(page=3) -> page 3", "page 3")
    environment = SharedEnvironment(pages(made, readOnlyHint=True), client_of(bank, "blue"))
    environment.reset("find the spoon")
    asyncio.run(environment.astep("read(page=3)"))
    assert made == [3]


class Shelves:
    """A world that lists its actions, of which looking changes nothing."""

    name = "shelves"

    def __init__(self):
        self.looked = []

    def reset(self, task="", seed=0):
        return State("Three shelves.", task="find the spoon")

    def step(self, action):
        self.looked.append(action)
        return State(f"{action}: found.", task="find the spoon", feedback="found"), 1.0, True, {"success": True}

    def admissible(self, state):
        return ["look on shelf"]

    def changes_nothing(self, action):
        return action.startswith("look")

    def answered(self, action, result):
        return State(f"{action}: {result}", task="find the spoon", feedback=result), 1.0, True, {"success": True}

    def clone(self):
        self.twin = Shelves()
        return self.twin

    def close(self):
        pass


def test_an_episodic_policy_is_answered_too(bank, library):
    """systems.md §4: without a model, by rule: what it is about to do another team has done."""
    entry = bank.put("red", "look on shelf -> a spoon", "a spoon lies there")
    shelves = Shelves()
    agent = Agent(EpisodicPolicy(), library, shelves, learn=False)
    result = Team([agent], bank, AdmitNone()).run("find the spoon")
    assert result.success
    assert shelves.twin.looked == shelves.looked == []
    assert [pulled for pulled, _ in bank.pulls()] == [entry]


def test_a_step_that_admission_refuses_stays_out_of_the_bank(bank):
    """A NO is carried out: nothing is written, and other teams see no key."""
    client = client_of(bank, "red", AdmitNone())
    asyncio.run(client.share([step()]))
    (shared,) = client.shared
    assert (shared.choice.admit, shared.entry, bank.entries()) == (False, None, [])
    asyncio.run(client_of(bank, "red", AdmitAll()).share([step()]))
    assert len(bank.entries()) == 1
