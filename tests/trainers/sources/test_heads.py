"""Heads on frozen features: worked examples, degenerate cases, what they learn, and that they are restored."""

import asyncio
from dataclasses import replace

import pytest
import torch

from hardwon.trainers.algorithms.samples import Sample
from hardwon.trainers.models.tiny import TinyConfig, build_model
from hardwon.trainers.sources.heads import (
    ContributionSource,
    CriticSource,
    RewardHeadSource,
    compute_features,
    compute_sum_loss,
    compute_targets,
)
from hardwon.trainers.sources.world import EntitiesSource

from .test_sources import parts_of, rollout, step

TOKENS = {"good": 5, "bad": 6}


@pytest.fixture(scope="module")
def model():
    return build_model(16, TinyConfig(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=16))


def played(name, *actions, success=True):
    """A rollout in which the actions are told apart by one token, all at the same anchor."""
    rows: list[Sample] = []
    prompt: tuple[int, ...] = (1, 2)
    for t, action in enumerate(actions):
        fields = ("policy", 1, "control", "", "hall", name, t)
        rows.append(Sample(prompt, (TOKENS[action],), (-0.7,), (True,), ((5, 6),), *fields))
        prompt = (*prompt, TOKENS[action], 3)
    steps = [step(t, action, reward=float(success and t == len(actions) - 1)) for t, action in enumerate(actions)]
    one = rollout(name, steps, rows)
    return replace(one, trajectory=replace(one.trajectory, success=success))


GROUP = [played("a", "good"), played("b", "bad", success=False), played("c", "good"), played("d", "bad", success=False)]


def read(source, *rollouts):
    return asyncio.run(source.read([rollouts]))


def test_the_sum_loss_by_hand():
    """c = (.2, .3), R = 1: loss .25, gradient -1 on each c."""
    contributions = torch.tensor([0.2, 0.3], requires_grad=True)
    loss = compute_sum_loss(contributions, 1.0)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.25)
    assert contributions.grad is not None
    assert contributions.grad.tolist() == pytest.approx([-1.0, -1.0])


def test_contributions_learn_to_sum_to_the_outcome(model):
    source = ContributionSource(parts_of(model), lr=0.01, updates=100)
    metrics = source.learn([GROUP])
    assert metrics["loss"] < 0.05
    found = read(source, *GROUP)
    assert found["a"].turns["contribution"][0] > found["b"].turns["contribution"][0] + 0.5


def test_features_do_not_depend_on_the_batch(model):
    rows = [row for one in (played("a", "good", "bad"), played("b", "bad")) for row in one.rows]
    whole = compute_features(parts_of(model), rows)
    alone = torch.cat([compute_features(parts_of(model, budget=1), [row]) for row in rows])
    assert torch.allclose(whole, alone, atol=1e-5)


def test_a_process_reward_prefers_the_action_with_the_better_return(model):
    source = RewardHeadSource(parts_of(model), lr=0.01, updates=60)
    assert source.learn([[GROUP[0], GROUP[2]]]) == {"pairs": 0.0}
    metrics = source.learn([GROUP])
    assert (metrics["pairs"], metrics["accuracy"]) == (1.0, 1.0)
    found = read(source, *GROUP)
    assert found["a"].turns["prm"][0] > found["b"].turns["prm"][0]


def test_targets_of_the_critic_by_hand():
    """Discount .9, rewards 0 and 1, V_target(s2) = .6: targets .54 and 1."""
    targets = compute_targets(torch.tensor([0.0, 1.0]), torch.tensor([0.6, 9.0]), torch.tensor([0.0, 1.0]), 0.9)
    assert targets.tolist() == pytest.approx([0.54, 1.0])


class Constant(torch.nn.Module):
    """A critic that says one number."""

    def __init__(self, value):
        super().__init__()
        self.value = torch.nn.Parameter(torch.tensor(value))

    def forward(self, features):
        return self.value.expand(len(features), 1)


@pytest.mark.parametrize("constant", [0.0, 5.0])
@pytest.mark.parametrize("critics", [(0.8, 0.7, 0.5, 0.6), (0.7, 0.8, 0.5, 0.6), (0.8, 0.7, 0.6, 0.5)])
def test_the_advantage_of_the_critic_by_hand(model, critics, constant):
    """Q = .8, .7 and V = .5, .6, in any order: A = .2; a constant added to all four changes nothing."""
    source = CriticSource(parts_of(model), warmup=1)
    source._nets = torch.nn.ModuleList(Constant(value + constant) for value in critics)
    source._targets, source._steps, source._explained = source._nets, 1, 1.0
    assert read(source, GROUP[0])["a"].turns["critic"] == (pytest.approx(0.2, abs=1e-6),)


def test_a_target_moves_by_tau(model):
    """After one update a target is a tenth of the way from where it was to the critic."""
    source = CriticSource(parts_of(model), updates=1)
    source.learn([GROUP])
    assert source._targets is not None
    before = [target.detach().clone() for target in source._targets.parameters()]
    source.learn([GROUP])
    nets = [parameter.detach() for parameter in source._open(0).parameters()]
    for old, target, new in zip(before, source._targets.parameters(), nets, strict=True):
        assert torch.allclose(target.detach(), old + 0.1 * (new - old), atol=1e-6)


def test_contributions_of_a_constant_outcome_are_equal_shares(model):
    """R = 1 over all episodes of two turns: each turn gets about half, in any order of the episodes."""
    pairs = [played("a", "good", "bad"), played("b", "bad", "good")]
    source = ContributionSource(parts_of(model), lr=0.01, updates=150)
    source.learn([pairs])
    for one in read(source, *pairs).values():
        assert sum(one.turns["contribution"]) == pytest.approx(1.0, abs=0.1)


def test_contributions_do_not_change_with_the_order_of_episodes(model):
    """SPA: the head learns from all episodes of its buffer at once, of whatever group and length."""
    other = [played("e", "bad", "good"), played("f", "bad", "bad", "bad", success=False)]
    batches = [[GROUP, other], [other[::-1], [GROUP[at] for at in (2, 0, 3, 1)]]]
    found = []
    for groups in batches:
        source = ContributionSource(parts_of(model), lr=0.01, updates=10)
        source.learn(groups)
        signals = read(source, *GROUP, *other)
        found.append([value for name in "abcdef" for value in signals[name].turns["contribution"]])
    assert found[0] == pytest.approx(found[1], abs=1e-5)
    assert max(found[0]) - min(found[0]) > 0.1


def test_the_critic_gives_nothing_before_its_warm_up_and_then_tells_good_from_bad(model):
    source = CriticSource(parts_of(model), lr=0.01, updates=10, warmup=20)
    source.learn([GROUP])
    assert {value for one in read(source, *GROUP).values() for value in one.turns["critic"]} == {0.0}
    for _ in range(15):
        metrics = source.learn([GROUP])
    assert metrics["explained"] > 0.5
    found = read(source, *GROUP)
    assert found["a"].turns["critic"][0] > found["b"].turns["critic"][0]


@pytest.mark.parametrize(
    ("build", "settings"),
    [
        (ContributionSource, {"updates": 3}),
        (RewardHeadSource, {"updates": 3}),
        (CriticSource, {"updates": 3, "warmup": 1}),
    ],
)
def test_a_head_is_restored_bit_for_bit(model, build, settings):
    one, two = (build(parts_of(model), **settings) for _ in range(2))
    assert one.state_dict() == {}
    one.learn([GROUP])
    two.load_state_dict(one.state_dict())
    assert one.learn([GROUP]) == two.learn([GROUP])
    assert read(one, *GROUP) == read(two, *GROUP)


def test_entities_are_the_words_of_an_explored_success():
    best = rollout("best", [step(0, "take brass key"), step(1, "open door")]).trajectory
    source = EntitiesSource(parts_of(reference=lambda task, seed: best))
    one = replace(rollout("a", [step(0, "take key")]), group="train#1")
    assert read(source, one)["a"].trace["entities"] == pytest.approx(2 / 5)
    nothing = EntitiesSource(parts_of())
    assert read(nothing, one)["a"].trace["entities"] == 0.0
