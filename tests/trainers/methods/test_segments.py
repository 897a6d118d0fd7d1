"""Two levels: explicit strategies (row 33), blueprints (row 45), segments (row 46), abstractions (row 72)."""

from dataclasses import replace

import pytest
from tests.trainers.methods.traces import make

from hardwon.trainers.algorithms.advantages import Trace, Turn
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.methods.epo_strategy import discount_scores
from hardwon.trainers.methods.hae import compute_hierarchical, find_starts


def test_process_scores_are_discounted_and_divided_by_the_largest():
    """Worked example, row 33: scores 0, 1, 0, .8 with .99."""
    assert discount_scores([0, 1, 0, 0.8]) == pytest.approx([0.990, 1, 0.444, 0.448], abs=1e-3)


def test_without_any_score_nothing_is_learned():
    """Degenerate case, row 33: no division by 0."""
    assert discount_scores([0.0, 0.0]) == [0.0, 0.0]
    assert discount_scores([]) == []
    zero = [make("a", 0.0, steps=[0.0, 0.0]), make("b", 0.0, steps=[0.0])]
    assert PARTS.get("estimator", "epo-strategy")(zero) == {"a": [0.0, 0.0], "b": [0.0]}


@pytest.mark.parametrize("factor", [0.1, 7.0])
def test_a_factor_of_all_scores_changes_nothing(factor):
    """Invariance, row 33."""
    scores = [0.0, 1.0, 0.0, 0.8]
    assert discount_scores([factor * score for score in scores]) == pytest.approx(discount_scores(scores))


def test_the_mean_of_the_group_is_subtracted():
    """A trace without labels is left out of it."""
    batch = [make("a", 1.0, steps=[1.0]), make("b", 0.0, steps=[0.0]), make("c", 1.0, steps=[None])]
    assert PARTS.get("estimator", "epo-strategy")(batch) == {"a": [0.5], "b": [-0.5], "c": [0.0]}


def execute(name, outcome, blueprint):
    return Trace(name, "g", (Turn(anchor=blueprint), Turn(anchor="later")), outcome)


def test_executions_are_compared_with_those_of_the_same_blueprint():
    """Worked example, row 45: R = [[1, 0], [0, 0]]: micro .5, -.5, 0, 0."""
    batch = [execute("a", 1.0, "x"), execute("b", 0.0, "x"), execute("c", 0.0, "y"), execute("d", 0.0, "y")]
    expected = {"a": [0.5, 0.5], "b": [-0.5, -0.5], "c": [0.0, 0.0], "d": [0.0, 0.0]}
    assert PARTS.get("estimator", "himac")(batch) == expected
    shifted = [replace(one, outcome=one.outcome + 3) if one.id in "ab" else one for one in batch]
    assert PARTS.get("estimator", "himac")(shifted) == expected  # invariance: a constant for one blueprint
    assert PARTS.get("estimator", "himac")(batch[:1]) == {"a": [0.0, 0.0]}  # degenerate case: one execution


ONES = (1.0, 1.0, 1.0)


def test_nothing_crosses_the_boundary_of_a_segment_but_its_value():
    """Worked example, row 46: gamma and lam 1, rewards 0, 0, 1, segments {1, 2}, {3}."""
    low, high = compute_hierarchical([0, 0, 1], [0, 2], [0, 0, 0], [0, 0], *ONES)
    assert (low, high) == ([0, 0, 1], [1, 1])
    low, high = compute_hierarchical([0, 0, 1], [0, 2], [0, 0, 1], [0, 1], *ONES)
    assert low == [1, 1, 0]
    assert high[1] == 0


def test_one_segment_is_plain_gae():
    """Degenerate case, row 46."""
    rewards, values, gamma, lam = [0.5, 0.0, 1.0], [0.2, 0.4, 0.3], 0.9, 0.8
    deltas = [r + gamma * v - own for r, v, own in zip(rewards, [*values[1:], 0.0], values, strict=True)]
    expected = [sum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[t:])) for t in range(3)]
    assert compute_hierarchical(rewards, [0], values, [0.2], gamma, lam, 1.0)[0] == pytest.approx(expected)


def test_a_split_where_both_values_agree_keeps_the_sum_of_the_low_deltas():
    """Invariance, row 46: with lam 0 the advantages are the deltas."""
    rewards, values = [0.5, 0.0, 1.0], [0.2, 0.4, 0.3]
    whole, _ = compute_hierarchical(rewards, [0], values, [0.2], 1.0, 0.0, 1.0)
    split, _ = compute_hierarchical(rewards, [0, 1], values, [0.2, 0.4], 1.0, 0.0, 1.0)
    assert sum(split) == pytest.approx(sum(whole))


def test_a_segment_begins_where_the_policy_plans():
    """A missing tag keeps the segment."""
    assert find_starts(make("a", 1.0, tags=["explore", "planning", "", "planning"])) == [0, 1, 3]
    assert find_starts(make("a", 1.0, turns=3)) == [0]
    batch = [make("a", 1.0, tags=["planning", "explore"]), make("b", 0.0, tags=["planning", "explore"])]
    advantages = PARTS.get("estimator", "hae")(batch)
    assert advantages["a"][0] > 0 > advantages["b"][0]


def test_solvers_without_an_abstraction_get_nothing():
    """Row 72: they still count in the loss, where the KL term holds them."""
    shown = [replace(make(f"s{n}", float(n)), arm="guided") for n in range(2)]
    plain = [make(f"p{n}", float(n)) for n in range(2)]
    assert PARTS.get("estimator", "rlad")([*shown, *plain]) == {"s0": [-0.5], "s1": [0.5], "p0": [0.0], "p1": [0.0]}
