"""A run recorded as one episode: its draws, its ending, who wrote it, and what the library learns of it."""

from typing import Any

import pytest

from hardwon.memory import Failure
from hardwon.memory.errors import WrongType
from hardwon.runtime import Agent, ExperienceMiddleware, FunctionEpisode, HardwonStore, RandomPolicy
from hardwon.runtime.environments.calls import Call
from hardwon.runtime.integrations import recording
from hardwon.runtime.integrations.recording import begin_run, record_run


@pytest.fixture
def run(library):
    """A run with one call that worked."""
    begun = begin_run(library, "Pay Ada.")
    begun.add_answer(Call("pay", {"to": "Ada"}, "done"), "1")
    return begun


def test_two_runs_of_a_request_withhold_different_items(library):
    assert begin_run(library, "Pay Ada.").name != begin_run(library, "Pay Ada.").name


@pytest.mark.parametrize(
    ("success", "given", "ending"),
    [(True, "", "success"), (False, "", "done"), (None, "", "done"), (True, "given up", "given up")],
)
def test_the_ending_follows_from_the_success_unless_it_is_given(library, run, success, given, ending):
    ref = record_run(run, success=success, environment="test", ending=given)
    assert library.episodes.get(ref).ending == ending


class Reads:
    """An extractor that counts its episodes."""

    def __init__(self):
        self.episodes = []

    def extract(self, trajectory, shown):
        self.episodes.append(trajectory.id)
        return ()


@pytest.mark.parametrize(("success", "learns"), [(True, True), (False, True), (None, False)])
def test_only_a_known_outcome_is_learned_from(library, run, monkeypatch, success, learns):
    evolved = []
    monkeypatch.setattr(type(library), "evolve", lambda self: evolved.append(1))
    extractor = Reads()
    ref = record_run(run, success=success, environment="test", extractor=extractor)
    assert (bool(extractor.episodes), bool(evolved)) == (learns, learns)
    assert ("extraction" in library.episodes.get(ref).meta) is learns


@pytest.mark.parametrize(
    ("writer", "trust", "received"),
    [("", "trusted", False), ("a client", "trusted", True), ("", "untrusted", True), ("a client", "untrusted", True)],
)
def test_what_others_wrote_is_received_and_own_runs_are_recorded(library, run, monkeypatch, writer, trust, received):
    calls = []
    monkeypatch.setattr(type(library.episodes), "receive", lambda self, episodes, **fields: calls.append(fields))
    monkeypatch.setattr(type(library), "record", lambda self, episode: calls.append(None))
    record_run(run, success=None, environment="test", writer=writer, trust=trust)
    assert calls == [{"writer": writer, "trust": trust} if received else None]


BROKEN, REJECTED = "it broke", "The user rejected this call: too expensive."


@pytest.mark.parametrize(
    ("error", "failure"), [("", Failure.NONE), (BROKEN, Failure.TOOL_ERROR), (REJECTED, Failure.REJECTED)]
)
def test_a_call_fails_by_itself_or_by_the_word_of_a_person(library, error, failure):
    run = begin_run(library, "Pay Ada.")
    run.add_answer(Call("pay", {"to": "Ada"}, error or "paid", error), "1")
    assert run.episode.steps[-1].diagnosis.failure is failure
    assert run.answered == {"1"}


def say(role, text="", calls=(), answers=None, error=False):
    return {"role": role, "text": text, "calls": list(calls), "answers": answers, "error": error}


def test_calls_that_a_person_rejected_are_steps_whatever_was_answered_beside_them(library):
    """A result is none, although it speaks of a rejection."""
    run = begin_run(library, "Pay Ada.")
    calls = [{"id": str(n), "name": "pay", "arguments": {"n": n}} for n in range(4)]
    answers = [("paid", False), (REJECTED, False), (REJECTED, True), (REJECTED, True)]
    told = [say("tool", text, answers=str(n), error=error) for n, (text, error) in enumerate(answers)]
    run.add_unrun([say("assistant", calls=calls), *told])
    assert [step.action for step in run.episode.steps] == ["pay(n=2)", "pay(n=3)"]
    assert {step.diagnosis.failure for step in run.episode.steps} == {Failure.REJECTED}
    run.add_unrun([say("assistant", calls=calls), *told])
    assert len(run.episode.steps) == 2


def test_a_call_that_something_unknown_stopped_is_no_fault_of_the_call(library):
    run = begin_run(library, "Pay Ada.")
    call = {"id": "1", "name": "pay", "arguments": {}}
    run.add_unrun([say("assistant", calls=[call]), say("tool", "not this time", answers="1", error=True)])
    assert [step.diagnosis.failure for step in run.episode.steps] == [Failure.UNAVAILABLE]


@pytest.mark.parametrize("environment", ["langchain", "functions", "proxy"])
def test_it_is_said_once_that_runs_without_a_call_are_not_recorded(library, caplog, environment):
    recording._say_not_recorded.cache_clear()
    for _ in range(2):
        assert record_run(begin_run(library, "Pay Ada."), success=True, environment=environment) == ""
    (message,) = [entry.message for entry in caplog.records if "not recorded" in entry.message]
    assert message == f"{environment}: a run is not recorded, because it has no tool call. This is said once"


@pytest.mark.parametrize("given", ["support.db", None], ids=repr)
@pytest.mark.parametrize("door", ["middleware", "store", "functions", "agent"])
def test_a_path_is_no_library_in_any_door(rooms, given, door):
    begin: Any = {
        "middleware": ExperienceMiddleware,
        "store": HardwonStore,
        "functions": lambda library: FunctionEpisode(library, "Act."),
        "agent": lambda library: Agent(RandomPolicy(), library, rooms()),
    }[door]
    with pytest.raises(WrongType, match=r"library is .*; give an open one"):
        begin(given)
