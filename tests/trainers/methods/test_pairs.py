"""Preferences between actions in one situation: step-level Q models (row 31), Step-APO (row 24), LearNAT (row 53)."""

import math
from dataclasses import replace

import pytest

from hardwon.trainers.algorithms.advantages import Trace, Turn
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.methods.blocks.pairs import compute_pair_force


def walk(name, outcome, *steps, **signals):
    """A trace of pairs of a situation and an action."""
    turns = tuple(Turn(anchor=anchor, action=action) for anchor, action in steps)
    return Trace(name, "g", turns, outcome, signals={key: tuple(values) for key, values in signals.items()})


FOUR = (
    walk("a", 1.0, ("door", "go"), ("hall", "take")),
    walk("b", 0.8, ("door", "go"), ("hall", "take")),
    walk("c", 0.3, ("door", "wait")),
    walk("d", 0.3, ("door", "wait")),
)


def test_the_margin_is_the_difference_of_the_advantages():
    """Worked example, row 24: V = .5, .9, .3: advantages .4 and -.2, margin .6."""
    weights = PARTS.get("estimator", "step-apo")(FOUR, beta=0.1)
    force = 0.1 * compute_pair_force(0.6) * 4  # one pair; the learner divides by the four traces
    assert weights["a"] == weights["b"] == pytest.approx([force / 2, 0.0])
    assert weights["c"] == weights["d"] == pytest.approx([-force / 2])


def test_equal_advantages_are_plain_dpo():
    """Degenerate case, row 24: without a margin the force is 1/2; no pair."""
    assert compute_pair_force(0.0) == 0.5
    equal = [replace(trace, outcome=1.0) for trace in FOUR]
    assert not any(map(any, PARTS.get("estimator", "step-apo")(equal).values()))


def test_the_force_is_the_slope_of_the_loss():
    """Of -log sigmoid(z - margin) at z = 0."""

    def compute_loss(z, margin):
        return math.log1p(math.exp(margin - z))

    for margin in (-1.0, 0.0, 0.6):
        slope = (compute_loss(1e-6, margin) - compute_loss(-1e-6, margin)) / 2e-6
        assert compute_pair_force(margin) == pytest.approx(-slope, abs=1e-6)


def test_adding_a_constant_to_all_values_changes_nothing():
    """Invariance, row 24."""
    shifted = [replace(trace, outcome=trace.outcome + 5) for trace in FOUR]
    before, after = PARTS.get("estimator", "step-apo")(FOUR), PARTS.get("estimator", "step-apo")(shifted)
    for name, values in before.items():
        assert after[name] == pytest.approx(values)


def test_the_best_and_the_worst_action_along_the_best_trace_make_a_pair():
    """Worked example, row 31: in `door`, `go` has .9 and `wait` .3; in `hall` there is one action, so one pair."""
    weights = PARTS.get("estimator", "step-q")(FOUR, beta=0.1)
    force = 0.1 * 0.5 * 4  # plain DPO; the learner divides by the four traces
    assert weights["a"] == weights["b"] == pytest.approx([force / 2, 0.0])
    assert weights["c"] == weights["d"] == pytest.approx([-force / 2])


def test_single_visits_small_gaps_and_situations_beside_the_best_trace_make_no_pair():
    """Degenerate cases, row 31."""
    quiet = {trace.id: [0.0] * len(trace.turns) for trace in FOUR}
    assert PARTS.get("estimator", "step-q")(FOUR, gap=0.7) == quiet
    assert PARTS.get("estimator", "step-q")(FOUR, visits=3) == quiet
    assert PARTS.get("estimator", "step-q")([replace(trace, outcome=1.0) for trace in FOUR]) == quiet
    beside = [
        walk(name, outcome, ("yard", act)) for name, outcome, act in zip("efgh", (0.5, 0.5, 0, 0), "xxyy", strict=True)
    ]
    assert not any(map(any, (PARTS.get("estimator", "step-q")([*FOUR, *beside])[name] for name in "efgh")))


def test_the_order_of_traces_and_a_constant_change_no_pair():
    """Invariance, row 31."""
    shifted = [replace(trace, outcome=trace.outcome + 5) for trace in reversed(FOUR)]
    before, after = PARTS.get("estimator", "step-q")(FOUR), PARTS.get("estimator", "step-q")(shifted)
    assert {name: pytest.approx(values) for name, values in before.items()} == after


def test_the_margin_is_the_logarithm_of_the_difference_of_the_parts():
    """Worked example, row 53: parts .667 and .333: the margin is log .333 = -1.10."""
    two = [walk("a", 0.0, ("s", "x"), part=[2 / 3]), walk("b", 0.0, ("s", "y"), part=[1 / 3])]
    weights = PARTS.get("estimator", "learnat")(two, beta=0.1)
    force = 0.1 * compute_pair_force(math.log(1 / 3)) * 2
    assert compute_pair_force(math.log(1 / 3)) == pytest.approx(0.25)
    assert weights == {"a": pytest.approx([force]), "b": pytest.approx([-force])}
    assert math.log(1 / 3) == pytest.approx(-1.10, abs=2e-3)


@pytest.mark.parametrize("parts", [(None, 0.5), (0.5, 0.5)])
def test_without_a_reference_or_a_difference_there_is_no_pair(parts):
    """Degenerate case, row 53."""
    two = [walk("a", 1.0, ("s", "x"), part=[parts[0]]), walk("b", 0.0, ("s", "y"), part=[parts[1]])]
    assert PARTS.get("estimator", "learnat")(two) == {"a": [0.0], "b": [0.0]}


def test_actions_in_other_situations_are_not_compared():
    apart = [walk("a", 1.0, ("s", "x")), walk("b", 0.0, ("t", "y"))]
    assert PARTS.get("estimator", "step-apo")(apart) == {"a": [0.0], "b": [0.0]}
