"""Trials: where a lesson is tried, what its pairs are, and when it is over."""

from dataclasses import replace

import pytest

from hardwon.memory import Item, Trajectory
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.roles.trials import Trial, Trials
from hardwon.trainers.roles.tuning import TUNING

VILLAGES = ("oakdale", "elmford", "ashton")
INSTANCES = [("train", seed) for seed in range(12)]


def read(instance):
    return f"cure the {('rash', 'cough')[instance[1] % 2]} in {VILLAGES[instance[1] // 4]}"


def open_trials(*texts, pairs=160, group="train#0"):
    trials = Trials(INSTANCES, read, pairs=pairs)
    for text in texts:
        trials.add(Trial(Item("warning", text, id=text), group, "e"))
    return trials


def end(specs, outcome, tried="shown"):
    return [
        Rollout(
            Trajectory("cure", (), outcome(spec), id=spec.session),
            (),
            spec.group,
            tried=tried if spec.candidate is not None else "",
        )
        for spec in specs
    ]


def test_a_lesson_is_tried_where_its_rarest_words_are_and_never_at_home():
    specs = open_trials("In oakdale fern cures rash").plan("lessons", "s")
    assert {spec.group for spec in specs} == {"train#1", "train#2", "train#3"}
    assert "train#2" in {spec.group for spec in specs[:2]}


def test_a_lesson_that_shares_no_word_is_tried_anywhere():
    groups = {spec.group for spec in open_trials("Look twice").plan("lessons", "s")}
    assert len(groups) == TUNING.instances_tried


def test_each_episode_with_a_lesson_has_an_equal_one_without():
    specs = open_trials("In oakdale fern cures rash").plan("lessons", "s")
    shown = [spec for spec in specs if spec.candidate is not None]
    plain = [spec for spec in specs if spec.candidate is None]
    assert len(shown) == len(plain) == TUNING.pairs_at_once
    assert {(spec.group, spec.copy) for spec in shown} == {(spec.group, spec.copy) for spec in plain}
    assert len({spec.session for spec in specs}) == len(specs)


def test_lessons_about_the_same_instances_share_the_episodes_without_one():
    specs = open_trials("In oakdale fern cures rash", "In oakdale moss cures rash").plan("lessons", "s")
    assert sum(spec.candidate is None for spec in specs) == TUNING.pairs_at_once


def test_a_lesson_that_helps_is_over_after_two_looks_and_a_useless_one_later():
    trials = open_trials("In oakdale fern cures rash", "In oakdale moss cures rash")
    looks = 0
    while specs := trials.plan("lessons", f"s{looks}"):
        trials.collect(end(specs, lambda spec: spec.candidate is not None and "fern" in spec.candidate.title))
        looks += 1
    good, useless = trials.take()
    assert (good.test.verdict, good.test.gain, useless.test.verdict, useless.test.gain) == (
        "helps",
        1.0,
        "useless",
        0.0,
    )
    assert len(good.test.differences) <= 16 < len(useless.test.differences) < 48


def test_the_pairs_are_bounded():
    trials = open_trials("In oakdale fern cures rash", pairs=8)
    trials.collect(end(trials.plan("lessons", "s"), lambda spec: False))
    assert trials.plan("lessons", "t") == []
    assert trials.take()[0].test.verdict == ""


def test_the_last_look_has_only_the_pairs_that_are_left():
    trials = open_trials("In oakdale fern cures rash", pairs=10)
    sizes = list[int]()
    while specs := trials.plan("lessons", f"s{len(sizes)}"):
        sizes.append(sum(spec.candidate is not None for spec in specs))
        trials.collect(end(specs, lambda spec: False))
    assert sizes == [8, 2]


@pytest.mark.parametrize(("tried", "known"), [("", False), ("known", True)])
def test_a_lesson_that_is_not_shown_or_known_already_is_over(tried, known):
    trials = open_trials("In oakdale fern cures rash")
    trials.collect(end(trials.plan("lessons", "s"), lambda spec: True, tried))
    assert trials.plan("lessons", "t") == []
    assert trials.take()[0].is_known is known


def test_a_lesson_that_recall_misses_adds_nothing():
    """Whatever its episodes ended with: they are those without it, and their difference is noise."""
    trials = open_trials("In oakdale fern cures rash")
    specs = trials.plan("lessons", "s")
    assert trials.collect(end(specs, lambda spec: spec.candidate is not None, "missed")) == TUNING.pairs_at_once
    (trial,) = trials.take()
    assert (trial.test.differences, trial.hits) == ([0.0] * TUNING.pairs_at_once, 0)


def test_an_episode_that_broke_makes_no_pair():
    trials = open_trials("In oakdale fern cures rash")
    specs = trials.plan("lessons", "s")
    rollouts = end(specs, lambda spec: True)
    broken = [replace(each, failed="environment_crash") if n % 2 else each for n, each in enumerate(rollouts)]
    assert trials.collect(broken) < TUNING.pairs_at_once
