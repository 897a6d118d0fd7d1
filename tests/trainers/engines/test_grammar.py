"""Grammars: tool calls token by token, exact under the mask, the sets kept with the rows."""

import asyncio
import json
import random
from typing import Any

import pytest
import torch
from tests.trainers.fake_vllm import serving
from tests.trainers.folder_base import TOOL_MARKS, build_chat_tokenizer

from hardwon.memory.errors import ConfigError, EngineFailure
from hardwon.trainers.algorithms.logprobs import collate, forward
from hardwon.trainers.algorithms.samples import Sample, pack_samples
from hardwon.trainers.engines.base import Completion, Request
from hardwon.trainers.engines.grammar import CallForm, Grammar, ToolCalls
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.engines.server import ServerEngine
from hardwon.trainers.models.tiny import TinyConfig, build_model, build_tokenizer

TOOLS: dict[str, dict[str, Any]] = {
    "move": {"type": "object", "properties": {"to": {"enum": ["kitchen", "hall", "attic"]}}, "required": ["to"]},
    "say": {"type": "object", "properties": {"words": {"type": "string", "maxLength": 6}}, "required": ["words"]},
}


def byte_level(words: str) -> Any:
    """A byte-level BPE tokenizer as real models have, trained on some words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<pad>", "<end>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator([words] * 3, trainer)
    made: Any = PreTrainedTokenizerFast
    return made(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>")


TOKENIZER = byte_level('{"name":"move","arguments":{"to":"kitchen"}} {"name":"say","arguments":{"words":"hello"}}')
MODEL = build_model(len(TOKENIZER), TinyConfig(hidden=64, layers=1, heads=2, kv_heads=1))
PROMPT = tuple(TOKENIZER("what now?").input_ids)


def said(engine: Any, number: int = 12, **how: Any) -> list[Completion]:
    calls = ToolCalls(TOKENIZER, TOOLS)

    async def ask() -> list[Completion]:
        requests = [
            Request(PROMPT, allowed=calls.open_grammar(60), chance=random.Random(n), **how) for n in range(number)
        ]
        return list(await asyncio.gather(*(engine.generate(request) for request in requests)))

    return asyncio.run(ask())


@pytest.fixture(scope="module")
def completions() -> list[Completion]:
    torch.set_num_threads(1)
    return said(LocalEngine(MODEL, TOKENIZER))


def test_every_answer_is_a_call_of_a_tool(completions):
    calls = [ToolCalls.read(TOKENIZER.decode(one.tokens[:-1])) for one in completions]
    assert {call[0] for call in calls if call} == {"move", "say"}
    for call in calls:
        assert call is not None
        name, arguments = call
        assert set(arguments) == set(TOOLS[name]["properties"])
        assert name == "say" or arguments["to"] in ("kitchen", "hall", "attic")


def test_forced_tokens_are_no_choice(completions):
    """They cost no forward pass, have log-probability 0, and are not trained on."""
    for one in completions:
        for token, logprob, chosen, allowed in zip(one.tokens, one.logprobs, one.mask, one.allowed, strict=True):
            assert token in allowed
            assert chosen == (len(allowed) > 1)
            assert chosen or logprob == 0.0


def test_logprobs_are_exact_under_the_mask(completions):
    """By one forward pass over all the tokens, among the allowed ones; and the trainer computes the same."""
    rows = [
        Sample(PROMPT, one.tokens, one.logprobs, one.mask, one.allowed, "policy", 0, "", "", "", str(n), 0)
        for n, one in enumerate(completions)
    ]
    for row in rows:
        with torch.no_grad():
            logits = MODEL(input_ids=torch.tensor([row.prompt + row.completion])).logits[0]
        for n, (token, allowed) in enumerate(zip(row.completion, row.allowed, strict=True)):
            among = torch.log_softmax(logits[len(PROMPT) + n - 1][list(allowed or ())], -1)
            assert row.logprobs[n] == pytest.approx(float(among[(allowed or ()).index(token)]), abs=1e-5)
    parts = pack_samples(rows, {row.trace: [1.0] for row in rows})
    with torch.no_grad():
        trained, _ = forward(MODEL, collate(parts))
    sampled = [value for part in parts for value, counts in zip(part.logprobs, part.mask, strict=True) if counts]
    assert trained.tolist() == pytest.approx(sampled, abs=1e-5)


def test_equal_sets_are_kept_once(completions):
    """Inside of a free text nearly the whole vocabulary may follow, at every token."""
    wide = [allowed for one in completions for allowed in one.allowed if allowed and len(allowed) > 100]
    assert len(wide) > len({id(allowed) for allowed in wide})
    assert len({id(allowed) for allowed in wide}) == len({*wide})


def test_an_answer_is_never_longer_than_it_may_be():
    grammar = Grammar(TOKENIZER, 'start: %json {"type": "string"}', max_tokens=5)
    engine = LocalEngine(MODEL, TOKENIZER)
    request = Request(PROMPT, allowed=grammar, chance=random.Random(0))
    assert len(asyncio.run(engine.generate(request)).tokens) <= 5
    assert ToolCalls.read('{"name": "mo') is None


def test_asking_out_of_order_gives_the_same(completions):
    """What may follow depends on what was said alone."""
    grammar = ToolCalls(TOKENIZER, TOOLS).open_grammar()
    one = completions[0]
    places = random.Random(0).sample(range(len(one.tokens)), len(one.tokens))
    for n in places:
        assert grammar.allowed(one.tokens[:n]) == one.allowed[n]
    with pytest.raises(ValueError, match="does not follow"):
        grammar.allowed((TOKENIZER("}").input_ids[0],))
    assert grammar.allowed(()) == one.allowed[0]


def test_asking_out_of_order_gives_the_same_with_control_tokens_around_a_call():
    """An answer that is asked about from its end to its beginning."""
    tokenizer = build_chat_tokenizer(more=TOOL_MARKS)
    before, after = tokenizer.convert_tokens_to_ids(TOOL_MARKS[:2])
    calls = ToolCalls(tokenizer, TOOLS, form=CallForm((before, "\n"), (after,)))
    answer, sets = list[int](), list[Any]()
    grammar, chance = calls.open_grammar(), random.Random(0)
    while not grammar.complete(answer):
        sets.append(grammar.allowed(answer))
        answer.append(chance.choice(sets[-1]))
    assert [grammar.allowed(answer[:n]) for n in reversed(range(len(answer)))] == sets[::-1]
    assert (answer[0], answer[-2]) == (before, after)


def test_what_cannot_work_is_told():
    with pytest.raises(ConfigError, match="tokenizer of whole words has no tokens for JSON"):
        ToolCalls(build_tokenizer(["go east"]), TOOLS)
    with pytest.raises(ConfigError, match="the grammar is invalid"):
        Grammar(TOKENIZER, "start: nothing")
    with pytest.raises(ConfigError, match="there is no tool"):
        ToolCalls(TOKENIZER, {})


def test_a_server_is_asked_by_its_own_grammar(completions, monkeypatch):
    """vLLM's structured_outputs; the sets that go with the row are those of our own automaton."""
    one = completions[0]
    with serving() as fake:
        told = {"token_logprobs": list(one.logprobs)}
        monkeypatch.setattr(fake, "complete", lambda body: {"token_ids": list(one.tokens), "logprobs": told})
        engine = ServerEngine(fake.url, TOKENIZER)
        (found,) = said(engine, 1)
        engine.close()
        body = next(body for path, body in fake.asked if path == "/v1/completions")
    assert (found.tokens, found.allowed, found.mask) == (one.tokens, one.allowed, one.mask)
    schema = json.loads(body["structured_outputs"]["grammar"].removeprefix("start: %json "))
    assert [call["properties"]["name"]["const"] for call in schema["anyOf"]] == ["move", "say"]
    assert body["stop_token_ids"] == [TOKENIZER.eos_token_id]


def test_a_server_that_does_not_mask_as_asked_is_told_on(completions, monkeypatch):
    """Its log-probabilities would be of other choices than those that training sees."""
    one = completions[0]
    with serving() as fake:
        told = {"token_logprobs": [-1.0] * len(one.tokens)}  # forced tokens as well: no mask
        monkeypatch.setattr(fake, "complete", lambda body: {"token_ids": list(one.tokens), "logprobs": told})
        engine = ServerEngine(fake.url, TOKENIZER)
        with pytest.raises(EngineFailure, match=r"does not mask as requested.*backend guidance"):
            said(engine, 1)
        engine.close()


def test_calls_have_the_separators_of_chat_templates():
    """A space after a colon is what models write; without it none of 16 answers was a call."""
    grammar = ToolCalls(TOKENIZER, TOOLS).open_grammar()
    text = json.dumps({"name": "move", "arguments": {"to": "hall"}})
    ids = tuple(TOKENIZER(text).input_ids)
    for n, token in enumerate(ids):
        assert token in grammar.allowed(ids[:n])
    assert grammar.allowed(ids) == (grammar.end,)


def test_a_free_string_has_an_end():
    """At any depth; a string with a limit or a list of its own keeps it."""
    free: dict[str, Any] = {"type": "string"}
    named = {
        "type": {"type": "string", "enum": ["a"]},
        "list": {"type": "array", "items": free},
        "short": {**free, "maxLength": 3},
    }
    lark = ToolCalls(TOKENIZER, {"say": {"type": "object", "properties": named}}).lark
    assert lark.count(f'"maxLength": {200}') == 1
    assert '"maxLength": 3}' in lark
