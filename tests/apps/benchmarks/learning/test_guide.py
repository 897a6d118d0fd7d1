"""The guide's benchmark: what is remembered of a house, and what is told of the arms. It is run by hand."""

import random

import pytest

pytest.importorskip("torch", reason="needs the train extra")

from benchmarks.harness.intervals import bootstrap
from benchmarks.learning.guide import ARMS, TEST, TUNING, WORLDS, format_tables, summarize
from benchmarks.learning.guide_houses import DEMOS, EASY, KINDS, Memory, build_memories, build_query, rebuild
from hardwon.memory import Diagnosis, State, Step, Trajectory

SEEN = "You are in the kitchen. To the North you see the hall. To the East you see the yard."
KITCHEN = State(SEEN, location="kitchen")
HALL = State("You are in the hall. You see a coin. To the South you see the kitchen.", location="hall")


def walk(first=KITCHEN, name="w"):
    fine = Diagnosis(True)
    back = Step(HALL, "move south", KITCHEN, fine)
    steps = (Step(first, "move north", HALL, fine), back, Step(KITCHEN, "move north", HALL, fine))
    return Trajectory("find the coin", (*steps, Step(HALL, "take coin", HALL, fine)), True, id=name)


def test_what_is_reported_was_neither_learnt_from_nor_tuned_in():
    assert not {*DEMOS, *WORLDS, *TUNING} & {*TEST}
    assert not {*DEMOS, *WORLDS} & {*TUNING}


def test_a_rebuilt_house_has_other_doors_the_same_each_time():
    """Where there is another one; what is done there stays."""
    actions = [step.action for step in rebuild(walk(), random.Random(0)).steps]
    assert actions == ["move east", "move south", "move east", "take coin"]


def test_a_record_says_whether_the_house_was_rebuilt_and_offers_the_walk_and_its_way():
    asked = build_query(KITCHEN, walk(), before=False)
    assert asked.recalled[0].endswith("hall : take coin . lately")
    assert build_query(KITCHEN, walk(), before=True).recalled[0].endswith("before")
    memory = Memory("lately", asked)
    assert memory.short == "kitchen : move north . hall : take coin ."
    assert memory.whole.startswith("kitchen : move north . hall : move south . kitchen")


def test_every_kind_is_remembered_and_a_coin_in_sight_is_a_kind_of_its_own():
    worlds = [("train", seed) for seed in range(200)]
    found = {world: walk(HALL if world[1] % 10 == 0 else KITCHEN, f"{world}") for world in worlds}
    made = build_memories(found, worlds, worlds, 0)
    assert {memory.kind for memory in made.values()} == {*KINDS, EASY}
    assert all((memory.kind == EASY) == (world[1] % 10 == 0) for world, memory in made.items())
    assert made == build_memories(found, worlds, worlds, 0)


def test_the_tables_have_every_arm():
    def one(success, spoke, kind):
        return {"kind": kind, "spoke": spoke, "success": success, "harm": 0.0, "tokens": 10, "guide_tokens": 5}

    seed = {"arms": {arm: [one(n % 2, arm == "retrieval", "lately") for n in range(4)] for arm in ARMS}}
    found = summarize({"0": seed, "1": seed})
    assert found["retrieval"]["success"] == 0.5
    assert found["retrieval"]["ahead"] == 0.0
    assert all(f"| {arm} |" in format_tables(found) for arm in ARMS)


def test_an_interval_holds_the_mean():
    low, high = bootstrap([0.0, 1.0] * 20)
    assert low < 0.5 < high
