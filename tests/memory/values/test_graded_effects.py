"""Effects of items where outcomes are graded: `meta["outcome"]` names the figure of an episode that counts."""

import math
import random
from dataclasses import replace

import pytest

from hardwon.memory import Item, State
from hardwon.memory.values.effects import Arms, _count_arms, _difference, hurts, shrink
from hardwon.memory.values.tuning import TUNING

SEE = "You see a wooden drawer. It is closed."
TASK = "bake the bread in the oven"


def count(shown, withheld):
    """Return the arms of these outcomes."""
    pairs = {arm: list(enumerate(outcomes)) for arm, outcomes in ((True, shown), (False, withheld))}
    return _count_arms({(False, arm): those for arm, those in pairs.items()})


def variance(outcomes):
    """Return the variance of the mean of outcomes, one success and one failure, by the definition."""
    all_of_them = [*outcomes, 0.0, 1.0]
    mean = sum(all_of_them) / len(all_of_them)
    return sum((each - mean) ** 2 for each in all_of_them) / len(all_of_them) ** 2


@pytest.fixture
def ref(library):
    """An item about the drawer."""
    signatures = (State(SEE, task=TASK).signature,)
    return str(library.add(Item("insight", "look behind the wooden drawer", signatures=signatures)).item_id)


@pytest.fixture
def record(library, episode, ref):
    """Record an episode that showed or withheld the item, and return its id."""

    def record(shown, value, *, measure="score", success=False):
        made = episode("open drawer", see=SEE, task=TASK, success=success, reward=value, score=value)
        steps = tuple(replace(step, why={"recalled" if shown else "withheld": [ref]}) for step in made.steps)
        meta = {"environment": "bakery"} | ({"outcome": measure} if measure else {})
        score = 0.0 if measure == "reward" else value
        return library.record(replace(made, steps=steps, meta=meta, score=score))

    return record


# ---- the formula


def test_an_effect_of_graded_outcomes_by_hand():
    """Shown .2 .4 .3, withheld .9 .7 .8: p = 1.9 / 5, q = 3.4 / 5, with the variances of the five outcomes each."""
    shown, withheld = (0.2, 0.4, 0.3), (0.9, 0.7, 0.8)
    (found,) = shrink({1: count(shown, withheld)}).values()
    assert found.difference == pytest.approx(0.38 - 0.68)
    # by hand: (.04 + .16 + .09 + 1) / 5 - .38^2 = .1136 and (.81 + .49 + .64 + 1) / 5 - .68^2 = .1256, of 5 outcomes
    assert variance(shown) == pytest.approx(0.1136 / 5)
    margin = 1.645 * math.sqrt((0.1136 + 0.1256) / 5)
    assert (found.low, found.high) == pytest.approx((-0.3 - margin, -0.3 + margin))


@pytest.mark.parametrize("seed", range(5))
def test_successes_and_failures_give_the_figures_of_counts(seed):
    """To the last bit: what is known of a library does not move."""
    rng = random.Random(seed)
    shown, withheld = ([rng.choice((0, 1)) for _ in range(rng.randint(1, 40))] for _ in range(2))
    p, q = ((sum(arm) + 1) / (len(arm) + 2) for arm in (shown, withheld))
    v = p * (1 - p) / (len(shown) + 2) + q * (1 - q) / (len(withheld) + 2)
    assert _difference(count(shown, withheld)) == ((p - q) / v / (1.0 / v), 1.0 / (1.0 / v))


def test_equal_outcomes_have_an_interval():
    """Degenerate: outcomes without any spread keep that of the success and the failure that are added."""
    for value in (0.0, 0.5, 1.0):
        found = shrink({1: count([value] * 40, [value] * 40)})[1]
        assert found.difference == 0.0
        assert found.low < 0.0 < found.high
    few = count([0.4] * TUNING.min_arm_episodes, [0.5] * TUNING.min_arm_episodes)
    assert not hurts(few, shrink({1: few})[1])


@pytest.mark.parametrize("turn", [lambda x: 1.0 - x, lambda x: x**2], ids=["mirrored", "squared"])
def test_exchanged_or_mirrored_outcomes_turn_the_sign_alone(turn):
    """Arms exchanged: the opposite effect. Outcomes mirrored at one half: the opposite effect, equally certain."""
    rng = random.Random(7)
    shown, withheld = [rng.random() for _ in range(9)], [rng.random() ** 2 for _ in range(14)]
    here, there = (shrink({1: count(*arms)})[1] for arms in ((shown, withheld), (withheld, shown)))
    assert there.difference == pytest.approx(-here.difference)
    assert (there.low, there.high) == pytest.approx((-here.high, -here.low))
    mirrored = shrink({1: count(*([turn(x) for x in arm] for arm in (shown, withheld)))})[1]
    is_mirror = turn(0.0) == 1.0  # a square is none, so that the test can fail
    assert (mirrored.difference == pytest.approx(-here.difference)) == is_mirror
    assert (mirrored.high - mirrored.low == pytest.approx(here.high - here.low)) == is_mirror


def test_small_differences_of_steady_outcomes_are_seen_and_noise_is_not():
    """.55 against .7 forty times each is a loss; the same means of successes and failures may be chance."""
    steady = count([0.5, 0.6] * 20, [0.65, 0.75] * 20)
    assert hurts(steady, shrink({1: steady})[1])
    coins = Arms(40, 22, 40, 28)
    assert not hurts(coins, shrink({1: coins})[1])


@pytest.mark.parametrize("draw", [
    lambda rng: rng.random(),
    lambda rng: rng.betavariate(0.5, 0.5),
    lambda rng: 1.0 if rng.random() < 0.1 else 0.05,
], ids=["uniform", "ends", "rare"])  # fmt: skip
def test_an_item_without_effect_is_rarely_masked(draw):
    """The chance of a false mask is at most about .05, whatever the outcomes: here 400 items, skewed ones included."""
    rng = random.Random(3)
    for n, m in ((3, 3), (12, 4), (40, 40)):
        masks = 0
        for _ in range(400):
            arms = count([draw(rng) for _ in range(n)], [draw(rng) for _ in range(m)])
            masks += hurts(arms, shrink({1: arms})[1])
        assert masks <= 32  # two standard errors above 20


# ---- recorded episodes


@pytest.mark.parametrize("measure", ["score", "reward", ""])
def test_an_item_that_hurts_is_masked_where_no_episode_succeeds(library, ref, record, measure):
    """Of 0 and 1, the effect is that of failures and successes."""
    for _ in range(20):
        record(True, 0.0, measure=measure)
        record(False, 1.0, measure=measure, success=not measure)
    (effect,) = library.items.effects(ref)
    assert effect.masked
    assert effect.difference == pytest.approx(1 / 22 - 21 / 22)


def test_recall_leaves_out_an_item_that_makes_graded_outcomes_a_little_worse(library, ref, record):
    """.5 with it and .6 without it, each time: a small loss that is certain, of an item whose score is not low."""
    for _ in range(40):
        record(True, 0.5)
        record(False, 0.6)
    assert library.items.get(ref).score > 0.4
    assert ref in library.recall(State(SEE, task=TASK)).masked


def test_degrees_count_and_are_cut_to_the_range(library, ref, record):
    """A reward above 1 counts as 1 and one below 0 as 0; an episode that is not graded counts by its success."""
    for value in (7.0, -3.0, 0.5):
        record(True, value, measure="reward")
    record(False, 0.9, measure="", success=False)
    record(False, 0.25)
    (effect,) = library.items.effects(ref)
    assert (effect.shown, effect.withheld) == (3, 2)
    assert effect.difference == pytest.approx((1.5 + 1) / 5 - (0.25 + 1) / 4)


def test_a_grade_moves_the_effect_of_a_graded_episode(library, ref, record):
    """A person who gives another score, without a word about success, changes what the item did."""
    ids = [record(True, 0.5) for _ in range(4)] + [record(False, 0.5) for _ in range(4)]
    (before,) = library.items.effects(ref)
    assert before.difference == 0.0
    library.grade(ids[0], score=0.1)
    (after,) = library.items.effects(ref)
    assert after.difference == pytest.approx(-0.4 / 6)
