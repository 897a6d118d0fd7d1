"""Credit of a guide by hand, and toys with known answers: softmax guides over hints, no language model."""

import math
from statistics import fmean

import numpy as np
import pytest

from hardwon.trainers.algorithms.advantages import standardize
from hardwon.trainers.roles.guides.credit import Branch, guide_credit


def branches(*outcomes, tokens=0):
    return [Branch((outcome,), tokens) for outcome in outcomes]


def test_the_advantages_by_hand():
    """r = 1 - .05, 0 - .05, 1 - .1 (cost .1, length 8); r_0 = .5; std is the unbiased one."""
    generated = [Branch((1.0,), 4), Branch((0.0,), 4), Branch((1.0,), 8)]
    found = guide_credit(Branch((0.0, 1.0)), generated, cost=0.1, length=8)
    assert found.decision == pytest.approx(0.6 - 0.5, abs=1e-6)
    spread = math.sqrt((0.35**2 + 0.65**2 + 0.3**2) / 2)
    assert found.content == pytest.approx([0.35 / spread, -0.65 / spread, 0.3 / spread], abs=1e-5)
    assert found.reward == pytest.approx(0.6)


def test_equal_content_has_no_advantage():
    assert guide_credit(Branch((0.0,)), branches(1, 1, 1)).content == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("outcomes", [(1, 0, 0), (0, 0, 0)])
def test_content_is_gated_by_the_decision(outcomes):
    """systems.md §2: content only where generating beat abstaining."""
    found = guide_credit(Branch((1.0,)), branches(*outcomes))
    assert found.decision < 0
    assert found.content == (0.0, 0.0, 0.0)


def test_at_equal_mean_content_rewards_leave_the_decision_alone():
    """systems.md §2: changing content rewards with equal mean leaves the decision unchanged."""
    one, other = guide_credit(Branch((0.0,)), branches(1, 0)), guide_credit(Branch((0.0,)), branches(0.5, 0.5))
    assert one.decision == other.decision
    assert one.content != other.content


@pytest.mark.parametrize(
    ("abstained", "generated", "wrong"),
    [
        (Branch((1.0,)), branches(1), "1 generate branches"),
        (Branch((1.0,), 3), branches(1, 0), "has 3 tokens"),
    ],
)
def test_a_group_has_one_silent_branch_and_two_that_speak(abstained, generated, wrong):
    """systems.md §2: structured group: exactly one abstain and >= 2 generate branches."""
    with pytest.raises(ValueError, match=wrong):
        guide_credit(abstained, generated)


# -- toys ------------------------------------------------------------------------------------------

EASY, HARD = 0, 1
COST, LENGTH = 0.05, 128


class Guide:
    """A softmax guide for each kind of context: a logit for speaking, and one for each hint."""

    def __init__(self, hints, seed, lr):
        self.speaks = np.zeros(2)
        self.hints = np.zeros((2, hints))
        self.chance, self.lr = np.random.default_rng(seed), lr

    def p_speaks(self, kind):
        return 0.5 + 0.5 * math.tanh(self.speaks[kind] / 2)

    def p_hints(self, kind):
        exp = np.exp(self.hints[kind] - self.hints[kind].max())
        return exp / exp.sum()

    def say(self, kind):
        return int(self.chance.choice(self.hints.shape[1], p=self.p_hints(kind)))

    def decide(self, kind, spoke, advantage):
        """A step along advantage times the gradient of log p of the decision."""
        self.speaks[kind] += self.lr * advantage * (spoke - self.p_speaks(kind))

    def content(self, kind, hint, advantage):
        gradient = -self.p_hints(kind)
        gradient[hint] += 1
        self.hints[kind] += self.lr * advantage * gradient


class World:
    """Easy contexts succeed without a hint, which a hint can only disturb; hard ones need the good one, hint 0."""

    def __init__(self, chance, *, lengths=None):
        self.chance, self.lengths = chance, lengths
        self.rates = {EASY: (0.9, 0.8, 0.8), HARD: (0.3, 0.9, 0.1)}
        """Success without a hint, with a good one, with a bad one."""

    def rate(self, kind, hint):
        without, good, bad = self.rates[kind]
        return without if hint is None else good if self.is_good(hint) else bad

    def is_good(self, hint):
        return hint == 0 if self.lengths is None else hint < len(self.lengths)

    def play(self, kind, hint):
        return float(self.chance.random() < self.rate(kind, hint))

    def tokens(self, hint):
        if hint is None:
            return 0
        return 16 if self.lengths is None or hint >= len(self.lengths) else self.lengths[hint]


def decoupled(guide, kind, world, cost=COST, size=4):
    """One branch that abstains and the others that speak, paid by `guide_credit`, as `guide.rows_of` does."""
    said = [guide.say(kind) for _ in range(size - 1)]
    generated = [Branch((world.play(kind, hint),), world.tokens(hint)) for hint in said]
    found = guide_credit(Branch((world.play(kind, None),)), generated, cost=cost, length=LENGTH)
    p = guide.p_speaks(kind)
    guide.decide(kind, 0, -found.decision * (1 - p))
    for hint, advantage in zip(said, found.content, strict=True):
        guide.decide(kind, 1, found.decision * p)
        if advantage:
            guide.content(kind, hint, advantage)


def entangled(guide, kind, world, cost=COST, size=4):
    """Plain GRPO: whole answers are sampled, and one advantage pays every token of an answer. For comparison."""
    said = [guide.say(kind) if guide.chance.random() < guide.p_speaks(kind) else None for _ in range(size)]
    rewards = [world.play(kind, hint) - cost * world.tokens(hint) / LENGTH for hint in said]
    for hint, advantage in zip(said, standardize(rewards), strict=True):
        guide.decide(kind, hint is not None, advantage)
        if hint is not None:
            guide.content(kind, hint, advantage)


def trained(seed, *, hints=2, groups=1500, step=decoupled, cost=COST, lr=0.3, **world):
    """A guide after so many groups, easy and hard in turns."""
    guide = Guide(hints, seed, lr)
    played = World(guide.chance, **world)
    for number in range(groups):
        step(guide, (EASY, HARD)[number % 2], played, cost)
    return guide, played


def value(guide, world, speaks=None):
    """Expected outcome less the length's cost over both kinds; `speaks` forces the decision."""
    total = 0.0
    for kind in (EASY, HARD):
        p = guide.p_speaks(kind) if speaks is None else speaks
        said = sum(
            q * (world.rate(kind, hint) - COST * world.tokens(hint) / LENGTH)
            for hint, q in enumerate(guide.p_hints(kind))
        )
        total += p * said + (1 - p) * world.rate(kind, None)
    return total / 2


@pytest.mark.parametrize("seed", range(5))
def test_it_learns_when(seed):
    """systems.md §2: generate rate < 20% on easy, > 80% on hard; always- and never-generate both score lower."""
    guide, world = trained(seed)
    assert guide.p_speaks(EASY) < 0.2
    assert guide.p_speaks(HARD) > 0.8
    assert value(guide, world) > max(value(guide, world, speaks=1.0), value(guide, world, speaks=0.0))


@pytest.mark.parametrize("seed", range(5))
def test_it_learns_what(seed):
    """systems.md §2: given a good and a bad hint, P(good | generate, hard) > 0.9."""
    guide, _ = trained(seed)
    assert guide.p_hints(HARD)[0] > 0.9


def test_brevity():
    """systems.md §2: raising lambda_len shortens guidance at no loss of > 2 pp success: five good hints, 8 to 128."""
    lengths, found = (8, 16, 32, 64, 128), {}
    for cost in (0.0, 0.3):
        runs = [trained(seed, hints=6, groups=2500, cost=cost, lengths=(*lengths,)) for seed in range(3)]
        spoken = [guide.p_hints(HARD)[: len(lengths)] for guide, _ in runs]
        tokens = fmean(float(np.dot(p, lengths) / p.sum()) for p in spoken)
        success = fmean(
            guide.p_speaks(HARD) * sum(q * world.rate(HARD, hint) for hint, q in enumerate(guide.p_hints(HARD)))
            + (1 - guide.p_speaks(HARD)) * world.rate(HARD, None)
            for guide, world in runs
        )
        found[cost] = (tokens, success)
    assert found[0.3][0] < 0.6 * found[0.0][0]
    assert found[0.3][1] > found[0.0][1] - 0.02


def solved(seed, step):
    """The cold start of systems.md §2 Measured (b): 20 hints, one good."""
    guide, _ = trained(seed, hints=20, groups=1500, step=step, lr=0.1)
    return guide.p_speaks(EASY) < 0.2 and guide.p_speaks(HARD) > 0.8 and guide.p_hints(HARD)[0] > 0.9


@pytest.mark.parametrize("seeds", [10, pytest.param(30, marks=pytest.mark.slow)])
def test_decoupling_matters(seeds):
    """systems.md §2: toy (b): decoupled solves >= 27 of 30 seeds, entangled <= 10 of 30."""
    assert sum(solved(seed, decoupled) for seed in range(seeds)) >= 0.9 * seeds
    assert sum(solved(seed, entangled) for seed in range(seeds)) <= seeds / 3
