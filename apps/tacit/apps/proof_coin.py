"""The proof on coin: what memory is worth to a tiny policy, and what an extractor learns from that alone.

    python -m tacit.apps.proof_coin --out runs/coin --seeds 0,1,2 --stages AB

In TextWorldExpress coin (six rooms, no doors, ten moves) a model of half a million weights learns

    A  to act, by imitation, and to follow a way that it is shown;
    B  which of the ways that an exploring walk saw is worth keeping, from the paired difference alone;
    C  both at once, policy and extractor, each changing what the other learns from;
    D  to write the way down itself, instead of choosing one.

Everything is sampled, in worlds that nothing was trained or tuned in. Times are CPU seconds of this
process. It registers no command and keeps no model.
"""

import argparse
import asyncio
import copy
import json
import random
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from tacit.memory import Diagnosis, ExperienceLibrary, Step, Trajectory
from tacit.memory.induction import without_circles
from tacit.runtime import Agent
from tacit.runtime.environments.textworld import TextWorldExpress
from tacit.trainers.config import CreditConfig, RoleConfig
from tacit.trainers.engine_local import LocalEngine
from tacit.trainers.extractor import ExtractorRole, Measure
from tacit.trainers.optim import LearnerSettings, LossSettings
from tacit.trainers.roles import Parts, PolicyRole
from tacit.trainers.rollout import GivenGuidance, Spec, TokenPolicy, collect
from tacit.trainers.rows import Rollout, Stream, streams
from tacit.trainers.tiny import TinyConfig, build_model, build_tokenizer
from tacit.trainers.transcript import Transcript, compact
from tacit.trainers.warmstart import Examples, WarmStart, examples, warm_start
from tacit.trainers.writers import WORDS as SAID, Candidate, KeepOrSkip, Writes, text_of, ways

GAME = ("coin", "numLocations=6, includeDoors=0, numDistractorItems=0")
LIMIT = 10
"""Moves of an episode."""
DEMOS = [("train", seed) for seed in range(250)]
"""Worlds whose walks are imitated."""
WORLDS = [("train", seed) for seed in range(300, 420)]
"""Worlds in which the extractor, and the policy beside it, learn."""
TUNING = [("train", seed) for seed in range(900, 950)]
"""Worlds on which settings were chosen; none of them is reported."""
HELD_OUT = [("dev", seed) for seed in range(50)]
"""Worlds that are reported."""
PATIENCE = 20
"""Moves for which an exploring walk leaves the coin where it is."""
COPIES = 4
"""Times that every held-out episode is sampled."""
TOGETHER = 256
"""Episodes that are played at once."""
COST, LENGTH, ENTROPY = 0.1, 32, 0.1
"""What a text of LENGTH tokens costs, in units of success, and the weight of the extractor's entropy."""
SHOWN, CONTROLS = 6, 4
"""Episodes of a world that are shown something, and nothing, in an update of the extractor."""
WARM_UPDATES = 280
"""Of the warm start."""
TABLE = 4
"""Episodes that are played of each text in each of the extractor's worlds."""
EACH, EXTRACTOR_UPDATES, EXTRACTOR_LR = 20, 120, 1e-3
"""Worlds an update of the extractor, its updates, its learning rate."""
BOTH_UPDATES, POLICY_LR, READY = 60, 3e-4, 64
"""Updates of the policy beside the extractor, its learning rate, and decisions that make the extractor's update."""
LESSONS, LESSON_UPDATES = 3, 300
"""Walks a world that teach the writer, and updates in which they do."""
LARGER = 3.0
"""By what the first weights are multiplied: 0.06 for transformers' 0.02."""
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}

World = tuple[str, int]
"""Fold and seed."""


def tell(message: str) -> None:
    """Progress, to stderr."""
    print(f"[{time.process_time():7.1f} CPU-s] {message}", file=sys.stderr, flush=True)


# -- worlds and walks -----------------------------------------------------------------------------


def walk(environment: TextWorldExpress, world: World, chance: random.Random, patience: int) -> Trajectory:
    """A random walk that does not turn back where it need not, and takes the coin when its patience is over."""
    steps: list[Step] = []
    state = environment.reset(*world)
    for t in range(3 * LIMIT + patience):
        moves = [action for action in environment.admissible(state) if action.startswith("move")]
        onward = [move for move in moves if steps and move.split()[-1] != BACK.get(steps[-1].action.split()[-1])]
        action = chance.choice(onward or moves)
        if t >= patience and "take coin" in environment.admissible(state):
            action = "take coin"
        after, reward, over, info = environment.step(action)
        steps.append(Step(state, action, after, Diagnosis(True), reward, t=t, id=t))
        state = after
        if over:
            return Trajectory(steps[0].pre.task, tuple(steps), bool(info.get("success")), id=f"{world}/{patience}")
    return Trajectory(steps[0].pre.task, tuple(steps), False, id=f"{world}/{patience}")


def walks(worlds: Iterable[World], patience: int, seed: int = 0) -> dict[World, Trajectory]:
    """The walks that found the coin, one a world."""
    environment = TextWorldExpress(*GAME)
    found = {}
    for world in worlds:
        trajectory = walk(environment, world, random.Random(f"{seed} {world} {patience}"), patience)
        if trajectory.success:
            found[world] = trajectory
    environment.close()
    return found


def said(steps: Sequence[Step]) -> str:
    """A way in words: `kitchen : move east . living room : take coin .`"""
    return " ".join(f"{step.pre.location.lower()} : {step.action} ." for step in steps)


def way(trajectory: Trajectory) -> str:
    """The way to the coin."""
    return said(without_circles(trajectory.steps))


def led(trajectory: Trajectory) -> str:
    """The way to where the coin is, without taking it."""
    return said(without_circles(trajectory.steps)[:-1])


def misleading(trajectory: Trajectory, chance: random.Random) -> str:
    """The way with every move in another direction."""

    def astray(step: Step) -> Step:
        if not step.action.startswith("move"):
            return step
        return replace(step, action=f"move {chance.choice([way for way in BACK if way != step.action.split()[-1]])}")

    return said([astray(step) for step in without_circles(trajectory.steps)])


# -- playing --------------------------------------------------------------------------------------


@dataclass
class Player:
    """A policy in its worlds: episodes through the runtime's own loop, all at once."""

    engine: LocalEngine
    agents: Mapping[str, Agent]

    def play(self, specs: Sequence[Spec]) -> list[Rollout]:
        """The episodes, in the order of the specs."""
        return asyncio.run(collect(self.agents, self.engine, specs))

    def close(self) -> None:
        """Free the games."""
        for agent in self.agents.values():
            agent.close()


def player(model: Any, transcript: Transcript, arms: Sequence[str], seed: int) -> Player:
    """A policy of this model, with an agent for every arm."""
    engine = LocalEngine(model, transcript.tokenizer)
    policy = TokenPolicy(engine, transcript)
    library = ExperienceLibrary.open(":memory:")
    agents = {
        arm: Agent(
            policy,
            library,
            TextWorldExpress(*GAME),
            arm=arm,
            learn=False,
            guardrails=False,
            guidance=GivenGuidance(),
            max_steps=LIMIT,
            recall_k=0,
            seed=seed,
        )
        for arm in arms
    }
    return Player(engine, agents)


def paired(values: Mapping[World, Sequence[float]], base: Mapping[World, Sequence[float]]) -> dict[str, float]:
    """Mean, difference to the base by world, and the standard error of that difference."""
    differences = [fmean(values[world]) - fmean(base[world]) for world in values]
    return {
        "success": fmean(fmean(each) for each in values.values()),
        "to_none": fmean(differences),
        "se": stdev(differences) / len(differences) ** 0.5,
    }


def outcomes(rollouts: Sequence[Rollout], specs: Sequence[Spec]) -> dict[str, dict[World, list[float]]]:
    """By arm and world, how the episodes ended."""
    found: dict[str, dict[World, list[float]]] = {}
    for spec, rollout in zip(specs, rollouts, strict=True):
        if not rollout.failed:
            ended = float(bool(rollout.trajectory.success))
            found.setdefault(spec.arm, {}).setdefault((spec.task, spec.seed), []).append(ended)
    return found


def evaluate(
    model: Any, transcript: Transcript, shown: Mapping[str, Mapping[World, str | None]], seed: int, copies: int = COPIES
) -> dict[str, dict[str, float]]:
    """Success by condition, each with what it shows in every world; `none` is shown nothing."""
    worlds = sorted(next(iter(shown.values())))
    given = {"none": dict.fromkeys(worlds), **shown}
    specs = [
        Spec(*world, arm=arm, copy=copy, memory=texts[world], salt=f"eval{seed}")
        for arm, texts in given.items()
        for world in worlds
        for copy in range(copies)
    ]
    playing = player(model, transcript, [*given], seed)
    ended = outcomes(playing.play(specs), specs)
    playing.close()
    return {arm: paired(values, ended["none"]) for arm, values in ended.items()}


# -- A: a policy that can use what it is shown ----------------------------------------------------


@dataclass
class Ground:
    """What every stage stands on: walks, words."""

    demos: dict[World, Trajectory]
    looks: dict[World, Trajectory]
    transcript: Transcript


def ground(worlds: Sequence[World]) -> Ground:
    """Walks of imitation, exploring walks of the other worlds, and a tokenizer that knows their words."""
    demos, looks = walks(DEMOS, 0), walks(worlds, PATIENCE)
    texts = [*BACK, SAID]
    for trajectory in (*demos.values(), *looks.values()):
        for step in trajectory.steps:
            texts += [step.pre.task, step.pre.observation, step.pre.feedback, step.action]
    texts += [way(trajectory) for trajectory in demos.values()]
    tell(f"{len(demos)} walks to imitate, {len(looks)} of {len(worlds)} exploring walks found the coin")
    return Ground(demos, looks, Transcript(build_tokenizer(texts)))


def fresh(ground: Ground, seed: int) -> Any:
    """A model with random weights, LARGER than usual: heads that copy from the memory then form sooner."""
    model = build_model(len(ground.transcript.tokenizer), TinyConfig(seed=seed))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(LARGER)
    return model


def warm(ground: Ground, seed: int) -> Any:
    """A policy by imitation of the walks.

    Most are shown the way and go it; a few are shown another world's, and look around as if they were not.
    """
    model, demos = fresh(ground, seed), list(ground.demos.values())
    others = dict(zip((one.id for one in demos), [*demos[1:], demos[0]], strict=True))
    rows = ground.transcript.rows
    shown = Examples(circles="explore", max_turns=12, copies=7, memory_share=0.85, seed=seed)
    given = examples(demos, rows, shown, memory=lambda one: way(one) if len(one.steps) % 2 else led(one))
    lost = Examples(circles="keep", max_turns=12, copies=2, memory_share=1.0, seed=seed)
    given += [
        replace(stream, trace=f"{stream.trace} lost")
        for stream in examples(demos, rows, lost, memory=lambda one: way(others[one.id]))
    ]
    chance = random.Random(seed)
    given = [turned(stream, ground.transcript, chance) for stream in given]
    report = warm_start(model, given, WarmStart(updates=WARM_UPDATES, lr=2e-3, seed=seed), tell)
    tell(f"{report.examples} examples, {report.epochs:.1f} epochs, {report.cpu_s:.1f} CPU-s")
    return model.eval()


def turned(stream: Stream, transcript: Transcript, chance: random.Random) -> Stream:
    """The same episode in a world that is turned or mirrored: the four directions have other names throughout.

    Worlds are few and their maps can be learnt by heart; where they are new every time, only reading helps.
    """
    first, second = chance.sample([("north", "south"), ("east", "west")], 2)
    onto = [*chance.sample(first, 2), *chance.sample(second, 2)]
    ids = [transcript.tokenizer.convert_tokens_to_ids(names) for names in ([*BACK], onto)]
    names = dict(zip(*ids, strict=True))
    return replace(stream, tokens=tuple(names.get(token, token) for token in stream.tokens))


def four(looks: Mapping[World, Trajectory], worlds: Sequence[World], seed: int) -> dict[str, dict[World, str | None]]:
    """The conditions of stage A: the right way, another world's, a wrong one."""
    known = [world for world in worlds if world in looks]
    chance = random.Random(seed)
    return {
        "right": {world: way(looks[world]) for world in known},
        "another": {world: way(looks[known[(n + 7) % len(known)]]) for n, world in enumerate(known)},
        "wrong": {world: misleading(looks[world], chance) for world in known},
    }


# -- B: what is worth keeping ---------------------------------------------------------------------

MEASURES: Mapping[str, Measure] = {"difference": "difference", "outcome": "outcome", "frozen": "difference"}
"""Extractors, and what each is paid; the frozen one learns nothing from it."""


class Played:
    """Episodes of a frozen policy in the worlds of the extractor: played once, drawn from again and again."""

    def __init__(self, model: Any, ground: Ground, worlds: Sequence[World], copies: int, seed: int) -> None:
        texts = {world: [None, *(one.text for one in ways(ground.looks[world]))] for world in worlds}
        specs = [
            Spec(*world, arm="memory", copy=copy, memory=text, salt=f"table{seed}/{n}")
            for world, shown in texts.items()
            for n, text in enumerate(shown)
            for copy in range(copies)
        ]
        playing = player(model, ground.transcript, ["memory"], seed)
        self._ended: dict[tuple[World, str | None], list[bool]] = {}
        for at in range(0, len(specs), TOGETHER):
            part = specs[at : at + TOGETHER]
            for spec, rollout in zip(part, playing.play(part), strict=True):
                ended = self._ended.setdefault(((spec.task, spec.seed), spec.memory), [])
                ended.append(bool(rollout.trajectory.success))
        playing.close()
        self._chance = random.Random(seed)
        self.episodes = len(specs)

    def play(self, spec: Spec) -> Rollout:
        """An episode that was played, as if it were this one."""
        ended = self._chance.choice(self._ended[(spec.task, spec.seed), spec.memory])
        return Rollout(Trajectory(spec.task, (), ended, arm=spec.arm, id=spec.session), (), spec.group)


def extractor(
    model: Any, ground: Ground, seed: int, *, measure: Measure = "difference", ready: int = 1, epochs: int = 1
) -> ExtractorRole:
    """A role that keeps or skips each way that the exploring walk of a world offers."""
    config = RoleConfig(
        learner=LearnerSettings(
            lr=EXTRACTOR_LR, epochs=epochs, warmup=5, decay=EXTRACTOR_UPDATES * 3 // 2, budget=8192
        ),
        loss=LossSettings(kind="cispo", low=0.1, high=0.1, entropy=ENTROPY),
        settings={"ready": ready, "cooldown": 0, "measure": measure, "cost": COST, "length": LENGTH},
    )
    serving = LocalEngine(model, ground.transcript.tokenizer, roles=("extractor",))
    parts = Parts(config, model, ground.transcript, serving, ExperienceLibrary.open(":memory:"), seed)
    role = ExtractorRole(parts, lambda task, number: ground.looks.get((task, number)))
    role.begin()
    return role


def groups(worlds: Sequence[World], salt: str, shown: int, control: int) -> list[Spec]:
    """Episodes of both arms in each world."""
    arms = [("memory", copy) for copy in range(shown)] + [("control", copy) for copy in range(control)]
    return [Spec(*world, arm=arm, copy=copy, salt=salt) for world in worlds for arm, copy in arms]


def dealt(role: ExtractorRole, specs: Sequence[Spec]) -> list[Spec]:
    """The specs, with what the extractor keeps where memory is shown."""
    mine = [spec for spec in specs if spec.arm == "memory"]
    given = iter(asyncio.run(_prepared(role, mine)))
    return [next(given) if spec.arm == "memory" else spec for spec in specs]


async def _prepared(role: ExtractorRole, specs: Sequence[Spec]) -> Sequence[Spec]:
    return await role.prepare(specs)


def learn_to_keep(
    role: ExtractorRole, played: Played, worlds: Sequence[World], updates: int, seed: int, each: int
) -> None:
    """The extractor's training against a frozen policy: `each` worlds an update."""
    chance, began = random.Random(f"{seed} worlds"), time.process_time()
    for update in range(1, updates + 1):
        specs = dealt(role, groups(chance.sample(worlds, each), f"{seed}/{update}", SHOWN, CONTROLS))
        role.collect([played.play(spec) for spec in specs])
        told = role.update()
        if update % max(1, updates // 5) == 0:
            spent = time.process_time() - began
            tell(f"update {update}: reward {told['reward']:+.3f}, kept {told['kept']:.2f}, {spent:.0f} CPU-s")


@dataclass(frozen=True)
class Choice:
    """What an extractor makes of a world's ways."""

    surest: str
    kept: tuple[str, ...]
    offered: tuple[str, ...]


def choices(role: ExtractorRole, ground: Ground, worlds: Sequence[World]) -> dict[World, Choice]:
    """Greedy: the way it would rather keep than any other, and all that it would keep."""
    writer = KeepOrSkip(role._parts.engine, ground.transcript)

    async def read(world: World) -> Choice:
        written = await writer.read(ground.looks[world], greedy=True)
        offered = tuple(one.text for one in ways(ground.looks[world]))
        sure = [one.keeps for one in written]
        kept = tuple(text for text, one in zip(offered, written, strict=True) if one.items)
        return Choice(offered[sure.index(max(sure))], kept, offered)

    async def everything() -> list[Choice]:
        return list(await asyncio.gather(*(read(world) for world in worlds)))

    return dict(zip(worlds, asyncio.run(everything()), strict=True))


def best(trajectory: Trajectory) -> Candidate:
    """The way to the place of the coin, with that place."""
    place = trajectory.steps[-1].pre.location
    return next(one for one in ways(trajectory) if one.seen.location == place)


def oracle(trajectory: Trajectory) -> str:
    """The same in words."""
    return best(trajectory).text


def judged(found: Mapping[World, Choice], looks: Mapping[World, Trajectory]) -> dict[str, float]:
    """Shares: the surest is the oracle's; the useful are kept; the useless are kept."""
    right = {world: oracle(looks[world]) for world in found}
    useless = [text in one.kept for world, one in found.items() for text in one.offered if text != right[world]]
    return {
        "oracle": fmean(one.surest == right[world] for world, one in found.items()),
        "useful_kept": fmean(right[world] in one.kept for world, one in found.items()),
        "useless_kept": fmean(useless),
    }


def usable(looks: Mapping[World, Trajectory], worlds: Sequence[World]) -> list[World]:
    """Worlds whose coin is not where the walk began: there, there is a way to keep."""
    return [w for w in worlds if w in looks and looks[w].steps[-1].pre.location != looks[w].steps[0].pre.location]


def stage_b(policy: Any, ground: Ground, seed: int) -> dict[str, Any]:
    """Extractors by reward, a frozen one and a text at random, each judged by its choices and by what they bring."""
    worlds, held_out = usable(ground.looks, WORLDS), usable(ground.looks, HELD_OUT)
    played = Played(policy, ground, worlds, TABLE, seed)
    tell(f"seed {seed}: {played.episodes} episodes to draw from")
    report: dict[str, Any] = {}
    chance = random.Random(f"{seed} at random")
    shown: dict[str, dict[World, str | None]] = {
        "oracle": {world: oracle(ground.looks[world]) for world in held_out},
        "at random": {world: chance.choice(ways(ground.looks[world])).text for world in held_out},
    }
    for name, measure in MEASURES.items():
        began = time.process_time()
        role = extractor(copy.deepcopy(policy), ground, seed, measure=measure)
        if name != "frozen":
            learn_to_keep(role, played, worlds, EXTRACTOR_UPDATES, seed, EACH)
        found = choices(role, ground, held_out)
        report[name] = {**judged(found, ground.looks), "cpu_s": time.process_time() - began}
        shown[name] = {world: one.surest for world, one in found.items()}
        tell(f"seed {seed} {name}: " + ", ".join(f"{key} {value:.2f}" for key, value in report[name].items()))
    for name, figures in evaluate(policy, ground.transcript, shown, seed).items():
        report.setdefault(name, {}).update(figures)
    return report


TOGETHER_RUNS = {"both": ("slea", True), "frozen extractor": ("slea", False)}
"""Runs of stage C: the policy's credit, and whether the extractor learns."""


# -- C: both at once ------------------------------------------------------------------------------


def stage_c(start: Any, ground: Ground, seed: int, *, credit: str, learns: bool) -> dict[str, Any]:
    """Policy and extractor from the warm start, in turns; with `learns` False the extractor stays as it was."""
    worlds, held_out = usable(ground.looks, WORLDS), usable(ground.looks, HELD_OUT)
    policy, began = copy.deepcopy(start), time.process_time()
    playing = player(policy, ground.transcript, ["control", "memory"], seed)
    config = RoleConfig(learner=LearnerSettings(lr=POLICY_LR, budget=8192), credit=CreditConfig(name=credit))
    acting = PolicyRole(Parts(config, policy, ground.transcript, playing.engine, ExperienceLibrary.open(":memory:")))
    choosing = extractor(copy.deepcopy(start), ground, seed, ready=READY, epochs=2)
    chance, curve = random.Random(f"{seed} both"), []
    for update in range(1, BOTH_UPDATES + 1):
        specs = dealt(choosing, groups(chance.sample(worlds, 8), f"both{seed}/{update}", 4, 4))
        rollouts = playing.play(specs)
        acting.collect(rollouts)
        acting.update()
        playing.engine.load_adapter("policy", update, acting.weights())
        choosing.collect(rollouts)
        if learns and choosing.ready():
            choosing.update()
        won = {arm: fmean(fmean(v) for v in by.values()) for arm, by in outcomes(rollouts, specs).items()}
        curve.append({**won, **choosing.told})
        if update % 10 == 0:
            last = {key: fmean(one[key] for one in curve[-10:]) for key in curve[-1]}
            last["oracle"] = judged(choices(choosing, ground, worlds[:40]), ground.looks)["oracle"]
            tell(f"seed {seed} {credit} update {update}: " + ", ".join(f"{k} {v:.2f}" for k, v in last.items()))
    playing.close()
    found, spent = choices(choosing, ground, held_out), time.process_time() - began
    ended = evaluate(policy, ground.transcript, {"memory": {w: one.surest for w, one in found.items()}}, seed)
    return {**ended, "choice": judged(found, ground.looks), "curve": curve, "cpu_s": spent}


# -- D: in its own words --------------------------------------------------------------------------


def read_out(trajectory: Trajectory) -> str:
    """What a writer reads: each place that was come to, what was seen there, and the way there."""
    return " ".join(f"<see> {compact(one.seen.observation)} {answer(one)}" for one in ways(trajectory))


def answer(one: Candidate) -> str:
    """What a writer says: where, then how to get there. Each is found by one look at what it read."""
    return f"<at> {one.seen.location.lower()} <item> add : {one.text}"


def stage_d(policy: Any, ground: Ground, seed: int) -> dict[str, Any]:
    """A writer that is taught on walks to say the way to the coin, in free words, token by token."""
    held_out = usable(ground.looks, HELD_OUT)
    began, model = time.process_time(), fresh(ground, seed + 100)
    serving = LocalEngine(model, ground.transcript.tokenizer, roles=("extractor",))
    writer = Writes(serving, ground.transcript, reads=read_out)
    lessons = []
    chance = random.Random(seed)
    for number in range(LESSONS):
        for world, look in walks(DEMOS, PATIENCE, seed=number).items():
            if usable({world: look}, [world]):
                row = writer.lesson(look, answer(best(look)), f"{world}/{number}")
                (stream,) = streams([row], {row.trace: [1.0]})
                lessons.append(turned(stream, ground.transcript, chance))
    warm_start(model, lessons, WarmStart(updates=LESSON_UPDATES, lr=2e-3, seed=seed), tell)
    spent = time.process_time() - began

    async def write() -> dict[World, str | None]:
        answers = await asyncio.gather(*(writer.read(ground.looks[world], greedy=True) for world in held_out))
        items = [one[0].items for one in answers]
        return {world: text_of(item[0]) if item else None for world, item in zip(held_out, items, strict=True)}

    said = asyncio.run(write())
    offered = {world: [one.text for one in ways(ground.looks[world])] for world in held_out}
    shown: dict[str, dict[World, str | None]] = {
        "written": said,
        "at random": {world: chance.choice(offered[world]) for world in held_out},
        "oracle": {world: oracle(ground.looks[world]) for world in held_out},
    }
    return {
        **evaluate(policy, ground.transcript, shown, seed),
        "is_oracle": fmean(said[world] == oracle(ground.looks[world]) for world in held_out),
        "is_a_way": fmean(said[world] in offered[world] for world in held_out),
        "cpu_s": spent,
    }


# -- all of it ------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the stages asked for; results as JSON and as a markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Folder of results.json and results.md.")
    parser.add_argument("--seeds", default="0,1,2", help="Seeds, with commas.")
    parser.add_argument("--stages", default="ABCD", help="Which of A, B, C, D; A's policy is made in any case.")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    results: dict[str, dict[str, Any]] = {stage: {} for stage in asked.stages}
    found = ground([*WORLDS, *HELD_OUT])
    asked.out.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        for stage, figures in run(found, seed, asked.stages):
            results[stage][str(seed)] = figures
            (asked.out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            (asked.out / "results.md").write_text(tables(results), encoding="utf-8")
    print(tables(results))


def run(ground: Ground, seed: int, stages: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """One seed, stage by stage."""
    began = time.process_time()
    policy = warm(ground, seed)
    spent = time.process_time() - began
    if "A" in stages:
        yield "A", {**evaluate(policy, ground.transcript, four(ground.looks, HELD_OUT, seed), seed), "cpu_s": spent}
    if "B" in stages:
        yield "B", stage_b(policy, ground, seed)
    if "C" in stages:
        held_out = usable(ground.looks, HELD_OUT)
        known: dict[World, str | None] = {world: oracle(ground.looks[world]) for world in held_out}
        figures: dict[str, Any] = {"start": evaluate(policy, ground.transcript, {"oracle": known}, seed)}
        for name, (credit, learns) in TOGETHER_RUNS.items():
            figures[name] = stage_c(policy, ground, seed, credit=credit, learns=learns)
            tell(f"seed {seed} {name}: {figures[name]['memory']['success']:.3f} with memory")
        yield "C", figures
    if "D" in stages:
        yield "D", stage_d(policy, ground, seed)


def tables(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """A markdown table a stage: a row a condition, a column a seed, then the mean."""
    lines: list[str] = []
    for stage, by_seed in results.items():
        rows: dict[str, list[str]] = {}
        values: dict[str, list[float]] = {}
        for figures in by_seed.values():
            for name, text, value in told(figures):
                rows.setdefault(name, []).append(text)
                values.setdefault(name, []).append(value)
        lines += [f"## {stage}", "", f"| | {' | '.join(f'seed {seed}' for seed in by_seed)} | mean |"]
        lines.append("|---" * (len(by_seed) + 2) + "|")
        lines += [f"| {name} | {' | '.join(cells)} | {fmean(values[name]):.3f} |" for name, cells in rows.items()]
        lines.append("")
    return "\n".join(lines)


def told(figures: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str, float]]:
    """Every figure with its name, in words and as a number; a success with its difference to none."""
    if "success" in figures:
        difference = f" ({figures['to_none']:+.3f} ± {figures['se']:.3f})" if figures["se"] else ""
        yield path or "success", f"{figures['success']:.3f}{difference}", figures["success"]
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from told(value, f"{path} {name}".strip())
        elif name not in ("success", "to_none", "se", "curve"):
            yield f"{path}: {name}" if path else name, f"{value:.2f}", value


if __name__ == "__main__":
    main()
