"""Losses by hand, at their edges, and invariant to micro-batches, padding and packing."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from hardwon.trainers.algorithms.losses import entropy, find_near_units, kl, policy_loss

LOW, HIGH = 0.2, 0.28
KINDS = ["ppo", "gspo", "cispo", "aepo"]


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


def loss(ratio, advantage, **settings):
    """The loss of one token at this ratio, and its gradient with respect to the log-probability."""
    old = vector(-1.0)
    new = (old + math.log(ratio)).requires_grad_()
    found = policy_loss(
        new, old, vector(advantage), vector(1.0), denominator=1.0, sequence=torch.tensor([0]), **settings
    )
    found.value.backward()
    return float(found.value.detach()), float(new.grad[0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 1.0, -1.1, -1.1),
        (1.5, 1.0, -(1 + HIGH), 0.0),
        (0.5, 1.0, -0.5, -0.5),
        (0.5, -1.0, 1 - LOW, 0.0),
        (1.5, -1.0, 1.5, 1.5),
    ],
)
def test_ppo_by_hand(ratio, advantage, value, gradient):
    """Clipped only where moving on would be rewarded."""
    assert loss(ratio, advantage, kind="ppo") == pytest.approx((value, gradient))


def test_cispo_keeps_the_gradient_of_a_clipped_token():
    """-sg(clip(r)) A log p."""
    assert loss(1.5, 1.0, kind="cispo")[1] == pytest.approx(-(1 + HIGH))


def test_gspo_has_one_ratio_a_sequence():
    """Log-ratios .2 and 0 of one sequence: exp(.1) for both tokens."""
    old, new = vector(-1.0, -1.0), vector(-0.8, -1.0).requires_grad_()
    found = policy_loss(
        new, old, vector(1, 1), vector(1, 1), denominator=2.0, kind="gspo", sequence=torch.tensor([0, 0])
    )
    assert float(found.value.detach()) == pytest.approx(-math.exp(0.1))


def test_gspo_by_turn_has_one_ratio_a_turn():
    """Log-ratios .2, 0 | -.4: by sequence .9355, by turn 1.1052 and .6703."""
    old, new = vector(-1.0, -1.0, -1.0), vector(-0.8, -1.0, -1.4)
    whole = policy_loss(
        new, old, vector(1, 1, 1), vector(1, 1, 1), denominator=3, kind="gspo", sequence=torch.tensor([0, 0, 0])
    )
    assert float(whole.value) == pytest.approx(-0.9355, abs=1e-4)
    turns = torch.tensor([0, 0, 1])
    found = policy_loss(new, old, vector(1, 1, 0), vector(1, 1, 1), denominator=2, kind="gspo", sequence=turns)
    assert float(found.value) == pytest.approx(-1.1052, abs=1e-4)
    last = policy_loss(new, old, vector(0, 0, -1), vector(1, 1, 1), denominator=1, kind="gspo", low=0.5, sequence=turns)
    assert float(last.value) == pytest.approx(0.6703, abs=1e-4)


def test_a_turn_far_from_the_policy_that_sampled_is_left_out():
    """By hand: turn 0 has a mean of exp((.2 + 0) / 2) = 1.105, turn 1 of exp((.9 + .7) / 2) = 2.226."""
    old, rollout = vector(-1.0, -1.0, -1.0, -1.0), vector(-1.2, -1.0, -1.9, -1.7)
    turns, ones = torch.tensor([0, 0, 1, 1]), vector(1, 1, 1, 1)
    assert find_near_units(old, rollout, ones, turns, 2.0).tolist() == [1, 1, 0, 0]
    assert find_near_units(old, rollout, ones, turns, 2.3).tolist() == [1, 1, 1, 1]
    # tokens that are not trained do not count: without the first one, turn 1 has exp(.7) = 2.014
    assert find_near_units(old, rollout, vector(1, 1, 0, 1), turns, 2.1).tolist() == [1, 1, 1, 1]

    def loss(bound, advantages):
        kind: Any = {"kind": "gspo", "sequence": turns, "rollout": rollout}
        return float(policy_loss(old, old, advantages, ones, denominator=4, max_mismatch=bound, **kind).value)

    assert loss(2.0, vector(1, 1, 1, 1)) == pytest.approx(loss(None, vector(1, 1, 0, 0)))
    assert loss(1e6, vector(1, 1, 1, 1)) == loss(None, vector(1, 1, 1, 1))
    # the order of the turns makes no difference
    back = policy_loss(
        old, old, ones, ones, denominator=4, kind="gspo", max_mismatch=2.0,
        rollout=rollout.flip(0), sequence=1 - turns.flip(0),
    )  # fmt: skip
    assert float(back.value) == pytest.approx(loss(2.0, ones))


def test_ppo_by_turn_is_gspo_by_turn():
    old, new, turns = vector(-1.0, -1.0, -1.0), vector(-0.8, -1.0, -1.4), torch.tensor([0, 0, 1])
    both = [
        policy_loss(new, old, vector(1, 1, -1), vector(1, 1, 1), denominator=3, sequence=turns, **kind)
        for kind in ({"kind": "gspo"}, {"kind": "ppo", "grouped": True})
    ]
    assert float(both[0].value) == float(both[1].value)


def test_aepo_keeps_the_gradient_above_the_upper_clip_only():
    """r = 1.5, A = 1: value -1.28 and gradient -1.28, where ppo has 0; elsewhere it is ppo."""
    assert loss(1.5, 1.0, kind="aepo") == pytest.approx((-1.28, -1.28))
    for ratio, advantage in ((1.1, 1.0), (0.5, 1.0), (0.5, -1.0), (1.5, -1.0)):
        assert loss(ratio, advantage, kind="aepo") == pytest.approx(loss(ratio, advantage, kind="ppo"))


def test_gspo_must_know_the_sequences():
    with pytest.raises(ValueError, match="needs `sequence`"):
        policy_loss(vector(0.0), vector(0.0), vector(1.0), vector(1.0), denominator=1.0, kind="gspo")


def test_truncated_importance_weights_and_their_sample_size():
    """exp(old - rollout) = 1 and 4, cut at 2: loss -(1 + 2) / 2, ESS (1 + 2)^2 / (2 (1 + 4))."""
    old = vector(-1.0, -1.0)
    rollout = vector(-1.0, -1.0 - math.log(4))
    found = policy_loss(old.clone(), old, vector(1, 1), vector(1, 1), denominator=2.0, rollout=rollout)
    assert float(found.value) == pytest.approx(-1.5)
    assert found.metrics["ess"] == pytest.approx(0.9)


def test_a_long_row_is_not_thrown_away_by_small_drifts():
    """0.012 a token over 300 tokens: by token the weights stay near 1 (by sequence the ratio would be 36)."""
    old = torch.full((300,), -1.0, dtype=torch.float64)
    found = policy_loss(old.clone(), old, torch.ones(300), torch.ones(300), denominator=300.0, rollout=old - 0.012)
    assert float(found.value) == pytest.approx(-math.exp(0.012))


@st.composite
def streams(draw):
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    n = sum(sizes)
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    new, old, rollout = (-torch.rand(n, generator=rng, dtype=torch.float64) * 3 for _ in range(3))
    advantages = torch.randn(n, generator=rng, dtype=torch.float64)
    mask = (torch.rand(n, generator=rng) > 0.3).double()
    sequence = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return sizes, new, old, rollout, advantages, mask, sequence


def gradient(kind, parts, denominator):
    """The summed gradient over parts of a stream."""
    grads = []
    for new, old, rollout, advantages, mask, sequence in parts:
        leaf = new.clone().requires_grad_()
        settings = {"kind": kind, "sequence": sequence - sequence.min(), "rollout": rollout}
        (
            policy_loss(leaf, old, advantages, mask, denominator=denominator, **settings).value
            + kl(leaf, rollout, mask, denominator=denominator)
        ).backward()
        grads.append(leaf.grad)
    return torch.cat(grads)


@pytest.mark.parametrize("kind", KINDS)
@given(stream=streams())
def test_micro_batches_do_not_change_the_gradient(kind, stream):
    """Cut between sequences anywhere, with the global denominator: the same to 1e-6."""
    sizes, *tensors, sequence = stream
    denominator = max(1.0, float(tensors[-1].sum()))
    whole = gradient(kind, [(*tensors, sequence)], denominator)
    cut = list(zip(*(torch.split(tensor, sizes) for tensor in (*tensors, sequence)), strict=True))
    assert torch.allclose(whole, gradient(kind, cut, denominator), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@given(stream=streams(), extra=st.integers(1, 5))
def test_padding_does_not_change_the_gradient(kind, stream, extra):
    """Tokens outside the mask, whatever they hold, -inf too, add nothing."""
    _, *tensors, sequence = stream
    denominator = max(1.0, float(tensors[-1].sum()))
    whole = gradient(kind, [(*tensors, sequence)], denominator)
    filler = [-float("inf"), -3.0, -1.0, 7.0, 0.0]
    padded = [
        torch.cat([tensor, torch.full((extra,), value, dtype=torch.float64)])
        for tensor, value in zip(tensors, filler, strict=True)
    ]
    found = gradient(
        kind, [(*padded, torch.cat([sequence, torch.full((extra,), int(sequence.max()) + 1)]))], denominator
    )
    assert torch.allclose(whole, found[: len(whole)], atol=1e-6)
    assert not found[len(whole) :].any()


@pytest.mark.parametrize("kind", KINDS)
@given(stream=streams(), chance=st.randoms(use_true_random=False))
def test_packing_order_does_not_change_the_gradient(kind, stream, chance):
    sizes, *tensors, sequence = stream
    denominator = max(1.0, float(tensors[-1].sum()))
    whole = torch.split(gradient(kind, [(*tensors, sequence)], denominator), sizes)
    order = chance.sample(range(len(sizes)), len(sizes))
    parts = [torch.cat([torch.split(tensor, sizes)[n] for n in order]) for tensor in (*tensors, sequence)]
    leaf_sizes = [sizes[n] for n in order]
    found = torch.split(gradient(kind, [tuple(parts)], denominator), leaf_sizes)
    assert all(torch.allclose(whole[n], found[at], atol=1e-6) for at, n in enumerate(order))


def test_kl_by_hand():
    value = math.exp(-0.5) - 1 + 0.5
    assert float(kl(vector(-0.5), vector(-1.0), vector(1.0), denominator=1.0)) == pytest.approx(value)


def test_kl_to_itself_is_zero():
    assert float(kl(vector(-0.5, -2.0), vector(-0.5, -2.0), vector(1, 1), denominator=2.0)) == 0.0


def test_entropy_of_masked_logits():
    """Two possible tokens of three: log 2."""
    assert float(entropy(torch.tensor([[0.0, 0.0, -float("inf")]]))[0]) == pytest.approx(math.log(2))
