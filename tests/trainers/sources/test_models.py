"""Sources that read log-probabilities of the policy, or train a model of their own."""

import asyncio
import math
from dataclasses import replace

import pytest
import torch

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.samples import Sample, to_trace
from hardwon.trainers.models.tiny import TinyConfig, build_model, build_tokenizer
from hardwon.trainers.prompting.compact import CompactFormat
from hardwon.trainers.sources.answers import AnswerSource, ConfidenceSource, ObservationSource, measure_rows
from hardwon.trainers.sources.implicit import ImplicitSource

from .test_sources import parts_of, rollout, step


@pytest.fixture(scope="module")
def format_():
    return CompactFormat(build_tokenizer(["go east west take coin room hall"]))


@pytest.fixture(scope="module")
def model(format_):
    shape = TinyConfig(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=16)
    return build_model(len(format_.tokenizer), shape)


def played(format_, name, *actions, seen="hall", success=True):
    """A rollout whose prompts extend each other, with two listed actions at every turn."""
    prompt = (*format_._ids("<task>"), *format_._ids("coin"), *format_._ids("<see>"), *format_._ids("<act>"))
    rows, steps, options = [], [], [format_.text("east"), format_.text("west")]
    for t, action in enumerate(actions):
        tokens = format_.text(action)
        allowed = (tuple(sorted({one[0] for one in options})), (tokens[1],))
        fields = ("policy", 1, "control", "", "", name, t)
        rows.append(Sample(prompt, tokens, (-math.log(2), 0.0), (True, False), allowed, *fields))
        prompt = (*prompt, *tokens, *format_._ids(f"<see> {seen}"), *format_._ids("<act>"))
        steps.append(step(t, action))
    one = rollout(name, steps, rows)
    return replace(one, trajectory=replace(one.trajectory, success=success), group="train#3")


def read(source, *rollouts):
    return asyncio.run(source.read([rollouts]))


def test_the_probability_of_an_answer_by_hand(format_, model):
    """p = exp of the mean log-probability of the answer's tokens under the policy."""

    class World:
        name = "world"

        def answer(self, task, seed):
            assert (task, seed) == ("train", 3)
            return "coin"

    source = AnswerSource(parts_of(model, format_, environment=World()))
    signals = read(source, played(format_, "a", "east", "west"))["a"]
    assert source.rates == {"still": 0.0}
    first, last = signals.turns["answer"]
    assert last is None
    assert 0 < signals.trace["answer"] < 1
    assert 0 < first < 1
    answer = format_.text("coin")
    row = played(format_, "a", "east").rows[0]
    own = Sample(row.prompt, answer, (0.0,) * 2, (True,) * 2, (None,) * 2, "policy", 1, "", "", "", "x", 0)
    (mean,) = measure_rows(parts_of(model, format_), [own])
    assert mean is not None
    assert signals.trace["answer"] == pytest.approx(math.exp(mean), rel=1e-5)


def test_answer_tokens_of_8_and_5_tenths_have_the_root_of_4_tenths(format_, model, monkeypatch):
    """sqrt(.8 x .5) = .6325."""

    def score(model, sequences, **_):
        return [torch.tensor([0.8, 0.5]).log() for _ in sequences]

    monkeypatch.setattr("hardwon.trainers.sources.answers.compute_logprobs", score)
    best = rollout("best", [step(0, "east", after=1)]).trajectory
    source = AnswerSource(parts_of(model, format_, reference=lambda task, seed: best), of="route")
    signals = read(source, played(format_, "a", "east", "west"))["a"]
    assert signals.trace["answer"] == pytest.approx(0.6325, abs=1e-4)
    assert signals.turns["answer"][0] == pytest.approx(0.6325, abs=1e-4)


def test_a_world_without_answers_is_refused_and_a_route_takes_its_place(format_, model):
    with pytest.raises(ConfigError, match="has no method answer"):
        AnswerSource(parts_of(model, format_, environment=object()))
    best = rollout("best", [step(0, "east", after=1), step(1, "take coin", after=2)]).trajectory
    source = AnswerSource(parts_of(model, format_, reference=lambda task, seed: best), of="route")
    assert read(source, played(format_, "a", "east", "west"))["a"].trace["answer"] > 0
    nothing = AnswerSource(parts_of(model, format_), of="route")
    assert read(nothing, played(format_, "a", "east"))["a"].turns["answer"] == (None,)


def test_an_observation_that_is_the_placeholder_gains_nothing(format_, model):
    source = ObservationSource(parts_of(model, format_))
    shown, hidden = played(format_, "a", "east", "west"), played(format_, "b", "east", "west", seen="")
    signals = read(source, shown, hidden)
    assert signals["b"].turns["observation"] == (pytest.approx(0.0, abs=1e-6), None)
    gain, last = signals["a"].turns["observation"]
    assert last is None
    assert abs(gain) > 1e-6


def test_confidence_is_that_of_the_next_choice(format_, model):
    source = ConfidenceSource(parts_of(model, format_))
    first, last = read(source, played(format_, "a", "east", "west"))["a"].turns["confidence"]
    assert last is None
    assert 0.5 <= first < 1  # two choices: exp(-H) is at least a half


def test_the_implicit_model_begins_as_the_policy_and_learns_from_pairs(format_, model):
    """Before any update the log-ratios are those of the policy to itself; then successes gain and failures lose."""
    source = ImplicitSource(parts_of(model, format_), lr=0.01)
    won, lost = played(format_, "a", "east"), played(format_, "b", "west", success=False)
    before = {name: read(source, won, lost)[name].turns["implicit"][0] for name in "ab"}
    weights = {name: value.clone() for name, value in model.named_parameters()}
    for _ in range(5):
        metrics = source.learn([[won, lost]])
    assert (metrics["pairs"], metrics["accuracy"]) == (1.0, 1.0)
    after = {name: read(source, won, lost)[name].turns["implicit"][0] for name in "ab"}
    assert after["a"] > before["a"]
    assert after["b"] < before["b"]
    assert all(torch.equal(value, weights[name]) for name, value in model.named_parameters())


def test_the_implicit_model_is_untouched_where_all_succeeded(format_, model):
    source = ImplicitSource(parts_of(model, format_))
    assert source.learn([[played(format_, "a", "east"), played(format_, "b", "west")]]) == {"pairs": 0.0}
    assert source.state_dict() == {}


def test_the_implicit_model_is_restored_bit_for_bit(format_, model):
    group = [[played(format_, "a", "east"), played(format_, "b", "west", success=False)]]
    one, two = (ImplicitSource(parts_of(model, format_), lr=0.01) for _ in range(2))
    one.learn(group)
    two.load_state_dict(one.state_dict())
    assert one.learn(group) == two.learn(group)
    assert read(one, *group[0]) == read(two, *group[0])
    assert to_trace(group[0][0]).outcome == 1.0
