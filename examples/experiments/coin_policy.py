"""The policy of the proof on coin: how it plays, how it is compared, how it is warmed up and trained.

Everything is played through the runtime's own agent and sampled at temperature 1; greedy policies go in
circles where they have to look for something. Comparisons are paired by world. It knows no extractor.
"""

import asyncio
import copy
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

import torch

from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.runtime import Agent
from hardwon.trainers.algorithms.imitation import Examples, WarmStart, build_examples, warm_start
from hardwon.trainers.algorithms.learner import LearnerSettings
from hardwon.trainers.algorithms.samples import PackedSequence, Rollout
from hardwon.trainers.config.schema import CreditConfig, RoleConfig
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.models.tiny import TinyConfig, build_model, build_tokenizer
from hardwon.trainers.roles.base import Parts, PolicyRole
from hardwon.trainers.roles.note_generators import WORDS as SAID
from hardwon.trainers.rollouts.rollout import GivenGuidance, Spec, TokenPolicy, collect
from hardwon.trainers.rollouts.transcript import Transcript

from .coin_worlds import (
    ACTED_IN,
    BACK,
    DEMOS,
    KEPT_IN,
    LIMIT,
    PATIENCE,
    WORLDS,
    Texts,
    World,
    either_way,
    misled,
    open_game,
    walks,
    way,
)

COPIES = 4
"""Times that every held-out episode is sampled."""
TOGETHER = 256
"""Episodes that are played at once."""
WARM_UPDATES = 450
"""Of the warm start."""
POLICY_UPDATES, GROUPS, POLICY_LR = 30, 6, 3e-4
"""Updates of the policy alone, worlds in each, eight episodes a world; learning rate."""
MISLED = 1
"""Walks a world that trusted another world's."""
TURNS = 2
"""Times that each example is turned another way."""
LARGER = 3.0
"""By what the first weights are multiplied: 0.06 for transformers' 0.02. Heads that copy then form sooner."""

Figures = dict[str, Any]
"""Named figures, nested as deep as a stage wants."""


def tell(message: str) -> None:
    """Progress, to stderr."""
    print(f"[{time.process_time():7.1f} CPU-s] {message}", file=sys.stderr, flush=True)


# -- playing --------------------------------------------------------------------------------------


@dataclass
class Player:
    """A policy in its worlds: episodes through the runtime's own loop, TOGETHER of them at once."""

    engine: LocalEngine
    agents: Mapping[str, Agent]

    def play(self, specs: Sequence[Spec]) -> list[Rollout]:
        """The episodes, in the order of the specs."""
        parts = [specs[at : at + TOGETHER] for at in range(0, len(specs), TOGETHER)]
        return [one for part in parts for one in asyncio.run(collect(self.agents, self.engine, part))]

    def close(self) -> None:
        """Free the games."""
        for agent in self.agents.values():
            agent.close()


def player(model: Any, transcript: Transcript, arms: Sequence[str], seed: int) -> Player:
    """A policy of this model, with an agent for every arm."""
    engine = LocalEngine(model, transcript.tokenizer)
    policy, library = TokenPolicy(engine, transcript), ExperienceLibrary.open(":memory:")
    plain: dict[str, Any] = {"learn": False, "guardrails": False, "recall_k": 0, "max_steps": LIMIT, "seed": seed}
    guidance = GivenGuidance()
    return Player(
        engine, {arm: Agent(policy, library, open_game(), arm=arm, guidance=guidance, **plain) for arm in arms}
    )


Ended = dict[str, dict[World, list[float]]]
"""By arm and world, how the episodes ended: 1 for success."""


def outcomes(rollouts: Sequence[Rollout], specs: Sequence[Spec]) -> Ended:
    """How the episodes ended; failed ones are left out."""
    found: Ended = {}
    for spec, rollout in zip(specs, rollouts, strict=True):
        if not rollout.failed:
            ended = float(bool(rollout.trajectory.success))
            found.setdefault(spec.arm, {}).setdefault((spec.task, spec.seed), []).append(ended)
    return found


def paired(values: Mapping[World, Sequence[float]], base: Mapping[World, Sequence[float]]) -> Figures:
    """Mean, difference to the base by world, and the standard error of that difference."""
    differences = [fmean(values[world]) - fmean(base[world]) for world in values]
    return {
        "success": fmean(fmean(each) for each in values.values()),
        "to_base": fmean(differences),
        "se": stdev(differences) / len(differences) ** 0.5,
    }


def evaluate(model: Any, transcript: Transcript, shown: Mapping[str, Texts], seed: int) -> Ended:
    """How episodes end by condition, each with what it shows in every world; `none` is shown nothing."""
    worlds = sorted(next(iter(shown.values())))
    return conditions(model, transcript, {"none": dict.fromkeys(worlds), **shown}, seed)


def success_of(model: Any, ground: "Ground", worlds: Sequence[World], seed: int) -> dict[World, list[float]]:
    """How the episodes of a policy end that is shown nothing."""
    return conditions(model, ground.transcript, {"none": dict.fromkeys(worlds)}, seed)["none"]


def conditions(model: Any, transcript: Transcript, given: Mapping[str, Texts], seed: int) -> Ended:
    """COPIES episodes of every condition in every world, all sampled."""
    specs = [
        Spec(*world, arm=arm, copy=copy, memory=texts[world], salt=f"eval{seed}")
        for arm, texts in given.items()
        for world in texts
        for copy in range(COPIES)
    ]
    playing = player(model, transcript, [*given], seed)
    ended = outcomes(playing.play(specs), specs)
    playing.close()
    return ended


def compared(ended: Ended, base: str = "none") -> Figures:
    """Every condition beside the base."""
    return {arm: paired(values, ended[base]) for arm, values in ended.items()}


# -- the warm start -------------------------------------------------------------------------------


@dataclass
class Ground:
    """What every stage stands on: walks, words."""

    demos: dict[World, Trajectory]
    looks: dict[World, Trajectory]
    transcript: Transcript


def ground(worlds: Sequence[World] = (*WORLDS, *ACTED_IN, *KEPT_IN)) -> Ground:
    """Walks to imitate, exploring walks of the other worlds, and a tokenizer that knows their words."""
    demos, looks = walks(DEMOS), walks(worlds, patience=PATIENCE)
    texts = [*BACK, SAID]
    for trajectory in (*demos.values(), *looks.values()):
        for step in trajectory.steps:
            texts += [step.pre.task, step.pre.observation, step.pre.feedback, step.action]
    texts += [way(trajectory) for trajectory in demos.values()]
    tell(f"{len(demos)} walks to imitate, {len(looks)} of {len(worlds)} exploring walks found the coin")
    return Ground(demos, looks, Transcript(build_tokenizer(texts)))


def fresh(ground: Ground, seed: int) -> Any:
    """A model with random weights, LARGER than usual."""
    model = build_model(len(ground.transcript.tokenizer), TinyConfig(seed=seed))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(LARGER)
    return model


def warm(ground: Ground, seed: int) -> Any:
    """A policy by imitation of walks that found the coin.

    Three copies in five are shown the way and go straight there; one is shown nothing and wanders; one is shown
    another world's way, trusts it in every room that it comes to for the first time, and wanders from there.
    """
    model, render = fresh(ground, seed), ground.transcript.rows
    given = build_examples(
        ground.demos.values(),
        render,
        Examples(circles="explore", max_turns=12, copies=4, memory_share=0.75, seed=seed),
        memory=either_way,
    )
    keep = Examples(circles="keep", max_turns=12, memory_share=1.0, seed=seed)
    lost = {one.id: (one, either_way(other)) for one, other in misled(ground.demos, MISLED, seed)}
    given += build_examples((one for one, _ in lost.values()), render, keep, memory=lambda one: lost[one.id][1])
    chance = random.Random(seed)
    given = [turned(stream, ground.transcript, chance) for stream in given for _ in range(TURNS)]
    report = warm_start(model, given, WarmStart(updates=WARM_UPDATES, lr=2e-3, seed=seed))
    tell(f"seed {seed}: {report.examples} examples, {report.epochs:.1f} epochs, {report.cpu_s:.1f} CPU-s")
    return model.eval()


def turned(stream: PackedSequence, transcript: Transcript, chance: random.Random) -> PackedSequence:
    """The same episode in a world that is turned or mirrored: the four directions have other names throughout.

    Worlds are few and their maps can be learnt by heart; where they are new every time, only reading helps.
    """
    first, second = chance.sample([("north", "south"), ("east", "west")], 2)
    onto = [*chance.sample(first, 2), *chance.sample(second, 2)]
    ids = [transcript.tokenizer.convert_tokens_to_ids(names) for names in ([*BACK], onto)]
    names = dict(zip(*ids, strict=True))
    return replace(stream, tokens=tuple(names.get(token, token) for token in stream.tokens))


# -- reinforcement --------------------------------------------------------------------------------


def acting(model: Any, ground: Ground, playing: Player, credit: str, lr: float = POLICY_LR) -> PolicyRole:
    """The role that moves the policy by outcomes."""
    config = RoleConfig(learner=LearnerSettings(lr=lr, budget=8192), credit=CreditConfig(name=credit))
    library = ExperienceLibrary.open(":memory:")
    return PolicyRole(Parts(config, model, ground.transcript, playing.engine, library))


def groups(worlds: Sequence[World], salt: str, arms: Mapping[str, int]) -> list[Spec]:
    """So many episodes of each arm in each world."""
    return [
        Spec(*world, arm=arm, copy=copy, salt=salt)
        for world in worlds
        for arm, copies in arms.items()
        for copy in range(copies)
    ]


def reinforce(start: Any, ground: Ground, seed: int, credit: str) -> tuple[Any, Figures]:
    """The policy alone, shown nothing, from the warm start; and how its episodes ended, update by update."""
    model, began = copy.deepcopy(start), time.process_time()
    playing = player(model, ground.transcript, ["control"], seed)
    role, chance, curve = acting(model, ground, playing, credit), random.Random(seed), []
    pool = [world for world in WORLDS if world in ground.looks]
    for update in range(1, POLICY_UPDATES + 1):
        specs = groups(chance.sample(pool, GROUPS), f"alone{seed}/{update}", {"control": 8})
        rollouts = playing.play(specs)
        role.collect(rollouts)
        role.update()
        playing.engine.load_adapter("policy", update, role.weights())
        curve.append(fmean(fmean(ended) for ended in outcomes(rollouts, specs)["control"].values()))
    playing.close()
    spent = time.process_time() - began
    tell(f"seed {seed} {credit}: success {fmean(curve[:10]):.2f} in ten updates, {fmean(curve[-10:]):.2f} then")
    return model, {"curve": curve, "cpu_s": spent}
