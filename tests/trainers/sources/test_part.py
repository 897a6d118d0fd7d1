"""The verified part of a reference (LearNAT, arXiv:2502.04327): row 53."""

import pytest

from hardwon.trainers.sources.world import measure_part


def test_the_part_is_the_share_of_the_reference_in_order():
    """Worked example: reference c1, c2, c3: c1, c3 are 2/3; c1, x are closed."""
    assert measure_part(["c1", "c3"], ["c1", "c2", "c3"]) == pytest.approx(2 / 3)
    assert measure_part(["c1", "x"], ["c1", "c2", "c3"]) == 0
    assert measure_part(["c3", "c1"], ["c1", "c2", "c3"]) == pytest.approx(1 / 3)
    assert measure_part(["c1", "c2", "c3"], ["c1", "c2", "c3"]) == 1


def test_without_a_reference_or_an_action_nothing_is_verified():
    """Degenerate case."""
    assert measure_part(["c1"], []) == 0
    assert measure_part([], ["c1"]) == 0


def test_the_order_of_the_arguments_of_a_call_does_not_matter():
    """Invariance."""
    reference = ['book(city="Rome", nights=2)']
    assert measure_part(['book(nights=2, city="Rome")'], reference) == 1
    assert measure_part(['book(nights=3, city="Rome")'], reference) == 0
