"""Train the writer of the coin experiment: an extractor that writes the route word by word instead of choosing one.

The writer first imitates the choices of the extractor that was trained on the paired difference, so it never gets the
position of the coin. Then it is trained on the reward of its own texts. No grammar restricts them to existing routes.
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
from hardwon.trainers.prompting.compact import compact
from hardwon.trainers.roles.base import Parts
from hardwon.trainers.roles.extractor import ExtractorRole
from hardwon.trainers.roles.note_generators import Candidate, Writes, text_of, ways

from .coin_extractor import LENGTH, fill_specs, read_choices, score_choices, select_oracle, select_random, select_surest
from .coin_policy import (
    CoinData,
    Figures,
    build_groups,
    compare_with_base,
    create_player,
    evaluate,
    log,
    rotate_directions,
)
from .coin_worlds import HELD_OUT, WORLDS, Texts, World, find_best, list_offers, select_usable

LESSONS, LESSON_UPDATES, LESSON_LR = 4, 400, 2e-3
"""Supervised training: random rotations of each lesson, updates, learning rate."""
PAID_UPDATES, PAID_WORLDS, PAID_LR, PAID_COST = 15, 12, 1e-4, 0.1
"""Reinforcement learning: updates, worlds per update, learning rate, cost of LENGTH tokens."""


def format_walk(trajectory: Trajectory) -> str:
    """Return the writer's input: for each visited room, the observation and the answer for this room."""
    return " ".join(f"<see> {compact(room.seen.observation)} {format_answer(room)}" for room in ways(trajectory))


def format_answer(room: Candidate) -> str:
    """Return the writer's output: the room, then the route to it. Both can be copied from the input."""
    return f"<at> {room.seen.location.lower()} <item> add : {room.text}"


def build_lessons(writer: Writes, data: CoinData, chosen: Texts) -> list[PackedSequence]:
    """Return supervised examples: each walk with the chosen text, in LESSONS random rotations."""
    chance, examples = random.Random(0), []
    for world, text in chosen.items():
        (candidate,) = (option for option in ways(data.looks[world]) if option.text == text)
        row = writer.lesson(data.looks[world], format_answer(candidate), f"{world}")
        (stream,) = pack_samples([row], {row.trace: [1.0]})
        examples += [rotate_directions(stream, data.transcript, chance) for _ in range(LESSONS)]
    return examples


def train_with_reward(
    writer: Writes, engine: LocalEngine, policy: Any, data: CoinData, worlds: Sequence[World], seed: int
) -> list[Figures]:
    """Train the writer with REINFORCE on the success of episodes with its texts compared with episodes without.

    Returns:
        Reward and share of kept texts, by update.
    """
    config = RoleConfig(
        learner=LearnerSettings(lr=PAID_LR, budget=8192),
        loss=LossSettings(kind="cispo", low=0.1, high=0.1),
        settings={"ready": 1, "cooldown": 0, "cost": PAID_COST, "length": LENGTH},
    )
    parts = Parts(config, engine.model, data.transcript, engine, ExperienceLibrary.open(":memory:"), seed)
    role = ExtractorRole(parts, lambda task, number: data.looks.get((task, number)), writer)
    playing, chance, curve = (
        create_player(policy, data.transcript, ["control", "memory"], seed),
        random.Random(seed),
        [],
    )
    for update in range(1, PAID_UPDATES + 1):
        specs = build_groups(chance.sample(worlds, PAID_WORLDS), f"paid{seed}/{update}", {"memory": 4, "control": 4})
        role.collect(playing.play(fill_specs(role, specs)))
        metrics = role.update()
        curve.append({"reward": metrics["reward"], "kept": metrics["kept"]})
    playing.close()
    return curve


def write_texts(writer: Writes, data: CoinData, worlds: Sequence[World]) -> Texts:
    """Return the greedy text for each world's walk, or None if the writer keeps nothing."""

    async def read_all() -> list[list[Any]]:
        return list(await asyncio.gather(*(writer.read(data.looks[world], greedy=True) for world in worlds)))

    items = [notes[0].items for notes in asyncio.run(read_all())]
    return {world: text_of(item[0]) if item else None for world, item in zip(worlds, items, strict=True)}


def compare_writers(policy: Any, teacher: Any, data: CoinData, seed: int) -> Figures:
    """Evaluate the writer after its lessons and after training on rewards; baselines are random and oracle."""
    worlds, held_out = select_usable(data.looks, WORLDS), select_usable(data.looks, HELD_OUT)
    model, began = copy.deepcopy(policy), time.process_time()
    engine = LocalEngine(model, data.transcript.tokenizer, roles=("extractor",))
    writer = Writes(engine, data.transcript, reads=format_walk)
    chosen = read_choices(teacher, data, worlds)
    examples = build_lessons(writer, data, select_surest(chosen))
    warm_start(model, examples, WarmStart(updates=LESSON_UPDATES, lr=LESSON_LR, seed=seed), log)
    report: Figures = {"teacher": score_choices(chosen, data.looks), "taught": {"cpu_s": time.process_time() - began}}
    conditions: dict[str, Texts] = {"taught": write_texts(writer, data, held_out)}
    began = time.process_time()
    report["paid"] = {
        "curve": train_with_reward(writer, engine, policy, data, worlds, seed),
        "cpu_s": time.process_time() - began,
    }
    conditions["paid"] = write_texts(writer, data, held_out)
    for name, texts in conditions.items():
        report[name]["oracle"] = fmean(texts[w] == find_best(data.looks[w]).text for w in held_out)
        report[name]["a_way"] = fmean(texts[w] in list_offers(data.looks[w]) for w in held_out)
    conditions |= {"at random": select_random(data, held_out, seed), "oracle": select_oracle(data, held_out)}
    for name, figures in compare_with_base(evaluate(policy, data.transcript, conditions, seed)).items():
        report.setdefault(name, {}).update(figures)
    return report
