"""The node that diagnoses a step: what the step says, and what becomes of the plan and of a trial."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from hardwon.memory import Failure, State
from hardwon.runtime.interfaces.plans import Plan, PlannedStep
from hardwon.runtime.interfaces.types import Decision
from hardwon.runtime.planning.plans import SkillPlanner

from .states import RED, episode, settings

BLUE = State("You are in the blue room.", task=RED.task)


def test_an_undecided_and_a_refused_step_are_failures_without_progress(nodes):
    (undecided,) = nodes.diagnose(episode(policy_failure="no idea"))["steps"]
    (refused,) = nodes.diagnose(episode(decision=Decision("go east"), forbidden={"go east": "no"}))["steps"]
    failures = (Failure.POLICY_ERROR, Failure.BLOCKED)
    for step, failure in zip((undecided, refused), failures, strict=True):
        diagnosis = step.diagnosis
        assert (diagnosis.failure, diagnosis.success, diagnosis.stagnant) == (failure, False, True)


@pytest.mark.parametrize("learn", [True, False])
def test_the_trial_of_an_episode_that_is_not_recorded_is_settled_at_once(nodes, library, monkeypatch, learn):
    """A recorded one settles it when it is stored."""
    settled: list[Any] = []
    monkeypatch.setattr(library.items, "settle_trial", lambda *outcome: settled.append(outcome))
    state = episode(decision=Decision("go east"), outcome=(BLUE, 0.0, False, {}), overrode=("g",), trial=("g",))
    settings(nodes, learn=learn).diagnose(state)
    assert settled == ([] if learn else [(("g",), True)])


def planned(nodes, library, check, post, **fields):
    """The update after the only step of a plan was taken."""
    plan = Plan("get there", (PlannedStep(1, "go east", check=check),))
    state = episode(decision=Decision("go east"), outcome=(post, 0.0, False, {}), plan=plan, **fields)
    return replace(nodes, planner=SkillPlanner(library)).diagnose(state)


def test_a_planned_step_that_worked_is_no_trouble(nodes, library):
    assert planned(nodes, library, None, BLUE)["replan"] is None


def test_a_check_that_failed_is_trouble_the_first_time(nodes, library):
    """What is reported already is not reported again."""
    check = {"text": "golden"}
    assert "did not bring about" in planned(nodes, library, check, BLUE)["replan"]
    assert planned(nodes, library, check, BLUE, replan="trouble")["replan"] is None


def test_an_environment_that_does_not_wait_is_called(nodes):
    """It has no `astep`."""
    update = asyncio.run(nodes.aact(episode(decision=Decision("go east"))))
    assert update["outcome"][0] == BLUE
