"""ScienceWorld; needs the extra."""

import pytest

from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime.environments import open_environment

pytest.importorskip("scienceworld")


@pytest.fixture(scope="module")
def world():
    world = open_environment("scienceworld", game="find-plant", params="choices=1")
    yield world
    world.close()


def test_the_score_is_the_engines(world):
    world.reset("train", 0)
    state, reward, done, info = world.step("teleport to greenhouse")
    assert reward == info["score"] > 0
    assert (done, state.location) == (False, "This room is called the greenhouse. In it, you see: ")


def test_the_same_variation_begins_the_same(world):
    assert world.reset("dev", 1) == world.reset("dev", 1)


def test_what_is_not_understood_says_so(world):
    world.reset("train", 0)
    assert "No known action" in world.step("fly to the moon")[3]["invalid"]


def test_what_makes_sense_can_be_listed(world):
    state = world.reset("train", 0)
    assert "teleport to greenhouse" in world.admissible(state)


def test_focusing_on_the_wrong_thing_loses(world):
    world.reset("train", 0)
    world.step("teleport to greenhouse")
    _, _, done, info = world.step("focus on bee hive")
    assert (done, info["lost"]) == (True, True)


def test_seeds_and_folds_out_of_range_are_refused(world):
    with pytest.raises(ConfigError, match="variations, from 0"):
        world.reset("dev", 10_000)
    with pytest.raises(UnknownName):
        world.reset("training")


def test_a_task_that_does_not_exist_is_refused():
    with pytest.raises(UnknownName, match="find-plant"):
        open_environment("scienceworld", game="find-plants")
