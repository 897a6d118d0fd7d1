"""Testimony: what the actions of untrusted writers may say, and in which order."""

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, State, Step, Trajectory
from hardwon.memory.trust.testimony import ARGUMENTS, FormUsage, _rank, form_of


@pytest.mark.parametrize("count", [ARGUMENTS, ARGUMENTS + 1])
def test_a_call_with_more_arguments_than_a_tool_has_says_nothing(count):
    """Each name is a name; together they could be a message."""
    names = [f"field_{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"[:count]]
    action = f"refund({', '.join(f'{name}=1' for name in names)})"
    assert bool(form_of(action)) is (count <= ARGUMENTS)


def test_of_forms_used_as_often_the_one_that_mostly_works_comes_first():
    """Half of the uses failing is not yet mostly."""
    episodes = {1: {"a", "b"}}

    def rank(form, failed):
        usage = FormUsage({1: set(episodes[1])}, set(), dict.fromkeys(failed, Failure.TOOL_ERROR), {form})
        return _rank(form, usage, lambda template: False, {})

    assert rank("z", "a") < rank("a", "ab")
    assert sorted(["z", "a"], key=lambda form: rank(form, "ab" if form == "a" else "")) == ["z", "a"]


@pytest.mark.parametrize(("recovers", "failures"), [(True, 0), (False, 6)])
def test_a_form_that_worked_with_other_values_did_not_fail(recovers, failures):
    """Its values are not shown, so whoever reads that it failed would not use the tool at all."""
    here = State("An order was paid by card.", task="refund an order")
    tried = Step(here, 'refund(to="card")', here, Diagnosis(False, Failure.TOOL_ERROR))
    done = Step(here, 'refund(to="voucher")', here, Diagnosis(True), reward=1.0, t=1)
    episodes = [Trajectory(here.task, (tried, done) if recovers else (tried,), recovers) for _ in range(6)]
    with ExperienceLibrary.open(":memory:") as library:
        library.episodes.receive(episodes, writer="http", trust="untrusted")
        (step,) = (hit.what for hit in library.recall(here).steps)
    assert isinstance(step, Step)
    assert step.action == "refund(to={to})"
    assert (step.diagnosis.success, step.why.episodes, step.why.failed) == (recovers, 6, failures)
