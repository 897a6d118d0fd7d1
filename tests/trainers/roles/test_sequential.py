"""The sequential test of a lesson: its error rates, a case by hand, and what it does not depend on."""

import random

import pytest

from hardwon.trainers.roles.sequential import SequentialTest, measure_wealth
from hardwon.trainers.roles.tuning import TUNING


def play(base, gain, chance, pairs=160):
    test = SequentialTest()
    while not test.verdict and len(test.differences) < pairs:
        n = TUNING.pairs_at_once
        test.add([float(chance.random() < base + gain) - float(chance.random() < base) for _ in range(n)])
    return test


@pytest.mark.parametrize("base", [0.1, 0.5, 0.9])
def test_a_lesson_without_a_gain_is_rarely_stored(base):
    chance = random.Random(base)
    stored = sum(play(base, 0.0, chance).verdict == "helps" for _ in range(300))
    assert stored / 300 <= TUNING.false_admissions


@pytest.mark.parametrize("base", [0.1, 0.5, 0.75])
def test_a_gain_of_a_fifth_is_found(base):
    chance = random.Random(base)
    assert sum(play(base, 0.2, chance).verdict == "helps" for _ in range(200)) / 200 >= 0.8


def test_a_large_gain_needs_few_pairs():
    chance = random.Random(1)
    tests = [play(0.1, 0.8, chance) for _ in range(50)]
    assert all(test.verdict == "helps" for test in tests)
    assert sum(len(test.differences) for test in tests) / 50 < 17


def test_the_wealth_by_hand():
    """Bets of 0.3 and 0.6 on +1, +1, -1: (1.3 x 1.3 x 0.7 + 1.6 x 1.6 x 0.4) / 2."""
    assert TUNING.bets == (0.3, 0.6)
    assert measure_wealth([1.0, 1.0, -1.0]) == pytest.approx((1.183 + 1.024) / 2)
    assert measure_wealth([]) == 1.0


def test_without_differences_it_stays_open():
    test = SequentialTest()
    test.add([])
    assert (test.verdict, test.gain) == ("", 0.0)


def test_differences_of_zero_are_useless_in_the_end():
    test = SequentialTest()
    test.add([0.0] * 40)
    assert test.verdict == "useless"


def test_the_order_of_the_differences_does_not_matter():
    values = [1.0, 0.0, -1.0, 0.5, 1.0]
    assert measure_wealth(values) == pytest.approx(measure_wealth(values[::-1]))


def test_a_verdict_is_final():
    test = SequentialTest()
    test.add([1.0] * 20)
    test.add([-1.0] * 200)
    assert test.verdict == "helps"


def test_a_difference_beyond_the_range_is_cut():
    test = SequentialTest()
    test.add([-5.0, 5.0])
    assert test.differences == [-1.0, 1.0]
