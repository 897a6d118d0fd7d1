"""Reports, conditions and training data of the guide: metrics, when an update runs, which episodes count."""

from dataclasses import replace
from statistics import fmean

import pytest
from tests.trainers.roles.guides.test_guide import group, guide, prepared, specs as list_specs
from tests.trainers.roles.test_extractor import ended

from hardwon.trainers.roles.guides.credit import GuideCredit
from hardwon.trainers.roles.guides.role import rows_of


def test_a_guide_reports_its_groups_and_how_often_it_would_speak():
    learner = guide(settings={"cost": 0.0})
    replies = group(learner, outcomes=(True, False), control=(False,), salt="r")
    probability = fmean(reply.p_speaks for reply in learner._replies.values())
    silent = [ended(spec, True) for spec in list_specs([1], arm="control")]
    learner.collect([*replies, *(replace(one, group="#1") for one in silent)])
    assert learner.stats == {
        "groups_left_out": 1.0,
        "generates": pytest.approx(probability),
        "decision": pytest.approx(0.5),
        "reward": pytest.approx(0.5),
    }
    learner.collect([])
    assert learner.stats == {"groups_left_out": 0.0, "generates": 0.0, "decision": 0.0, "reward": 0.0}


def test_a_guide_waits_for_its_groups_and_drops_them_after_an_update():
    learner = guide(settings={"ready": 2})
    learner.collect(group(learner, salt="a"))
    assert not learner.ready()
    learner.collect(group(learner, seed=1, salt="b"))
    assert learner.ready()
    assert learner.update()["groups"] == 2.0
    assert not learner.ready()


def test_replies_of_an_earlier_iteration_are_not_credited():
    learner = guide()
    late = group(learner, salt="a")
    learner.collect([])
    learner.collect(late)
    assert not learner.ready()


def test_an_episode_that_broke_is_no_branch():
    learner = guide()
    rollouts = group(learner, outcomes=(True, False), control=(False,), salt="x")
    broken = replace(rollouts[0], failed="environment_crash")
    assert learner.wants(rollouts)
    assert not learner.wants([broken, *rollouts[1:]])


def test_blueprints_are_compared_without_a_control_and_hints_with_one():
    for credit, counts in (("himac", True), ("rlad", True), ("mem-pi", False)):
        learner = guide(settings={"credit": credit})
        learner.collect(group(learner, outcomes=(True, False), control=(), salt="x"))
        assert learner.ready() is counts


def test_a_text_is_trained_where_it_has_an_advantage():
    learner = guide()
    prepared(learner, list_specs([0], copies=2, salt="t"))
    replies = list(learner._replies.values())
    rows, advantages = rows_of(replies, GuideCredit(0.5, (0.7, 0.0), 1.0))
    assert [name for name in advantages if name.endswith("/text")] == [rows[2].trace]
    assert advantages[rows[2].trace] == [0.7]
    assert len(rows) == 3


def test_a_frozen_guide_needs_a_beginning():
    learner = guide()
    learner._first = None
    with pytest.raises(Exception, match="begin"):
        prepared(learner, list_specs([0]), frozen=True)
