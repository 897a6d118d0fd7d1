"""Verdicts: the better of two words is trained, even where a decision is certain and wrong."""

import math
from typing import Any

import pytest
import torch

from hardwon.trainers.algorithms.learner import Learner, LearnerSettings
from hardwon.trainers.algorithms.samples import WordChoice, pack_samples
from hardwon.trainers.engines.trie import Trie
from hardwon.trainers.gating.deciding import Decider
from hardwon.trainers.gating.tuning import TUNING
from hardwon.trainers.gating.verdicts import weigh, weigh_sampled
from hardwon.trainers.models.tiny import TinyConfig, build_model
from hardwon.trainers.prompting.base import Verdicts

YES, NO = (5, 2), (6, 2)


class Words:
    """Prompts with two answers."""

    def verdicts(self, purpose):
        return Verdicts(YES, NO, Trie([YES, NO]))


def both(p_yes, trace="a"):
    return Decider(Any, Words(), "guide", role="guide").build_words(WordChoice((1, 3), p_yes, 4), trace)  # type: ignore[arg-type]


def weigh_at(p_yes, gain):
    yes, no = both(p_yes)
    return weigh(yes, no, gain)


def slope(p_yes, weights):
    """The gradient of the objective with respect to the log-odds of the word that agrees."""
    yes, no = weights
    return yes * (1.0 - p_yes) - no * p_yes


def test_weights_by_hand():
    assert weigh_at(0.8, 0.5) == pytest.approx((0.4, 0.0))
    assert weigh_at(0.6, -0.5) == pytest.approx((0.0, 0.2))
    assert weigh_at(0.8, -0.5) == pytest.approx((0.0, 0.5 * TUNING.min_probability))


@pytest.mark.parametrize("p", [TUNING.min_probability, 0.5, 1.0 - TUNING.min_probability])
@pytest.mark.parametrize("gain", [-0.7, 0.0, 0.3])
def test_between_the_floors_it_is_the_gradient_of_the_expected_reward(p, gain):
    assert slope(p, weigh_at(p, gain)) == pytest.approx(gain * p * (1.0 - p))


@pytest.mark.parametrize("p", [0.9, 0.9999, 1.0 - 1e-12])
def test_a_decision_that_is_certain_and_wrong_is_still_moved(p):
    """The expected reward's gradient is as good as 0 there, so the decision would stay wrong for ever."""
    assert slope(p, weigh_at(p, -1.0)) < -0.9 * TUNING.min_probability * 0.9
    assert abs(slope(p, weigh_at(p, 1.0))) <= p * (1.0 - p) + 1e-9


@pytest.mark.parametrize("p", [0.02, 0.4, 0.97])
def test_the_two_words_are_treated_alike(p):
    yes, no = both(p)
    assert weigh(yes, no, 0.6) == pytest.approx(weigh(no, yes, -0.6)[::-1])
    assert weigh(yes, no, 0.0) == (0.0, 0.0)


@pytest.mark.parametrize("p", [0.3, 0.5, 0.75])
@pytest.mark.parametrize("advantage", [-0.4, 0.9])
def test_a_sampled_word_with_an_advantage_has_the_policy_gradient(p, advantage):
    yes, no = both(p)
    assert slope(p, weigh_sampled(yes, no, advantage)) == pytest.approx(advantage * (1.0 - p))
    other = weigh_sampled(no, yes, advantage)[::-1]
    assert slope(p, other) == pytest.approx(-advantage * p)


def test_a_sampled_word_that_was_certain_and_bad_trains_the_other_one():
    yes, no = both(0.999)
    own, other = weigh_sampled(yes, no, -1.0)
    assert own == 0.0
    assert slope(0.999, (own, other)) == pytest.approx(-TUNING.min_probability)


def test_both_words_belong_to_the_same_decision():
    yes, no = both(0.75)
    assert (yes.completion, yes.prompt, yes.trace, yes.version) == (YES, (1, 3), "a", 4)
    assert (no.completion, no.prompt, no.version) == (NO, (1, 3), 4)
    assert [math.exp(word.logprobs[0]) for word in (yes, no)] == pytest.approx([0.75, 0.25])
    assert {(word.mask, word.allowed) for word in (yes, no)} == {((True, False), ((5, 6), (2,)))}


def test_a_probability_of_0_is_finite():
    yes, no = both(0.0)
    assert math.isfinite(yes.logprobs[0])
    assert weigh(yes, no, 1.0) == (TUNING.min_probability, 0.0)


@pytest.mark.parametrize("right", [YES, NO])
def test_a_learner_unlearns_what_it_was_certain_of(right):
    """From P = .998 of the wrong word, through the learner of the trainer."""
    torch.manual_seed(0)
    model = build_model(8, TinyConfig(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=16))
    wrong = NO if right == YES else YES
    learner = Learner(model, dict(model.named_parameters()), LearnerSettings(lr=1e-2))

    def read():
        with torch.no_grad():
            logits = model(torch.tensor([[1, 3]])).logits[0, -1]
        return float(torch.softmax(logits[[YES[0], NO[0]]], 0)[0])

    with torch.no_grad():
        head = model.get_output_embeddings().weight
        hidden = model.base_model(torch.tensor([[1, 3]])).last_hidden_state[0, -1]
        head[wrong[0]] = hidden * 6.2 / hidden.square().sum() + head[right[0]]
    p_right = read() if right == YES else 1.0 - read()
    assert p_right < 0.01
    for n in range(40):
        p_yes = read()
        yes, no = both(p_yes, f"{n}")
        weights = weigh(yes, no, 1.0 if right == YES else -1.0)
        trained = [word for word, weight in zip((yes, no), weights, strict=True) if weight]
        learner.step(pack_samples(trained, {trained[0].trace: [max(weights)]}))
    assert (read() if right == YES else 1.0 - read()) > 0.9
