"""Bounds that depend on another setting: a value beyond one is refused although the others are right, and the bound is
accepted where it makes sense."""

from typing import Any

import pytest

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.composers import ComposerParts
from hardwon.trainers.algorithms.samplers.balance import Balance
from hardwon.trainers.algorithms.settings import LearnerSettings, LossSettings
from hardwon.trainers.roles.admission_learning import Sparsity
from hardwon.trainers.roles.guides.role import GuideSettings

WORLDS = [("", seed) for seed in range(3)]


def term(name):
    return lambda **settings: PARTS.get("term", name)(**settings)


def composer(name):
    return lambda **settings: PARTS.get("composer", name)(ComposerParts(), **settings)


def sampler(name):
    return lambda **settings: PARTS.get("sampler", name)(WORLDS, 0, 4, lambda task, seed: None, **settings)


def shaper(name):
    return lambda **settings: PARTS.get("shaper", name)([], **settings)


def balance(start):
    return Balance(start=start)


REFUSED = [
    (term("dcpo"), ("target", -0.1), ("most", -0.1), ("hot", 0.9), ("cold", 0.0), ("cold", 1.1)),
    (term("epo"), ("low", -0.1), ("low", 1.3), ("high", 0.7), ("over", 0)),
    (composer("prefixed"), *(("shares", shares) for shares in ("", "0, 0.5", "1", "0.5,0.5", "0.5, 0.25", "half"))),
    (composer("starts"), ("first", 0), ("first", 513), ("probability", 0.0), ("probability", 1.1), ("kappa", 0.0)),
    (
        composer("budgets"),
        ("turns", "0"),
        ("turns", "2, 2"),
        ("turns", "-1"),
        ("turns", "1.5"),
        ("turns", ""),
        ("turns", "two"),
    ),
    (sampler("staged"), ("bounds", ""), ("bounds", "8, 4"), ("old", -0.1), ("old", 1.1)),
    (balance, ("start", 0.4), ("start", 1.3)),
    (Sparsity, ("target", 0.0), ("target", 1.0)),
]
ACCEPTED = [
    (term("dcpo"), ("target", 0.0), ("most", 0.0), ("hot", 1.0), ("cold", 1.0)),
    (term("epo"), ("low", 0.0), ("low", 1.2), ("high", 0.8), ("over", 1)),
    (composer("starts"), ("first", 1), ("first", 512), ("probability", 1.0)),
    (composer("budgets"), ("turns", "1")),
    (sampler("staged"), ("bounds", "4"), ("old", 0.0), ("old", 1.0)),
    (balance, ("start", 0.5), ("start", 1.2)),
]


def rows(table):
    return [(build, name, value) for build, *pairs in table for name, value in pairs]


@pytest.mark.parametrize(("build", "name", "value"), rows(REFUSED))
def test_a_value_beyond_its_bound_is_refused_by_name(build, name, value):
    with pytest.raises(ConfigError, match=name if name != "start" else "is"):
        build(**{name: value})


@pytest.mark.parametrize(("build", "name", "value"), rows(ACCEPTED))
def test_the_bound_itself_is_accepted(build, name, value):
    build(**{name: value})


def test_several_updates_per_step_and_turns_in_reverse_are_refused():
    """Both at once, whichever makes several updates."""
    several: list[dict[str, Any]] = [{"epochs": 2}, {"minibatches": 2}]
    for settings in several:
        LearnerSettings(**settings)
        with pytest.raises(ConfigError, match="reverse-turns"):
            LearnerSettings(order="reverse-turns", **settings)
    LearnerSettings(order="reverse-turns")


def test_one_ratio_per_token_is_refused_for_the_loss_with_one_per_sequence():
    with pytest.raises(ConfigError, match="gspo"):
        LossSettings(kind="gspo", ratio="token")
    LossSettings(kind="gspo", ratio="turn")
    LossSettings(kind="ppo", ratio="token")


@pytest.mark.parametrize("settings", [{"credit": "himac"}, {"executions": 2}])
def test_a_guide_without_texts_of_its_own_compares_none(settings):
    GuideSettings(**settings)
    with pytest.raises(ConfigError, match="no texts to compare"):
        GuideSettings(says="recalled", **settings)


@pytest.mark.parametrize("settings", [{"limit": 0}, {"limit": 5, "buffer": -1}, {"limit": 5, "buffer": 6}])
def test_a_price_of_length_without_a_length_is_refused(settings):
    with pytest.raises(ConfigError, match="overlong"):
        shaper("overlong")(**settings)
    shaper("overlong")(limit=1, buffer=1)
    shaper("overlong")(limit=1, buffer=0)
