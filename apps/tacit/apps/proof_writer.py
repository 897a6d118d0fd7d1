"""The writer of the proof on coin: an extractor that says the way itself, word by word, instead of choosing one.

It is warmed up on walks of the imitated worlds: which of the ways that a walk offers is the answer is told by
the same paired difference that pays the extractor, played by the policy, not by who knows where the coin is.
Then it is paid for what it writes. What it says is free: no grammar holds it to the ways there are.
"""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from tacit.memory import ExperienceLibrary, Trajectory
from tacit.trainers.config import RoleConfig
from tacit.trainers.engine_local import LocalEngine
from tacit.trainers.extractor import ExtractorRole
from tacit.trainers.optim import LearnerSettings, LossSettings
from tacit.trainers.roles import Parts
from tacit.trainers.rows import Stream, streams
from tacit.trainers.transcript import compact
from tacit.trainers.warmstart import WarmStart, warm_start
from tacit.trainers.writers import Candidate, Writes, text_of, ways

from .proof_extractor import COST, LENGTH, Played, at_random, by_oracle, dealt
from .proof_policy import Figures, Ground, compared, evaluate, fresh, groups, player, tell, turned
from .proof_worlds import DEMOS, HELD_OUT, PATIENCE, WORLDS, Texts, World, best, offered, usable, walks

LESSONS, LESSON_UPDATES, LESSON_LR = 8, 600, 2e-3
"""Times that each lesson is turned another way, updates that teach, and their learning rate."""
PAID_UPDATES, PAID_WORLDS, PAID_LR = 20, 12, 1e-4
"""Updates that pay for what is written, worlds in each, and their learning rate."""


def read_out(trajectory: Trajectory) -> str:
    """What a writer reads: each room that was come to, what was seen there, and the way there."""
    return " ".join(f"<see> {compact(one.seen.observation)} {answer(one)}" for one in ways(trajectory))


def answer(one: Candidate) -> str:
    """What a writer says: where, then how to get there. Each is found by one look at what it read."""
    return f"<at> {one.seen.location.lower()} <item> add : {one.text}"


def worthy(played: Played, looks: Mapping[World, Trajectory]) -> dict[World, Candidate]:
    """By world, the way whose episodes did best, where they did better than those that were shown nothing."""
    found = {}
    for world, look in looks.items():
        ended = {one.text: fmean(played.ended[world, one.text]) for one in ways(look)}
        best = max(ways(look), key=lambda one: ended[one.text])
        if ended[best.text] > fmean(played.ended[world, None]):
            found[world] = best
    return found


def lessons(
    writer: Writes, ground: Ground, right: Mapping[World, Candidate], looks: Mapping[World, Trajectory]
) -> list[Stream]:
    """Each walk with what should be said of it, turned LESSONS ways."""
    chance, made = random.Random(0), []
    for world, one in right.items():
        row = writer.lesson(looks[world], answer(one), f"{world}")
        (stream,) = streams([row], {row.trace: [1.0]})
        made += [turned(stream, ground.transcript, chance) for _ in range(LESSONS)]
    return made


def paid(writer: Writes, model: Any, policy: Any, ground: Ground, worlds: Sequence[World], seed: int) -> list[Figures]:
    """REINFORCE: what it writes is shown to episodes, and their difference to those shown nothing is its reward."""
    config = RoleConfig(
        learner=LearnerSettings(lr=PAID_LR, budget=8192),
        loss=LossSettings(kind="cispo", low=0.1, high=0.1),
        settings={"ready": 1, "cooldown": 0, "cost": COST, "length": LENGTH},
    )
    engine = LocalEngine(model, ground.transcript.tokenizer, roles=("extractor",))
    parts = Parts(config, model, ground.transcript, engine, ExperienceLibrary.open(":memory:"), seed)
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


def written(policy: Any, ground: Ground, seed: int) -> Figures:
    """A writer after its lessons, and after it was paid, beside a way at random and the oracle's."""
    worlds, held_out = usable(ground.looks, WORLDS), usable(ground.looks, HELD_OUT)
    model, began = fresh(ground, seed + 100), time.process_time()
    writer = Writes(
        LocalEngine(model, ground.transcript.tokenizer, roles=("extractor",)), ground.transcript, reads=read_out
    )
    taught = walks(DEMOS, patience=PATIENCE, seed=1)
    taught = {world: taught[world] for world in usable(taught, DEMOS)}
    played = Played(policy, replace(ground, looks=taught), [*taught], 2, seed)
    right = worthy(played, taught)
    report: Figures = {
        "lessons": {
            "worlds": len(taught),
            "kept": len(right),
            "oracle": fmean(one == best(taught[w]) for w, one in right.items()),
        }
    }
    warm_start(
        model, lessons(writer, ground, right, taught), WarmStart(updates=LESSON_UPDATES, lr=LESSON_LR, seed=seed), tell
    )
    report["taught"] = {"cpu_s": time.process_time() - began}
    shown: dict[str, Texts] = {"taught": said(writer, ground, held_out)}
    began = time.process_time()
    report["paid"] = {"curve": paid(writer, model, policy, ground, worlds, seed), "cpu_s": time.process_time() - began}
    shown["paid"] = said(writer, ground, held_out)
    for name, texts in shown.items():
        report[name]["oracle"] = fmean(texts[w] == best(ground.looks[w]).text for w in held_out)
        report[name]["a_way"] = fmean(texts[w] in offered(ground.looks[w]) for w in held_out)
    shown |= {"at random": at_random(ground, held_out, seed), "oracle": by_oracle(ground, held_out)}
    for name, figures in compared(evaluate(policy, ground.transcript, shown, seed)).items():
        report.setdefault(name, {}).update(figures)
    return report
