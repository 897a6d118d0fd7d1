"""What counts as the outcome of an episode: success, the environment's score, or the rewards."""

from dataclasses import replace

import pytest

from hardwon.memory import Diagnosis, Reasons, State, Step, Trajectory
from hardwon.trainers.algorithms.advantages import ESTIMATORS
from hardwon.trainers.algorithms.imitation import build_examples
from hardwon.trainers.algorithms.outcomes import measure_outcome, select_best
from hardwon.trainers.algorithms.samples import Rollout, Sample, to_trace
from hardwon.trainers.roles.item_reward import unaided, uses_of
from hardwon.trainers.rollouts.explore import way

HALL = State("You are in the hall.", location="hall", task="tidy up")


def played(name, score, *, success: bool | None = False, reward=0.0, **why):
    step = Step(HALL, "wait", HALL, Diagnosis(True), reward, 0, why=Reasons.of(why))
    return Trajectory("tidy up", (step,), success, score, id=name)


def rollout(trajectory, measure="score", failed=""):
    sample = Sample((1,), (2,), (-0.1,), (True,), (None,), "policy", 1, "control", "", "", trajectory.id, 0)
    return Rollout(trajectory, (sample,), "tidy up#0", failed, measure)


@pytest.mark.parametrize(("measure", "outcome"), [("success", 0.0), ("score", 0.6), ("reward", 2.0)])
def test_an_episode_has_one_outcome_per_measure(measure, outcome):
    trajectory = played("a", 0.6, reward=2.0)
    assert measure_outcome(trajectory, measure) == outcome
    assert rollout(trajectory, measure).outcome == outcome
    assert to_trace(rollout(trajectory, measure)).outcome == outcome


def test_an_excluded_episode_has_none():
    assert measure_outcome(played("a", 0.6, success=None), "score") is None
    assert rollout(played("a", 0.6), failed="policy_error").outcome is None


def test_a_group_without_any_success_has_advantages_by_its_scores():
    group = [rollout(played(f"{n}", score)) for n, score in enumerate((0.2, 0.8))]
    advantages = ESTIMATORS["dr-grpo"]([to_trace(one) for one in group])
    assert advantages == {"0": [pytest.approx(-0.3)], "1": [pytest.approx(0.3)]}


def test_items_are_credited_with_the_scores():
    shown = rollout(played("with", 0.9, recalled=["item"]))
    without = rollout(played("without", 0.4))
    ((group, item, use),) = uses_of([shown, without])
    assert (group, item, use.shown, use.control) == ("tidy up#0", "item", (0.9,), (0.4,))
    assert use.differences == [pytest.approx(0.5)]
    assert unaided([shown, without]) == [without]


def test_the_best_of_several_tries_has_the_highest_outcome_above_zero():
    tries = [played("a", 0.1), played("b", 0.7), played("c", 0.0, success=None)]
    assert select_best(tries, "score") is tries[1]
    assert select_best(tries) is None
    both = [played("d", 0.0, success=True), played("e", 0.0, success=True)]
    assert select_best([*tries, *both]) is both[-1]
    assert select_best([]) is None


def test_episodes_with_a_score_are_imitated_where_none_succeeds():
    seen = []

    def render(trajectory, memory):
        seen.append((trajectory.id, memory))
        return [replace(rollout(trajectory).rows[0], trace=trajectory.id)]

    both = [played("none", 0.0), played("some", 0.4)]
    assert build_examples(both, render) == []
    assert build_examples(both, render, outcome="score", memory=lambda one: way(one, "score"))
    assert {name for name, _ in seen} == {"some"}
    assert {memory for _, memory in seen} <= {None, "hall : wait ."}
    assert way(both[1]) is None
