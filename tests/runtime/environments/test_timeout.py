"""Watched: crashes and hangs become errors, the caller's own mistakes pass through."""

import contextvars
import gc
import os
import threading

import pytest

from hardwon.memory import State
from hardwon.memory.errors import ConfigError, EnvironmentCrashed, EnvironmentHung, UnknownName
from hardwon.runtime.environments._worker import Worker
from hardwon.runtime.environments.timeout import Watched
from hardwon.runtime.interfaces.types import Environment

VARIABLE = contextvars.ContextVar("variable", default="")


class Fragile:
    """Does what its action says: raise, hang until released, or answer."""

    name = "fragile"

    def __init__(self) -> None:
        self.release = threading.Event()
        self.closed = threading.Event()

    def reset(self, task="", seed=0):
        if task == "wrong":
            raise UnknownName.of("fold", task, ["train"])
        return State(f"{task} {seed}")

    def step(self, action):
        if action == "raise":
            raise ValueError("out of order")
        if action == "exit":
            raise SystemExit(3)
        if action == "hang":
            self.release.wait()
        if action == "mistake":
            raise ConfigError("no such thing.")
        return State(f"{action} {VARIABLE.get()} {threading.current_thread().name}"), 0.0, False, {}

    def admissible(self, state):
        return ["a", "b"]

    def clone(self):
        return Fragile()

    def close(self):
        self.closed.set()


@pytest.fixture(params=[None, 5.0], ids=["direct", "thread"])
def watched(request):
    """Both ways of calling."""
    environment = Watched(Fragile(), timeout_s=request.param)
    yield environment
    environment.close()


def test_it_is_an_environment_of_the_same_name(watched):
    """Nothing else need know that it is watched."""
    assert isinstance(watched, Environment)
    assert watched.name == "fragile"


def test_answers_pass_through(watched):
    """As they are."""
    assert watched.reset("train", 3).observation == "train 3"
    assert watched.step("go")[1:] == (0.0, False, {})
    assert watched.admissible(State("")) == ["a", "b"]
    assert not watched.broken


@pytest.mark.parametrize("action", ["raise", "exit"])
def test_an_exception_is_a_crash(watched, action):
    """With its type, its words, the call that raised it and the exception itself."""
    with pytest.raises(
        EnvironmentCrashed, match=rf"fragile broke in step\('{action}'\): (ValueError|SystemExit)"
    ) as caught:
        watched.step(action)
    assert isinstance(caught.value.__cause__, ValueError | SystemExit)


def test_a_broken_environment_is_closed_and_not_called_again(watched):
    """The message says what to do instead."""
    with pytest.raises(EnvironmentCrashed):
        watched.step("raise")
    assert watched.inner.closed.wait(5)
    with pytest.raises(EnvironmentCrashed, match=r"out of order.*continue with a clone\(\)"):
        watched.reset()


def test_a_clone_of_a_broken_environment_works(watched):
    """A new one of the same kind."""
    with pytest.raises(EnvironmentCrashed):
        watched.step("raise")
    fresh = watched.clone()
    assert fresh.reset("dev", 1).observation == "dev 1"
    fresh.close()


def test_mistakes_of_the_caller_break_nothing(watched):
    """They are raised as they are and the environment goes on."""
    with pytest.raises(UnknownName, match="unknown fold"):
        watched.reset("wrong")
    with pytest.raises(ConfigError, match="no such thing"):
        watched.step("mistake")
    assert watched.step("go")


def test_no_answer_in_time_is_a_hang_that_blocks_nobody():
    """Neither the call nor closing it waits; it is closed when it comes back."""
    fragile = Fragile()
    watched = Watched(fragile, timeout_s=0.05)
    with pytest.raises(EnvironmentHung, match=r"no answer to step\('hang'\) within 0\.05 s"):
        watched.step("hang")
    with pytest.raises(EnvironmentCrashed, match="abandoned"):
        watched.step("go")
    watched.close()
    assert not fragile.closed.is_set()
    fragile.release.set()
    assert fragile.closed.wait(5)


def test_closing_closes_what_is_watched(watched):
    """Once; twice is fine, and afterwards it is not called again."""
    watched.close()
    watched.close()
    assert watched.inner.closed.is_set()
    with pytest.raises(EnvironmentCrashed, match="closed"):
        watched.reset()


def test_calls_see_the_callers_context(watched):
    """Tracers and frameworks keep theirs in context variables."""
    token = VARIABLE.set("mine")
    assert " mine " in watched.step("go")[0].observation
    VARIABLE.reset(token)


def test_no_thread_outlives_an_environment_nobody_holds():
    """Forgetting to close leaks nothing."""
    watched = Watched(Fragile(), timeout_s=5.0)
    watched.reset()
    worker = next(thread for thread in threading.enumerate() if thread.name == "watched fragile")
    del watched
    gc.collect()
    worker.join(5)
    assert not worker.is_alive()


def test_it_works_after_a_fork():
    """Threads do not survive a fork; a new one takes over in the child."""
    watched = Watched(Fragile(), timeout_s=5.0)
    watched.reset()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if watched.reset("train", 4).observation == "train 4" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    watched.close()


def test_a_thread_that_cannot_start_can_be_closed(monkeypatch):
    """A machine may have too many threads for a moment."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    worker = Worker("watched fragile")
    with pytest.raises(RuntimeError, match="new thread"):
        worker.run(list, 5.0)
    worker.end()
    monkeypatch.undo()
    assert worker.run(list, 5.0) == []
    worker.end()
