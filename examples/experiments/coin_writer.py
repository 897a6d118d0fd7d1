"""The writer of the proof on coin: an extractor that says the way itself, word by word, instead of choosing one.

It is warmed up on what the extractor that the paired difference had paid would choose of each walk: nobody
tells it where the coin is. Then it is paid itself, for what it writes. What it says is free: no grammar
holds it to the ways there are.
"""

import asyncio
import copy
import random
import time
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.trainers.algorithms.imitation import WarmStart, warm_start
from hardwon.trainers.algorithms.learner import LearnerSettings, LossSettings
from hardwon.trainers.algorithms.samples import PackedSequence, pack_samples
from hardwon.trainers.config.schema import RoleConfig
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.roles.base import Parts
from hardwon.trainers.roles.extractor import ExtractorRole
from hardwon.trainers.roles.note_generators import Candidate, Writes, text_of, ways
from hardwon.trainers.rollouts.transcript import compact

from .coin_extractor import LENGTH, at_random, by_oracle, choices, dealt, judged, surest
from .coin_policy import Figures, Ground, compared, evaluate, groups, player, tell, turned
from .coin_worlds import HELD_OUT, WORLDS, Texts, World, best, offered, usable

LESSONS, LESSON_UPDATES, LESSON_LR = 4, 400, 2e-3
"""Times that each lesson is turned another way, updates that teach, and their learning rate."""
PAID_UPDATES, PAID_WORLDS, PAID_LR, PAID_COST = 15, 12, 1e-4, 0.1
"""Updates that pay for what is written, worlds in each, their learning rate, what LENGTH tokens cost."""


def read_out(trajectory: Trajectory) -> str:
    """What a writer reads: each room that was come to, what was seen there, and the way there."""
    return " ".join(f"<see> {compact(one.seen.observation)} {answer(one)}" for one in ways(trajectory))


def answer(one: Candidate) -> str:
    """What a writer says: where, then how to get there. Each is found by one look at what it read."""
    return f"<at> {one.seen.location.lower()} <item> add : {one.text}"


def lessons(writer: Writes, ground: Ground, chosen: Texts) -> list[PackedSequence]:
    """Each walk with what should be said of it, turned LESSONS ways."""
    chance, made = random.Random(0), []
    for world, text in chosen.items():
        (one,) = (one for one in ways(ground.looks[world]) if one.text == text)
        row = writer.lesson(ground.looks[world], answer(one), f"{world}")
        (stream,) = pack_samples([row], {row.trace: [1.0]})
        made += [turned(stream, ground.transcript, chance) for _ in range(LESSONS)]
    return made


def paid(
    writer: Writes, engine: LocalEngine, policy: Any, ground: Ground, worlds: Sequence[World], seed: int
) -> list[Figures]:
    """REINFORCE: what it writes is shown to episodes, and their difference to those shown nothing is its reward."""
    config = RoleConfig(
        learner=LearnerSettings(lr=PAID_LR, budget=8192),
        loss=LossSettings(kind="cispo", low=0.1, high=0.1),
        settings={"ready": 1, "cooldown": 0, "cost": PAID_COST, "length": LENGTH},
    )
    parts = Parts(config, engine.model, ground.transcript, engine, ExperienceLibrary.open(":memory:"), seed)
    role = ExtractorRole(parts, lambda task, number: ground.looks.get((task, number)), writer)
    playing, chance, curve = player(policy, ground.transcript, ["control", "memory"], seed), random.Random(seed), []
    for update in range(1, PAID_UPDATES + 1):
        specs = groups(chance.sample(worlds, PAID_WORLDS), f"paid{seed}/{update}", {"memory": 4, "control": 4})
        role.collect(playing.play(dealt(role, specs)))
        told = role.update()
        curve.append({"reward": told["reward"], "kept": told["kept"]})
    playing.close()
    return curve


def said(writer: Writes, ground: Ground, worlds: Sequence[World]) -> Texts:
    """What is written of each world's walk, greedy; None where it is nothing."""

    async def everything() -> list[list[Any]]:
        return list(await asyncio.gather(*(writer.read(ground.looks[world], greedy=True) for world in worlds)))

    items = [one[0].items for one in asyncio.run(everything())]
    return {world: text_of(item[0]) if item else None for world, item in zip(worlds, items, strict=True)}


def written(policy: Any, teacher: Any, ground: Ground, seed: int) -> Figures:
    """A writer after its lessons, and after it was paid, beside a way at random and the oracle's."""
    worlds, held_out = usable(ground.looks, WORLDS), usable(ground.looks, HELD_OUT)
    model, began = copy.deepcopy(policy), time.process_time()
    engine = LocalEngine(model, ground.transcript.tokenizer, roles=("extractor",))
    writer = Writes(engine, ground.transcript, reads=read_out)
    chosen = choices(teacher, ground, worlds)
    given = lessons(writer, ground, surest(chosen))
    warm_start(model, given, WarmStart(updates=LESSON_UPDATES, lr=LESSON_LR, seed=seed), tell)
    report: Figures = {"teacher": judged(chosen, ground.looks), "taught": {"cpu_s": time.process_time() - began}}
    shown: dict[str, Texts] = {"taught": said(writer, ground, held_out)}
    began = time.process_time()
    report["paid"] = {"curve": paid(writer, engine, policy, ground, worlds, seed), "cpu_s": time.process_time() - began}
    shown["paid"] = said(writer, ground, held_out)
    for name, texts in shown.items():
        report[name]["oracle"] = fmean(texts[w] == best(ground.looks[w]).text for w in held_out)
        report[name]["a_way"] = fmean(texts[w] in offered(ground.looks[w]) for w in held_out)
    shown |= {"at random": at_random(ground, held_out, seed), "oracle": by_oracle(ground, held_out)}
    for name, figures in compared(evaluate(policy, ground.transcript, shown, seed)).items():
        report.setdefault(name, {}).update(figures)
    return report
