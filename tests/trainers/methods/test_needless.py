"""The curriculum of DECS: how often a solved instance is drawn."""

from dataclasses import replace
from typing import Any

import pytest
from tests.trainers.methods.test_curricula import WORLDS, build, played

from hardwon.memory.errors import CannotLearn
from hardwon.trainers.algorithms.signals import Signals
from hardwon.trainers.config.loading import of
from hardwon.trainers.methods.decs_share import compute_weight, measure_needed, move_share


def marked(world, outcome, *redundant):
    (rollout,) = played(world, outcome)
    return replace(rollout, signals=Signals({"redundant": redundant}))


def test_the_share_by_hand():
    """kappa .3 moves by .2 x .5 to .4, which keeps two thirds; a half and more is clamped below 1."""
    assert move_share(0.3, 0.5, 0.2) == pytest.approx(0.4)
    assert compute_weight(0.4) == pytest.approx(2 / 3)
    assert compute_weight(move_share(0.5, 1.0, 0.2)) == 0.99
    assert compute_weight(0.0) == 0.01


def test_a_solved_instance_is_drawn_by_its_weight_and_a_failed_one_always():
    sampler: Any = build("share")
    sampler.observe({WORLDS[0]: [marked(WORLDS[0], 1.0, 0.0)], WORLDS[1]: played(WORLDS[1], 1.0, 0.0)})
    assert sampler.get_weights() == {WORLDS[0]: pytest.approx(0.3 / 0.7), WORLDS[1]: 1.0, WORLDS[2]: 1.0}
    sampler.observe({WORLDS[0]: played(WORLDS[0], 0.0)})
    assert sampler.get_weights()[WORLDS[0]] == 1.0


def test_kappa_follows_the_needed_share_of_successes_alone():
    sampler: Any = build("share")
    sampler.observe({WORLDS[0]: [marked(WORLDS[0], 1.0, 1.0, 0.0)]})
    metrics = sampler.observe({WORLDS[0]: [marked(WORLDS[0], 1.0, 0.0, 0.0)]})
    assert metrics["sampler/kappa"] == pytest.approx(0.3 + 0.2 * 0.5)
    assert measure_needed([marked(WORLDS[0], 0.0, 1.0)]) is None


def test_without_a_signal_nothing_moves():
    sampler: Any = build("share")
    sampler.observe({WORLDS[0]: played(WORLDS[0], 1.0)})
    assert sampler.state_dict()["kappa"] == 0.3


def test_a_sampler_without_its_source_is_refused():
    given = {
        "environment": {"name": "tests.trainers.corridor:Corridor"},
        "tasks": {"eval": {"seeds": "900-901"}, "sampler": {"share": {}}},
    }
    with pytest.raises(CannotLearn, match=r"tasks.sampler.share needs the signal redundant.*sources.redundant"):
        of(given)
