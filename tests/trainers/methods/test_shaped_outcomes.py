"""Shapers of outcomes: worked examples, degenerate cases, invariances."""

import pytest
from tests.trainers.methods.test_judged import THREE
from tests.trainers.methods.traces import close, make

from hardwon.trainers.algorithms.signals import UnfedSignal
from hardwon.trainers.methods.arena import arena
from hardwon.trainers.methods.checklist import pay_checklist
from hardwon.trainers.methods.dr_grpo import dr_grpo
from hardwon.trainers.methods.exprl_outcome import score_by_judge
from hardwon.trainers.methods.grpo import grpo
from hardwon.trainers.methods.har_judge import reward_lookback
from hardwon.trainers.methods.posterior import posterior
from hardwon.trainers.methods.prediction import reward_prediction
from hardwon.trainers.methods.rubric import rubric
from hardwon.trainers.methods.scope import choose_size, label_subgroups, scope
from hardwon.trainers.methods.spark_augmented import verify
from hardwon.trainers.methods.stages import stages


def outcomes(shaped):
    return [one.outcome for one in shaped]


def quality(name, readable, outcome, q):
    return make(name, outcome, actions=["x" if readable else ""], scores={"quality": q})


def test_posterior_by_hand():
    """(1, 1, .9), (1, 1, .5), (1, 0, .9), (0, 0, .2): R 2.9, 2.5, 1, 0."""
    rows = [(1, 1.0, 0.9), (1, 1.0, 0.5), (1, 0.0, 0.9), (0, 0.0, 0.2)]
    shaped = posterior([quality(f"{n}", *row) for n, row in enumerate(rows)])
    assert outcomes(shaped) == pytest.approx([2.9, 2.5, 1.0, 0.0])
    assert [own[0] for own in grpo(shaped).values()] == pytest.approx([0.9672, 0.6696, -0.4464, -1.1904], abs=1e-4)


def test_posterior_of_failures_does_not_see_their_quality():
    assert outcomes(posterior([quality("a", 1, 0.0, 0.1), quality("b", 1, 0.0, 0.9)])) == [1.0, 1.0]


def named(*rows):
    return [make(f"{n}", o, scores={"entities": share}) for n, (share, o) in enumerate(rows)]


def test_rubric_by_hand():
    """Hits 2/4, 1/4, 4/4 with outcomes 1, 1, 0: 1, .85, 0; with the maximum over all .85, .775, 0."""
    rows = [(0.5, 1.0), (0.25, 1.0), (1.0, 0.0)]
    assert outcomes(rubric(named(*rows))) == pytest.approx([1.0, 0.85, 0.0])
    assert outcomes(rubric(named(*rows), maximum="all")) == pytest.approx([0.85, 0.775, 0.0])


def test_rubric_without_entities_is_the_outcome():
    assert outcomes(rubric(named((0.0, 1.0), (0.0, 0.0)))) == [1.0, 0.0]


def test_the_text_of_a_failure_changes_no_reward():
    assert outcomes(rubric(named((0.5, 1.0), (1.0, 0.0)))) == outcomes(rubric(named((0.5, 1.0), (0.0, 0.0))))


def test_stages_by_hand():
    """q = .5: .6; an answer that is no action: 0; q = 0: .2; the judge's score where there is one."""
    rows = [make("a", 0.5), make("b", 1.0, actions=["x", ""]), make("c", 0.0), make("d", 0.0, scores={"score": 1.0})]
    assert outcomes(stages(rows)) == pytest.approx([0.6, 0.0, 0.2, 1.0])


def test_the_judge_scores_the_whole_trace():
    assert outcomes(score_by_judge([make("a", 0.0, score=[0.2, 0.7]), make("b", 0.3, score=[None])])) == [0.7, 0.3]


def test_spark_by_hand():
    """y = 1 with 2 of 3 right: .8667; y = 0 with 1 of 2 right: .2; unreadable: 0."""
    one = make("a", 0.0, steps=[1, 0, 1], scores={"verdict": 1.0})
    two = make("b", 0.0, steps=[1, 0], scores={"verdict": 0.0})
    cut = make("c", 0.0, steps=[1], actions=[""], scores={"verdict": 1.0})
    assert outcomes(verify([one, two, cut], mode="augmented")) == pytest.approx([0.8667, 0.2, 0.0], abs=1e-4)
    assert outcomes(verify([one, two, cut])) == [1.0, 0.0, 0.0]


def test_checklist_by_hand():
    """D1 (.8), D2 (.2, after D1): R 1, .8, 0."""
    assert outcomes(pay_checklist(THREE)) == pytest.approx([1.0, 0.8, 0.0])


def test_arena_takes_the_rank():
    assert outcomes(arena([make("a", 9.0, scores={"arena": 0.5})])) == [0.5]


def test_prediction_by_hand():
    """R = 1, s = .5: 1.1; a failure stays 0; without a prediction nothing changes."""
    rows = [make("a", 1.0, scores={"prediction": 0.5}), make("b", 0.0, scores={"prediction": 1.0}), make("c", 1.0)]
    assert outcomes(reward_prediction(rows)) == pytest.approx([1.1, 0.0, 1.0])


def test_lookback_by_hand():
    """R = 1, 0 with h = .5, 1 and w = .2: 1.1 and .2; without a judged thought nothing changes."""
    rows = [make("a", 1.0, scores={"lookback": 0.5}), make("b", 0.0, scores={"lookback": 1.0}), make("c", 1.0)]
    assert outcomes(reward_lookback(rows)) == pytest.approx([1.1, 0.2, 1.0])


def test_equal_lookback_changes_nothing_of_a_centered_comparison():
    rows = [make("a", 1.0, scores={"lookback": 0.7}), make("b", 0.0, scores={"lookback": 0.7})]
    close(dr_grpo(reward_lookback(rows)), dr_grpo(rows))


def test_scope_labels_by_confidence():
    """Answers A, A, B with .2, .3, .9: the label is B, where a majority says A."""
    assert label_subgroups([("A", 0.2), ("A", 0.3), ("B", 0.9)], 4, 32, 0) == ["B", "B", "B"]
    scaled = label_subgroups([("A", 2.0), ("A", 3.0), ("B", 9.0)], 4, 32, 0)
    assert scaled == ["B", "B", "B"]


def test_scope_chooses_the_size_of_subgroups():
    """(.6, 3), (.7, 2), (.65, 1): the last is dominated; distances .8367 and .5477."""
    assert choose_size({1: (0.6, 3), 2: (0.7, 2), 4: (0.65, 1)}, 0.7) == 2


def test_scope_takes_a_size_between_two_extremes():
    """Shares and numbers of labels count from the least to the most: distances .7071, .5 and .7071."""
    assert choose_size({1: (0.4, 6), 2: (0.5, 5), 4: (0.6, 4)}, 0.5) == 2


def answered(name, answer, outcome=0.0):
    return make(name, outcome, facts={"answer": answer}, scores={"confidence": 1.0})


def test_scope_with_one_answer_has_no_signal():
    assert outcomes(scope([answered("a", "x"), answered("b", "x")])) == [1.0, 1.0]
    assert outcomes(scope([answered("a", "", 0.3)])) == [0.3]


def test_a_score_that_no_source_gives_is_refused():
    for shaper in (posterior, rubric, arena, verify, scope):
        with pytest.raises(UnfedSignal, match=r"roles\.policy\.sources"):
            shaper([make("a", 1.0)])


def test_scope_by_hand():
    """Answers A, A, B with .2, .3, .9: rewards 0, 0, 1, also with all confidences scaled."""
    for factor in (1.0, 5.0):
        rows = [("A", 0.2), ("A", 0.3), ("B", 0.9)]
        batch = [
            make(f"{n}", 0.5, facts={"answer": answer}, scores={"confidence": confidence * factor})
            for n, (answer, confidence) in enumerate(rows)
        ]
        assert outcomes(scope(batch)) == [0.0, 0.0, 1.0]


def test_posterior_where_all_are_right_or_all_are_wrong():
    """All right: the quality alone separates. All wrong with equal format: nothing is taught."""
    right = grpo(posterior([quality("a", 1, 1.0, 0.9), quality("b", 1, 1.0, 0.1)]))
    assert right["a"][0] > 0 > right["b"][0]
    wrong = grpo(posterior([quality("a", 1, 0.0, 0.9), quality("b", 1, 0.0, 0.1)]))
    assert wrong == {"a": [0.0], "b": [0.0]}


def test_a_task_without_a_checklist_is_not_shaped():
    assert outcomes(pay_checklist([make("a", 0.3, items=[None], facts={"checklist": None})])) == [0.3]
