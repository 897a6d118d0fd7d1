"""Exploration for the library: random actions, or the agent without a model, which learns as it plays."""

import pytest

from hardwon.memory import ExperienceLibrary
from hardwon.runtime import Agent, RandomPolicy
from hardwon.trainers import train
from hardwon.trainers.rollouts.explore import learn_by_playing

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
        explore={"worlds": {"seeds": "0-5"}, "steps": 30},
        library={"explorer": explorer, "explored": {"more": {"seeds": "400-411"}}},
        run={"iterations": 0, "groups": 1, "out": str(tmp_path / "run")},
        eval={"every": 0},
    )
    train(settings)
    with ExperienceLibrary.open(tmp_path / "run" / "library.db", read_only=True) as recorded:
        rows = [row for row in recorded.trajectories(limit=None) if 400 <= row["seed"] <= 411]
    assert len(rows) >= 12  # random exploration may try an instance again
    assert {row["meta"]["policy"] for row in rows} == {explorer}
