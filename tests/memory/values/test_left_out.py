"""The index of demonstrations without the episodes of one task instance."""

import pytest

from hardwon.memory import Diagnosis, State, Step
from hardwon.memory.values import demonstration_index as module
from hardwon.memory.values.demonstration_index import DemonstrationIndex


def add(index, episode, thing, **instance):
    now = State("", location="desk 1", task=f"bring {thing}")
    action = f"grab {thing} 1 from desk 1"
    index.add(episode, now.task, [Step(now, action, now, Diagnosis(True), admissible=(action,))], **instance)


def names(index):
    return {one.id for one in index.list_demonstrations("bring cup")}


@pytest.fixture
def three():
    index = DemonstrationIndex()
    for name, thing, split in (("train", "pen", "train"), ("dev", "ink", "dev"), ("imported", "cup", "")):
        add(index, name, thing, outcome=1.0, trial="followed", seed=7, split=split)
    return index


def test_all_that_the_episodes_of_an_instance_taught_is_left_out(three):
    without = three.leave_out("train", 7)
    assert (names(without), without.things, without.size) == ({"dev"}, {"ink", "desk"}, 1)
    assert without.likelihood("ink", "desk") == 1.0
    assert len(without._trials) == 1
    assert names(three) == {"train", "dev", "imported"}


def test_an_index_without_episodes_of_the_instance_is_the_same(three):
    assert three.leave_out("train", 8) is three


def test_what_is_recorded_later_is_counted_and_left_out_as_well(three):
    before = three.leave_out("dev", 7)
    assert three.leave_out("dev", 7) is before
    add(three, "again", "mug", outcome=1.0, seed=7, split="dev")
    add(three, "other", "pot", outcome=1.0, seed=8, split="dev")
    assert names(three.leave_out("dev", 7)) == {"train", "other"}


def test_an_episode_of_long_ago_is_left_out_too(monkeypatch):
    """Its success may still be a demonstration when hundreds of failures came after it."""
    monkeypatch.setattr(module, "KEPT", 2)
    index = DemonstrationIndex()
    add(index, "own", "pen", outcome=1.0, seed=7, split="train")
    for n in range(3):
        add(index, f"failure {n}", "ink", outcome=0.0, seed=n, split="train")
    assert names(index) == {"own"}
    assert names(index.leave_out("train", 7)) == set()


def test_only_so_many_instances_are_kept(monkeypatch):
    monkeypatch.setattr(module, "INSTANCES", 2)
    index = DemonstrationIndex()
    for seed in range(4):
        add(index, str(seed), "pen", outcome=1.0, seed=seed, split="train")
    kept = [index.leave_out("train", seed) for seed in range(4)]
    assert index.leave_out("train", 3) is kept[3]
    assert index.leave_out("train", 0) is not kept[0]
    assert names(index.leave_out("train", 0)) == {"1", "2", "3"}
