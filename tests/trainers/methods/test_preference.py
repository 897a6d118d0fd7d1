"""Preferences as token weights, and tournaments: worked examples, degenerate cases, invariances."""

import asyncio
import math

import pytest
import torch
from tests.trainers.methods.traces import make

from hardwon.trainers.algorithms.judging.preference import (
    Pair,
    measure_pairs,
    pair_by_outcome,
    pair_by_quality,
    sum_by_trace,
    weigh_tokens,
)
from hardwon.trainers.algorithms.judging.tournament import rank_by_tournament
from hardwon.trainers.methods.preference import preference


def test_weights_by_hand():
    """Log-ratio sums a 6, b -2, beta .05: loss .5130, weight .4013, a token's weight .02007."""
    pairs, sums = [Pair("a", "b")], {"a": 6.0, "b": -2.0}
    loss, accuracy = measure_pairs(pairs, sums, beta=0.05)
    assert loss == pytest.approx(0.5130, abs=1e-4)
    assert accuracy == 1.0
    assert weigh_tokens(pairs, sums, beta=0.05) == pytest.approx({"a": 0.02007, "b": -0.02007}, abs=1e-5)


def test_weights_are_the_gradient_of_the_preference_loss():
    """The weight of a token is minus the derivative of the loss in its log-probability."""
    pairs = [Pair("a", "b", 0.5), Pair("c", "b")]
    values = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in SUMS.items()}
    margins = [0.3 * (values[pair.better] - values[pair.worse]) for pair in pairs]
    losses = [-pair.weight * torch.nn.functional.logsigmoid(z) for pair, z in zip(pairs, margins, strict=True)]
    torch.stack(losses).mean().backward()
    weights = weigh_tokens(pairs, SUMS, beta=0.3)
    gradients = {name: value.grad for name, value in values.items()}
    assert weights == pytest.approx({n: -float(g) for n, g in gradients.items() if g is not None}, abs=1e-12)


SUMS = {"a": 0.7, "b": -0.2, "c": 0.1}


def test_equal_outcomes_make_no_pair():
    assert pair_by_outcome([make("a", 1.0), make("b", 1.0)]) == []
    assert measure_pairs([], {}, beta=1.0) == (0.0, 0.0)


def test_pairs_by_quality_by_hand():
    """Different outcomes: weight 1. Both failed with r .75 and .25: weight .5. Equal r: none; never both mirrors."""
    batch = [make("a", 0.0), make("b", 0.0), make("c", 1.0), make("d", 0.0)]
    pairs = pair_by_quality(batch, {"a": 0.75, "b": 0.25, "c": 0.0, "d": 0.25})
    assert Pair("a", "b", 0.5) in pairs
    assert Pair("c", "a") in pairs
    both = [(p.better, p.worse) for p in pairs]
    assert ("b", "d") not in both
    assert not [(b, a) for a, b in both if (b, a) in both]


def test_step_orm_margin_by_hand():
    """log pi -4 and -6, beta .1: z = .2, loss .5981, token weight .0450."""
    pairs, sums = [Pair("a", "b")], {"a": -4.0, "b": -6.0}
    assert measure_pairs(pairs, sums, beta=0.1)[0] == pytest.approx(0.5981, abs=1e-4)
    assert weigh_tokens(pairs, sums, beta=0.1)["a"] == pytest.approx(0.0450, abs=1e-4)


def test_sums_by_trace():
    assert sum_by_trace([("a", 1.0), ("b", 2.0), ("a", 0.5)]) == {"a": 1.5, "b": 2.0}


def play(strengths, scale=1.0, shift=0.0, silent=False):
    calls = []

    async def compare(matches):
        calls.extend(matches)
        return [None if silent else (strengths[a] * scale + shift, strengths[b] * scale + shift) for a, b in matches]

    return asyncio.run(rank_by_tournament(len(strengths), compare)), calls


def test_tournament_by_hand():
    """Strengths 2, 4, 1, 3: order 1, 3, 0, 2; rewards 1/3, 1, 0, 2/3; 12 calls."""
    rewards, calls = play([2, 4, 1, 3])
    assert rewards == pytest.approx([1 / 3, 1, 0, 2 / 3])
    assert len(calls) == 12
    mean, spread = 0.5, math.sqrt(sum((r - 0.5) ** 2 for r in rewards) / 3)
    assert [(r - mean) / spread for r in rewards] == pytest.approx([-0.3873, 1.1619, -1.1619, 0.3873], abs=1e-4)


def test_tournament_of_one_and_of_two():
    assert play([5])[0] == [0.0]
    assert play([1, 2])[0] == [0.0, 1.0]


@pytest.mark.parametrize("number", [3, 5, 6, 7])
def test_tournament_with_byes_ranks_everybody_once(number):
    rewards, calls = play(list(range(number)))
    assert sorted(rewards) == pytest.approx([n / (number - 1) for n in range(number)])
    assert rewards[number - 1] == 1.0
    assert len(calls) == 4 * (number - 1)


def test_tournament_does_not_change_with_the_scale_of_the_judge():
    assert play([2, 4, 1, 3])[0] == play([2, 4, 1, 3], scale=3.0, shift=7.0)[0]


def test_a_judge_that_prefers_the_first_side_ranks_as_one_that_does_not():
    """Both orders are judged, so swapping the sides of every call changes nothing."""
    strengths = [2.0, 4.0, 1.0, 3.0]

    async def favor_first(matches):
        return [(strengths[a] + 9, strengths[b]) for a, b in matches]

    async def favor_second(matches):
        return [(strengths[a], strengths[b] + 9) for a, b in matches]

    first, second = (asyncio.run(rank_by_tournament(4, favor)) for favor in (favor_first, favor_second))
    assert first == second == play([2, 4, 1, 3])[0]


def test_ties_at_the_end_of_a_round_share_the_mean_rank():
    rewards, _ = play([3, 4, 1, 1], silent=False)
    assert rewards[1] == 1.0
    silent, _ = play([3, 4, 1, 1], silent=True)
    assert silent[2] == silent[3] == pytest.approx(1 - 2.5 / 3)


def test_preferences_of_a_judge_are_advantages():
    """Equal outcomes, right shares 1 and 0: w = 1, sigmoid(0) = .5, so beta / 2 times the number of traces."""
    found = preference([make("a", 0.0, steps=[1, 1]), make("b", 0.0, steps=[0])])
    assert found == {"a": pytest.approx([0.1, 0.1]), "b": pytest.approx([-0.1])}
    assert preference([make("a", 0.0, steps=[1]), make("b", 0.0, steps=[1])]) == {"a": [0.0], "b": [0.0]}
