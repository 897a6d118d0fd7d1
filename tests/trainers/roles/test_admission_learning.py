"""Learning what to share: credit by hand, and a world in which it is known what is worth sharing."""

import random
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from tests.trainers.shared_work import decides, play, train

from hardwon.memory.errors import ConfigError
from hardwon.memory.retrieval.embedders import HashingEmbedder
from hardwon.runtime.teams.sharing_policy import NAMES, LogisticAdmission, SharingInput, compute_features
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

HELD_OUT = range(10_000, 10_050)
X = np.zeros(len(NAMES))


def measured(decide, teams=3):
    """On held-out tasks: mean reward, and the share admitted of what is worth sharing and of what is not."""
    rewards, admitted = [], {True: [0, 0], False: [0, 0]}
    for world in HELD_OUT:
        reward, log = play(decide, world, teams)
        rewards.append(reward)
        for line, admit, _ in log:
            admitted[line.worth][0] += admit
            admitted[line.worth][1] += 1
    rates = {worth: n / max(1, of) for worth, (n, of) in admitted.items()}
    total = sum(n for n, _ in admitted.values()) / sum(of for _, of in admitted.values())
    return fmean(rewards), rates[True], rates[False], total


def at_random(seed):
    chance = random.Random(seed)
    return lambda candidate: chance.random() < 0.4


@pytest.fixture(scope="module", params=[(0, 1), pytest.param((2, 3, 4), marks=pytest.mark.slow)])
def seeds(request):
    """The seeds of training: two of the five, unless the slow tests run."""
    return request.param


@pytest.fixture(scope="module")
def trained(seeds):
    """For each seed, an admission after some rounds on other tasks than those that are measured."""
    return [train(seed) for seed in seeds]


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


# -- what comes of it


def test_it_shares_what_would_be_reused(trained, seeds):
    """systems.md §4: held-out tasks, 5 seeds: P(admit | would be reused) / P(admit | not) > 2, about 1 for random."""
    for seed, admission in zip(seeds, trained, strict=True):
        _, worth, not_worth, _ = measured(decides(admission))
        assert worth > 2 * max(not_worth, 1e-3), seed
        _, worth, not_worth, _ = measured(at_random(seed))
        assert 0.8 < worth / not_worth < 1.25, seed


def test_it_is_worth_more_than_chance_than_sharing_all_and_than_sharing_nothing(trained, seeds):
    """systems.md §4: reward above random, AddAll and no-memory, 5 seeds."""
    everything, nothing = measured(lambda _: True)[0], measured(lambda _: False)[0]
    for seed, admission in zip(seeds, trained, strict=True):
        assert measured(decides(admission))[0] > max(everything, nothing, measured(at_random(seed))[0]), seed


@pytest.mark.parametrize("teams", [2, 5, 10])
def test_trained_with_three_teams_it_works_with_others(trained, teams):
    """systems.md §4: trained K=3, run K=2, 5 (and 10) without retraining, reward >= AddAll."""
    everything = measured(lambda _: True, teams)[0]
    assert all(measured(decides(admission), teams)[0] >= everything for admission in trained)


def test_by_default_it_shares_some_and_not_all(trained):
    """systems.md §4: sparsity: default within 10-90%."""
    assert all(0.1 < measured(decides(admission))[3] < 0.9 for admission in trained)


def test_without_a_price_everything_is_shared(seeds):
    """systems.md §4: sparsity: lambda = 0 admits > 95%."""
    assert all(measured(decides(train(seed, price=0.0, rate=0.0, rounds=20)))[3] > 0.95 for seed in seeds)


def test_a_price_above_what_reuse_pays_shares_nothing():
    """systems.md §4: lambda above beta times the reuse rate: the controller shuts."""
    assert measured(decides(train(0, price=1.5, rate=0.0, rounds=20)))[3] < 0.02


def test_an_exact_duplicate_is_less_probable(trained):
    """systems.md §4: an exact duplicate of a stored key has lower pi(YES) after training."""
    task = "collect all figures of the granite survey"
    key = "read page 7 -> granite survey figure 7"
    fresh = SharingInput(
        task, ("read page 3 -> granite survey figure 3",), "read page 7", key, "granite survey figure 7"
    )
    again = replace(fresh, keys=(*fresh.keys, key))
    for admission in trained:
        assert admission.probability(compute_features(again)) < admission.probability(compute_features(fresh)) - 0.2


def test_training_is_the_same_for_the_same_seed():
    assert np.array_equal(train(3, rounds=5).weights, train(3, rounds=5).weights)


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
