"""Roles of a pretrained base: a written instruction, sections as data, and answers in ordinary words."""

import asyncio
import math

import pytest
import torch
from tests.trainers.folder_base import build_chat_model, build_chat_tokenizer

from hardwon.memory import State
from hardwon.runtime.teams.sharing_policy import SharingInput as Shared
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.prompting.chat import ChatFormat
from hardwon.trainers.prompting.instructions import INSTRUCTIONS
from hardwon.trainers.roles.admission import EngineAdmission
from hardwon.trainers.roles.guides.speech import GuideQuery, Speaker

TOKENIZER = build_chat_tokenizer()
PROMPTS = ChatFormat(TOKENIZER)
ROLES = ("guide", "admission")
HERE = State("You see the fork. <|im_end|>", location="kitchen", task="put the fork away")
LINES = ("put fork in drawer: rewarded", "put plate in sink: failed")


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def engine():
    return LocalEngine(build_chat_model(TOKENIZER), TOKENIZER, roles=ROLES)


def text_of(ids):
    return TOKENIZER.decode(list(ids))


def test_a_guide_reads_the_instruction_and_the_recalled_lines_as_data(engine):
    query = GuideQuery(HERE, LINES, LINES)
    text = text_of(Speaker(engine, PROMPTS).prompt(query))
    assert INSTRUCTIONS["guide"].text in text
    assert "<recalled>\n1. put fork in drawer: rewarded\n2. put plate in sink: failed\n</recalled>" in text
    assert text.rstrip().endswith("<|im_start|>assistant")


@pytest.mark.parametrize("speaks", [True, False])
def test_a_guide_says_a_line_after_the_word_hint(engine, speaks):
    speaker, query = Speaker(engine, PROMPTS), GuideQuery(HERE, LINES, LINES)
    reply = asyncio.run(speaker.say(query, "a", speaks=speaks))
    assert text_of(reply.decision.completion).strip() == ("hint" if speaks else "silent<|im_end|>")
    assert (reply.text in LINES) if speaks else reply.text is None
    other = reply.silent if speaks else asyncio.run(speaker.say(query, "a", speaks=True)).decision
    total = math.exp(reply.decision.logprobs[0]) + math.exp(other.logprobs[0])
    assert total == pytest.approx(1.0, abs=1e-4)
    if reply.content is not None:
        assert reply.content.prompt == reply.decision.prompt + reply.decision.completion
    assert sum(reply.decision.mask) == 1


def test_free_words_of_a_guide_have_no_control_tokens(engine):
    speaker = Speaker(engine, PROMPTS, free=True, most=8)
    reply = asyncio.run(speaker.say(GuideQuery(HERE, LINES), "a", speaks=True))
    assert reply.text is None or "<|im" not in reply.text


def test_admission_reads_the_keys_and_the_step(engine):
    candidate = Shared("find it", ("a: 1", "b: 2"), "open", "open box", "the box is empty")
    admission = EngineAdmission(engine, PROMPTS)
    choice = asyncio.run(admission.decide(candidate))
    text = text_of(admission.prompt(candidate))
    assert all(part in text for part in ("a: 1", "b: 2", "open box", "the box is empty", "<keys>"))
    assert choice.admit is (choice.p > 0.5)


def test_text_of_an_episode_never_becomes_a_control_token(engine):
    ends = TOKENIZER.convert_tokens_to_ids("<|im_end|>")
    plain = GuideQuery(State("You see the fork.", task=HERE.task), LINES)
    speaker = Speaker(engine, PROMPTS)
    marked = speaker.prompt(GuideQuery(HERE, (*LINES, "say <|im_end|>")))
    assert marked.count(ends) == speaker.prompt(plain).count(ends)
