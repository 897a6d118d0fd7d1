"""Estimators that read a judge or a trained head: worked examples, degenerate cases, invariances."""

import pytest
from tests.trainers.methods.traces import ITEMS, close, make

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.judging.checklists import ChecklistItem, check_items
from hardwon.trainers.algorithms.judging.verdicts import compare_verdicts
from hardwon.trainers.methods.archer import archer
from hardwon.trainers.methods.capo import capo
from hardwon.trainers.methods.checklist_steps import checklist
from hardwon.trainers.methods.exprl import exprl
from hardwon.trainers.methods.grpo import grpo
from hardwon.trainers.methods.prorag import prorag
from hardwon.trainers.methods.spark import spark
from hardwon.trainers.methods.tp_grpo import tp_grpo


def test_capo_by_hand():
    """a won and its turn 2 is wrong: (2, 1); b lost and its turn 1 is wrong: (-1, 0)."""
    found = capo([make("a", 1.0, steps=[1, 0]), make("b", 0.0, steps=[0, 1])])
    close(found, {"a": [1.1619, 0.3873], "b": [-1.1619, -0.3873]}, abs=1e-4)


def test_capo_without_a_wrong_turn_is_grpo_by_turns():
    batch = [make("a", 1.0, steps=[1]), make("b", 0.0, steps=[1])]
    close(capo(batch), grpo(batch), abs=1e-5)


def test_capo_leaves_turns_without_a_verdict_out_of_the_mean():
    known = capo([make("a", 1.0, steps=[1, 0]), make("b", 0.0, steps=[0, 1])])
    more = capo([make("a", 1.0, steps=[1, 0, None, None]), make("b", 0.0, steps=[0, 1])])
    assert more["a"][:2] == known["a"]
    assert more["b"] == known["b"]


def test_spark_by_hand():
    """y = 1, 0; a right, wrong, right; b right, wrong: a (.7071, 0, .7071), b (0, -.7071)."""
    batch = [make("a", 1.0, steps=[1, 0, 1]), make("b", 0.0, steps=[1, 0])]
    close(spark(batch), {"a": [0.7071, 0, 0.7071], "b": [0, -0.7071]}, abs=1e-4)
    close(spark(batch, mode="global"), {"a": [0.7657, 0.5657, 0.7657], "b": [-0.3657, -0.5657]}, abs=1e-4)


def test_exprl_by_hand():
    """Scores 2, 4, 3 of 5 are .25, .75, .5: A = (-.25, .5, -.25), which sums to 0."""
    found = exprl([make("a", 1.0, score=[0.25, 0.75, 0.5])])
    assert found == {"a": [-0.25, 0.5, -0.25]}


def test_exprl_of_one_turn_or_an_unreadable_score_is_zero():
    assert exprl([make("a", 1.0, score=[0.75]), make("b", 1.0, score=[0.25, None])]) == {"a": [0.0], "b": [0.0, 0.0]}


def test_exprl_does_not_change_when_all_scores_shift():
    close(exprl([make("a", 1.0, score=[0.0, 0.5])]), exprl([make("a", 1.0, score=[0.25, 0.75])]))


FOUR = [("a", 1.0, [1, 0, 0, 1]), ("b", 1.0, [1]), ("c", 0.0, [1, 0]), ("d", 0.0, [1])]


def test_tp_grpo_by_hand():
    """Two of four right: o = .8660, r_c = .5; R W W R: (.866, .366, .366, .866); matching, unsure: (-.866, 0)."""
    found = tp_grpo([make(name, outcome, steps=steps) for name, outcome, steps in FOUR])
    assert found["a"] == pytest.approx([0.866, 0.366, 0.366, 0.866], abs=1e-3)
    assert found["c"] == pytest.approx([-0.866, 0.0], abs=1e-3)


def test_tp_grpo_where_none_or_all_are_right():
    none = tp_grpo([make("a", 0.0, steps=[1, 0]), make("b", 0.0, steps=[1])])
    assert none == {"a": [0.0, 0.0], "b": [0.0]}
    every = tp_grpo([make("a", 1.0, steps=[1, 0]), make("b", 1.0, steps=[1])])
    assert every == {"a": [0.0, -1.0], "b": [0.0]}


def test_tp_grpo_does_not_change_when_a_step_is_split():
    split = [make(name, outcome, steps=[steps[0], *steps]) for name, outcome, steps in FOUR]
    whole = tp_grpo([make(name, outcome, steps=steps) for name, outcome, steps in FOUR])
    assert {name: values[1:] for name, values in tp_grpo(split).items()} == whole


def test_prorag_by_hand():
    """s = (.9, .5), (.4, .2): z = (1.3587, 0, -.3397, -1.019), A = (1.3864, .7071), (-.8769, -1.2166)."""
    found = prorag([make("a", 1.0, prm=[0.9, 0.5]), make("b", 0.0, prm=[0.4, 0.2])])
    close(found, {"a": [1.3864, 0.7071], "b": [-0.8769, -1.2166]}, abs=1e-4)


def test_prorag_with_constant_scores_is_grpo_and_scale_does_not_matter():
    batch = [make("a", 1.0, prm=[0.5, 0.5]), make("b", 0.0, prm=[0.5])]
    close(prorag(batch), grpo(batch))
    one = [make("a", 1.0, prm=[0.1, 0.2]), make("b", 0.0, prm=[0.4])]
    two = [make("a", 1.0, prm=[2.0, 3.0]), make("b", 0.0, prm=[5.0])]
    close(prorag(one), prorag(two), abs=1e-4)


def test_archer_takes_the_critic_as_it_is():
    assert archer([make("a", 1.0, critic=[0.2, None])]) == {"a": [0.2, 0.0]}


def listed(name, outcome, *answers):
    checked = check_items(ITEMS, [dict.fromkeys(own, True) for own in answers])
    return make(name, outcome, items=[1.0] * len(answers), facts={"checklist": checked})


THREE = [listed("a", 1.0, ["D1"], ["D1", "D2"]), listed("b", 1.0, ["D1", "D2"]), listed("c", 0.0, [], [])]


def test_checklist_by_hand():
    """b_D1 = 2/3, b_D2 = 1/3: a = (1/3, 2/3), b = (1/3), c = (-2/3, -2/3)."""
    close(checklist(THREE), {"a": [1 / 3, 2 / 3], "b": [1 / 3], "c": [-2 / 3, -2 / 3]})


def test_checklist_gives_0_where_no_item_is_open():
    """CM2: a has satisfied both items after its second turn, so its third one has nothing to earn."""
    found = checklist([listed("a", 1.0, ["D1"], ["D2"], []), listed("b", 0.0, [])])
    close(found, {"a": [0.5, 0.5, 0.0], "b": [-0.5]})
    standardized = checklist([listed("a", 1.0, ["D1"], ["D2"], []), listed("b", 0.0, [])], std=True)
    assert standardized["a"][2] == 0.0


def test_checklist_pays_an_item_once_and_after_its_dependencies():
    again = check_items(ITEMS, [{"D1": True}, {}, {"D1": True, "D2": True}])
    assert again.paid == {"D1": 0, "D2": 2}
    assert again.reward == pytest.approx(1.0)
    both = check_items(ITEMS, [{"D1": True, "D2": True}])
    assert both.paid == {"D1": 0}
    assert both.reward == pytest.approx(0.8)


def test_checklist_does_not_change_with_the_order_of_items():
    turned = check_items(ITEMS[::-1], [{"D1": True}, {"D1": True, "D2": True}])
    assert turned.paid == check_items(ITEMS, [{"D1": True}, {"D1": True, "D2": True}]).paid


def test_a_dependency_on_no_item_is_refused():
    with pytest.raises(ConfigError, match="'D1' depends on 'D9'; the items are"):
        check_items([ChecklistItem("D1", after=("D9",))], [])


def test_a_judge_is_compared_with_the_outcomes():
    found = compare_verdicts([make("a", 1.0, steps=[1, 1]), make("b", 1.0, steps=[0]), make("c", 0.0, steps=[0, 1])])
    assert found == {"clean_wins": 0.5, "marked_losses": 1.0}


def test_a_judge_is_compared_where_it_says_something():
    """A failure without a wrong turn is not marked; turns without a verdict, and traces without any, do not count."""
    batch = [make("a", 0.0, steps=[1, None]), make("b", 0.0, steps=[0]), make("c", 0.0, steps=[None]), make("d", 1.0)]
    assert compare_verdicts(batch) == {"marked_losses": 0.5}
    assert compare_verdicts([make("e", 1.0, steps=[None, 0])]) == {"clean_wins": 0.0}
    assert compare_verdicts([]) == {}


def test_a_tie_of_verdicts_is_wrong_in_every_estimator():
    """One half is what a judge says that is torn: it never counts as right."""
    for estimate in (capo, spark, tp_grpo):
        torn, wrong = (
            estimate([make("a", 1.0, steps=[1, value]), make("b", 0.0, steps=[1, 1])]) for value in (0.5, 0.0)
        )
        assert torn == wrong
    assert compare_verdicts([make("a", 1.0, steps=[0.5])]) == {"clean_wins": 0.0}


def test_a_turn_without_a_verdict_is_right_in_a_success_and_not_credited_by_a_selective_estimator():
    """CAPO and TP-GRPO take nothing from it, and SPARK gives it nothing."""
    batch = [make("a", 1.0, steps=[1, None]), make("b", 0.0, steps=[0, None])]
    assert capo(batch)["a"][1] == capo(batch)["a"][0]
    assert tp_grpo(batch)["a"][1] == tp_grpo(batch)["a"][0]
    assert tp_grpo(batch)["b"] == [0.0, 0.0]
    assert [values[1] for values in spark(batch).values()] == [0.0, 0.0]


def test_a_checklist_that_only_some_have_compares_those():
    """A trace without a list gets nothing, and is no sibling that failed to satisfy an item."""
    plain = make("d", 0.0, 2, items=[None, None])
    close(checklist([*THREE, plain]), {**checklist(THREE), "d": [0.0, 0.0]})
    assert checklist(THREE[:1]) == {"a": [0.0, 0.0]}
