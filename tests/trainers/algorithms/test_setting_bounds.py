"""Every setting has bounds of its own: a value beyond one is refused although the others are right, and the bound is
accepted where it makes sense."""

from typing import Any

import pytest

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.composers import ComposerParts
from hardwon.trainers.algorithms.imitation import Examples, WarmStart
from hardwon.trainers.algorithms.samplers.balance import Balance
from hardwon.trainers.algorithms.settings import LearnerSettings, LossSettings
from hardwon.trainers.roles.admission import AdmissionSettings
from hardwon.trainers.roles.admission_learning import Sparsity
from hardwon.trainers.roles.extractor import ExtractorSettings
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
    (term("lp-reg"), ("share", 0.0), ("share", 1.1), ("keep", 0.0), ("keep", 1.1)),
    (term("epo"), ("low", -0.1), ("low", 1.3), ("high", 0.7), ("over", 0)),
    (term("hindsight"), ("weight", -0.1)),
    (composer("prefixed"), ("groups", 0.0), ("groups", 1.1), ("shares", "0"), ("shares", "1"), ("shares", "0.5,0.5")),
    (composer("starts"), ("first", 0), ("first", 513), ("probability", 0.0), ("probability", 1.1), ("kappa", 0.0)),
    (composer("successes"), ("size", 0)),
    (composer("budgets"), ("turns", "0"), ("turns", "2, 2"), ("turns", "-1"), ("turns", "1.5"), ("turns", "")),
    (composer("instructions"), ("temperature", 0.0), ("decay", -0.1), ("decay", 1.0), ("every", 0)),
    (composer("arpo"), ("begun", 0.0), ("begun", 1.1), ("beam", 0)),
    (composer("tree"), ("depth", 0)),
    (composer("retry"), ("attempts", 1)),
    (composer("revise"), ("candidates", 0), ("temperature", 0.0)),
    (composer("repair"), ("copies", 1)),
    (sampler("staged"), ("bounds", ""), ("bounds", "8, 4"), ("old", -0.1), ("old", 1.1)),
    (sampler("informative"), ("floor", 0.0), ("floor", 1.1), ("rate", 0.0), ("rate", 1.1)),
    (sampler("share"), ("start", -0.1), ("start", 0.6), ("step", -0.1)),
    (shaper("density"), ("k", -1)),
    (shaper("lookback"), ("weight", -0.1)),
    (balance, ("start", 0.4), ("start", 1.3)),
    (LossSettings, ("temperature", 0.0), ("low", -0.1), ("low", 1.0), ("high", -0.1), ("kl", -0.1)),
    (LossSettings, ("cap", 0.0), ("max_mismatch", 0.0)),
    (LearnerSettings, ("lr", -1.0), ("weight_decay", -1.0), ("warmup", -1), ("decay", 0), ("budget", 0)),
    (
        LearnerSettings,
        ("epochs", 0),
        ("minibatches", 0),
        ("constant", 0),
    ),
    (Examples, ("memory_share", -0.1), ("memory_share", 1.1), ("renamed", -0.1), ("renamed", 1.1)),
    (Examples, ("copies", 0)),
    (WarmStart, ("updates", 0), ("batch", 0), ("lr", 0.0), ("budget", 0)),
    (GuideSettings, ("length", 0), ("ready", 0), ("executions", 0), ("distil_batch", 0), ("distil", -1)),
    (ExtractorSettings, ("episodes", 0), ("ready", 0), ("length", 0)),
    (ExtractorSettings, ("distil_batch", 0), ("samples", 1), ("pairs", 0), ("tokens", 0)),
    (AdmissionSettings, ("teams", 1), ("runs", 1), ("worlds", 0), ("ready", 0), ("steps", 0), ("distil_batch", 0)),
    (Sparsity, ("target", 0.0), ("target", 1.0)),
]
ACCEPTED = [
    (term("dcpo"), ("target", 0.0), ("most", 0.0), ("hot", 1.0), ("cold", 1.0)),
    (term("lp-reg"), ("share", 1.0), ("keep", 1.0)),
    (term("epo"), ("low", 0.0), ("low", 1.2), ("high", 0.8), ("over", 1)),
    (term("hindsight"), ("weight", 0.0)),
    (composer("prefixed"), ("groups", 1.0)),
    (composer("starts"), ("first", 1), ("first", 512), ("probability", 1.0)),
    (composer("successes"), ("size", 1)),
    (composer("budgets"), ("turns", "1")),
    (composer("arpo"), ("begun", 1.0), ("beam", 1)),
    (composer("tree"), ("depth", 1)),
    (composer("retry"), ("attempts", 2)),
    (composer("revise"), ("candidates", 1)),
    (composer("repair"), ("copies", 2)),
    (sampler("staged"), ("bounds", "4"), ("old", 0.0), ("old", 1.0)),
    (sampler("informative"), ("floor", 1.0), ("rate", 1.0)),
    (sampler("share"), ("start", 0.0), ("start", 0.5), ("step", 0.0)),
    (shaper("density"), ("k", 0)),
    (shaper("lookback"), ("weight", 0.0)),
    (balance, ("start", 0.5), ("start", 1.2)),
    (LossSettings, ("low", 0.0), ("high", 0.0), ("kl", 0.0)),
    (LearnerSettings, ("lr", 0.0), ("warmup", 0), ("decay", 1), ("epochs", 1), ("decay", None)),
    (Examples, ("memory_share", 0.0), ("memory_share", 1.0), ("renamed", 0.0), ("renamed", 1.0)),
    (WarmStart, ("updates", 1), ("batch", 1)),
    (GuideSettings, ("length", 1), ("ready", 1), ("distil", 0)),
    (ExtractorSettings, ("episodes", 1), ("samples", 2), ("pairs", 1), ("tokens", 1)),
    (AdmissionSettings, ("teams", 2), ("runs", 2), ("worlds", 1)),
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
