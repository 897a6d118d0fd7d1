"""SeeUPO: the order of the updates, the factors by hand, and what it is with a single turn."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from tests.trainers.algorithms.terms.test_terms import SHAPE, WORDS, batch, learner, sequence

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.learner import LearnerSettings, LossSettings, freeze_copy
from hardwon.trainers.algorithms.logprobs import compute_logprobs
from hardwon.trainers.algorithms.parallel import ProcessGroup
from hardwon.trainers.algorithms.updates.turns import list_parts, move_factors, scale
from hardwon.trainers.models.tiny import build_model

GSPO = LossSettings(kind="gspo", ratio="turn")


@pytest.fixture
def model():
    return build_model(WORDS, SHAPE).double()


def weights(made):
    return torch.cat([parameter.detach().flatten() for parameter in made.parameters])


def trained(sequences):
    return [{turn for turn, counts in zip(s.turns, s.mask, strict=True) if counts} for s in sequences]


def test_the_factors_by_hand():
    """A = .5 and -.5, ratios 1.1 and .7 of the last turn: .55 and -.4 in the turn before."""
    part = [sequence(0, advantage=0.5), sequence(1, advantage=-0.5)]
    factors = move_factors({}, [[math.log(1.1)] * 2, [math.log(0.7)]], part)
    assert factors == {"t0": pytest.approx(1.1), "t1": 0.8}
    assert [one.advantages[0] for one in scale(part, factors)] == pytest.approx([0.55, -0.4])


def test_factors_stay_within_their_bounds():
    part = [sequence(0)]
    factors = move_factors({"t0": 1.15}, [[math.log(1.15)]], part)
    assert factors["t0"] == 1.2
    assert move_factors({"t0": 1.1}, [], []) == {"t0": 1.1}


def test_the_last_turn_comes_first_and_shorter_episodes_have_no_part_in_it():
    long, short = sequence(0, length=12), sequence(1, length=6)
    parts = list_parts([long, short])
    assert [trained(part) for part in parts] == [[{2}], [{1}, {1}], [{0}, {0}]]
    assert all(len(s) == max(at for at, counts in enumerate(s.mask) if counts) + 1 for part in parts for s in part)


def test_a_step_makes_one_update_per_turn(model):
    made = learner(model, order="reverse-turns")
    assert made.step(batch(), GSPO)["updates"] == 3
    assert learner(copy.deepcopy(model)).step(batch(), GSPO)["updates"] == 1


def test_with_one_turn_it_is_one_update_of_gspo(model):
    """On-policy episodes of one turn: the same weights as a plain step."""
    (part,) = list_parts([replace(one, turns=(0,) * len(one)) for one in batch()])
    given = []
    for one, values in zip(part, compute_logprobs(model, part, budget=4096), strict=True):
        own = iter(values.tolist())
        given.append(replace(one, logprobs=tuple(next(own) if counts else 0.0 for counts in one.mask)))
    made = [learner(copy.deepcopy(model)), learner(copy.deepcopy(model), order="reverse-turns")]
    for one in made:
        one.step(given, GSPO)
    assert torch.allclose(weights(made[0]), weights(made[1]), atol=1e-9)
    assert not torch.allclose(weights(made[0]), weights(learner(model)))


def test_the_order_of_sequences_changes_nothing(model):
    results = []
    for given in (batch(), batch()[::-1]):
        made = learner(copy.deepcopy(model), order="reverse-turns")
        made.step(given, replace(GSPO, kl=0.002), reference=freeze_copy(model))
        results.append(weights(made))
    assert torch.allclose(results[0], results[1], atol=1e-9)


def test_an_earlier_turn_sees_what_the_later_updates_moved(model, monkeypatch):
    """Without the factors, the weights after the step differ."""
    results = []
    for factors in (True, False):
        made = learner(copy.deepcopy(model), order="reverse-turns")
        if not factors:
            monkeypatch.setattr("hardwon.trainers.algorithms.learner.move_factors", lambda *_: {})
        made.step(batch(), GSPO)
        results.append(weights(made))
    assert not torch.equal(results[0], results[1])


def test_several_updates_or_processes_are_refused():
    with pytest.raises(ConfigError, match="set both to 1"):
        LearnerSettings(order="reverse-turns", epochs=2)
    team = ProcessGroup(0, 2, shards=False)
    team.active = True
    with pytest.raises(ConfigError, match="one process"):
        team.check_loss(GSPO, order="reverse-turns")
