"""Houses, what is remembered of them, and a tiny policy that goes where it is told: the ground of
`benchmarks.learning.guide`.

Six rooms of TextWorldExpress' coin game. Worlds are named by fold and seed; the same world and seed are
remembered the same way. It measures nothing.
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
from hardwon.trainers.roles.guide_speech import GuideQuery
from hardwon.trainers.roles.note_generators import format_path
from hardwon.trainers.rollouts.rollout import GivenGuidance, Spec, TokenPolicy, collect
from hardwon.trainers.rollouts.transcript import Transcript

World = tuple[str, int]
"""Fold and seed."""
GAME = ("coin", "numLocations=6, includeDoors=0, numDistractorItems=0")
LIMIT = 10
"""Moves of an episode."""
DEMOS = [("train", seed) for seed in range(250)]
"""Worlds whose walks teach the policy, and the guide what to say."""
KINDS = {"lately": 0.55, "rebuilt": 0.3, "another": 0.15}
"""What is recalled, and how often."""
EASY = "in sight"
"""A kind of its own, whatever is recalled: the coin is seen from the start."""
WALK = 14
"""Moves of a walk that is remembered."""
WARM_UPDATES = 200
LARGER = 3.0
"""By what the first weights are multiplied: heads that copy from the memory then form sooner."""
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}


def tell(message: str) -> None:
    """Progress, to stderr."""
    print(f"[{time.process_time():7.1f} CPU-s] {message}", file=sys.stderr, flush=True)


# -- houses and what is remembered of them --------------------------------------------------------


def walk(environment: TextWorldExpress, world: World, chance: random.Random, most: int) -> Trajectory:
    """A random walk that does not turn back where it need not, and takes the coin where it sees it."""
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


def walks(worlds: Iterable[World], most: int, tries: int) -> dict[World, Trajectory]:
    """The first walk of each world that found the coin; else the last one that did not."""
    environment, found = TextWorldExpress(*GAME), {}
    for world in worlds:
        for number in range(tries):
            found[world] = walk(environment, world, random.Random(f"{world} {number} {most}"), most)
            if found[world].success:
                break
    environment.close()
    return found


def rebuilt(one: Trajectory, chance: random.Random) -> Trajectory:
    """The walk as it would have been told of the house before: in each room another door than the one taken."""
    doors: dict[tuple[str, str], str] = {}

    def elsewhere(step: Step) -> Step:
        exits = [f"move {way.lower()}" for way in re.findall(r"To the (\w+) you see", step.pre.observation)]
        others = [move for move in exits if move != step.action]
        if not step.action.startswith("move") or not others:
            return step
        return replace(step, action=doors.setdefault((step.pre.location, step.action), chance.choice(others)))

    return replace(one, steps=tuple(map(elsewhere, one.steps)))


@dataclass(frozen=True)
class Memory:
    """What is recalled in a world."""

    kind: str
    asked: GuideQuery

    @property
    def short(self) -> str:
        """The way without its circles."""
        return self.asked.offers[0]

    @property
    def whole(self) -> str:
        """The walk as it was."""
        return self.asked.offers[-1]


def memories(
    found: Mapping[World, Trajectory], worlds: Iterable[World], others: Iterable[World], seed: int
) -> dict[World, Memory]:
    """What is recalled in each of these worlds, by chance of the seed; what is of another is of one of `others`."""
    known = [world for world in others if found[world].success]
    made = {}
    for world in worlds:
        chance, first = random.Random(f"{seed} {world} recalled"), found[world].steps[0].pre
        (kind,) = chance.choices([*KINDS], [*KINDS.values()])
        other = found[chance.choice([one for one in known if one != world])]
        kind, one = (kind, found[world]) if found[world].success and kind != "another" else ("another", other)
        asked = record(first, rebuilt(one, chance) if kind == "rebuilt" else one, kind == "rebuilt")
        made[world] = Memory(EASY if "coin" in first.observation else kind, asked)
    return made


def record(first: State, one: Trajectory, before: bool) -> GuideQuery:
    """A walk as it is recalled in a situation: `kitchen : move east . hall : take coin . lately`"""
    whole = format_path(one.steps)
    offers = dict.fromkeys((format_path(without_circles(one.steps)), whole))
    return GuideQuery(first, (f"{whole} {'before' if before else 'lately'}",), tuple(offers))


def turned(stream: PackedSequence, transcript: Transcript, chance: random.Random) -> PackedSequence:
    """The same in a house that is turned or mirrored: maps cannot be learnt by heart, only reading helps."""
    first, second = chance.sample([("north", "south"), ("east", "west")], 2)
    onto = [*chance.sample(first, 2), *chance.sample(second, 2)]
    ids = [transcript.tokenizer.convert_tokens_to_ids(names) for names in ([*BACK], onto)]
    names = dict(zip(*ids, strict=True))
    return replace(stream, tokens=tuple(names.get(token, token) for token in stream.tokens))


# -- the policy, and its episodes -----------------------------------------------------------------


@dataclass
class Ground:
    """What every seed stands on: walks, and a tokenizer that knows their words."""

    demos: dict[World, Trajectory]
    looks: dict[World, Trajectory]
    transcript: Transcript


def ground(worlds: Iterable[World]) -> Ground:
    """Walks of the demonstrations and of these worlds."""
    demos, looks = walks(DEMOS, 40, 3), walks(worlds, WALK, 4)
    texts = [*BACK, "lately before :"]
    for one in (*demos.values(), *looks.values()):
        texts += [text for s in one.steps for text in (s.pre.task, s.pre.observation, s.pre.feedback, s.action)]
        texts.append(format_path(one.steps))
    tell(f"{len(looks)} worlds, {sum(bool(one.success) for one in looks.values())} walks of them found the coin")
    return Ground(demos, looks, Transcript(build_tokenizer(texts)))


def taught(ground: Ground, seed: int) -> Any:
    """The policy: it imitates walks, most of them with their way shown, and goes straight there."""
    model = build_model(len(ground.transcript.tokenizer), TinyConfig(seed=seed))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(LARGER)
    shown = Examples(circles="explore", max_turns=12, copies=7, memory_share=0.85, seed=seed)
    given = build_examples(
        ground.demos.values(), ground.transcript.rows, shown, memory=lambda one: format_path(without_circles(one.steps))
    )
    chance = random.Random(seed)
    given = [turned(stream, ground.transcript, chance) for stream in given]
    report = warm_start(model, given, WarmStart(updates=WARM_UPDATES, lr=2e-3, seed=seed))
    tell(f"seed {seed}: policy of {report.examples} examples, {report.cpu_s:.0f} CPU-s")
    return model.eval()


@dataclass(frozen=True)
class Ended:
    """One episode: whether it succeeded, and the tokens that the policy read and said."""

    success: float
    tokens: int


Table = dict[tuple[World, str | None], list[Ended]]
"""Episodes by world and text shown."""


def played(
    model: Any, transcript: Transcript, texts: Mapping[World, Iterable[str | None]], copies: int, salt: str
) -> Table:
    """So many episodes of every text in its world; the same world, text and copy are the same episode."""
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
        for world, shown in texts.items()
        for n, text in enumerate(dict.fromkeys(shown))
        for copy in range(copies)
    ]
    table: Table = {}
    for at in range(0, len(specs), 256):
        part = specs[at : at + 256]
        agents = {spec.arm: agent for spec in part}
        for spec, rollout in zip(part, asyncio.run(collect(agents, engine, part)), strict=True):
            meta = rollout.trajectory.meta
            tokens = int(meta.get("prompt_tokens", 0)) + int(meta.get("completion_tokens", 0))
            ended = Ended(float(bool(rollout.trajectory.success)), tokens)
            table.setdefault(((spec.task, spec.seed), spec.memory), []).append(ended)
    agent.close()
    library.close()
    return table
