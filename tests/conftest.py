"""Fixtures for all tests: an empty library, an episode factory, a small environment and a scripted policy."""

import gc
import os
from collections.abc import Callable, Iterator
from contextvars import copy_context
from pathlib import Path

import pytest
from hypothesis import settings
from tests import warm

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, State, Step, Trajectory
from hardwon.memory.errors import PolicyFailure
from hardwon.runtime.interfaces.types import Decision

settings.register_profile("hardwon", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("hardwon")

# Collecting the tests makes a million objects that stay, and the collector of garbage would walk them again and again.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    """Hide the GPU of this machine, unless its tests are asked for: no GPU computes the same bits twice."""
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_finish() -> None:
    """Start what forks child processes, and collect garbage from now on, but only that of the tests."""
    warm.begin()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Run each test in a context of its own: a variable such as the current episode must not reach the next test."""
    test, context = pyfuncitem.obj, copy_context()
    pyfuncitem.obj = lambda *args, **kwargs: context.run(test, *args, **kwargs)
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the test's library; the file does not exist yet."""
    return tmp_path / "experience.db"


@pytest.fixture
def library(path: Path) -> Iterator[ExperienceLibrary]:
    """Open an empty library and close it after the test."""
    with ExperienceLibrary.open(path) as opened:
        yield opened


@pytest.fixture
def episode() -> Callable[..., Trajectory]:
    """Return a factory for episodes that take the given actions in one place: `episode("open drawer", reward=1.0)`."""

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
        diagnosis = Diagnosis(failure is Failure.NONE, failure)
        steps = [
            Step(
                pre,
                action,
                post,
                diagnosis,
                reward,
                t,
                library.episodes.keys(pre, action) if library else ("*", action),
            )
            for t, action in enumerate(actions or ("open drawer",))
        ]
        return Trajectory(task, tuple(steps), success, **fields)  # type: ignore[arg-type]

    return make


class Rooms:
    """A minimal environment: a corridor of five rooms with a prize in the last one.

    Args:
        ran: Collects every action that this environment or a clone of it receives.
        faults: Faults to inject, by the number of the action (from 1): an exception to raise, or a callable to call.
        actions: The admissible actions.
    """

    name = "rooms"

    def __init__(self, ran=None, faults=None, actions=("go east", "go west", "wait")):
        self.at, self.actions = 0, list(actions)
        self.ran = [] if ran is None else ran
        self.faults = {} if faults is None else faults

    def reset(self, task="", seed=0):
        """Return to the first room."""
        self.at = 0
        return self.state()

    def step(self, action):
        """Record the action, inject its fault if there is one, and move."""
        self.ran.append(action)
        fault = self.faults.pop(len(self.ran), None)
        if isinstance(fault, BaseException):
            raise fault
        if fault is not None:
            fault()
        self.at = min(4, max(0, self.at + {"go east": 1, "go west": -1}.get(action, 0)))
        is_solved = self.at == 4
        return self.state(), float(is_solved), is_solved, {"success": is_solved, "score": self.at / 4}

    def admissible(self, state):
        """Return the admissible actions, which are the same in every room."""
        return self.actions

    def clone(self):
        """Return an environment in the first room that shares the recorded actions and the faults."""
        return Rooms(self.ran, self.faults, self.actions)

    def close(self):
        """Do nothing."""
        pass

    def state(self):
        """Return the description of the current room."""
        color = ("red", "blue", "green", "white", "golden")[self.at]
        return State(f"You are in the {color} room.", task="go to the golden room")


class Script:
    """A policy that repeats a list of actions by step number; an exception in the list is raised.

    If the next action is forbidden and `instead` is set, the policy returns `instead`.
    """

    name = "script"

    def __init__(self, *actions, instead=None, reads="values"):
        self.actions, self.instead, self.reads = actions, instead, reads
        self.seen = []

    def decide(self, context):
        """Record the context and return the next action."""
        self.seen.append(context)
        action = self.actions[len(context.history) % len(self.actions)]
        if isinstance(action, BaseException):
            raise action
        if action in context.forbidden and self.instead:
            action = self.instead
        return Decision(action)

    async def adecide(self, context):
        """Return `decide(context)`."""
        return self.decide(context)


@pytest.fixture
def rooms():
    """Return the class of a small environment: `rooms(faults={2: EnvironmentCrashed("gone")})`."""
    return Rooms


@pytest.fixture
def script():
    """Return the class of a scripted policy: `script("go east")`."""
    return Script


@pytest.fixture
def no_idea():
    """Return the error of a policy that produced no usable action."""
    return PolicyFailure("no idea")
