"""Exploration for the library: random actions, or the agent without a model, which learns as it plays."""

from contextlib import closing

import pytest
from tests.trainers.corridor import Corridor

from hardwon.memory import ExperienceLibrary
from hardwon.runtime import Agent, RandomPolicy
from hardwon.trainers import train
from hardwon.trainers.config.schema import ExploreConfig, Worlds
from hardwon.trainers.rollouts.explore import Explorer, learn_by_playing

WORLDS = [("train", seed) for seed in range(12)]


def test_the_agent_learns_from_one_explored_instance_to_the_next(rooms, library):
    learn_by_playing(library, rooms(), WORLDS, 30)
    taken = [row["n_steps"] for row in library.trajectories(limit=None)]
    with ExperienceLibrary.open(":memory:") as other:
        agent = Agent(RandomPolicy(), other, rooms(), arm="control", max_steps=30)
        wandered = [len(agent.run(*world).trajectory.steps) for world in WORLDS]
    assert len(taken) == len(WORLDS)
    assert sum(taken) < sum(wandered) / 2


@pytest.mark.parametrize("explorer", ["random", "episodic"])
def test_the_explorer_of_the_settings_plays_the_explored_instances(corridor, tmp_path, explorer):
    settings = corridor(
        arms={"control": 2, "retrieved": 2},
        explore={"worlds": {"seeds": "0-5"}, "steps": 30, "policy": explorer},
        library={"explored": {"more": {"seeds": "400-411"}}},
        run={"iterations": 0, "groups": 1, "out": str(tmp_path / "run")},
        eval={"every": 0},
    )
    train(settings)
    with ExperienceLibrary.open(tmp_path / "run" / "library.db", read_only=True) as recorded:
        rows = [row for row in recorded.trajectories(limit=None) if 400 <= row["seed"] <= 411]
    assert len(rows) >= 12  # random exploration may try an instance again
    assert {row["meta"]["policy"] for row in rows} == {explorer}


def test_an_explorer_that_learns_gives_the_same_episodes_in_any_order_of_asking():
    """It plays the instances of the settings first and in their order; others are played with what it knows then."""
    config = ExploreConfig(worlds=Worlds(seeds="0-7"), steps=12, policy="episodic")
    asked = [[("", seed) for seed in seeds] for seeds in ((5, 0, 20, 7), (20, 7, 5, 0))]
    taken = []
    for worlds in asked:
        with closing(Explorer(Corridor(), config)) as explorer:
            episodes = {world: explorer.explored(world)[-1] for world in worlds}
        taken.append({world: [step.action for step in episodes[world].steps] for world in sorted(worlds)})
    assert taken[0] == taken[1]
    with ExperienceLibrary.open(":memory:") as library:
        learned = learn_by_playing(library, Corridor(), config.worlds.all, config.steps)
    assert taken[0]["", 7] == [step.action for step in learned[7].steps]
    assert taken[0]["", 5] == [step.action for step in learned[5].steps]
