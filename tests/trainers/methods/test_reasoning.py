"""RLVMR: worked example, rules of the tags, degenerate case, invariance."""

import math

import pytest
from tests.trainers.methods.traces import close, make

from hardwon.trainers.methods.dr_grpo import dr_grpo
from hardwon.trainers.methods.rlvmr import rlvmr


def test_rlvmr_by_hand():
    """Outcomes 1 and 0, one planning turn each: 0.5 + 0.5 * 0.5 and its negative."""
    found = rlvmr([make("a", 1.0, tags=["planning"]), make("b", 0.0, tags=["planning"])])
    assert found == {"a": [0.75], "b": [-0.75]}


def test_rlvmr_without_tags_is_the_centered_outcome():
    batch = [make("a", 1.0, 2), make("b", 0.0)]
    close(rlvmr(batch), dr_grpo(batch))


def test_a_tag_that_occurs_once_changes_nothing():
    batch = [make("a", 1.0, tags=["planning", ""]), make("b", 0.0, tags=["explore"])]
    close(rlvmr(batch), dr_grpo(batch))


def earned(first, second):
    """Whether the second turn of one trace earns more than that of a sibling, both with equal outcomes."""
    found = rlvmr([first, second])
    return found["a"][1] > 0 > found["b"][1]


def test_an_exploration_is_stale_only_after_an_equal_action_that_was_valid():
    fresh = make("a", 0.0, actions=["x", "x"], valid=[False, True], tags=["", "explore"])
    stale = make("b", 0.0, actions=["x", "x"], valid=[True, True], tags=["", "explore"])
    assert earned(fresh, stale)


def test_an_invalid_turn_earns_nothing():
    right = make("a", 1.0, actions=["x", "y"], valid=[True, True], tags=["", "planning"])
    wrong = make("b", 1.0, actions=["x", "y"], valid=[True, False], tags=["", "planning"])
    assert earned(right, wrong)


def test_reflection_earns_after_an_invalid_action_that_changed():
    good = make("a", 0.0, actions=["x", "y"], valid=[False, True], tags=["", "reflection"])
    bad = make("b", 0.0, actions=["x", "y"], valid=[True, True], tags=["", "reflection"])
    assert earned(good, bad)


def test_reflection_earns_at_the_first_turn():
    found = rlvmr([make("a", 0.0, tags=["reflection"]), make("b", 0.0, valid=False, tags=["reflection"])])
    assert found == {"a": [0.25], "b": [-0.25]}


def test_std_divides_both_terms():
    found = rlvmr([make("a", 1.0, tags=["planning"]), make("b", 0.0, tags=["planning"])], std=True)
    assert found["a"] == pytest.approx([1.5 * 0.5 / math.sqrt(0.5)], rel=1e-5)
