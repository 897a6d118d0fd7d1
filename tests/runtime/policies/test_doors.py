"""Actions that differ in an attribute alone, such as the left and the right door, are told apart by both policies."""

import pytest

from hardwon.memory import State
from hardwon.runtime.agent import Agent


class Corridor:
    """A corridor of three pairs of doors that look alike; the right one of each pair ends the episode."""

    name = "corridor"

    def __init__(self):
        self.at = 0

    def clone(self):
        return Corridor()

    def close(self):
        pass

    def reset(self, task="", seed=0):
        self.at = 0
        return self.look()

    def look(self):
        return State(f"A corridor. Sign {self.at}.", task="leave the corridor", location=f"corridor {self.at}")

    def admissible(self, state):
        return ("open left door", "open right door")

    def step(self, action):
        if action != "open left door":
            return self.look(), 0.0, True, {"success": False, "lost": True}
        self.at += 1
        done = self.at == 3
        return self.look(), float(done), done, {"success": done}


@pytest.mark.parametrize("policy", ["episodic", "lookahead"])
def test_an_agent_learns_which_of_two_doors_is_the_way(policy, library):
    """A chain of three such choices, which an agent at chance passes in one of eight episodes."""
    agent = Agent(policy, library, Corridor(), max_steps=10, seed=1)
    for seed in range(60):
        agent.run(seed=seed)
    agent.close()
    frozen = Agent(policy, library, Corridor(), max_steps=10, learn=False)
    assert all(frozen.run(seed=1000 + seed).success for seed in range(10))
    frozen.close()
