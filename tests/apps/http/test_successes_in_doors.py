"""A success without any reward is worth 1 at its last step, whichever door recorded it."""

import asyncio
from dataclasses import replace

import pytest
from mcp import Client
from tests.apps.http.test_remote import served

from hardwon.apps import mcp_server
from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.remote import RemoteLibrary
from hardwon.runtime.guidance.base import lines_of

OPEN = State("The ticket is open.", task="close the ticket")
KNOWN = State("The customer is known.", task="close the ticket")
CLOSED = Trajectory(
    "close the ticket",
    (Step(OPEN, "verify()", KNOWN, Diagnosis(True)), Step(KNOWN, "close()", OPEN, Diagnosis(True), t=1)),
    True,
)


def record(path, episode):
    with ExperienceLibrary.open(path) as library:
        return library.record(episode)


def replaced(path, episode):
    with ExperienceLibrary.open(path) as library:
        ref = library.record(replace(episode, success=None))
        library.episodes.replace_many([(replace(episode, id=ref), [ref])])
        return ref


def http(path, episode):
    with served(path, trust="trusted") as url, RemoteLibrary(url) as library:
        return library.record(episode)


def mcp(path, episode):
    steps = [{"action": step.action, "result": "done"} for step in episode.steps]
    given = {"task": episode.task, "steps": steps, "success": True, "score": episode.score}

    async def talk(library):
        async with Client(mcp_server.build(library, trust="trusted")) as client:
            return (await client.call_tool("record", given)).structured_content["episode_id"]

    with ExperienceLibrary.open(path) as library:
        return asyncio.run(talk(library))


@pytest.mark.parametrize("door", [record, replaced, http, mcp])
def test_a_success_without_a_reward_is_worth_one(path, door):
    refs = [door(path, CLOSED) for _ in range(3)]
    with ExperienceLibrary.open(path) as library:
        episodes = [library.episodes.get(ref) for ref in refs]
        assert [[step.reward for step in episode.steps] for episode in episodes] == [[0.0, 1.0]] * 3
        state = episodes[0].steps[0].pre
        words = "\n".join(line.text for line in lines_of(library.recall(state), state))
        assert "verify()" in words
        assert " of 0.00" not in words
        assert "succeeded in 0" not in words
        library.grade(refs[0], success=False)
        assert [step.reward for step in library.episodes.get(refs[0]).steps] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("episode", "rewards"),
    [
        (replace(CLOSED, score=0.25), [0.0, 0.25]),
        (replace(CLOSED, score=350.0), [0.0, 1.0]),
        (replace(CLOSED, success=False), [0.0, 0.0]),
        (replace(CLOSED, success=None), [0.0, 0.0]),
        (replace(CLOSED, meta={"outcome": "reward"}), [0.0, 0.0]),
        (replace(CLOSED, steps=(replace(CLOSED.steps[0], reward=-0.1), CLOSED.steps[1])), [-0.1, 0.0]),
        (replace(CLOSED, steps=(replace(CLOSED.steps[0], reward=2.0), CLOSED.steps[1])), [2.0, 0.0]),
        (replace(CLOSED, steps=()), []),
    ],
)
def test_rewards_stay_as_they_are(path, episode, rewards):
    """Its score is the worth of a success, if it has one; any reward, and an outcome by rewards, is the whole worth."""
    ref = record(path, episode)
    with ExperienceLibrary.open(path) as library:
        assert [step.reward for step in library.episodes.get(ref).steps] == rewards
