"""The guide as the higher of two levels: blueprints (row 45), subgoals (row 41), abstractions (row 72)."""

import asyncio
from dataclasses import replace

import pytest
from tests.trainers.roles.guides.test_guide import guide

from hardwon.memory import Diagnosis, State, Step, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.roles.guides.credit import Branch, credit_blueprints, credit_foresight
from hardwon.trainers.roles.guides.role import GuideSettings, measure_gains, share_replies
from hardwon.trainers.rollouts.rollout import Spec


def test_a_blueprint_earns_the_centered_mean_of_its_executions():
    """Worked example, row 45: R = [[1, 0], [0, 0]]: macro returns .5 and 0, advantages .25 and -.25."""
    credit = credit_blueprints([Branch((1.0, 0.0)), Branch((0.0, 0.0))])
    assert credit.content == (0.25, -0.25)
    assert credit.decision == 0.0
    assert credit_blueprints([Branch((1.0, 0.0))]).content == (0.0,)  # degenerate case: one blueprint


def test_an_abstraction_earns_the_success_of_those_who_read_it():
    """Worked example, row 72: z1 3/4, z2 1/4 and the control 2/4: the difference to the control is +.25 and -.25."""
    credit = credit_blueprints([Branch((1.0, 1.0, 1.0, 0.0)), Branch((0.0, 1.0, 0.0, 0.0))])
    assert credit.content == (0.25, -0.25)
    assert credit.reward == 0.5


def test_a_subgoal_earns_what_the_next_action_gained():
    """Worked example, row 41: q = 1, 0, 0, 0: R = 1, .1, .1, .1, advantages .675 and three times -.225."""
    assert credit_foresight([1.0, 0.0, 0.0, 0.0]).content == pytest.approx((0.675, -0.225, -0.225, -0.225))
    assert credit_foresight([0.7]).content == (0.0,)  # degenerate case: one subgoal
    assert sorted(credit_foresight([0.0, 1.0, 0.5]).content) == sorted(credit_foresight([0.5, 0.0, 1.0]).content)


def play(name, place, outcome, reward=0.0):
    state = State("start", task="leave")
    step = Step(state, "go", State(place, task="leave"), Diagnosis(True), reward)
    return Rollout(Trajectory("leave", (step,), outcome > 0, outcome, arm="guided", id=name), (), "g")


def test_the_gain_is_the_reward_and_the_change_of_value():
    """The value of a state is the mean outcome of the episodes that came there: 1 and 0, and before .5."""
    groups = [
        [play("a", "hall", 1.0, 0.25)],
        [play("b", "hall", 1.0)],
        [play("c", "pit", 0.0)],
        [play("d", "pit", 0.0)],
    ]
    assert measure_gains(groups) == [0.75, 0.5, -0.5, -0.5]
    empty = replace(groups[0][0], trajectory=Trajectory("leave", (), True, 1.0, id="e"))
    assert measure_gains([[empty], [empty]]) == [0.0, 0.0]


def test_so_many_episodes_of_an_arm_share_a_text():
    specs = [Spec("", 0, arm=arm, copy=n) for arm in ("x", "y") for n in range(3)]
    names = [spec.session for spec in specs]
    assert [names.index(leader) for leader in share_replies(specs, 2).values()] == [0, 0, 2, 3, 3, 5]
    assert set(share_replies(specs, 1)) == {*share_replies(specs, 1).values()}


def test_a_guide_learns_from_blueprints_without_a_control_arm():
    role = guide(settings={"credit": "himac", "executions": 2})
    specs = [Spec("", 0, arm="guided", copy=n) for n in range(4)]
    shown = asyncio.run(role.prepare(specs))
    assert [spec.memory for spec in shown[:2]] == [shown[0].memory] * 2
    outcomes = [1.0, 1.0, 0.0, 0.0]
    rollouts = [play(spec.session, "hall", won) for spec, won in zip(specs, outcomes, strict=True)]
    found = role._credit(rollouts)
    assert found is not None
    assert len(found.speaks) == 2
    assert found.credit.content == (0.5, -0.5)
    rows, advantages = found.rows
    assert {value for row in rows for value in advantages[row.trace]} == {0.0, 0.5, -0.5}
    assert role.wants(rollouts)
    assert guide(settings={"credit": "mem-pi"})._credit(rollouts) is None


def test_an_abstraction_is_written_from_the_task_alone():
    role = guide(settings={"credit": "rlad", "reads": "task", "says": "words"})
    query = role._ask(Spec("", 0))
    assert query is not None
    assert query.recalled == query.offers == ()
    recalled = guide()._ask(Spec("", 0))
    assert recalled is not None
    assert recalled.recalled


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(ConfigError, match="says: words"):
        GuideSettings(reads="task")
