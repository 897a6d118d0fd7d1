"""The nodes before a decision: the plan, its random trials, and what a planner that waits runs in."""

import asyncio
import threading
from dataclasses import replace

import pytest

from hardwon.memory import Item, Recollection
from hardwon.runtime.interfaces.plans import Plan
from hardwon.runtime.loop.nodes_advise import DEMONSTRATIONS
from hardwon.runtime.planning.plans import SkillPlanner

from .states import episode, settings


class Here:
    """A planner without plans, which knows the threads that it ran in."""

    def __init__(self, waits=False):
        self.waits, self.threads = waits, []

    def plan(self, context, skills):
        self.threads.append(threading.get_ident())

    def repair(self, plan, reason, context, items):
        return self.plan(context, items) or Plan(plan.task)


class Follows(Here):
    """A planner that has no demonstration to follow."""

    def yields(self, context):
        return False

    def follow(self, plan, context):
        return None


@pytest.fixture
def now():
    """An episode's state after recall."""
    return episode(recollection=Recollection())


def test_the_items_of_random_trials_are_kept_with_the_situation(nodes, library, monkeypatch, now):
    """Here a skill that did harm in this world; it counts whether it is offered again or not."""
    item = library.items.get(library.add(Item("skill", "go there", steps=("go east",), source="person")).item_id)
    monkeypatch.setattr(
        type(library), "offered", lambda self, state, kinds=(), *, masked=False: (item,) if masked else ()
    )
    update = replace(nodes, planner=SkillPlanner(library)).plan(now)
    assert update["drawn"][now["state"].signature].masked == (item.id,)


@pytest.mark.parametrize("waits", [False, True])
def test_only_a_planner_that_waits_runs_in_a_thread(nodes, now, waits):
    planner = Here(waits)
    asyncio.run(replace(nodes, planner=planner).aplan(now))
    assert [thread != threading.get_ident() for thread in planner.threads] == [waits]


def test_without_a_planner_nothing_is_planned(nodes, now):
    assert asyncio.run(nodes.aplan(now)) == {}


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_only_a_policy_that_looks_ahead_gets_values(nodes, library, now, monkeypatch, looks_ahead):
    monkeypatch.setattr(library, "look_ahead", lambda *_: "lookahead")
    if looks_ahead:
        nodes.policy.looks_ahead = True
    nodes.decide(now)
    assert (nodes.policy.seen[0].lookahead == "lookahead") is looks_ahead


@pytest.mark.parametrize(("reads", "manual"), [("text", "Open a door before you go through it."), ("values", "")])
def test_only_a_policy_that_reads_text_gets_the_manual(nodes, now, rooms, reads, manual):
    nodes.live["t"].environment.describe = lambda: "Open a door before you go through it."
    nodes.policy.reads = reads
    assert nodes.context(now).manual == manual


def name_trials(nodes):
    """Return what the records of a hundred episodes say about demonstrations."""
    ended = (episode(episode=number, ending="done") for number in range(100))
    return {nodes.record(state)["trajectory"].meta.get(DEMONSTRATIONS) for state in ended}


def test_only_an_episode_that_measures_demonstrations_says_that_they_were_withheld(nodes):
    """It learns, and has a planner that follows them."""
    following = replace(nodes, planner=Follows())
    assert name_trials(following) == {None, "withheld"}
    assert name_trials(settings(following, learn=False)) == {None}
    assert name_trials(replace(nodes, planner=Here())) == {None}


def test_only_with_an_extractor_an_episode_is_stored_in_a_thread(nodes, library, monkeypatch):
    """It may wait for a model."""
    threads = []
    monkeypatch.setattr(library, "record", lambda trajectory: threads.append(threading.get_ident()))

    class Silent:
        def extract(self, trajectory, shown):
            return ()

    for extractor in (None, Silent()):
        ready = replace(nodes, extractor=extractor)
        state = episode(ending="done", success=True)
        asyncio.run(ready.afinish({**state, **ready.record(state)}))
    assert [thread != threading.get_ident() for thread in threads] == [False, True]
