"""What the policy says before an action: tags and predictions, in a run and by hand."""

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
from tests.trainers.sources.test_sources import rollout, step

from hardwon.memory import Reasons, State
from hardwon.memory.errors import CannotLearn
from hardwon.trainers.algorithms.samples import to_trace
from hardwon.trainers.config.loading import of
from hardwon.trainers.config.policy import PolicySettings
from hardwon.trainers.engines.base import Request
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.models.tiny import SPECIAL, TinyConfig, build_model, build_tokenizer
from hardwon.trainers.prompting.compact import CompactFormat
from hardwon.trainers.rollouts.opening import TAGS, Prediction, TagChoice, open_opening
from hardwon.trainers.sources.speech import PredictionSource, TagsSource, measure_likeness

SHAPE = TinyConfig(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=32)


@pytest.fixture
def prompts():
    return CompactFormat(build_tokenizer([" ".join(TAGS), "go east west"], SPECIAL))


def speak(opening, prompts):
    model = build_model(len(prompts.tokenizer), SHAPE)
    engine = LocalEngine(model, prompts.tokenizer)
    request = Request(prompts.text("go"), chance=random.Random(0))
    return asyncio.run(opening.speak(engine, request))


def test_a_tag_is_one_of_four_and_a_choice(prompts):
    opening = TagChoice(prompts)
    (said,) = speak(opening, prompts)
    assert opening.read([said])["tag"] in TAGS
    assert any(said.mask)
    assert prompts.end not in said.tokens


@pytest.mark.parametrize("limit", [1, 4])
def test_a_prediction_ends_and_has_no_control_tokens(prompts, limit):
    opening = Prediction(prompts, limit)
    (said,) = speak(opening, prompts)
    assert said.tokens[-1] == prompts.end
    assert len(said.tokens) <= limit + 1
    assert not {*said.tokens[:-1]} & {*prompts.tokenizer.added_tokens_decoder}
    assert opening.read([said])["prediction"] == prompts.read(said.tokens)


def test_a_policy_that_answers_at_once_has_no_opening(prompts):
    assert open_opening(prompts, PolicySettings()) is None
    assert open_opening(prompts, PolicySettings(speech="free")) is None


def test_likeness_by_hand():
    """Four of the eight words are in matching runs; no words are like nothing, and case does not matter."""
    assert measure_likeness("kitchen fridge table lamp", "Kitchen fridge sofa window") == pytest.approx(0.5)
    assert measure_likeness("kitchen", "kitchen") == 1.0
    assert measure_likeness("kitchen", "garden") == 0.0


def read(source: Any, *rollouts):
    signals = asyncio.run(source(None).read([rollouts]))
    return [to_trace(replace(one, signals=signals[one.trajectory.id])) for one in rollouts]


def saying(t, after="", **extra):
    made = step(t, "go east")
    return replace(made, why=Reasons(extra=extra), post=State(after or "hall"))


def test_tags_of_the_record_become_tags_of_the_trace():
    (trace,) = read(TagsSource, rollout("a", [saying(0, tag="planning"), saying(1)]))
    assert trace.tags == ("planning", "")
    assert trace.signals["tags"] == (1.0, None)


def test_predictions_are_compared_with_what_was_seen_next():
    told, mute = rollout("a", [saying(0, "kitchen", prediction="kitchen"), saying(1)]), rollout("b", [saying(0)])
    first, second = read(PredictionSource, told, mute)
    assert first.signals["prediction"] == (1.0, None)
    assert first.scores["prediction"] == 1.0
    assert "prediction" not in second.scores


@pytest.mark.parametrize(
    ("source", "user", "speech"),
    [
        ("tags", {"credit": {"name": "rlvmr"}}, "tagged"),
        ("prediction", {"shape": {"prediction": {}}}, "predicted"),
        ("lookback", {"shape": {"lookback": {}}}, "predicted"),
    ],
)
def test_a_source_of_speech_needs_that_speech(source, user, speech):
    settings = {"judge": "base"} if source == "lookback" else {}
    given: Any = {
        "environment": {"name": "tests.trainers.corridor:Corridor"},
        "tasks": {"eval": {"seeds": "900-901"}},
        "roles": {"policy": {**user, "sources": {source: settings}}},
    }
    with pytest.raises(CannotLearn, match=f"speech=.*{speech}"):
        of(given)
    given["roles"]["policy"]["settings"] = {"speech": speech}
    assert of(given).policy.speech == speech
