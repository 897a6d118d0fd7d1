"""Worlds in which a greedy agent walks in circles, or is paid once for what it does and undoes."""

import pytest

from hardwon.memory import ExperienceLibrary, State
from hardwon.runtime.agent import Agent
from hardwon.runtime.policies.episodic import EpisodicPolicy

ROOMS = 7


class Ring:
    """Rooms in a ring, and a lamp to switch: every switch makes all rooms look new. In one is the ladder out."""

    name = "ring"

    def __init__(self, *, located=True):
        self.located = located
        self.at, self.lamp = 0, False

    def reset(self, task="", seed=0):
        self.at, self.lamp = seed % 3, False
        return self._state()

    def step(self, action):
        if action == "switch lamp":
            self.lamp = not self.lamp
        won = action == "climb ladder" and self.at == ROOMS - 1
        if action in ("go east", "go west"):
            self.at = (self.at + (1 if action == "go east" else -1)) % ROOMS
        return self._state(), float(won), won, {"success": won}

    def admissible(self, state):
        return [*["climb ladder" for _ in [0] if self.at == ROOMS - 1], "go east", "go west", "switch lamp"]

    def clone(self):
        return Ring(located=self.located)

    def close(self):
        pass

    def _state(self):
        where = f"room {'abcdefghi'[self.at]}"
        lit = "on" if self.lamp else "off"
        return State(f"You are in {where}. The lamp is {lit}.", location=where if self.located else "", task="find it")


class Chore:
    """A dress to put into a basket, for 0.4 the first time; taking it out pays nothing and putting it back neither."""

    name = "chore"

    def reset(self, task="", seed=0):
        self.dress, self.shirt, self.paid = "hand", "floor", set()
        return self._state()

    def step(self, action):
        reward = 0.0
        verb, thing = action.split()[:2]
        if verb == "put":
            setattr(self, thing, "basket")
            if thing not in self.paid:
                reward = 0.5
                self.paid.add(thing)
        else:
            setattr(self, thing, "hand")
        done = {self.dress, self.shirt} == {"basket"}
        return self._state(), reward, done, {"success": done, "score": len(self.paid) / 2}

    def admissible(self, state):
        things = {"dress": self.dress, "shirt": self.shirt}
        put = [f"put {thing} in basket" for thing, at in things.items() if at == "hand"]
        out = [f"take {thing} from basket" for thing, at in things.items() if at == "basket"]
        return sorted([*put, *out, *["take shirt from floor" for _ in [0] if self.shirt == "floor"]])

    def clone(self):
        return Chore()

    def close(self):
        pass

    def _state(self):
        return State(f"The dress: {self.dress}. The shirt: {self.shirt}.", location="laundry", task="tidy up")


def play(world, library, *, learn, episodes, max_steps, first=0):
    """The trajectories of these episodes."""
    agent = Agent(EpisodicPolicy(), library, world, learn=learn, max_steps=max_steps)
    return [agent.run(seed=first + n).trajectory for n in range(episodes)]


@pytest.mark.parametrize("located", [True, False])
def test_an_empty_frozen_agent_does_not_walk_in_circles(located):
    """The failure: switching the lamp made every move untried again, so it stayed among a few rooms."""
    with ExperienceLibrary.open(":memory:") as library:
        runs = play(Ring(located=located), library, learn=False, episodes=20, max_steps=40)
    switched = [sum(step.action == "switch lamp" for step in run.steps) for run in runs]
    assert sum(run.success for run in runs) >= 19  # 15 where every switch makes the rooms new
    assert max(switched) <= 2 * ROOMS


def test_a_loop_that_goes_on_is_left_while_frozen():
    """A library that learned only to go east and west is made to circle; the loop ends by itself."""
    with ExperienceLibrary.open(":memory:") as library:
        play(Ring(), library, learn=True, episodes=3, max_steps=12)
        runs = play(Ring(), library, learn=False, episodes=6, max_steps=60, first=50)
    for run in runs:
        taken = [(step.pre.location, step.action) for step in run.steps]
        assert max(taken.count(one) for one in set(taken)) <= 12


def test_what_was_paid_once_is_not_undone():
    """After some episodes of its own the agent puts both away, and takes neither out again."""
    with ExperienceLibrary.open(":memory:") as library:
        play(Chore(), library, learn=True, episodes=40, max_steps=12)
        runs = play(Chore(), library, learn=False, episodes=5, max_steps=12)
    assert all(run.success for run in runs)
    assert all(len(run.steps) == 3 for run in runs)


SHELVES = ["attic", "cellar", "garage", "hall", "kitchen", "nursery", "parlor", "study"]


class Shelves:
    """A cup belongs on one of eight shelves. A wrong shelf costs what taking the cup back earns, and makes it dusty."""

    name = "shelves"

    def reset(self, task="", seed=0):
        self.cup, self.right, self.dusty, self.lamp = "hand", SHELVES[seed % 8], False, False
        return self._state()

    def step(self, action):
        reward, done = 0.0, False
        if action == "take cup":
            self.cup, reward = "hand", 0.25
        elif action == "wipe cup":
            self.dusty = False
        elif action == "switch lamp":
            self.lamp = not self.lamp
        else:
            self.cup, self.dusty = action.split()[-2], True
            done = self.cup == self.right
            reward = 1.0 if done else -0.25
        return self._state(), reward, done, {"success": done, "score": float(done)}

    def admissible(self, state):
        if self.cup != "hand":
            return ["switch lamp", "take cup"]
        return ["wipe cup"] if self.dusty else [f"put cup on {shelf} shelf" for shelf in SHELVES]

    def clone(self):
        return Shelves()

    def close(self):
        pass

    def _state(self):
        where = "in your hand" if self.cup == "hand" else f"on the {self.cup} shelf"
        dust, lit = "dusty" if self.dusty else "clean", "on" if self.lamp else "off"
        return State(f"The cup is {where}. It is {dust}. The lamp is {lit}.", location="house", task="tidy up")


def test_what_was_just_paid_goes_on_in_trouble():
    """Trying one shelf after the other fails often, and taking the cup back for the next try is no circle."""
    with ExperienceLibrary.open(":memory:") as library:
        play(Shelves(), library, learn=True, episodes=40, max_steps=30)
        runs = play(Shelves(), library, learn=False, episodes=8, max_steps=30, first=48)
    tries = [step.action for run in runs for step in run.steps if "shelf" in step.pre.observation]
    assert len(tries) > len(runs)
    assert set(tries) == {"take cup"}
    assert all(run.success for run in runs)
