"""Episodes that begin with recorded steps, which are repeated in the environment."""

import asyncio

import pytest

from hardwon.runtime import Agent


@pytest.fixture
def begin(library, script):
    """Run an episode that begins with the first `n` steps of one that a script plays."""

    def run(environment, actions, n, **options):
        policy = run.policy = script(*actions)  # type: ignore[attr-defined]
        agent = Agent(policy, library, environment, learn=False)
        recorded = agent.run().trajectory.steps
        return asyncio.run(agent.arun(prefix=recorded[:n], **options))

    return run


def test_an_episode_goes_on_where_its_prefix_ends(begin, rooms):
    """In the third room two steps are left."""
    world = rooms()
    result = begin(world, ["go east"], 2)
    assert result.success
    assert [step.t for step in result.trajectory.steps] == [0, 1, 2, 3]
    assert world.ran == ["go east"] * 8
    assert len(begin.policy.seen) == 4 + 2  # the repeated steps are not decided again


def test_a_prefix_as_long_as_the_limit_is_a_failed_episode(begin, workshop):
    """The environment reports a success only if there is one."""
    result = begin(workshop(), ["rest"], 1, max_steps=1)
    assert (result.success, result.trajectory.ending, len(result.trajectory.steps)) == (False, "step_limit", 1)
