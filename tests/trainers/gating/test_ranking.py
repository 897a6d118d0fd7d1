"""The trained form of step-level Q models (row 31): a policy trained on preferences judges another one's actions."""

import asyncio
import math
from typing import Literal

import pytest
import torch
from tests.trainers.folder_base import build_chat_model, build_chat_tokenizer

from hardwon.memory import State
from hardwon.runtime.interfaces.types import Context, Decision
from hardwon.runtime.llm.conversation import Conversations
from hardwon.runtime.policies.ranked import RankedPolicy
from hardwon.trainers.algorithms.samples import pack_samples
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.gating.ranking import PreferenceValue
from hardwon.trainers.gating.tuning import TUNING
from hardwon.trainers.models.adapters import add_adapter
from hardwon.trainers.prompting.chat import ChatFormat
from hardwon.trainers.rollouts.demonstration import build_sample
from hardwon.trainers.serving import ServedValue

TOKENIZER = build_chat_tokenizer()
PROMPTS = ChatFormat(TOKENIZER)
ACTIONS = ("go east", "go west", "take coin")
HERE = Context(State("You are in a room.", task="Find the coin."), ACTIONS, thread="e")


def make_ranker(trained):
    """A ranker whose adapter is a no-op, or has some weights."""
    model = add_adapter(build_chat_model(TOKENIZER), "policy", 2)
    if trained:
        torch.manual_seed(1)
        for name, weights in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weights, std=0.3)
    return PreferenceValue(LocalEngine(model, TOKENIZER), PROMPTS)


def judge(ranker, context=HERE, actions=ACTIONS):
    return {action: asyncio.run(ranker.judge(context, action)) for action in actions}


def test_the_value_of_an_action_is_its_log_ratio_to_the_base():
    """With the probabilities of a model without an adapter, exp(Q / beta) ref sums to 1 over the listed actions."""
    base, log = LocalEngine(build_chat_model(TOKENIZER), TOKENIZER), Conversations()
    prompt = PROMPTS.open_prompt(log.advance(HERE), HERE)
    samples = [build_sample(PROMPTS, prompt, one, ACTIONS, "policy", 0, "", "", "", "", 0) for one in ACTIONS]
    streams = [pack_samples([sample], {"": [0.0]})[0] for sample in samples]
    reference = [math.exp(sum(values)) for values in asyncio.run(base.logprobs(streams, "policy"))]
    values = [estimate.value for estimate in judge(make_ranker(True)).values()]
    assert sum(reference) == pytest.approx(1.0, abs=1e-4)
    assert sum(p * math.exp(q / TUNING.beta) for p, q in zip(reference, values, strict=True)) == pytest.approx(
        1.0, abs=1e-4
    )
    assert min(values) < -1e-3 < 1e-3 < max(values)


class Proposes:
    """Proposes its actions in turn."""

    name = "proposes"
    reads: Literal["values", "text"] = "text"

    def __init__(self, *actions):
        self.actions, self.calls = actions, 0

    def decide(self, context):
        self.calls += 1
        return Decision(self.actions[(self.calls - 1) % len(self.actions)])

    async def adecide(self, context):
        return self.decide(context)


def test_the_proposal_that_training_made_likelier_is_taken():
    ranker = make_ranker(True)
    values = judge(ranker)
    worst, *_, best = sorted(ACTIONS, key=lambda action: values[action].value)
    assert RankedPolicy(Proposes(worst, best), n=2, value=ServedValue(ranker)).decide(HERE).action == best


def test_an_untrained_ranker_keeps_the_first_proposal():
    """Degenerate case: every log-ratio is 0."""
    ranker = make_ranker(False)
    assert [estimate.value for estimate in judge(ranker).values()] == pytest.approx([0.0] * 3, abs=1e-6)
    for first in ACTIONS:
        policy = RankedPolicy(Proposes(first, *ACTIONS), n=4, value=ServedValue(ranker))
        assert policy.decide(HERE).action == first


def test_the_order_of_judging_does_not_matter():
    """Invariance; and a refused or unknown action is not judged."""
    forward, backward = judge(make_ranker(True)), judge(make_ranker(True), actions=ACTIONS[::-1])
    assert forward == backward
    refused = Context(HERE.state, ACTIONS, forbidden={"go east": "it failed here before"}, thread="e")
    ranker = make_ranker(True)
    assert [e.n for e in judge(ranker, refused, ("go east", "fly", "go west")).values()] == [0, 0, 3]
    best = asyncio.run(ranker.judge(refused))
    assert best.value == max(e.value for e in judge(ranker, refused, ACTIONS[1:]).values())
