"""Reports, conditions and training data of the roles: metrics, when an update runs, which episodes count."""

import asyncio
from dataclasses import replace
from statistics import fmean

import pytest
from tests.trainers.roles.guides.test_guide import GOOD, group, guide, prepared, specs as list_specs
from tests.trainers.roles.test_extractor import ended, episode, groups, role, row

from hardwon.memory import Item, Trajectory
from hardwon.memory.records import Add
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.roles.extractor import _select_surest, spread
from hardwon.trainers.roles.guides.credit import GuideCredit
from hardwon.trainers.roles.guides.role import rows_of
from hardwon.trainers.roles.item_reward import Buffer, Use, consumed, is_gain, uses_of
from hardwon.trainers.roles.note_generators import Written


def read_world(learner, salt="1", seeds=(0,)):
    """The episodes of some instances with texts; the salt is chosen so that each shows something."""
    for n in range(40):
        dealt = asyncio.run(learner.prepare(groups(f"{salt}{n}", seeds)))
        if all(spec.memory for spec in dealt):
            return dealt
        learner.collect([])
    raise AssertionError("no text was kept")


# -- the extractor --------------------------------------------------------------------------------


def test_a_group_is_wanted_if_its_outcomes_differ_among_those_that_count():
    spec = groups("1")[0]
    broken = replace(ended(spec, True, name="c"), failed="environment_crash")
    assert role().wants([ended(spec, True, name="a"), ended(spec, False, name="b")])
    assert not role().wants([ended(spec, False, name="a"), ended(spec, False, name="b"), broken])


def test_episodes_are_read_one_of_each_group_first():
    def rollout(group, number, *, failed="", steps=True):
        trajectory = replace(episode(), id=f"{group}{number}", steps=episode().steps if steps else ())
        return Rollout(trajectory, (), group, failed)

    rollouts = [rollout("a", 1), rollout("a", 2), rollout("a", 3), rollout("b", 1), rollout("b", 2)]
    useless = [rollout("a", 4, failed="environment_crash"), rollout("c", 1, steps=False)]
    assert [one.trajectory.id for one in spread([*useless, *rollouts])] == ["a1", "b1", "a2", "b2", "a3"]


def test_of_what_would_be_kept_the_surest_is_shown():
    def written(name, keeps, *items):
        return Written(row(name), tuple(map(Add, items)), keeps)

    one, other = Item("insight", "one"), Item("insight", "other")
    assert _select_surest([written("a", 0.6, one), written("b", 0.9, other), written("c", 0.95)]) == [("b", "other")]
    assert _select_surest([written("c", 0.95)]) == []
    assert _select_surest([]) == []


def test_only_texts_that_an_episode_saw_are_credited():
    """A group whose episodes all broke credits nothing, and neither does a text that no episode saw."""
    learner = role(ready=1)
    dealt = asyncio.run(learner.prepare(groups("1")))
    assert {bool(items) for written in learner._pending.values() for _, items in written} == {False, True}
    learner.collect([replace(ended(spec, True), failed="environment_crash") for spec in dealt])
    assert not len(learner.buffer)
    dealt = read_world(learner, "2")
    learner.collect([ended(replace(spec, salt="other"), True) for spec in dealt])
    assert all(not sample.items for sample in learner.buffer._samples.values())


def test_what_was_dealt_is_forgotten_after_a_collection():
    learner = role(ready=1)
    dealt = read_world(learner)
    learner.collect([])
    learner.collect([*(ended(spec, True) for spec in dealt), ended(dealt[0], False, "control", "c")])
    assert not len(learner.buffer)


def test_readings_are_used_in_their_order_and_without_one_nothing_is_shown():
    learner = role()
    name, first, second = "find#0", [(row("one"), {"one#0": "first"})], [(row("two"), {"two#0": "second"})]
    learner._beside, learner._readings = True, {name: [first, second]}
    memories = [asyncio.run(learner.prepare(groups(salt, (0,))))[0].memory for salt in "123"]
    assert memories == ["first", "second", None]
    assert learner._readings == {}


# -- items ----------------------------------------------------------------------------------------


def test_an_item_helped_if_it_gained_more_than_its_error():
    """Differences 1 and 0: mean 1/2, error 1/2; with another 1 the mean 2/3 is above the error 1/3."""
    helped, same, harmed = Use((1.0,), (0.0,)), Use((1.0,), (1.0,)), Use((0.0,), (1.0,))
    assert is_gain([helped])
    assert not is_gain([same])
    assert not is_gain([harmed])
    assert not is_gain([helped, same])
    assert is_gain([helped, same, helped])
    assert not is_gain([Use((), (0.0,)), Use((1.0,), ())])
    assert not is_gain([])


def test_an_episode_without_guidance_is_a_control_and_a_broken_one_nothing():
    spec = groups("1")[0]
    shown, control = ended(spec, True, name="a"), ended(spec, False, "control", "b")
    broken = replace(ended(spec, False, "control", "c"), failed="environment_crash")
    assert consumed(shown.trajectory, {"a": "item"}) == ["item"]
    assert consumed(control.trajectory, {"a": "item"}) == [None]
    assert uses_of([shown, control, broken], {"a": "item"}) == [(spec.group, "item", Use((1.0,), (0.0,)))]


def test_the_mean_of_judged_items_is_the_reward_once_all_are_judged():
    buffer = Buffer(ready=1, cost=0.0)
    buffer.wrote(row("a"), {"x": 1, "y": 1})
    buffer.settle("x", 0.5)
    assert not buffer.ready()
    buffer.settle("y", 0.1)
    buffer.settle("z", 9.0)
    ((_, reward, advantage),) = buffer.take()
    assert [reward, advantage] == pytest.approx([0.3, 0.0])
    assert not len(buffer)


def test_a_forgotten_item_leaves_the_rest_of_its_sequence():
    buffer = Buffer(ready=1, cost=0.0)
    buffer.wrote(row("a"), {"x": 1, "y": 1})
    buffer.used("y", Use((1.0,), (0.0,)))
    buffer.forget("y")
    assert not buffer.ready()
    buffer.used("x", Use((1.0, 1.0), (0.0,)))
    ((_, reward, _),) = buffer.take()
    assert reward == 0.5
    buffer.forget("x")
    buffer.forget("x")
    assert not len(buffer)


def test_an_oldest_sequence_that_is_dropped_takes_its_items_along():
    buffer = Buffer(ready=1, capacity=1)
    buffer.wrote(row("a"), {"x": 1})
    buffer.wrote(row("b"), {"y": 1})
    buffer.used("x", Use((1.0,), (0.0,)))
    buffer.wrote(row("c"), {"x": 1})
    buffer.used("x", Use((1.0,), (0.0,)))
    assert [sample.row.trace for sample, _, _ in buffer.take()] == ["c"]


# -- the guide ------------------------------------------------------------------------------------


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


def test_only_what_was_offered_is_said():
    learner = guide()
    assert GOOD in {spec.memory for n in range(4) for spec in prepared(learner, list_specs([0], salt=str(n)))}


def test_an_empty_trajectory_is_a_control():
    assert consumed(Trajectory("t", (), True)) == [None]
