"""Learning what to share: credit by hand, and what moves the weights."""

import random
from dataclasses import replace

import numpy as np
import pytest

from hardwon.memory.errors import ConfigError
from hardwon.memory.retrieval.embedders import HashingEmbedder
from hardwon.runtime.teams.sharing_policy import NAMES, LogisticAdmission, SharingInput
from hardwon.trainers.roles.admission_learning import (
    AdmissionTrainer,
    Decided,
    Episode,
    Sparsity,
    advantages,
    base_advantages,
    credit,
    run_reward,
    with_sparsity,
)

X = np.zeros(len(NAMES))


# -- credit


def test_credit_by_hand():
    """systems.md §4: hand case matches to 1e-6; unused or R=0 admission gets no bonus.

    Rewards 1.5, 0.5, 1.0, 0: mean 0.75, std sqrt(0.3125).
    """
    seen = [(True, True), (True, False), (False, False)]
    group = [
        Episode(reward, tuple(Decided(X, admit, 0.6, used) for admit, used in seen)) for reward in (1.5, 0.5, 1, 0)
    ]
    found = advantages(group, usage_weight=0.8, sparsity=0.1)
    std = 0.3125**0.5 + 1e-6
    for episode, values in zip(group, found, strict=True):
        base = (episode.reward - 0.75) / std
        bonus = 0.8 if episode.reward > 0 else 0.0
        assert values == pytest.approx([base + bonus - 0.06, base - 0.06, base + 0.04], abs=1e-6)


def test_what_nobody_pulled_or_what_came_to_nothing_gets_no_bonus():
    """systems.md §4: A = A_base + beta * 1[t in U and R > 0]."""
    assert credit(0.3, 1.0, used=True, usage_weight=0.5) == pytest.approx(0.8)
    assert credit(0.3, 1.0, used=False, usage_weight=0.5) == 0.3
    assert credit(0.3, 0.0, used=True, usage_weight=0.5) == 0.3


def test_runs_that_are_all_equal_say_nothing():
    assert base_advantages([1.5] * 5) == [0.0] * 5


@pytest.mark.parametrize("admit", [True, False])
def test_the_price_as_an_advantage_has_the_gradient_of_the_price(admit):
    """systems.md §4: + lambda * pi(YES): d/dlogit of 0.3 p is 0.3 p (1 - p), whatever was decided."""
    p = 0.2
    slope_of_the_log = (1.0 if admit else 0.0) - p
    assert -with_sparsity(0.0, admit, p, 0.3) * slope_of_the_log == pytest.approx(0.3 * p * (1 - p))


def test_of_two_runs_of_one_score_the_one_with_an_early_correct_team_is_worth_more():
    """systems.md §4: first-finisher reward: equal in R_agg, the one with an early correct team ranks higher."""
    assert run_reward(1.0, first=1.0) > run_reward(1.0, first=0.0)
    assert run_reward(1.0, first=1.0, earliness=0.8) > run_reward(1.0, first=1.0, earliness=0.3)
    assert run_reward(0.5, 1.0, earliness=0.5, first_weight=0.4) == pytest.approx(0.7)


def test_the_price_rises_while_too_much_is_shared_and_falls_before_nothing_is():
    """systems.md §4: an adaptive lambda holds a target admission rate."""
    price = Sparsity(target=0.4)
    for _ in range(20):
        price.update(0.9)
    high = price.price
    price.update(0.2)
    assert 0.5 < high <= 1.0
    assert price.price < high - 0.5
    for _ in range(60):
        price.update(0.1)
    assert price.price == 0.0


def test_a_target_that_cannot_be_held_is_refused():
    with pytest.raises(ConfigError, match=r"target is 1\.5"):
        Sparsity(target=1.5)


def test_an_embedder_s_vectors_are_features_that_are_trained():
    admission = LogisticAdmission(embedder=HashingEmbedder(16), chance=random.Random(0))
    x = admission.features(SharingInput("find the coin", ("a key",), "look", "look -> a coin", "a coin"))
    assert x.shape == admission.weights.shape == (len(NAMES) + 18,)
    other = replace(SharingInput("", (), "", "", ""), task="find the coin", key="wait -> nothing", action="wait")
    group = [
        Episode(1.0, (Decided(x, True, 0.5, True),)),
        Episode(0.0, (Decided(admission.features(other), True, 0.5, False),)),
    ]
    trainer = AdmissionTrainer(admission)
    for _ in range(20):
        trainer.update([group])
    assert admission.probability(x) > 0.8
    assert admission.probability(admission.features(other)) < 0.5


def test_nothing_to_learn_from_moves_nothing():
    admission = LogisticAdmission()
    assert AdmissionTrainer(admission).update([])["decisions"] == 0.0
    assert not admission.weights.any()


def test_a_price_lowers_what_is_shared_and_moves_with_it():
    """Two runs alike, and no step was pulled: the price alone makes sharing less probable."""
    decisions = (Decided(X + 1.0, True, 0.5), Decided(X + 1.0, False, 0.5))
    group = [[Episode(1.0, decisions)] * 2]
    for price, weight in ((0.0, 0.0), (1.0, -0.1)):
        trainer = AdmissionTrainer(LogisticAdmission(), Sparsity(target=0.4, begin=price, rate=0.01), lr=0.1)
        assert trainer.update(group)["price"] == price
        assert trainer.admission.weights[0] == pytest.approx(weight, abs=1e-6)
        assert trainer.sparsity.price == pytest.approx(min(1.0, price + 26 * 0.01 * 0.1))


@pytest.mark.parametrize(("usage_weight", "weight"), [(0.0, 0.0), (1.0, 0.1)])
def test_a_step_that_was_pulled_is_shared_more(usage_weight, weight):
    group = [[Episode(1.0, (Decided(X + 1.0, True, 0.5, used=True),))] * 2]
    trainer = AdmissionTrainer(LogisticAdmission(), usage_weight=usage_weight, lr=0.1)
    trainer.update(group)
    assert trainer.admission.weights[0] == pytest.approx(weight, abs=1e-6)
