"""What the tests of every portion share: a library of their own and a way to make episodes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, State, Step, Trajectory
from hardwon.memory.errors import PolicyFailure
from hardwon.runtime.interfaces.types import Decision

settings.register_profile("hardwon", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("hardwon")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the test's library is."""
    return tmp_path / "experience.db"


@pytest.fixture
def library(path: Path) -> Iterator[ExperienceLibrary]:
    """An empty library in a file of its own."""
    with ExperienceLibrary.open(path) as opened:
        yield opened


@pytest.fixture
def episode() -> Callable[..., Trajectory]:
    """Makes an episode that takes these actions in one place: `episode("open drawer", reward=1.0)`."""

    def make(
        *actions: str,
        see: str = "You see a wooden drawer. It is closed.",
        task: str = "find the spoon",
        reward: float = 1.0,
        success: bool | None = True,
        failure: Failure = Failure.NONE,
        library: ExperienceLibrary | None = None,
        **fields: object,
    ) -> Trajectory:
        pre = State(see, task=task)
        post = State("You see a wooden drawer. It is open.", task=task)
        judged = Diagnosis(failure is Failure.NONE, failure)
        steps = [
            Step(pre, action, post, judged, reward, t, library.keys(pre, action) if library else ("*", action))
            for t, action in enumerate(actions or ("open drawer",))
        ]
        return Trajectory(task, tuple(steps), success, **fields)  # type: ignore[arg-type]

    return make


class Rooms:
    """A corridor of five rooms with a prize in the last one; a world of ten lines.

    `ran` is every action that reached it or a clone of it. `faults` says what goes wrong at which
    of these: an exception to raise, or something to call.
    """

    name = "rooms"

    def __init__(self, ran=None, faults=None, actions=("go east", "go west", "wait")):
        self.at, self.actions = 0, list(actions)
        self.ran = [] if ran is None else ran
        self.faults = {} if faults is None else faults

    def reset(self, task="", seed=0):
        self.at = 0
        return self.state()

    def step(self, action):
        self.ran.append(action)
        fault = self.faults.pop(len(self.ran), None)
        if isinstance(fault, BaseException):
            raise fault
        if fault is not None:
            fault()
        self.at = min(4, max(0, self.at + {"go east": 1, "go west": -1}.get(action, 0)))
        won = self.at == 4
        return self.state(), float(won), won, {"success": won, "score": self.at / 4}

    def admissible(self, state):
        return self.actions

    def clone(self):
        return Rooms(self.ran, self.faults, self.actions)

    def close(self):
        pass

    def state(self):
        colour = ("red", "blue", "green", "white", "golden")[self.at]
        return State(f"You are in the {colour} room.", task="go to the golden room")


class Script:
    """Takes these actions by the number of the step, over and over; an exception is raised instead.

    A forbidden action is answered with `instead`, where there is one.
    """

    name = "script"

    def __init__(self, *actions, instead=None, reads="values"):
        self.actions, self.instead, self.reads = actions, instead, reads
        self.seen = []

    def decide(self, context):
        self.seen.append(context)
        action = self.actions[len(context.history) % len(self.actions)]
        if isinstance(action, BaseException):
            raise action
        if action in context.forbidden and self.instead:
            action = self.instead
        return Decision(action)

    async def adecide(self, context):
        return self.decide(context)


@pytest.fixture
def rooms():
    """The class of a small world: `rooms(faults={2: EnvironmentCrashed("gone")})`."""
    return Rooms


@pytest.fixture
def script():
    """The class of a policy that does as it is told: `script("go east")`."""
    return Script


@pytest.fixture
def no_idea():
    """What a policy raises when nothing usable came out of it."""
    return PolicyFailure("no idea")
