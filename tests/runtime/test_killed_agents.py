"""Agents whose process is killed: the next one that opens the library records their steps."""

import signal
import subprocess
import sys

import pytest
from tests import warm

from hardwon.memory import ExperienceLibrary

PROGRAM = """
import sys, time
sys.path.insert(0, {root!r})
from tests.conftest import Rooms, Script
from hardwon.memory import ExperienceLibrary
from hardwon.runtime import Agent
from hardwon.runtime.teams.team import Team

library = ExperienceLibrary.open({path!r})

def hang():
    while library._runs._timer is not None:  # the steps are being written
        time.sleep(0.01)
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
            cut = [library.trajectory(row["id"]) for row in library.trajectories() if row["success"] is None]
    (episode,) = (episode for episode in cut if episode.steps[0].action == "wait")
    assert [step.action for step in episode.steps] == ["wait"] * 2
    assert (episode.ending, episode.task, episode.score) == ("abandoned", "go to the golden room", 0.0)
    assert (episode.meta["environment"], "failed" in episode.meta) == ("rooms", False)
    assert not (tmp_path / "work.db.runs").exists()
