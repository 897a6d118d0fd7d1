"""Every environment leads back to a state by repeating the actions, or says that it must not."""

import importlib.util
import random
from contextlib import closing

import pytest

from hardwon.memory import Diagnosis, Step
from hardwon.memory.errors import CannotBranch
from hardwon.runtime.environments import open_environment
from hardwon.runtime.environments.tools.environment import ToolEnvironment
from hardwon.runtime.loop.starts import bring_back, can_branch, start_from

INSTALLED = {
    "textworld": "textworld_express",
    "babyai": "minigrid",
    "bfcl": "bfcl_eval",
    "alfworld": "alfworld",
    "scienceworld": "scienceworld",
    "miniwob": "miniwob",
}
CASES = [
    ("textworld", "coin", "includeDoors=1"),
    ("textworld", "mapreader", ""),
    ("textworld", "cookingworld", "numLocations=3, numIngredients=2"),
    ("textworld", "twc", ""),
    ("textworld", "arithmetic", ""),
    ("textworld", "simonsays", ""),
    ("textworld", "sorting", ""),
    ("textworld", "peckingorder", ""),
    ("babyai", "GoToLocal", ""),
    ("babyai", "PickupLoc", ""),
    ("babyai", "BossLevel", ""),
    ("bfcl", "base", "choices=8"),
    ("bfcl", "miss_func", "choices=8"),
    ("alfworld", None, ""),
    ("scienceworld", None, "choices=1"),
    ("miniwob", None, ""),
]


def walk(environment, task, seed, most):
    """A walk of seeded random actions: the steps, and what each showed."""
    chance = random.Random(seed)
    state = environment.reset(task, seed)
    steps: list[Step] = []
    shown: list[tuple[object, float, dict[str, object]]] = []
    for _ in range(most):
        actions = environment.admissible(state)
        if not actions:
            break
        action = chance.choice(actions)
        post, reward, done, info = environment.step(action)
        if done:
            break
        steps.append(Step(state, action, post, Diagnosis(True), reward, len(steps)))
        shown.append((post, reward, dict(info)))
        state = post
    return steps, shown


@pytest.mark.parametrize(("name", "game", "params"), CASES, ids=lambda value: str(value) or "-")
def test_replaying_half_of_a_walk_leads_back(name, game, params):
    """The same state, and the same continuation: observation, feedback, place, facts, reward and info."""
    if importlib.util.find_spec(INSTALLED[name]) is None:
        pytest.skip(f"{name} is not installed")
    task = "" if name == "miniwob" else "train"
    with closing(open_environment(name, game=game, params=params)) as one, closing(one.clone()) as other:
        assert can_branch(one)
        for seed in (1, 2):
            steps, shown = walk(one, task, seed, 8)
            half = len(steps) // 2
            reached = bring_back(other, task, seed, steps[:half])
            assert reached.state == (steps[half].pre if half < len(steps) else reached.state)
            for step, expected in zip(steps[half:], shown[half:], strict=True):
                post, reward, done, info = other.step(step.action)
                assert (post, reward, dict(info)) == expected
                assert not done


class Drifting:
    """A world that begins elsewhere after every reset: the sign of a hidden state."""

    def __init__(self, world):
        self.world, self.resets = world, 0
        self.name = world.name

    def reset(self, task="", seed=0):
        self.resets += 1
        self.world.at = 0
        return self.world.state()

    def step(self, action):
        if self.resets > 1:
            self.world.at = 3
        return self.world.step(action)

    def __getattr__(self, name):
        return getattr(self.world, name)


def test_a_world_that_does_not_lead_back_is_refused(rooms):
    world = Drifting(rooms())
    steps, _ = walk(world, "", 0, 3)
    with pytest.raises(CannotBranch, match="not deterministic"):
        start_from(world, "", 0, steps)


def test_a_prefix_that_ends_the_episode_is_refused(rooms):
    world = rooms()
    states = [world.reset()]
    steps = []
    for t in range(4):
        post, reward, _, _ = world.step("go east")
        steps.append(Step(states[-1], "go east", post, Diagnosis(True), reward, t))
        states.append(post)
    with pytest.raises(CannotBranch, match="ends the episode"):
        start_from(world, "", 0, steps)
    assert start_from(world, "", 0, steps[:3]).state == states[3]


def make_counter(calls):
    def count(number: int) -> str:
        """Count a number."""
        calls.append(number)
        return f"{len(calls)} calls"

    return count


def call_once(environment):
    pre = environment.reset("count", 0)
    post, *_ = environment.step("count(number=1)")
    return [Step(pre, "count(number=1)", post, Diagnosis(True))]


def test_shared_tools_are_not_called_again():
    calls: list[int] = []
    environment = ToolEnvironment([make_counter(calls)])
    steps = call_once(environment)
    with pytest.raises(CannotBranch, match="effects outside"):
        start_from(environment, "count", 0, steps)
    assert calls == [1]


def test_tools_that_are_made_anew_are_called_again():
    environment = ToolEnvironment(lambda task, seed: [make_counter([])])
    steps = call_once(environment)
    assert start_from(environment, "count", 0, steps).state.feedback == "1 calls"


def test_read_only_tools_can_be_called_again():
    from langchain_core.tools import tool

    made = tool(make_counter([]))
    made.metadata = {"readOnlyHint": True}
    environment = ToolEnvironment([made])
    pre = environment.reset("count", 0)
    steps = [Step(pre, "count(number=1)", pre, Diagnosis(True))]
    assert can_branch(environment, steps)
    assert not can_branch(environment)
