"""The extractor of the proof on coin: what it is offered, what it is paid, how its choices are judged.

An exploring walk of a world came to some rooms; the way to each is a text that can be kept, or not. What
an episode is worth with a text and without pays for the decision. This file moves no policy of its own.
"""

import asyncio
import copy
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.trainers.algorithms.learner import LearnerSettings, LossSettings
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.config.schema import RoleConfig
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.roles.base import Parts
from hardwon.trainers.roles.extractor import ExtractorRole, Measure
from hardwon.trainers.roles.note_generators import Candidate, KeepOrSkip, ways
from hardwon.trainers.rollouts.rollout import Spec

from .coin_policy import GROUPS, Figures, Ground, acting, compared, evaluate, groups, outcomes, player, tell
from .coin_worlds import KEPT_IN, WORLDS, Texts, World, best, offered, usable

COST, LENGTH, ENTROPY = 0.2, 32, 0.03
"""What a text of LENGTH tokens costs, in units of success, and the weight of the extractor's entropy."""
TABLE, POOL = 4, 100
"""Episodes that are played of each text, and of none, in each of so many of the extractor's worlds."""
EACH, UPDATES, LR = 20, 60, 1e-3
"""Worlds an update of the extractor, its updates, its learning rate."""
SHOWN = 24
"""Episodes of a world that are shown something in an update: what was played is drawn from, so they cost nothing."""
TOGETHER_UPDATES, TOGETHER_LR = 60, 1e-4
"""Updates of policy and extractor in turns, and the policy's learning rate in them."""
TAKEN = {"memory": 8, "control": 3}
"""Episodes of a world in such an update: GROUPS of its EACH worlds move the policy, all of them the extractor."""
MEASURES: Mapping[str, Measure] = {"difference": "difference", "outcome": "outcome", "frozen": "difference"}
"""Extractors, and what each is paid; the frozen one learns nothing from it."""


class Played:
    """Episodes of a frozen policy in the worlds of the extractor: played once, taken again and again."""

    def __init__(self, model: Any, ground: Ground, worlds: Sequence[World], copies: int, seed: int) -> None:
        texts = {world: [None, *offered(ground.looks[world])] for world in worlds}
        specs = [
            Spec(*world, arm="memory", copy=copy, memory=text, salt=f"table{seed}/{n}")
            for world, shown in texts.items()
            for n, text in enumerate(shown)
            for copy in range(copies)
        ]
        playing = player(model, ground.transcript, ["memory"], seed)
        self.ended: dict[tuple[World, str | None], list[bool]] = {}
        for spec, rollout in zip(specs, playing.play(specs), strict=True):
            if not rollout.failed:
                ended = self.ended.setdefault(((spec.task, spec.seed), spec.memory), [])
                ended.append(bool(rollout.trajectory.success))
        playing.close()
        self.episodes = len(specs)

    def play(self, specs: Sequence[Spec]) -> list[Rollout]:
        """Episodes that were played, as if they were these: those of each text in turn, so that all of them count."""
        turns: Counter[tuple[World, str | None]] = Counter()
        rollouts = []
        for spec in specs:
            key = ((spec.task, spec.seed), spec.memory)
            ended = self.ended[key][turns[key] % len(self.ended[key])]
            turns[key] += 1
            rollouts.append(Rollout(Trajectory(spec.task, (), ended, arm=spec.arm, id=spec.session), (), spec.group))
        return rollouts


def rooms(trajectory: Trajectory) -> list[Candidate]:
    """The ways with the rooms they lead to, without the task, which is the same in every world."""
    return [replace(one, seen=replace(one.seen, task="")) for one in ways(trajectory)]


def extractor(
    model: Any, ground: Ground, seed: int, *, measure: Measure = "difference", updates: int = UPDATES
) -> ExtractorRole:
    """A role that keeps or skips each way that an exploring walk offers; its steps fall to nothing in `updates`."""
    config = RoleConfig(
        learner=LearnerSettings(lr=LR, warmup=5, decay=updates, budget=8192),
        loss=LossSettings(kind="cispo", low=0.1, high=0.1, entropy=ENTROPY),
        settings={"ready": 1, "cooldown": 0, "measure": measure, "cost": COST, "length": LENGTH},
    )
    serving = LocalEngine(model, ground.transcript.tokenizer, roles=("extractor",))
    parts = Parts(config, model, ground.transcript, serving, ExperienceLibrary.open(":memory:"), seed)
    source, writer = (
        (lambda task, number: ground.looks.get((task, number))),
        KeepOrSkip(serving, ground.transcript, rooms),
    )
    role = ExtractorRole(parts, source, writer)
    role.begin()
    return role


def dealt(role: ExtractorRole, specs: Sequence[Spec]) -> list[Spec]:
    """The specs, with what the extractor keeps where memory is shown."""

    async def prepared() -> Sequence[Spec]:
        return await role.prepare([spec for spec in specs if spec.arm == "memory"])

    given = iter(asyncio.run(prepared()))
    return [next(given) if spec.arm == "memory" else spec for spec in specs]


def learn_to_keep(role: ExtractorRole, played: Played, worlds: Sequence[World], seed: int) -> list[Figures]:
    """The extractor's training against a frozen policy: EACH worlds an update."""
    chance, curve = random.Random(f"{seed} worlds"), []
    for update in range(1, UPDATES + 1):
        arms = {"memory": SHOWN, "control": TABLE}
        role.collect(played.play(dealt(role, groups(chance.sample(worlds, EACH), f"{seed}/{update}", arms))))
        told = role.update()
        curve.append({"reward": told["reward"], "kept": told["kept"]})
    return curve


# -- its choices ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """What an extractor makes of a world's ways."""

    surest: str
    kept: tuple[str, ...]
    offered: tuple[str, ...]


def choices(model: Any, ground: Ground, worlds: Sequence[World]) -> dict[World, Choice]:
    """Greedy: the way it would rather keep than any other, and all that it would keep."""
    engine = LocalEngine(model, ground.transcript.tokenizer, roles=("extractor",))
    writer = KeepOrSkip(engine, ground.transcript, rooms)

    async def read(world: World) -> Choice:
        written = await writer.read(ground.looks[world], greedy=True)
        texts, sure = tuple(offered(ground.looks[world])), [one.keeps for one in written]
        kept = tuple(text for text, one in zip(texts, written, strict=True) if one.items)
        return Choice(texts[sure.index(max(sure))], kept, texts)

    async def everything() -> list[Choice]:
        return list(await asyncio.gather(*(read(world) for world in worlds)))

    return dict(zip(worlds, asyncio.run(everything()), strict=True))


def judged(found: Mapping[World, Choice], looks: Mapping[World, Trajectory]) -> Figures:
    """Shares: the surest is the oracle's; the useful are kept; the useless are kept."""
    right = {world: best(looks[world]).text for world in found}
    useless = [text in one.kept for world, one in found.items() for text in one.offered if text != right[world]]
    return {
        "oracle": fmean(one.surest == right[world] for world, one in found.items()),
        "useful_kept": fmean(right[world] in one.kept for world, one in found.items()),
        "useless_kept": fmean(useless),
    }


def surest(found: Mapping[World, Choice]) -> Texts:
    """What each world is shown of it."""
    return {world: one.surest for world, one in found.items()}


def at_random(ground: Ground, worlds: Sequence[World], seed: int) -> Texts:
    """The control: any of the ways."""
    chance = random.Random(f"{seed} at random")
    return {world: chance.choice(offered(ground.looks[world])) for world in worlds}


def by_oracle(ground: Ground, worlds: Sequence[World]) -> Texts:
    """The way to the coin's room, of those offered."""
    return {world: best(ground.looks[world]).text for world in worlds}


# -- stages ---------------------------------------------------------------------------------------


def alone(policy: Any, ground: Ground, seed: int) -> tuple[Any, Figures]:
    """The extractor that the difference pays; and all of them, judged by choices and by what these bring a policy."""
    worlds, held_out = usable(ground.looks, WORLDS)[:POOL], usable(ground.looks, KEPT_IN)
    began = time.process_time()
    played = Played(policy, ground, worlds, TABLE, seed)
    report: Figures = {"table": {"episodes": played.episodes, "cpu_s": time.process_time() - began}}
    shown = {"oracle": by_oracle(ground, held_out), "at random": at_random(ground, held_out, seed)}
    models = {name: copy.deepcopy(policy) for name in MEASURES}
    for name, measure in MEASURES.items():
        began, model = time.process_time(), models[name]
        role = extractor(model, ground, seed, measure=measure)
        curve = [] if name == "frozen" else learn_to_keep(role, played, worlds, seed)
        spent = time.process_time() - began
        found = choices(model, ground, held_out)
        report[name] = {**judged(found, ground.looks), "cpu_s": spent, "curve": curve}
        shown[name] = surest(found)
        tell(f"seed {seed} {name}: oracle {report[name]['oracle']:.2f}, useless {report[name]['useless_kept']:.2f}")
    for name, figures in compared(evaluate(policy, ground.transcript, shown, seed)).items():
        report.setdefault(name, {}).update(figures)
    return models["difference"], report


def together(start: Any, ground: Ground, seed: int, *, learns: bool) -> tuple[Any, Any, Figures]:
    """Policy and extractor from the warm start, in turns; with `learns` False the extractor stays as it was.

    The policy is moved in the same worlds either way; the others are for the extractor and are not played for nothing.
    """
    worlds, began = usable(ground.looks, WORLDS), time.process_time()
    policy, reader = copy.deepcopy(start), copy.deepcopy(start)
    playing = player(policy, ground.transcript, ["control", "memory"], seed)
    actor = acting(policy, ground, playing, "slea", TOGETHER_LR)
    chooser = extractor(reader, ground, seed, updates=TOGETHER_UPDATES)
    chance, curve = random.Random(f"{seed} both"), []
    for update in range(1, TOGETHER_UPDATES + 1):
        drawn = chance.sample(worlds, EACH)[: EACH if learns else GROUPS]
        specs = dealt(chooser, groups(drawn, f"both{seed}/{update}", TAKEN))
        rollouts, moving = playing.play(specs), GROUPS * sum(TAKEN.values())
        actor.collect(rollouts[:moving])
        actor.update()
        playing.engine.load_adapter("policy", update, actor.weights())
        chooser.collect(rollouts)
        if learns:
            chooser.update()
        won = outcomes(rollouts[:moving], specs[:moving])
        curve.append({**{arm: fmean(fmean(v) for v in by.values()) for arm, by in won.items()}, **chooser.stats})
    playing.close()
    return policy, reader, {"curve": curve, "cpu_s": time.process_time() - began}
