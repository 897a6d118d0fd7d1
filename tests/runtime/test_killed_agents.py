"""Agents that are killed, cancelled or left: their steps are an episode with an unknown outcome."""

import asyncio
import signal
import subprocess
import sys

import pytest
from tests import warm
from tests.conftest import Script

from hardwon.memory import ExperienceLibrary
from hardwon.runtime import Agent
from hardwon.runtime.teams.team import Team

PROGRAM = """
import sys, threading, time
sys.path.insert(0, {root!r})
from tests.conftest import Rooms, Script
from hardwon.memory import ExperienceLibrary
from hardwon.runtime import Agent
from hardwon.runtime.teams.team import Team

library = ExperienceLibrary.open({path!r})

def hang():
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):  # it writes the steps
            thread.join()
    print("ready", flush=True)
    time.sleep(100)

def make(*actions, number):
    return Agent(Script(*actions), library, Rooms(faults={{number: hang}}))

{run}
"""
AGENT = "make('wait', number=3).run()"
TEAM = "Team([make('go east', number=5), make('wait', number=3)], first=False).run()"


@pytest.mark.parametrize("run", [AGENT, TEAM], ids=["agent", "team"])
def test_a_killed_agent_leaves_its_steps_to_the_next_process(tmp_path, run):
    path = tmp_path / "work.db"
    code = PROGRAM.format(path=str(path), root=str(warm.ROOT), run=run)
    with warm.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    for _ in range(2):
        with ExperienceLibrary.open(path) as library:
            cut = [library.episodes.get(row["id"]) for row in library.episodes.find() if row["success"] is None]
    (episode,) = (episode for episode in cut if episode.steps[0].action == "wait")
    assert [step.action for step in episode.steps] == ["wait"] * 2
    assert (episode.ending, episode.task, episode.score) == ("abandoned", "go to the golden room", 0.0)
    assert (episode.meta["environment"], "failed" in episode.meta) == ("rooms", False)
    assert not (tmp_path / "work.db.runs").exists()


class Waiting(Script):
    """Waits for ever after two steps."""

    async def adecide(self, context):
        if len(context.history) == 2:
            await asyncio.Event().wait()
        return self.decide(context)


async def cancel(run, policy):
    task = asyncio.create_task(run)
    while len(policy.seen) < 2:
        await asyncio.sleep(0)
    for _ in range(20):  # until it waits
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def time_out(run, policy):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run, 0.5)


async def leave_a_stream(agent):
    async for event in agent.astream():
        if event.stage == "diagnose" and len(event.update["steps"]) == 2:
            break


ENDS = {
    "agent cancelled": lambda agent: cancel(agent.arun(), agent.policy),
    "agent out of time": lambda agent: time_out(agent.arun(), agent.policy),
    "stream left": leave_a_stream,
    "team cancelled": lambda agent: cancel(Team([agent]).arun(), agent.policy),
    "team out of time": lambda agent: time_out(Team([agent]).arun(), agent.policy),
}


@pytest.mark.parametrize("end", ENDS)
def test_an_awaited_episode_that_is_cut_is_recorded_with_an_unknown_outcome(library, rooms, end):
    asyncio.run(ENDS[end](Agent(Waiting("wait"), library, rooms())))
    (row,) = library.episodes.find()
    assert (row["success"], row["ending"], row["n_steps"]) == (None, "CancelledError", 2)
