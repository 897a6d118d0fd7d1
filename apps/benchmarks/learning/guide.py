"""When is a hint worth it: four ways of giving a tiny policy what is remembered of a house.

    python -m benchmarks.learning.guide --out runs/guide --seeds 0,1,2

In TextWorldExpress coin (six rooms, no doors, ten moves) a policy of half a million weights learns to follow
a way that it is shown, and is frozen. One walk is recalled before each episode, of three kinds:

    lately    a walk of this house that found the coin;
    rebuilt   the same, but the house was rebuilt since: every door it names leads elsewhere;
    another   a walk of another house.

The record says whether the house was rebuilt, the route says where it began, and the guide sees the room. It
is taught what to say by experience, and learns by its outcomes alone whether to say it. Trained in worlds of
the train fold, settings chosen in others of it, reported in the test fold. All guides stand beside one policy;
the same world, text and copy are the same episode in every arm, so that an arm that says nothing is no memory
exactly. Times are CPU seconds of this process.
"""

import argparse
import asyncio
import copy
import json
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.trainers.algorithms.learner import LearnerSettings, LossSettings
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.config.schema import CONTROL, RoleConfig
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.roles.base import Parts
from hardwon.trainers.roles.guide import GuideRole, Lesson
from hardwon.trainers.roles.guide_speech import GuideReply
from hardwon.trainers.rollouts.rollout import Spec

from .guide_houses import (
    EASY,
    KINDS,
    WALK,
    Ground,
    Memory,
    Table,
    World,
    ground,
    memories,
    played,
    record,
    taught,
    tell,
)

WORLDS = [("train", seed) for seed in range(300, 420)]
"""Worlds in which the guide learns by outcomes."""
TUNING = [("train", seed) for seed in range(900, 960)]
"""Worlds in which settings were chosen."""
TEST = [("test", seed) for seed in range(300)]
"""Worlds that are reported."""
TRIED, COPIES = 3, 4
"""Times that every text is tried in a world: where the guide learns, and where it is reported."""
COST, LENGTH = 0.1, 32
"""What a text of LENGTH tokens costs, in units of success."""
GROUPS, BRANCHES, SILENT = 48, 2, 3
"""Groups of an update; episodes of each that speak, and that do not."""
UPDATES, LR, KL, ENTROPY = 60, 1e-3, 0.003, 0.05
"""Of stage 2. The entropy keeps an early mistake from being certain."""
DISTIL = 40
"""Updates of stage 1."""
POLICY = 0
"""Seed of the policy, and of what is recalled where: all guides stand beside the same."""
ARMS = ("no memory", "retrieval", "always generate", "after stage 1", "learned guide")


# -- the guide ------------------------------------------------------------------------------------


def guide(model: Any, ground: Ground, known: Mapping[World, Memory], seed: int) -> GuideRole:
    """A guide that starts as a copy of the policy, with stage 1 behind it."""
    config = RoleConfig(
        learner=LearnerSettings(lr=LR, warmup=3, decay=UPDATES * 5 // 4, budget=8192),
        loss=LossSettings(kl=KL, entropy=ENTROPY),
        settings={"cost": COST, "length": LENGTH, "ready": 1, "distil": DISTIL},
    )
    engine = LocalEngine(model, ground.transcript.tokenizer, roles=("guide",))
    parts = Parts(config, model, ground.transcript, engine, ExperienceLibrary.open(":memory:"), seed)
    role = GuideRole(parts, lambda spec: known[spec.task, spec.seed].asked, lambda: lessons(ground))
    role.begin()
    return role


def lessons(ground: Ground) -> list[Lesson]:
    """Of the walks that found the coin: the way without its circles is what was worth saying."""
    found = [one for one in ground.demos.values() if one.success and len(one.steps) <= WALK]
    asked = [record(one.steps[0].pre, one, n % 2 == 0) for n, one in enumerate(found)]
    return [(one, one.offers[0]) for one in asked if len(one.offers) > 1]


def learn(role: GuideRole, table: Table, worlds: Sequence[World], seed: int) -> None:
    """Stage 2: groups of branches, their outcomes drawn from what was played of the frozen policy."""
    chance = random.Random(f"{seed} groups")
    for update in range(1, UPDATES + 1):
        drawn, salt = chance.sample(list(worlds), GROUPS), f"{seed}/{update}"
        silent = [Spec(*world, arm=CONTROL, copy=copy, salt=salt) for world in drawn for copy in range(SILENT)]
        spoken = [Spec(*world, arm="guided", copy=copy, salt=salt) for world in drawn for copy in range(BRANCHES)]
        specs = [*silent, *asyncio.run(_prepared(role, spoken))]
        role.collect([drawn_from(table, spec, chance) for spec in specs])
        metrics = role.update()
        if update % max(1, UPDATES // 5) == 0:
            says = ", ".join(f"{name} {metrics[name]:.3f}" for name in ("generates", "decision", "reward", "kl"))
            tell(f"seed {seed} update {update}: {says}")


async def _prepared(role: GuideRole, specs: Sequence[Spec]) -> Sequence[Spec]:
    return await role.prepare(specs)


def drawn_from(table: Table, spec: Spec, chance: random.Random) -> Rollout:
    """An episode that was played, as if it were this one."""
    ended = chance.choice(table[(spec.task, spec.seed), spec.memory])
    return Rollout(Trajectory(spec.task, (), bool(ended.success), arm=spec.arm, id=spec.session), (), spec.group)


# -- the arms -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """What all seeds share: a frozen policy, what is recalled in each world, and how its episodes end."""

    ground: Ground
    policy: Any
    known: Mapping[World, Memory]
    learnt_from: Table
    reported: Table
    worlds: Sequence[World]


def setting(worlds: Sequence[World]) -> Setting:
    """The policy, taught once, and its episodes: those that guides learn from, and those that are reported."""
    stand = ground(dict.fromkeys([*WORLDS, *TUNING, *worlds]))
    policy = taught(stand, POLICY)
    known = memories(stand.looks, [*WORLDS, *worlds], [*WORLDS, *TUNING], POLICY)
    tries = {world: (None, *one.asked.offers) for world, one in known.items()}
    learnt = played(policy, stand.transcript, {world: tries[world] for world in WORLDS}, TRIED, "learn")
    reported = played(policy, stand.transcript, {world: tries[world] for world in worlds}, COPIES, "report")
    tell(f"{sum(map(len, learnt.values()))} episodes to learn from, {sum(map(len, reported.values()))} to report")
    return Setting(stand, policy, known, learnt, reported, worlds)


def run(here: Setting, seed: int) -> dict[str, Any]:
    """A guide of this seed, and the arms: by arm and world, what was shown and how it ended."""
    began, before, worlds, known = time.process_time(), digest(here.policy), here.worlds, here.known
    role = guide(copy.deepcopy(here.policy), here.ground, known, seed)
    first = said(role, worlds)
    learn(role, here.learnt_from, WORLDS, seed)
    after, always = said(role, worlds), said(role, worlds, speaks=True)
    assert digest(here.policy) == before, "the policy was trained"
    shown: dict[str, dict[World, tuple[str | None, int]]] = {
        "no memory": dict.fromkeys(worlds, (None, 0)),
        "retrieval": {world: (known[world].whole, 0) for world in worlds},
        "always generate": {world: (one.text, spent(one)) for world, one in always.items()},
        "after stage 1": {world: (one.text, spent(one)) for world, one in first.items()},
        "learned guide": {world: (one.text, spent(one)) for world, one in after.items()},
    }
    result = {
        arm: [figures(world, *texts[world], known[world].kind, here.reported) for world in worlds]
        for arm, texts in shown.items()
    }
    for arm, each in result.items():
        speaks = ", ".join(f"{kind} {share:.2f}" for kind, share in of_kinds(each, "spoke").items())
        tell(f"seed {seed} {arm}: {mean_of(each, 'success'):.3f}; speaks: {speaks}")
    return {"arms": result, "cpu_s": time.process_time() - began}


def said(role: GuideRole, worlds: Sequence[World], speaks: bool | None = None) -> dict[World, GuideReply]:
    """What the guide says in each world, greedily."""
    specs = {Spec(*world).session: world for world in worlds}
    found = asyncio.run(role.ask([Spec(*world) for world in worlds], speaks=speaks))
    return {specs[session]: one for session, one in found.items()}


def spent(one: GuideReply) -> int:
    """Tokens that the guide read and said."""
    return one.usage.prompt_tokens + one.usage.completion_tokens


def digest(model: Any) -> float:
    """Changes with any weight."""
    return float(sum(value.double().abs().sum() for value in model.state_dict().values()))


def figures(world: World, text: str | None, guide_tokens: int, kind: str, table: Table) -> dict[str, Any]:
    """How one world went under one text, beside no text."""
    ended, control = table[world, text], table[world, None]
    return {
        "kind": kind,
        "spoke": text is not None,
        "success": fmean(one.success for one in ended),
        "harm": fmean(float(one.success < other.success) for one, other in zip(ended, control, strict=True)),
        "tokens": fmean(one.tokens for one in ended),
        "guide_tokens": guide_tokens,
    }


# -- what is told ---------------------------------------------------------------------------------


def summary(seeds: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By arm: means over seeds, success of each seed, and the learned guide's difference to it by world."""
    arms = {arm: list(zip(*(seed["arms"][arm] for seed in seeds.values()), strict=True)) for arm in ARMS}
    found = {}
    for arm, worlds in arms.items():
        ended = [mean_of(each, "success") for each in worlds]
        ahead = [mean_of(ours, "success") - theirs for ours, theirs in zip(arms["learned guide"], ended, strict=True)]
        flat = [one for each in worlds for one in each]
        found[arm] = {
            "success": fmean(ended),
            "interval": bootstrap(ended),
            "seeds": [mean_of(seed["arms"][arm], "success") for seed in seeds.values()],
            "ahead": fmean(ahead),
            "ahead_interval": bootstrap(ahead),
            **{name: mean_of(flat, name) for name in ("harm", "tokens", "guide_tokens")},
            "spoke": of_kinds(flat, "spoke"),
            "by_kind": of_kinds(flat, "success"),
        }
    return found


def mean_of(each: Iterable[Mapping[str, Any]], name: str) -> float:
    """Mean of one figure."""
    return fmean(float(one[name]) for one in each)


def of_kinds(each: Sequence[Mapping[str, Any]], name: str) -> dict[str, float]:
    """The same by what was recalled, of the kinds there are."""
    parts = {kind: [one for one in each if one["kind"] == kind] for kind in (*KINDS, EASY)}
    return {kind: mean_of(part, name) for kind, part in parts.items() if part}


def bootstrap(values: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """95% range of the mean over worlds."""
    chance = random.Random(0)
    means = sorted(fmean(chance.choices(values, k=len(values))) for _ in range(draws))
    return means[int(0.025 * draws)], means[int(0.975 * draws)]


def tables(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Two markdown tables: the arms, and the same by what was recalled."""
    lines = [
        "| | success (95 %) | by seed | learned guide less it (95 %) | harm | policy's tokens | guide's tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm, one in found.items():
        low, high = one["interval"]
        least, most = one["ahead_interval"]
        ahead = "" if arm == "learned guide" else f"{one['ahead']:+.3f} ({least:+.3f} to {most:+.3f})"
        seeds = ", ".join(f"{value:.2f}" for value in one["seeds"])
        lines.append(
            f"| {arm} | {one['success']:.3f} ({low:.2f} to {high:.2f}) | {seeds} | {ahead} | {one['harm']:.3f} "
            f"| {one['tokens']:.0f} | {one['guide_tokens']:.0f} |"
        )
    kinds = [*found["no memory"]["by_kind"]]
    lines += ["", f"| recalled | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    lines += [row(f"{arm}: success", one["by_kind"].values()) for arm, one in found.items()]
    lines += [row(f"{arm}: speaks", found[arm]["spoke"].values()) for arm in ("after stage 1", "learned guide")]
    return "\n".join(lines) + "\n"


def row(name: str, values: Iterable[float]) -> str:
    """A line of a table."""
    return f"| {name} | {' | '.join(f'{value:.2f}' for value in values)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the seeds; results as JSON and as markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Folder of results.json and results.md.")
    parser.add_argument("--seeds", default="0,1,2", help="Seeds, with commas.")
    parser.add_argument("--tuning", action="store_true", help="Report in the worlds that settings are chosen in.")
    parser.add_argument("--json", action="store_true", help="Print the figures as JSON.")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    here, seeds = setting(TUNING if asked.tuning else TEST), dict[str, Any]()
    asked.out.mkdir(parents=True, exist_ok=True)
    for seed in map(int, asked.seeds.split(",")):
        seeds[str(seed)] = run(here, seed)
        found = summary(seeds)
        (asked.out / "results.json").write_text(json.dumps({"summary": found, "seeds": seeds}) + "\n", encoding="utf-8")
        (asked.out / "results.md").write_text(tables(found), encoding="utf-8")
    found = summary(seeds)
    print(json.dumps(found) if asked.json else tables(found))


if __name__ == "__main__":
    main()
