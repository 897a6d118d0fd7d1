"""What must hold on a GPU as it does on a CPU; the GPU's half is run by `pytest -m gpu`."""

import asyncio
import random

import pytest
import torch

from hardwon.trainers.algorithms.learner import Learner, LearnerSettings
from hardwon.trainers.algorithms.logprobs import autocast, compute_logprobs
from hardwon.trainers.algorithms.samples import Sample, pack_samples
from hardwon.trainers.engines.base import Request
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.engines.trie import Trie
from hardwon.trainers.models.adapters import add_adapter, parameters_of
from hardwon.trainers.models.tiny import TinyConfig, build_model

TRIE = Trie([(10, 11, 2), (10, 12, 13, 2), (14, 2)])
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
NEAR = {"cpu": 1e-5, "cuda": 0.05}
"""How far log-probabilities of the same text may be apart, in nats: bfloat16 has eight bits."""


def adapted(device):
    """A model with an adapter that says something, as a run on this device has it."""
    base = build_model(40, TinyConfig(32, 2, 4, 2, 48, 256)).to(device, torch.bfloat16 if device == "cuda" else None)
    model = add_adapter(base, "policy", 4).to(device)
    with torch.no_grad():
        for parameter in parameters_of(model, "policy").values():
            parameter.normal_(std=0.05)
    return model


def played(model, *, sessions):
    """Rows of four ragged episodes of three turns, free and bound, with the cache kept across turns or not."""
    engine = LocalEngine(model, None)

    async def episode(number):
        name, chance, rows = f"e{number}", random.Random(number), []
        prompt = tuple(range(5, 7 + number))
        await engine.begin(name)
        for turn in range(3):
            only = TRIE if (turn + number) % 2 else None
            request = Request(prompt, "policy", only, 5, 1.0, session=name if sessions else "", chance=chance)
            if not sessions:
                await engine.end(name)
            said = await engine.generate(request)
            given = (said.tokens, said.logprobs, said.mask, said.allowed)
            rows.append(Sample(prompt, *given, "policy", 0, "control", "", "", name, turn))
            prompt = (*prompt, *said.tokens, 20 + turn, 7)
        await engine.end(name)
        return rows

    async def all_of_them():
        return await asyncio.gather(*(episode(number) for number in range(4)))

    return [row for rows in asyncio.run(all_of_them()) for row in rows]


@pytest.mark.parametrize("device", DEVICES)
def test_the_trainer_reads_what_the_engine_sampled(device):
    """The engine's log-probabilities, cached and batched, are those of the trainer's own forward pass."""
    model = adapted(device)
    for row in played(model, sessions=True):
        (values,) = compute_logprobs(model, pack_samples([row], {row.trace: [1.0] * 3}), budget=4096)
        said = [logprob for logprob, counts in zip(row.logprobs, row.mask, strict=True) if counts]
        assert values.tolist() == pytest.approx(said, abs=NEAR[device])


@pytest.mark.parametrize("device", DEVICES)
def test_a_kept_cache_is_as_good_as_reading_anew(device):
    """Texts that were sampled with a cache across turns, read without one: the same log-probabilities."""
    model = adapted(device)
    for kept in played(model, sessions=True):
        engine = LocalEngine(model, None)
        (alone,) = pack_samples([kept], {kept.trace: [1.0] * 3})
        (values,) = asyncio.run(engine.logprobs([alone], "policy"))
        assert values[len(kept.prompt) :] == pytest.approx(list(kept.logprobs), abs=NEAR[device])
    first = [row.completion for row in played(model, sessions=True) if row.turn == 0]
    assert first == [row.completion for row in played(model, sessions=False) if row.turn == 0]


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_moves_the_adapter_and_nothing_else(device):
    """In the precision of the device: bfloat16 on a GPU, while the adapter stays float32."""
    model = adapted(device)
    frozen = {name: value.clone() for name, value in model.named_parameters() if "lora" not in name}
    rows = played(model, sessions=True)
    learner = Learner(model, parameters_of(model, "policy"), LearnerSettings(lr=1e-2), role="policy")
    before = [parameter.clone() for parameter in learner.parameters]
    told = learner.step(pack_samples(rows, {row.trace: [1.0] * 3 for row in rows}))
    assert told["updates"] == 1
    assert {parameter.dtype for parameter in learner.parameters} == {torch.float32}
    assert any(not torch.equal(old, new) for old, new in zip(before, learner.parameters, strict=True))
    assert all(torch.equal(value, dict(model.named_parameters())[name]) for name, value in frozen.items())
    with autocast(torch.device(device)):
        assert torch.is_autocast_enabled(device) == (device == "cuda")
