"""Houses, remembered walks, and a tiny policy that follows a given route: the testbed of `benchmarks.learning.guide`.

The houses are six-room games of TextWorldExpress coin. A world is identified by its fold and seed; the same world and
seed always get the same memory. Nothing is measured here.
"""

import asyncio
import random
import re
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.learning.skill_mining import without_circles
from hardwon.runtime import Agent
from hardwon.runtime.environments.textworld import TextWorldExpress
from hardwon.trainers.algorithms.imitation import Examples, WarmStart, build_examples, warm_start
from hardwon.trainers.algorithms.samples import PackedSequence
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.models.tiny import TinyConfig, build_model, build_tokenizer
from hardwon.trainers.prompting.compact import CompactFormat
from hardwon.trainers.roles.guides.speech import GuideQuery
from hardwon.trainers.roles.marking import format_path
from hardwon.trainers.rollouts.rollout import GivenGuidance, Spec, TokenPolicy, collect

World = tuple[str, int]
"""Split (fold) and seed."""
GAME = ("coin", "numLocations=6, includeDoors=0, numDistractorItems=0")
LIMIT = 10
"""Maximum moves of an episode."""
DEMOS = [("train", seed) for seed in range(250)]
"""Worlds whose walks train the policy, and the guide in stage 1."""
KINDS = {"lately": 0.55, "rebuilt": 0.3, "another": 0.15}
"""Kinds of recalled walks, with their probabilities."""
EASY = "in sight"
"""Kind of a world in which the coin is visible from the start, whatever is recalled."""
WALK = 14
"""Maximum moves of a remembered walk."""
WARM_UPDATES = 200
LARGER = 3.0
"""Factor on the initial weights. Attention heads that copy from the memory form sooner with larger weights."""
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}


def tell(message: str) -> None:
    """Print a progress message with the CPU time to stderr."""
    print(f"[{time.process_time():7.1f} CPU-s] {message}", file=sys.stderr, flush=True)


# -- houses and what is remembered of them --------------------------------------------------------


def walk(environment: TextWorldExpress, world: World, chance: random.Random, most: int) -> Trajectory:
    """Walk at random, avoid turning back, and take the coin on sight."""
    steps: list[Step] = []
    state, over = environment.reset(*world), False
    while not over and len(steps) < most:
        possible = environment.admissible(state)
        moves = [action for action in possible if action.startswith("move")]
        onward = [move for move in moves if steps and move.split()[-1] != BACK.get(steps[-1].action.split()[-1])]
        action = "take coin" if "take coin" in possible else chance.choice(onward or moves)
        after, reward, over, _ = environment.step(action)
        steps.append(Step(state, action, after, Diagnosis(True), reward, t=len(steps), id=len(steps)))
        state = after
    return Trajectory(steps[0].pre.task, tuple(steps), over, id=f"{world}")


def collect_walks(worlds: Iterable[World], most: int, tries: int) -> dict[World, Trajectory]:
    """Return the first walk of each world that found the coin, or the last failed one."""
    environment, walks = TextWorldExpress(*GAME), {}
    for world in worlds:
        for number in range(tries):
            walks[world] = walk(environment, world, random.Random(f"{world} {number} {most}"), most)
            if walks[world].success:
                break
    environment.close()
    return walks


def rebuild(trajectory: Trajectory, chance: random.Random) -> Trajectory:
    """Return the walk as it would read before the house was rebuilt: each room has another door than the one taken."""
    doors: dict[tuple[str, str], str] = {}

    def redirect(step: Step) -> Step:
        exits = [f"move {way.lower()}" for way in re.findall(r"To the (\w+) you see", step.pre.observation)]
        alternatives = [move for move in exits if move != step.action]
        if not step.action.startswith("move") or not alternatives:
            return step
        return replace(step, action=doors.setdefault((step.pre.location, step.action), chance.choice(alternatives)))

    return replace(trajectory, steps=tuple(map(redirect, trajectory.steps)))


@dataclass(frozen=True)
class Memory:
    """The memory that is recalled in a world."""

    kind: str
    asked: GuideQuery

    @property
    def short(self) -> str:
        """Return the walk with its loops removed."""
        return self.asked.offers[0]

    @property
    def whole(self) -> str:
        """Return the complete walk."""
        return self.asked.offers[-1]


def build_memories(
    walks: Mapping[World, Trajectory], worlds: Iterable[World], sources: Iterable[World], seed: int
) -> dict[World, Memory]:
    """Choose at random what is recalled in each world.

    Args:
        walks: Walks by world.
        worlds: Worlds that need a memory.
        sources: Worlds that can supply a walk of another house.
        seed: Seed of the choice.

    Returns:
        The memory of each world.
    """
    solved = [world for world in sources if walks[world].success]
    memories = {}
    for world in worlds:
        chance, first = random.Random(f"{seed} {world} recalled"), walks[world].steps[0].pre
        (kind,) = chance.choices([*KINDS], [*KINDS.values()])
        other = walks[chance.choice([candidate for candidate in solved if candidate != world])]
        # A walk that failed is not worth recalling; another house's walk takes its place.
        kind, trajectory = (kind, walks[world]) if walks[world].success and kind != "another" else ("another", other)
        query = build_query(first, rebuild(trajectory, chance) if kind == "rebuilt" else trajectory, kind == "rebuilt")
        memories[world] = Memory(EASY if "coin" in first.observation else kind, query)
    return memories


def build_query(first: State, trajectory: Trajectory, before: bool) -> GuideQuery:
    """Return the guide's query for a recalled walk: `kitchen : move east . hall : take coin . lately`."""
    whole = format_path(trajectory.steps)
    offers = dict.fromkeys((format_path(without_circles(trajectory.steps)), whole))
    return GuideQuery(first, (f"{whole} {'before' if before else 'lately'}",), tuple(offers))


def rotate_house(stream: PackedSequence, transcript: CompactFormat, chance: random.Random) -> PackedSequence:
    """Return the sequence for a turned or mirrored house, so that maps cannot be memorized."""
    first, second = chance.sample([("north", "south"), ("east", "west")], 2)
    onto = [*chance.sample(first, 2), *chance.sample(second, 2)]
    ids = [transcript.tokenizer.convert_tokens_to_ids(names) for names in ([*BACK], onto)]
    names = dict(zip(*ids, strict=True))
    return replace(stream, tokens=tuple(names.get(token, token) for token in stream.tokens))


# -- the policy, and its episodes -----------------------------------------------------------------


@dataclass
class Ground:
    """The data that every seed uses: walks, and a tokenizer with their vocabulary."""

    demos: dict[World, Trajectory]
    looks: dict[World, Trajectory]
    transcript: CompactFormat


def build_ground(worlds: Iterable[World]) -> Ground:
    """Collect the demonstration walks and the walks of the given worlds, and build the tokenizer."""
    demos, looks = collect_walks(DEMOS, 40, 3), collect_walks(worlds, WALK, 4)
    texts = [*BACK, "lately before :"]
    for trajectory in (*demos.values(), *looks.values()):
        texts += [text for s in trajectory.steps for text in (s.pre.task, s.pre.observation, s.pre.feedback, s.action)]
        texts.append(format_path(trajectory.steps))
    tell(f"{len(looks)} worlds, {sum(bool(walk.success) for walk in looks.values())} with a walk that found the coin")
    return Ground(demos, looks, CompactFormat(build_tokenizer(texts)))


def train_policy(ground: Ground, seed: int) -> Any:
    """Train the policy by imitation of walks, most of them with their route in the prompt."""
    model = build_model(len(ground.transcript.tokenizer), TinyConfig(seed=seed))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(LARGER)
    settings = Examples(circles="explore", max_turns=12, copies=7, memory_share=0.85, seed=seed)
    examples = build_examples(
        ground.demos.values(),
        ground.transcript.rows,
        settings,
        memory=lambda trajectory: format_path(without_circles(trajectory.steps)),
    )
    chance = random.Random(seed)
    # Turned houses rule out memorized maps; only reading the hint helps.
    examples = [rotate_house(stream, ground.transcript, chance) for stream in examples]
    report = warm_start(model, examples, WarmStart(updates=WARM_UPDATES, lr=2e-3, seed=seed))
    tell(f"seed {seed}: policy trained on {report.examples} examples, {report.cpu_s:.0f} CPU-s")
    return model.eval()


@dataclass(frozen=True)
class Ended:
    """The outcome of one episode: whether it succeeded, and the tokens that the policy read and wrote."""

    success: float
    tokens: int


Table = dict[tuple[World, str | None], list[Ended]]
"""Episodes by world and hint."""


def play_episodes(
    model: Any, transcript: CompactFormat, texts: Mapping[World, Iterable[str | None]], copies: int, salt: str
) -> Table:
    """Play `copies` episodes of every text in its world; the same world, text and copy is the same episode."""
    engine = LocalEngine(model, transcript.tokenizer)
    library = ExperienceLibrary.open(":memory:")
    agent = Agent(
        TokenPolicy(engine, transcript),
        library,
        TextWorldExpress(*GAME),
        learn=False,
        guardrails=False,
        guidance=GivenGuidance(),
        max_steps=LIMIT,
        recall_k=0,
    )
    specs = [
        Spec(*world, arm=f"{n}", copy=copy, memory=text, salt=salt)
        for world, hints in texts.items()
        for n, text in enumerate(dict.fromkeys(hints))
        for copy in range(copies)
    ]
    table: Table = {}
    for start in range(0, len(specs), 256):  # bounds the memory of one batch
        part = specs[start : start + 256]
        agents = {spec.arm: agent for spec in part}
        for spec, rollout in zip(part, asyncio.run(collect(agents, engine, part)), strict=True):
            meta = rollout.trajectory.meta
            tokens = int(meta.get("prompt_tokens", 0)) + int(meta.get("completion_tokens", 0))
            ended = Ended(float(bool(rollout.trajectory.success)), tokens)
            table.setdefault(((spec.task, spec.seed), spec.memory), []).append(ended)
    agent.close()
    library.close()
    return table
