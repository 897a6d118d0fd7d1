"""Train and judge the extractor of the coin experiment.

An exploring walk visits several rooms; the extractor keeps or skips the route to each of them. The reward of a
decision is the success of episodes with the text compared with episodes without it.
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

from .coin_policy import (
    GROUPS,
    CoinData,
    Figures,
    build_groups,
    collect_outcomes,
    compare_with_base,
    create_player,
    create_policy_role,
    evaluate,
    log,
)
from .coin_worlds import KEPT_IN, WORLDS, Texts, World, find_best, list_offers, select_usable

COST, LENGTH, ENTROPY = 0.2, 32, 0.03
"""Cost of a text with LENGTH tokens, in units of success; weight of the entropy bonus of the extractor."""
TABLE, POOL = 4, 100
"""Episodes per text (and without text) in the table; number of worlds in the table."""
EACH, UPDATES, LR = 20, 60, 1e-3
"""Extractor: worlds per update, number of updates, learning rate."""
SHOWN = 24
"""Episodes with memory per world and update. They are drawn from the table, so they cost nothing."""
TOGETHER_UPDATES, TOGETHER_LR = 60, 1e-4
"""Joint training: number of updates, learning rate of the policy."""
TAKEN = {"memory": 8, "control": 3}
"""Episodes per world in a joint update. The first GROUPS worlds train the policy, all of them the extractor."""
MEASURES: Mapping[str, Measure] = {"difference": "difference", "outcome": "outcome", "frozen": "difference"}
"""Reward of each extractor. The frozen one has a reward but is not trained."""


class EpisodeTable:
    """Episodes of a frozen policy in the extractor's worlds: played once and reused in every update."""

    def __init__(self, model: Any, data: CoinData, worlds: Sequence[World], copies: int, seed: int) -> None:
        """Play `copies` episodes for every text of every world, and as many without a text.

        Args:
            model: The frozen policy.
            data: Exploring walks and the tokenizer.
            worlds: Worlds of the table.
            copies: Episodes per text.
            seed: Seed of the sampling.
        """
        texts = {world: [None, *list_offers(data.looks[world])] for world in worlds}
        specs = [
            Spec(*world, arm="memory", copy=copy, memory=text, salt=f"table{seed}/{n}")
            for world, options in texts.items()
            for n, text in enumerate(options)
            for copy in range(copies)
        ]
        playing = create_player(model, data.transcript, ["memory"], seed)
        self.ended: dict[tuple[World, str | None], list[bool]] = {}
        for spec, rollout in zip(specs, playing.play(specs), strict=True):
            if not rollout.failed:
                ended = self.ended.setdefault(((spec.task, spec.seed), spec.memory), [])
                ended.append(bool(rollout.trajectory.success))
        playing.close()
        self.episodes = len(specs)

    def play(self, specs: Sequence[Spec]) -> list[Rollout]:
        """Return an earlier episode for each spec; the episodes of one text are used in turn."""
        turns: Counter[tuple[World, str | None]] = Counter()
        rollouts = []
        for spec in specs:
            key = ((spec.task, spec.seed), spec.memory)
            ended = self.ended[key][turns[key] % len(self.ended[key])]
            turns[key] += 1  # round robin, so that every episode of the table counts equally often
            rollouts.append(Rollout(Trajectory(spec.task, (), ended, arm=spec.arm, id=spec.session), (), spec.group))
        return rollouts


def list_candidates(trajectory: Trajectory) -> list[Candidate]:
    """Return the candidate routes of a walk without the task text, which is the same in all worlds."""
    return [replace(candidate, seen=replace(candidate.seen, task="")) for candidate in ways(trajectory)]


def create_extractor(
    model: Any, data: CoinData, seed: int, *, measure: Measure = "difference", updates: int = UPDATES
) -> ExtractorRole:
    """Create a role that keeps or skips each route of an exploring walk.

    Args:
        model: The model to train.
        data: Exploring walks and the tokenizer.
        seed: Seed of the sampling.
        measure: The reward, see MEASURES.
        updates: Number of updates in which the learning rate decays to 0.
    """
    config = RoleConfig(
        learner=LearnerSettings(lr=LR, warmup=5, decay=updates, budget=8192),
        loss=LossSettings(kind="cispo", low=0.1, high=0.1, entropy=ENTROPY),
        settings={"ready": 1, "cooldown": 0, "measure": measure, "cost": COST, "length": LENGTH},
    )
    serving = LocalEngine(model, data.transcript.tokenizer, roles=("extractor",))
    parts = Parts(config, model, data.transcript, serving, ExperienceLibrary.open(":memory:"), seed)
    source, writer = (
        (lambda task, number: data.looks.get((task, number))),
        KeepOrSkip(serving, data.transcript, list_candidates),
    )
    role = ExtractorRole(parts, source, writer)
    role.begin()
    return role


def fill_specs(role: ExtractorRole, specs: Sequence[Spec]) -> list[Spec]:
    """Return the specs, with the texts that the extractor keeps in the `memory` arm."""

    async def prepare() -> Sequence[Spec]:
        return await role.prepare([spec for spec in specs if spec.arm == "memory"])

    filled = iter(asyncio.run(prepare()))
    return [next(filled) if spec.arm == "memory" else spec for spec in specs]


def train_extractor(role: ExtractorRole, table: EpisodeTable, worlds: Sequence[World], seed: int) -> list[Figures]:
    """Train the extractor on the table of a frozen policy and return its learning curve."""
    chance, curve = random.Random(f"{seed} worlds"), []
    for update in range(1, UPDATES + 1):
        arms = {"memory": SHOWN, "control": TABLE}
        role.collect(table.play(fill_specs(role, build_groups(chance.sample(worlds, EACH), f"{seed}/{update}", arms))))
        metrics = role.update()
        curve.append({"reward": metrics["reward"], "kept": metrics["kept"]})
    return curve


# -- choices --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """The greedy decisions of an extractor for one world."""

    surest: str
    kept: tuple[str, ...]
    offered: tuple[str, ...]


def read_choices(model: Any, data: CoinData, worlds: Sequence[World]) -> dict[World, Choice]:
    """Return the greedy decisions: the route with the highest probability of `keep`, and all kept routes."""
    engine = LocalEngine(model, data.transcript.tokenizer, roles=("extractor",))
    writer = KeepOrSkip(engine, data.transcript, list_candidates)

    async def read(world: World) -> Choice:
        notes = await writer.read(data.looks[world], greedy=True)
        texts, sure = tuple(list_offers(data.looks[world])), [note.keeps for note in notes]
        kept = tuple(text for text, note in zip(texts, notes, strict=True) if note.items)
        return Choice(texts[sure.index(max(sure))], kept, texts)

    async def read_all() -> list[Choice]:
        return list(await asyncio.gather(*(read(world) for world in worlds)))

    return dict(zip(worlds, asyncio.run(read_all()), strict=True))


def score_choices(choices: Mapping[World, Choice], looks: Mapping[World, Trajectory]) -> Figures:
    """Return three shares: how often the surest route is the oracle's, and the kept useful and useless routes.

    Args:
        choices: Decisions by world.
        looks: Exploring walks by world.
    """
    right = {world: find_best(looks[world]).text for world in choices}
    useless = [
        text in choice.kept for world, choice in choices.items() for text in choice.offered if text != right[world]
    ]
    return {
        "oracle": fmean(choice.surest == right[world] for world, choice in choices.items()),
        "useful_kept": fmean(right[world] in choice.kept for world, choice in choices.items()),
        "useless_kept": fmean(useless),
    }


def select_surest(choices: Mapping[World, Choice]) -> Texts:
    """Return the route that the extractor is surest of, by world."""
    return {world: choice.surest for world, choice in choices.items()}


def select_random(data: CoinData, worlds: Sequence[World], seed: int) -> Texts:
    """Return a random route for each world, as a control."""
    chance = random.Random(f"{seed} at random")
    return {world: chance.choice(list_offers(data.looks[world])) for world in worlds}


def select_oracle(data: CoinData, worlds: Sequence[World]) -> Texts:
    """Return the route to the coin's room for each world."""
    return {world: find_best(data.looks[world]).text for world in worlds}


# -- stages ---------------------------------------------------------------------------------------


def compare_extractors(policy: Any, data: CoinData, seed: int) -> tuple[Any, Figures]:
    """Train all extractors of MEASURES and evaluate them by their choices and by the policy's success with them.

    Returns:
        The extractor rewarded by the paired difference, and the report.
    """
    worlds, held_out = select_usable(data.looks, WORLDS)[:POOL], select_usable(data.looks, KEPT_IN)
    began = time.process_time()
    table = EpisodeTable(policy, data, worlds, TABLE, seed)
    report: Figures = {"table": {"episodes": table.episodes, "cpu_s": time.process_time() - began}}
    texts = {"oracle": select_oracle(data, held_out), "at random": select_random(data, held_out, seed)}
    models = {name: copy.deepcopy(policy) for name in MEASURES}
    for name, measure in MEASURES.items():
        began, model = time.process_time(), models[name]
        role = create_extractor(model, data, seed, measure=measure)
        curve = [] if name == "frozen" else train_extractor(role, table, worlds, seed)
        spent = time.process_time() - began
        choices = read_choices(model, data, held_out)
        report[name] = {**score_choices(choices, data.looks), "cpu_s": spent, "curve": curve}
        texts[name] = select_surest(choices)
        log(f"seed {seed} {name}: oracle {report[name]['oracle']:.2f}, useless {report[name]['useless_kept']:.2f}")
    for name, figures in compare_with_base(evaluate(policy, data.transcript, texts, seed)).items():
        report.setdefault(name, {}).update(figures)
    return models["difference"], report


def train_together(start: Any, data: CoinData, seed: int, *, learns: bool) -> tuple[Any, Any, Figures]:
    """Train policy and extractor from the warm start, in turns.

    The policy is trained in the same worlds in both conditions. The other worlds serve only the extractor and are not
    played if it is frozen.

    Args:
        start: The policy after its warm start.
        data: Exploring walks and the tokenizer.
        seed: Seed of the worlds and the sampling.
        learns: False freezes the extractor.

    Returns:
        The policy, the extractor, and the learning curve with the CPU seconds.
    """
    worlds, began = select_usable(data.looks, WORLDS), time.process_time()
    policy, reader = copy.deepcopy(start), copy.deepcopy(start)
    playing = create_player(policy, data.transcript, ["control", "memory"], seed)
    actor = create_policy_role(policy, data, playing, "slea", TOGETHER_LR)
    chooser = create_extractor(reader, data, seed, updates=TOGETHER_UPDATES)
    chance, curve = random.Random(f"{seed} both"), []
    for update in range(1, TOGETHER_UPDATES + 1):
        # Always draw EACH worlds: the random numbers, and so the policy's worlds, are the same in both conditions.
        drawn = chance.sample(worlds, EACH)[: EACH if learns else GROUPS]
        specs = fill_specs(chooser, build_groups(drawn, f"both{seed}/{update}", TAKEN))
        rollouts, moving = playing.play(specs), GROUPS * sum(TAKEN.values())
        actor.collect(rollouts[:moving])
        actor.update()
        playing.engine.load_adapter("policy", update, actor.weights())
        chooser.collect(rollouts)
        if learns:
            chooser.update()
        success = collect_outcomes(rollouts[:moving], specs[:moving])
        curve.append({**{arm: fmean(fmean(v) for v in by.values()) for arm, by in success.items()}, **chooser.stats})
    playing.close()
    return policy, reader, {"curve": curve, "cpu_s": time.process_time() - began}
