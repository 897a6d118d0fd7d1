"""The policy and its base as judges, and as those who say progress in retrospect."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.trainers.sources.test_sources import parts_of, read, rollout, step

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.samples import to_trace
from hardwon.trainers.methods.retrospection import retrospection
from hardwon.trainers.models.tiny import SPECIAL, TinyConfig, build_model, build_tokenizer
from hardwon.trainers.prompting.compact import CompactFormat
from hardwon.trainers.sources.judge import Ask
from hardwon.trainers.sources.local_judge import DIGITS, RIGHT, WORDS, LocalAnswers, LocalJudge, expect
from hardwon.trainers.sources.speech import RetrospectionSource, ask_progress

SHAPE = TinyConfig(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=32)


@pytest.fixture
def parts():
    tokenizer = build_tokenizer([WORDS, "go east west task"], SPECIAL)
    return parts_of(build_model(len(tokenizer), SHAPE), CompactFormat(tokenizer))


def shift(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))


def test_shares_sum_to_one_and_do_not_depend_on_the_order_of_questions(parts):
    answers = LocalAnswers(parts)
    shares = answers.weigh(["go east ?", "go west ?"], RIGHT)
    assert [sum(own) for own in shares] == pytest.approx([1.0, 1.0])
    assert answers.weigh(["go west ?"], RIGHT)[0] == pytest.approx(shares[1], abs=1e-6)


def test_the_policy_changes_its_mind_and_the_base_does_not(parts):
    policy, base = LocalAnswers(parts), LocalAnswers(parts, frozen=True)
    before = [answers.weigh(["go east ?"], DIGITS) for answers in (policy, base)]
    assert before[0] == before[1]
    shift(parts.model)
    assert policy.weigh(["go east ?"], DIGITS) != before[0]
    assert base.weigh(["go east ?"], DIGITS) == before[1]


def test_a_resumed_run_has_the_same_base(parts):
    base = LocalAnswers(parts, frozen=True)
    before, state = base.weigh(["go east ?"], DIGITS), base.state_dict()
    shift(parts.model)
    resumed = LocalAnswers(parts, frozen=True)
    assert resumed.weigh(["go east ?"], DIGITS) != before
    resumed.load_state_dict(state)
    assert resumed.weigh(["go east ?"], DIGITS) == before


@pytest.mark.parametrize("kind", ["steps", "thoughts", "score", "pair", "items", "verdict"])
def test_every_question_has_a_readable_answer(parts, kind):
    ask = Ask(kind, "go east", ("go", "east"), other=("west",), items=("east ?", "west ?"))
    (answer,) = asyncio.run(LocalJudge(LocalAnswers(parts)).assess([ask]))
    assert answer is not None
    shape = {
        "steps": len(answer.steps) == 2,
        "thoughts": len(answer.steps) == 2,
        "score": answer.score is not None and 0 <= answer.score <= 1,
        "pair": answer.pair is not None and all(0 <= value <= 10 for value in answer.pair),
        "items": answer.items.keys() == {"east ?", "west ?"},
        "verdict": answer.score in (0.0, 1.0),
    }
    assert shape[kind]


def test_a_vocabulary_without_the_words_is_refused():
    tokenizer = build_tokenizer(["go east"], SPECIAL)
    parts = parts_of(build_model(len(tokenizer), SHAPE), CompactFormat(tokenizer))
    with pytest.raises(ConfigError, match="tell right, wrong apart"):
        LocalAnswers(parts).weigh(["go ?"], RIGHT)


@pytest.mark.parametrize("judge", ["policy", "base"])
def test_sources_take_them_by_name(parts, judge):
    one = rollout("a", [step(0, "go east"), step(1, "go west")])
    for name, settings in (("steps", {"judge": judge, "votes": 1}), ("verdict", {"judge": judge})):
        (found,), sources = read(name, settings, one, model=parts.model, prompts=parts.prompts)
        assert found.signals != one.signals
        assert sources.drain_metrics()[f"signal/{name}/missing"] == 0.0


def test_progress_is_the_expected_digit_and_a_success_ends_at_one(parts):
    assert expect([0.0] * 9 + [1.0]) == 1.0
    assert expect([0.5, 0.5]) == 0.5
    won = rollout("a", [step(0, "go east"), step(1, "go west")])
    lost = replace(won, trajectory=replace(won.trajectory, success=False, id="b"))
    signals: Any = asyncio.run(RetrospectionSource(parts).read([[won, lost]]))
    assert signals["a"].turns["retrospection"][-1] == 1.0
    assert signals["b"].turns["retrospection"][-1] < 1.0
    assert all(0 <= value <= 1 for value in signals["b"].turns["retrospection"])
    (shaped,) = retrospection([to_trace(replace(won, signals=signals["a"]))], beta=0.5)
    assert sum(turn.reward for turn in shaped.turns) == pytest.approx(0.5 + sum(s.reward for s in won.trajectory.steps))


def test_the_question_names_the_outcome_and_only_the_turns_so_far():
    one = rollout("a", [step(0, "go east"), step(1, "go west")])
    assert "go west" not in ask_progress(one, 0)
    assert "solved" in ask_progress(one, 0)
    assert "failed" in ask_progress(replace(one, trajectory=replace(one.trajectory, success=False)), 1)
