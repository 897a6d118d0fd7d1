"""Play, compare and train the policy of the coin experiment.

Episodes run through the runtime's agent and are sampled at temperature 1, because greedy policies walk in circles when
they have to search. Comparisons are paired by world. This module does not depend on the extractor.
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
from hardwon.trainers.prompting.compact import CompactFormat
from hardwon.trainers.roles.base import Parts, PolicyRole
from hardwon.trainers.roles.note_generators import WORDS as NOTE_WORDS
from hardwon.trainers.rollouts.rollout import GivenGuidance, Spec, TokenPolicy, collect

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
    collect_misled_walks,
    collect_walks,
    format_either_way,
    format_way,
    open_game,
)

COPIES = 4
"""Sampled episodes per held-out world and condition."""
TOGETHER = 256
"""Episodes that run concurrently."""
WARM_UPDATES = 450
"""Updates of the warm start."""
POLICY_UPDATES, GROUPS, POLICY_LR = 30, 6, 3e-4
"""Reinforcement learning: updates, worlds per update (with eight episodes each), learning rate."""
MISLED = 1
"""Misled walks per world: walks that first follow the route of another world."""
TURNS = 2
"""Random rotations of each example."""
LARGER = 3.0
"""Factor on the initial weights: a standard deviation of 0.06 instead of 0.02, so that copying heads form sooner."""

Figures = dict[str, Any]
"""Metrics by name; may be nested."""


def log(message: str) -> None:
    """Print progress with the CPU time to stderr."""
    print(f"[{time.process_time():7.1f} CPU-s] {message}", file=sys.stderr, flush=True)


# -- playing --------------------------------------------------------------------------------------


@dataclass
class Player:
    """A policy with one agent per arm; plays up to TOGETHER episodes concurrently."""

    engine: LocalEngine
    agents: Mapping[str, Agent]

    def play(self, specs: Sequence[Spec]) -> list[Rollout]:
        """Play the episodes and return them in the order of the specs."""
        parts = [specs[at : at + TOGETHER] for at in range(0, len(specs), TOGETHER)]
        return [rollout for part in parts for rollout in asyncio.run(collect(self.agents, self.engine, part))]

    def close(self) -> None:
        """Close the games."""
        for agent in self.agents.values():
            agent.close()


def create_player(model: Any, transcript: CompactFormat, arms: Sequence[str], seed: int) -> Player:
    """Create a player.

    Args:
        model: Weights of the policy.
        transcript: Renders states as tokens.
        arms: Names of the arms.
        seed: Seed of the agents.
    """
    engine = LocalEngine(model, transcript.tokenizer)
    policy, library = TokenPolicy(engine, transcript), ExperienceLibrary.open(":memory:")
    plain: dict[str, Any] = {"learn": False, "guardrails": False, "recall_k": 0, "max_steps": LIMIT, "seed": seed}
    guidance = GivenGuidance()
    return Player(
        engine, {arm: Agent(policy, library, open_game(), arm=arm, guidance=guidance, **plain) for arm in arms}
    )


Ended = dict[str, dict[World, list[float]]]
"""Outcomes by arm and world: 1.0 for success, 0.0 for failure."""


def collect_outcomes(rollouts: Sequence[Rollout], specs: Sequence[Spec]) -> Ended:
    """Return the outcomes by arm and world; episodes that broke are left out."""
    outcomes: Ended = {}
    for spec, rollout in zip(specs, rollouts, strict=True):
        if not rollout.failed:
            ended = float(bool(rollout.trajectory.success))
            outcomes.setdefault(spec.arm, {}).setdefault((spec.task, spec.seed), []).append(ended)
    return outcomes


def compare_paired(values: Mapping[World, Sequence[float]], base: Mapping[World, Sequence[float]]) -> Figures:
    """Return the mean, the mean difference to the base paired by world, and its standard error."""
    differences = [fmean(values[world]) - fmean(base[world]) for world in values]
    return {
        "success": fmean(fmean(each) for each in values.values()),
        "to_base": fmean(differences),
        "se": stdev(differences) / len(differences) ** 0.5,
    }


def evaluate(model: Any, transcript: CompactFormat, texts: Mapping[str, Texts], seed: int) -> Ended:
    """Return the outcomes by condition, including `none`, in which no memory is shown.

    Args:
        model: Weights of the policy.
        transcript: Renders states as tokens.
        texts: The text of each world, by condition.
        seed: Seed of the sampling.
    """
    worlds = sorted(next(iter(texts.values())))
    return play_conditions(model, transcript, {"none": dict.fromkeys(worlds), **texts}, seed)


def measure_success(model: Any, data: "CoinData", worlds: Sequence[World], seed: int) -> dict[World, list[float]]:
    """Return the outcomes of a policy without memory, by world."""
    return play_conditions(model, data.transcript, {"none": dict.fromkeys(worlds)}, seed)["none"]


def play_conditions(model: Any, transcript: CompactFormat, texts_by_arm: Mapping[str, Texts], seed: int) -> Ended:
    """Sample COPIES episodes of every condition in every world."""
    specs = [
        Spec(*world, arm=arm, copy=copy, memory=texts[world], salt=f"eval{seed}")
        for arm, texts in texts_by_arm.items()
        for world in texts
        for copy in range(COPIES)
    ]
    playing = create_player(model, transcript, [*texts_by_arm], seed)
    ended = collect_outcomes(playing.play(specs), specs)
    playing.close()
    return ended


def compare_with_base(ended: Ended, base: str = "none") -> Figures:
    """Compare every condition with the base, paired by world."""
    return {arm: compare_paired(values, ended[base]) for arm, values in ended.items()}


# -- the warm start -------------------------------------------------------------------------------


@dataclass
class CoinData:
    """The data that all stages share: walks to imitate (`demos`), exploring walks (`looks`), and the tokenizer."""

    demos: dict[World, Trajectory]
    looks: dict[World, Trajectory]
    transcript: CompactFormat


def build_data(worlds: Sequence[World] = (*WORLDS, *ACTED_IN, *KEPT_IN)) -> CoinData:
    """Collect walks to imitate and exploring walks, and build a tokenizer of their words."""
    demos, looks = collect_walks(DEMOS), collect_walks(worlds, patience=PATIENCE)
    texts = [*BACK, NOTE_WORDS]
    for trajectory in (*demos.values(), *looks.values()):
        for step in trajectory.steps:
            texts += [step.pre.task, step.pre.observation, step.pre.feedback, step.action]
    texts += [format_way(trajectory) for trajectory in demos.values()]
    log(f"{len(demos)} walks to imitate, {len(looks)} of {len(worlds)} exploring walks found the coin")
    return CoinData(demos, looks, CompactFormat(build_tokenizer(texts)))


def create_model(data: CoinData, seed: int) -> Any:
    """Create a model with random weights, LARGER times the usual scale."""
    model = build_model(len(data.transcript.tokenizer), TinyConfig(seed=seed))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # matrices and embeddings; the scales of the norms stay at 1
                parameter.mul_(LARGER)
    return model


def train_warm_start(data: CoinData, seed: int) -> Any:
    """Train a policy by imitation of walks that found the coin.

    Of five copies, three are shown the route and take it without detours. One is shown nothing and explores. One is
    shown the route of another world, follows it in every room that it enters for the first time, and then explores.
    """
    model, render = create_model(data, seed), data.transcript.rows
    examples = build_examples(
        data.demos.values(),
        render,
        Examples(circles="explore", max_turns=12, copies=4, memory_share=0.75, seed=seed),
        memory=format_either_way,
    )
    keep = Examples(circles="keep", max_turns=12, memory_share=1.0, seed=seed)
    misled = {
        walk.id: (walk, format_either_way(other)) for walk, other in collect_misled_walks(data.demos, MISLED, seed)
    }
    examples += build_examples(
        (walk for walk, _ in misled.values()), render, keep, memory=lambda walk: misled[walk.id][1]
    )
    chance = random.Random(seed)
    examples = [rotate_directions(stream, data.transcript, chance) for stream in examples for _ in range(TURNS)]
    report = warm_start(model, examples, WarmStart(updates=WARM_UPDATES, lr=2e-3, seed=seed))
    log(f"seed {seed}: {report.examples} examples, {report.epochs:.1f} epochs, {report.cpu_s:.1f} CPU-s")
    return model.eval()


def rotate_directions(stream: PackedSequence, transcript: CompactFormat, chance: random.Random) -> PackedSequence:
    """Rotate or mirror the world of an episode by renaming the four directions consistently.

    There are few worlds, so a model could memorize their maps. With a new orientation each time, only reading helps.
    """
    first, second = chance.sample([("north", "south"), ("east", "west")], 2)
    onto = [*chance.sample(first, 2), *chance.sample(second, 2)]
    ids = [transcript.tokenizer.convert_tokens_to_ids(names) for names in ([*BACK], onto)]
    names = dict(zip(*ids, strict=True))
    return replace(stream, tokens=tuple(names.get(token, token) for token in stream.tokens))


# -- reinforcement --------------------------------------------------------------------------------


def create_policy_role(model: Any, data: CoinData, playing: Player, credit: str, lr: float = POLICY_LR) -> PolicyRole:
    """Create the role that trains the policy by reinforcement learning."""
    config = RoleConfig(learner=LearnerSettings(lr=lr, budget=8192), credit=CreditConfig(name=credit))
    library = ExperienceLibrary.open(":memory:")
    return PolicyRole(Parts(config, model, data.transcript, playing.engine, library))


def build_groups(worlds: Sequence[World], salt: str, arms: Mapping[str, int]) -> list[Spec]:
    """Return the specs of the given number of episodes per arm in each world."""
    return [
        Spec(*world, arm=arm, copy=copy, salt=salt)
        for world in worlds
        for arm, copies in arms.items()
        for copy in range(copies)
    ]


def reinforce(start: Any, data: CoinData, seed: int, credit: str) -> tuple[Any, Figures]:
    """Train the policy without memory from the warm start.

    Returns:
        The model, and its learning curve with the CPU seconds.
    """
    model, began = copy.deepcopy(start), time.process_time()
    playing = create_player(model, data.transcript, ["control"], seed)
    role, chance, curve = create_policy_role(model, data, playing, credit), random.Random(seed), []
    pool = [world for world in WORLDS if world in data.looks]
    for update in range(1, POLICY_UPDATES + 1):
        specs = build_groups(chance.sample(pool, GROUPS), f"alone{seed}/{update}", {"control": 8})
        rollouts = playing.play(specs)
        role.collect(rollouts)
        role.update()
        # The next episodes must be sampled from the new weights, else training is off-policy.
        playing.engine.load_adapter("policy", update, role.weights())
        curve.append(fmean(fmean(ended) for ended in collect_outcomes(rollouts, specs)["control"].values()))
    playing.close()
    spent = time.process_time() - began
    log(f"seed {seed} {credit}: success {fmean(curve[:10]):.2f} (first 10 updates), {fmean(curve[-10:]):.2f} (last 10)")
    return model, {"curve": curve, "cpu_s": spent}
