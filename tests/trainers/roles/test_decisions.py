"""Verdicts in ordinary words: the warning about an untrained base, and that they learn to depend on the text.

The bar is the test at the end: every deciding role of a pretrained base, three seeds. It takes an hour on one core:
`HARDWON_PRETRAINED=FOLDER python -m pytest -q -s tests/trainers/roles/test_decisions.py -m "slow and pretrained"`.
"""

import asyncio
import os
import random
import re
from pathlib import Path
from statistics import fmean

import pytest
import torch
from tests.trainers.folder_base import build_chat_model, build_chat_tokenizer

from hardwon.memory import State
from hardwon.runtime.teams.sharing_policy import Candidate as Shared
from hardwon.trainers.algorithms.learner import Learner, LearnerSettings, LossSettings
from hardwon.trainers.algorithms.samples import Sample, pack_samples
from hardwon.trainers.engines.base import Request
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.models.adapters import add_adapter, parameters_of
from hardwon.trainers.prompting.chat import ChatFormat
from hardwon.trainers.roles.admission import EngineAdmission
from hardwon.trainers.roles.base import weights_of
from hardwon.trainers.roles.decisions import PURPOSES, Look, look
from hardwon.trainers.roles.guide_speech import GuideQuery, Speaker
from hardwon.trainers.roles.note_generators import Candidate, KeepOrSkip

THINGS = re.findall(
    r"\w+", "milk plate sock coat fork shirt towel book lamp knife bread apple soap brush shoe scarf pan cup key bag"
)
PLACES = ["fridge", "drawer", "wardrobe", "shelf", "cupboard", "rack", "basket", "box"]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def ask(role, engine, prompts, chance, things):
    """Return the prompt of a new decision of a role, and whether yes is right: it depends on the text alone."""
    thing, other = chance.sample(things, 2)
    place, right = chance.choice(PLACES), chance.random() < 0.5
    task, seen = f"Put the {thing} where it belongs.", f"You carry the {thing}. A {place} is here."
    if role == "guide":  # is the recalled line about the thing of the task?
        line = f"- put {thing if right else other} in {place}: rewarded"
        return Speaker(engine, prompts).prompt(GuideQuery(State(seen, task=task), (line,))), right
    if role == "extractor":  # did it work?
        lesson = f"put {thing} in {place}: {'rewarded' if right else 'failed (no_effect)'}"
        return KeepOrSkip(engine, prompts).prompt(Candidate(lesson, State(seen, task=task))), right
    key = f"put {thing} in {place} -> it belongs there"
    keys = (f"put {other} in {place} -> it belongs there", *(() if right else (key,)))
    candidate = Shared(task, keys, "put", key, f"The {thing} is in the {place}.")  # is it new to the team?
    return EngineAdmission(engine, prompts).prompt(candidate), right


class Bench:
    """One deciding role with an adapter of its own, trained by what its sampled verdicts were worth."""

    def __init__(self, role, model, tokenizer, *, rank=16, lr=2e-4, seed=0):
        self.role, self.prompts, self.chance = role, ChatFormat(tokenizer), random.Random(seed)
        self.model = add_adapter(model, role, rank, seed=seed)
        self.engine = LocalEngine(self.model, tokenizer, roles=[role])
        self.verdicts = self.prompts.verdicts(PURPOSES[role])
        self.learner = Learner(self.model, parameters_of(self.model, role), LearnerSettings(lr=lr), role=role)
        self.version = 0

    async def _say(self, prompts, temperature):
        requests = [
            Request(ids, self.role, self.verdicts.trie, temperature=temperature, chance=self.chance) for ids in prompts
        ]
        return list(await asyncio.gather(*map(self.engine.generate, requests)))

    def update(self, things, notes=8):
        """Make one update on fresh notes."""
        asked = [ask(self.role, self.engine, self.prompts, self.chance, things) for _ in range(notes)]
        said = asyncio.run(self._say([ids for ids, _ in asked], 1.0))
        rows, advantages = [], {}
        rewards = [
            float((one.tokens == self.verdicts.yes) is right) for (_, right), one in zip(asked, said, strict=True)
        ]
        for n, ((ids, _), one) in enumerate(zip(asked, said, strict=True)):
            fields = (self.role, self.version, "", "", "", str(n), 0)
            rows.append(Sample(ids, one.tokens, one.logprobs, one.mask, one.allowed, *fields))
            # Minus the mean, as the buffer of the extractor does: otherwise the word that is said more often wins.
            advantages[str(n)] = [rewards[n] - fmean(rewards)]
        self.learner.step(pack_samples(rows, advantages), LossSettings())
        self.version += 1
        self.engine.load_adapter(self.role, self.version, weights_of(self.model, self.role))

    def right(self, things, notes=24, seed=1):
        """Return the mean probability of the right verdict."""
        chance = random.Random(seed)
        asked = [ask(self.role, self.engine, self.prompts, chance, things) for _ in range(notes)]
        said = asyncio.run(self._say([ids for ids, _ in asked], 0.0))
        total = 0.0
        for (_, right), one in zip(asked, said, strict=True):
            p = float(torch.tensor(sum(one.logprobs)).exp())
            total += p if (one.tokens == self.verdicts.yes) is right else 1.0 - p
        return total / notes


# -- the warning


def test_a_base_that_does_not_obey_is_reported():
    assert Look(0.02, (0.9, 0.1)).explain("guide")
    assert "2.0%" in (Look(0.02, (0.9, 0.1)).explain("guide") or "")
    assert "whatever it reads" in (Look(0.9, (0.51, 0.5)).explain("extractor") or "")
    assert Look(0.9, (0.9, 0.1)).explain("admission") is None


@pytest.mark.parametrize("role", PURPOSES)
def test_an_untrained_base_is_looked_at_through_its_own_questions(role):
    tokenizer = build_chat_tokenizer()
    engine = LocalEngine(build_chat_model(tokenizer), tokenizer, roles=[role])
    found = asyncio.run(look(engine, ChatFormat(tokenizer), role))
    assert 0.0 < found.mass < 0.1  # two of some 400 tokens
    assert all(0.0 < p < 1.0 for p in found.yes)
    assert found.explain(role)


# -- learning


@pytest.mark.parametrize("role", PURPOSES)
def test_an_adapter_moves_the_verdicts_of_a_frozen_base(role):
    """Without added tokens and spare rows, embeddings and head stay frozen, and P(yes) still moves."""
    tokenizer = build_chat_tokenizer()
    model = build_chat_model(tokenizer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    bench = Bench(role, model, tokenizer, rank=4, lr=3e-2)
    first = asyncio.run(look(bench.engine, bench.prompts, role))
    for _ in range(8):
        bench.update(THINGS)
    moved = asyncio.run(look(bench.engine, bench.prompts, role))
    assert max(abs(a - b) for a, b in zip(first.yes, moved.yes, strict=True)) > 0.01
    kept = {
        name.replace("base_model.model.", "").replace(".base_layer", ""): v
        for name, v in bench.model.state_dict().items()
    }
    assert all(torch.equal(kept[name], value) for name, value in before.items())


@pytest.mark.slow
@pytest.mark.pretrained
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("role", PURPOSES)
def test_a_pretrained_base_learns_verdicts_that_depend_on_the_text(role, seed):
    """The bar: held-out P(right) >= .95, averaged over the last looks, with fresh notes and a rate of 2e-4."""
    folder = os.environ.get("HARDWON_PRETRAINED", "")
    if not Path(folder, "config.json").is_file():
        pytest.skip("set HARDWON_PRETRAINED to the folder of a pretrained base")
    from transformers import AutoModelForCausalLM

    from hardwon.trainers.engines.base_models import load_tokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    bench = Bench(role, model, load_tokenizer(folder), seed=seed)
    things = list(THINGS)
    random.Random(seed).shuffle(things)
    learned, held_out = things[:14], things[14:]
    looks = [bench.right(held_out)]
    for n in range(1, 61):
        bench.update(learned)
        if n % 5 == 0:
            looks.append(bench.right(held_out))
            print(f"{role} seed {seed} update {n}: P(right) {looks[-1]:.3f}", flush=True)
            if len(looks) > 4 and fmean(looks[-3:]) >= 0.95:
                break
    assert fmean(looks[-3:]) >= 0.95
