"""Toys with known answers: what an extractor learns from each reward, where the truth can be worked out.

Softmax bandits over a few operations, trained by the role's own reward and buffer with REINFORCE; no
language model. The setting is systems.md §5's: four operations, a cost of 0.05, 85% success on the easy task.
"""

import random
from statistics import fmean

import numpy as np
import pytest

from hardwon.trainers.algorithms.samples import Sample
from hardwon.trainers.roles.item_reward import Buffer, Use

RETURN, VACUOUS, USEFUL, MISLEADING = range(4)
"""The four operations: keep nothing; keep what says nothing, what helps where help is needed, what harms."""
EASY, HARD = (0.85, {USEFUL: 0.85, MISLEADING: 0.55}), (0.2, {USEFUL: 0.8, MISLEADING: 0.1})
"""Success without memory, and with an item where it makes a difference."""
COST, LENGTH = 0.05, 1
ITEMS = 64
"""Sequences of an update, as of the role."""
UPDATES = 150
CONSUMERS = 4


class Bandit:
    """A softmax over operations for each context, moved by advantage times the gradient of log p."""

    def __init__(self, contexts, operations, seed, lr=2.0):
        self.logits = np.zeros((contexts, operations))
        self.chance = np.random.default_rng(seed)
        self.lr = lr

    def probabilities(self, context=0):
        exp = np.exp(self.logits[context] - self.logits[context].max())
        return exp / exp.sum()

    def say(self, context=0):
        return int(self.chance.choice(len(self.logits[context]), p=self.probabilities(context)))

    def learn(self, batch):
        gradient = np.zeros_like(self.logits)
        for sample, _, advantage in batch:
            (context,), (said,) = sample.row.prompt, sample.row.completion
            gradient[context, said] += advantage
            gradient[context] -= advantage * self.probabilities(context)
        self.logits += self.lr * gradient / len(batch)


def row(name, context, said):
    return Sample((context,), (said,), (0.0,), (True,), (None,), "extractor", 0, "", "", "", name, 0)


def flips(chance, p):
    return tuple((chance.random(CONSUMERS) < p).astype(float))


def trained(task, measure, seed):
    """The bandit after UPDATES updates of ITEMS operations on one task."""
    base, effects = task
    bandit = Bandit(1, 4, seed)
    buffer = Buffer(ready=ITEMS, measure=measure, cost=COST, length=LENGTH)
    for update in range(UPDATES):
        for n in range(ITEMS):
            name, said = f"{update}/{n}", bandit.say()
            buffer.wrote(row(name, 0, said), {} if said == RETURN else {name: 1})
            if said != RETURN:
                buffer.used(name, Use(flips(bandit.chance, effects.get(said, base)), flips(bandit.chance, base)))
        bandit.learn(buffer.take())
        buffer = Buffer(ready=ITEMS, measure=measure, cost=COST, length=LENGTH)
    return bandit.probabilities()


def mean_of(task, measure, operation, seeds=3):
    return fmean(trained(task, measure, seed)[operation] for seed in range(seeds))


def test_on_an_easy_task_the_difference_teaches_to_return():
    """systems.md §5: does not clutter: P(return) > .7 under difference reward."""
    assert mean_of(EASY, "difference", RETURN) > 0.7


def test_on_an_easy_task_the_outcome_teaches_clutter():
    """systems.md §5: P(return) < .1 under outcome reward."""
    assert mean_of(EASY, "outcome", RETURN) < 0.1


@pytest.mark.parametrize("measure", ["difference", "sign", "outcome"])
def test_on_a_hard_task_it_picks_what_is_useful(measure):
    """systems.md §5: on a hard task all three pick the useful item."""
    assert mean_of(HARD, measure, USEFUL) > 0.9


# -- co-evolution: the best advice changes with the actor's skill

ADVICE = 3
"""A beginner needs the first, one who has learnt a little the second, one who knows much the third."""
EPISODES = 3000


class Actor:
    """Its skill grows with successes that advice made possible; advice for another level does not help."""

    def __init__(self, chance):
        self.skill, self.chance = 0.0, chance

    @property
    def level(self):
        return min(ADVICE - 1, int(self.skill))

    def success(self, advice):
        p = 0.2 + 0.2 * self.level + (0.35 if advice == self.level else -0.1 if advice is not None else 0.0)
        return float(self.chance.random() < p)

    def learn(self, advice, success):
        self.skill += 0.004 if success and advice == self.level else 0.0


def coevolution(kind, seed):
    """Mean success of the last fifth of the episodes that may be advised."""
    bandit = Bandit(1, ADVICE + 1, seed, lr=3.0)
    actor, buffer = Actor(random.Random(seed)), Buffer(ready=32, cooldown=0, cost=COST, length=LENGTH)
    bandit.logits[0, 0] = 3.0  # both begin with what is right for a beginner
    ended = []
    for n in range(EPISODES):
        said = ADVICE if kind == "none" else bandit.say()
        advice = None if said == ADVICE else said
        outcome = actor.success(advice)
        actor.learn(advice, outcome)
        ended.append(outcome)
        if kind == "trained":
            buffer.wrote(row(str(n), 0, said), {} if advice is None else {str(n): 1})
            if advice is not None:
                more = (outcome, *(actor.success(advice) for _ in range(3)))
                buffer.used(str(n), Use(more, tuple(actor.success(None) for _ in range(4))))
            if buffer.ready():
                log_p = np.log(bandit.probabilities())
                bandit.learn(buffer.take())
                bandit.logits[0] -= 0.02 * (log_p - np.sum(np.exp(log_p) * log_p))  # a bonus for entropy
                buffer = Buffer(ready=32, cooldown=0, cost=COST, length=LENGTH)
    return fmean(ended[-EPISODES // 5 :])


def test_an_extractor_that_learns_beside_the_actor_beats_a_frozen_one_beats_none():
    """systems.md §5: co-evolution beats static: trained extractor > frozen extractor > none (5 seeds)."""
    for seed in range(5):
        trained_, frozen, none = (coevolution(kind, seed) for kind in ("trained", "frozen", "none"))
        assert trained_ > frozen + 0.05, (seed, trained_, frozen)
        assert frozen > none + 0.05, (seed, frozen, none)
