"""Verdicts in ordinary words: the warning about an untrained base, and that they learn to depend on the text.

The bar is the test at the end: every deciding role of a pretrained base, three seeds. `make test-pretrained-slow` runs
it, for an hour on one core; HARDWON_PRETRAINED=FOLDER takes another base than SmolLM2.
"""

import asyncio
import math
import random
import re
import time
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
import pytest
import torch
from tests.trainers.corridor import Corridor
from tests.trainers.folder_base import build_chat_model, build_chat_tokenizer
from tests.trainers.models.test_smollm2 import FOLDER

from hardwon.memory import ExperienceLibrary, State, Trajectory
from hardwon.runtime.teams.sharing_policy import SharingInput as Shared
from hardwon.trainers.algorithms.learner import LearnerSettings
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.config.schema import RoleConfig
from hardwon.trainers.engines.base import Request
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.models.adapters import add_adapter
from hardwon.trainers.prompting.chat import ChatFormat
from hardwon.trainers.roles.admission import AdmissionRole, EngineAdmission
from hardwon.trainers.roles.admission_learning import Decided, Episode
from hardwon.trainers.roles.base import Parts
from hardwon.trainers.roles.decisions import PURPOSES, Look, look
from hardwon.trainers.roles.guides.role import GuideRole
from hardwon.trainers.roles.guides.speech import GuideQuery
from hardwon.trainers.rollouts.rollout import Spec

THINGS = re.findall(
    r"\w+", "milk plate sock coat fork shirt towel book lamp knife bread apple soap brush shoe scarf pan cup key bag"
)
MOST, FIRST, EVERY, LOOKS = 60, 20, 5, 3
"""Updates at most, the first one with a look at held-out notes, those between two looks, and the looks averaged."""
PLACES = ["fridge", "drawer", "wardrobe", "shelf", "cupboard", "rack", "basket", "box"]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@dataclass(frozen=True)
class Note:
    """A decision of which only the text says what is right."""

    thing: str
    other: str
    place: str
    right: bool
    """Whether to agree."""

    @property
    def seen(self):
        return State(
            f"You carry the {self.thing}. A {self.place} is here.", task=f"Put the {self.thing} where it belongs."
        )


def draw(chance, things):
    thing, other = chance.sample(things, 2)
    return Note(thing, other, chance.choice(PLACES), chance.random() < 0.5)


class GuideBench:
    """Is the recalled line about the thing of the task? A hint that is not costs the success."""

    role = "guide"

    def __init__(self, parts, notes):
        self.notes = dict[str, Note]()
        config = replace(parts.config, settings={"distil": 0, "ready": notes, "cost": 0.0})
        self.trained = GuideRole(replace(parts, config=config), lambda spec: self.query(self.notes[spec.task]))

    def query(self, note):
        line = f"- put {note.thing if note.right else note.other} in {note.place}: rewarded"
        return GuideQuery(note.seen, (line,), (line,))

    def prompt(self, note):
        return self.trained.speaker.prompt(self.query(note))

    def collect(self, notes, salt):
        self.notes = {str(n): note for n, note in enumerate(notes)}
        specs = [Spec(task, 0, "guided", copy, salt=salt) for task in self.notes for copy in range(2)]
        told = asyncio.run(_gather(self.trained.prepare(specs)))
        without = [Spec(task, 0, salt=salt) for task in self.notes]
        self.trained.collect([_ended(spec, self.notes[spec.task].right == (spec.memory is not None))
                              for spec in (*told, *without)])  # fmt: skip


class AdmissionBench:
    """Is it new to the team? What is new is pulled, and the team succeeds."""

    role = "admission"

    def __init__(self, parts, notes):
        settings = {"target": 0.5, "ready": notes}
        self.trained = AdmissionRole(replace(parts, config=replace(parts.config, settings=settings)))
        self.asked = EngineAdmission(parts.engine, parts.prompts)

    def candidate(self, note):
        key = f"put {note.thing} in {note.place} -> it belongs there"
        others = (f"put {note.other} in {note.place} -> it belongs there", *(() if note.right else (key,)))
        return Shared(note.seen.task, others, "put", key, f"The {note.thing} is in the {note.place}.")

    def prompt(self, note):
        return self.asked.prompt(self.candidate(note))

    def collect(self, notes, salt):
        parts = self.trained._parts
        admission = EngineAdmission(parts.engine, parts.prompts, salt=salt)
        choices = [asyncio.run(admission.decide(self.candidate(note))) for note in notes]
        decided = tuple(
            Decided(np.zeros(0), choice.admit, choice.p, used=choice.admit and note.right)
            for choice, note in zip(choices, notes, strict=True)
        )
        self.trained.credit([(Episode(1.0, decided), admission.decisions)])


BENCHES = {bench.role: bench for bench in (GuideBench, AdmissionBench)}


async def _gather(call):
    return list(await call)


def _ended(spec, success):
    return Rollout(Trajectory("", (), success, arm=spec.arm, id=spec.session), (), spec.group)


class Bench:
    """A deciding role of the trainer with an adapter of its own, paid by what its decisions were worth."""

    def __init__(self, role, model, tokenizer, *, rank=16, lr=2e-4, seed=0, notes=4):
        self.prompts, self.chance, self.notes = ChatFormat(tokenizer), random.Random(seed), notes
        self.model = add_adapter(model, role, rank, seed=seed)
        self.engine = LocalEngine(self.model, tokenizer, roles=[role])
        self.verdicts = self.prompts.verdicts(PURPOSES[role])
        config = RoleConfig(learner=LearnerSettings(lr=lr))
        parts = Parts(config, self.model, self.prompts, self.engine, ExperienceLibrary.open(":memory:"), seed,
                      environment=Corridor())  # fmt: skip
        self.role, self.bench, self.version = role, BENCHES[role](parts, notes), 0
        self.tokens = 0

    def update(self, things):
        """Make one update on fresh notes, through the role's own collection and update."""
        notes = [draw(self.chance, things) for _ in range(self.notes)]
        self.bench.collect(notes, str(self.version))
        assert self.bench.trained.ready()
        self.tokens += int(self.bench.trained.update()["tokens"])
        self.version += 1
        self.engine.load_adapter(self.role, self.version, self.bench.trained.weights())

    def right(self, things, notes=24, seed=1):
        """Return the mean probability of the right verdict."""
        chance = random.Random(seed)
        asked = [draw(chance, things) for _ in range(notes)]
        requests = [Request(self.bench.prompt(note), self.role, self.verdicts.trie, temperature=0.0) for note in asked]
        said = asyncio.run(self._say(requests))
        total = 0.0
        for note, one in zip(asked, said, strict=True):
            p = math.exp(sum(one.logprobs))
            total += p if (one.tokens == self.verdicts.yes) is note.right else 1.0 - p
        return total / notes

    async def _say(self, requests):
        return list(await asyncio.gather(*map(self.engine.generate, requests)))


# -- the warning


def test_a_base_that_does_not_obey_is_reported():
    assert Look(0.02, (0.9, 0.1)).explain("guide")
    assert "2.0%" in (Look(0.02, (0.9, 0.1)).explain("guide") or "")
    assert "whatever it reads" in (Look(0.9, (0.51, 0.5)).explain("guide") or "")
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
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("role", PURPOSES)
def test_a_pretrained_base_learns_verdicts_that_depend_on_the_text(role, seed):
    """The bar: held-out P(right) >= .95, averaged over the last looks, with fresh notes and a rate of 2e-4."""
    if not FOLDER.is_dir():
        pytest.skip(f"there is no folder {FOLDER}; run: make test-pretrained-slow")
    from transformers import AutoModelForCausalLM

    from hardwon.trainers.engines.base_models import load_tokenizer

    model = AutoModelForCausalLM.from_pretrained(str(FOLDER), dtype=torch.float32).eval()
    bench = Bench(role, model, load_tokenizer(FOLDER), seed=seed)
    things = list(THINGS)
    random.Random(seed).shuffle(things)
    learned, held_out = things[:14], things[14:]
    looks, spent = [bench.right(held_out)], 0.0
    print(f"{role} seed {seed} before: P(right) {looks[-1]:.3f}", flush=True)
    for n in range(1, MOST + 1):
        began = time.process_time()
        bench.update(learned)
        spent += time.process_time() - began
        if n >= FIRST and n % EVERY == 0:
            looks.append(bench.right(held_out))
            figures = f"P(right) {looks[-1]:.3f}, {bench.tokens} tokens trained, {spent:.0f} CPU-seconds"
            print(f"{role} seed {seed} update {n}: {figures}", flush=True)
            if len(looks) > LOOKS and fmean(looks[-LOOKS:]) >= 0.95:
                break
    assert fmean(looks[-LOOKS:]) >= 0.95
