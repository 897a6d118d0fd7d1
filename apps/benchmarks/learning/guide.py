"""When is a hint worth its cost: four ways to give a tiny policy the memory of a house.

    python -m benchmarks.learning.guide --out runs/guide --seeds 0,1,2

In TextWorldExpress coin (six rooms, no doors, ten moves), a policy of half a million weights learns to follow a given
route and is then frozen. One walk is recalled before each episode, of one of three kinds:

    lately    a walk of this house that found the coin;
    rebuilt   the same walk, but the house has been rebuilt: every door it names leads elsewhere;
    another   a walk of another house.

The recalled record says whether the house was rebuilt, the route names its first room, and the guide sees the current
room. The guide learns the content of hints by imitation, and learns whether to give a hint from outcomes alone. It is
trained on worlds of the train fold, tuned on other worlds of that fold, and reported on the test fold. All guides
advise the same policy. The same world, text and copy is the same episode in every arm, so an arm without a hint equals
"no memory" exactly. Times are CPU seconds of this process.
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

from benchmarks.harness.intervals import bootstrap
from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.trainers.algorithms.learner import LearnerSettings, LossSettings
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.config.schema import CONTROL, RoleConfig
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.roles.base import Parts
from hardwon.trainers.roles.guides.lessons import Lesson
from hardwon.trainers.roles.guides.role import GuideRole
from hardwon.trainers.roles.guides.speech import GuideReply
from hardwon.trainers.rollouts.rollout import Spec

from .guide_houses import (
    EASY,
    KINDS,
    WALK,
    Ground,
    Memory,
    Table,
    World,
    build_ground,
    build_memories,
    build_query,
    play_episodes,
    tell,
    train_policy,
)

WORLDS = [("train", seed) for seed in range(300, 420)]
"""Worlds in which the guide learns from outcomes (stage 2)."""
TUNING = [("train", seed) for seed in range(900, 960)]
"""Worlds that were used to choose the settings."""
TEST = [("test", seed) for seed in range(300)]
"""Worlds of the reported results."""
TRIED, COPIES = 3, 4
"""Episodes per text and world, for learning and for the report."""
COST, LENGTH = 0.1, 32
"""Cost of a hint of LENGTH tokens, in units of success."""
GROUPS, BRANCHES, SILENT = 48, 2, 3
"""Groups per update; episodes per group with and without a hint."""
UPDATES, LR, KL, ENTROPY = 60, 1e-3, 0.003, 0.05
"""Settings of stage 2. The entropy bonus keeps an early wrong decision from becoming certain."""
DISTIL = 40
"""Updates of stage 1, which distills what to say."""
POLICY = 0
"""Seed of the policy and of the recalled walks; all guides share both."""
ARMS = ("no memory", "retrieval", "always generate", "after stage 1", "learned guide")


# -- the guide ------------------------------------------------------------------------------------


def build_guide(model: Any, ground: Ground, memories: Mapping[World, Memory], seed: int) -> GuideRole:
    """Return a guide that starts as a copy of the policy and has completed stage 1."""
    config = RoleConfig(
        learner=LearnerSettings(lr=LR, warmup=3, decay=UPDATES * 5 // 4, budget=8192),
        loss=LossSettings(kl=KL, entropy=ENTROPY),
        settings={"cost": COST, "length": LENGTH, "ready": 1, "distil": DISTIL},
    )
    engine = LocalEngine(model, ground.transcript.tokenizer, roles=("guide",))
    parts = Parts(config, model, ground.transcript, engine, ExperienceLibrary.open(":memory:"), seed)
    role = GuideRole(parts, lambda spec: memories[spec.task, spec.seed].asked, lambda: build_lessons(ground))
    role.begin()
    return role


def build_lessons(ground: Ground) -> list[Lesson]:
    """Return pairs of a query and the hint to learn: successful walks with their loops removed."""
    demos = [demo for demo in ground.demos.values() if demo.success and len(demo.steps) <= WALK]
    queries = [build_query(demo.steps[0].pre, demo, n % 2 == 0) for n, demo in enumerate(demos)]
    # A single offer means that the walk had no loops, so there is nothing to choose.
    return [(query, query.offers[0]) for query in queries if len(query.offers) > 1]


def learn(role: GuideRole, table: Table, worlds: Sequence[World], seed: int) -> None:
    """Run stage 2: learn from outcomes when to give a hint.

    Each update uses groups of branches whose outcomes are sampled from recorded episodes of the frozen policy.
    """
    chance = random.Random(f"{seed} groups")
    for update in range(1, UPDATES + 1):
        drawn, salt = chance.sample(list(worlds), GROUPS), f"{seed}/{update}"
        silent = [Spec(*world, arm=CONTROL, copy=copy, salt=salt) for world in drawn for copy in range(SILENT)]
        spoken = [Spec(*world, arm="guided", copy=copy, salt=salt) for world in drawn for copy in range(BRANCHES)]
        specs = [*silent, *asyncio.run(_prepare(role, spoken))]
        role.collect([sample_rollout(table, spec, chance) for spec in specs])
        metrics = role.update()
        if update % max(1, UPDATES // 5) == 0:
            says = ", ".join(f"{name} {metrics[name]:.3f}" for name in ("generates", "decision", "reward", "kl"))
            tell(f"seed {seed} update {update}: {says}")


async def _prepare(role: GuideRole, specs: Sequence[Spec]) -> Sequence[Spec]:
    return await role.prepare(specs)


def sample_rollout(table: Table, spec: Spec, chance: random.Random) -> Rollout:
    """Return a recorded episode with the same world and hint as the rollout of `spec`."""
    ended = chance.choice(table[(spec.task, spec.seed), spec.memory])
    return Rollout(Trajectory(spec.task, (), bool(ended.success), arm=spec.arm, id=spec.session), (), spec.group)


# -- the arms -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """The data that all seeds share: a frozen policy, the recalled walks, and the outcomes of its episodes."""

    ground: Ground
    policy: Any
    known: Mapping[World, Memory]
    learnt_from: Table
    reported: Table
    worlds: Sequence[World]


def prepare_setting(worlds: Sequence[World]) -> Setting:
    """Train the policy once and play its episodes, those to learn from and those to report."""
    stand = build_ground(dict.fromkeys([*WORLDS, *TUNING, *worlds]))
    policy = train_policy(stand, POLICY)
    by_world = build_memories(stand.looks, [*WORLDS, *worlds], [*WORLDS, *TUNING], POLICY)
    tries = {world: (None, *memory.asked.offers) for world, memory in by_world.items()}
    learnt = play_episodes(policy, stand.transcript, {world: tries[world] for world in WORLDS}, TRIED, "learn")
    reported = play_episodes(policy, stand.transcript, {world: tries[world] for world in worlds}, COPIES, "report")
    tell(f"{sum(map(len, learnt.values()))} episodes to learn from, {sum(map(len, reported.values()))} to report")
    return Setting(stand, policy, by_world, learnt, reported, worlds)


def run(setting: Setting, seed: int) -> dict[str, Any]:
    """Train a guide with this seed and return, per arm and world, the hints and outcomes."""
    began, before, worlds, memories = time.process_time(), compute_digest(setting.policy), setting.worlds, setting.known
    role = build_guide(copy.deepcopy(setting.policy), setting.ground, memories, seed)
    first = generate_hints(role, worlds)
    learn(role, setting.learnt_from, WORLDS, seed)
    after, always = generate_hints(role, worlds), generate_hints(role, worlds, speaks=True)
    # A training step that reached the shared policy would invalidate all arms.
    assert compute_digest(setting.policy) == before, "the policy was trained"
    texts_by_arm: dict[str, dict[World, tuple[str | None, int]]] = {
        "no memory": dict.fromkeys(worlds, (None, 0)),
        "retrieval": {world: (memories[world].whole, 0) for world in worlds},
        "always generate": {world: (reply.text, count_tokens(reply)) for world, reply in always.items()},
        "after stage 1": {world: (reply.text, count_tokens(reply)) for world, reply in first.items()},
        "learned guide": {world: (reply.text, count_tokens(reply)) for world, reply in after.items()},
    }
    result = {
        arm: [summarize_world(world, *texts[world], memories[world].kind, setting.reported) for world in worlds]
        for arm, texts in texts_by_arm.items()
    }
    for arm, each in result.items():
        speaks = ", ".join(f"{kind} {share:.2f}" for kind, share in compute_means_by_kind(each, "spoke").items())
        tell(f"seed {seed} {arm}: {compute_mean(each, 'success'):.3f}; speaks: {speaks}")
    return {"arms": result, "cpu_s": time.process_time() - began}


def generate_hints(role: GuideRole, worlds: Sequence[World], speaks: bool | None = None) -> dict[World, GuideReply]:
    """Return the guide's greedy reply in each world."""
    specs = {Spec(*world).session: world for world in worlds}
    replies = asyncio.run(role.ask([Spec(*world) for world in worlds], speaks=speaks))
    return {specs[session]: reply for session, reply in replies.items()}


def count_tokens(reply: GuideReply) -> int:
    """Return the number of tokens that the guide read and wrote."""
    return reply.usage.prompt_tokens + reply.usage.completion_tokens


def compute_digest(model: Any) -> float:
    """Return a checksum of all weights, to detect accidental training."""
    return float(sum(value.double().abs().sum() for value in model.state_dict().values()))


def summarize_world(world: World, text: str | None, guide_tokens: int, kind: str, table: Table) -> dict[str, Any]:
    """Return the results in one world with one text, compared with no text."""
    ended, control = table[world, text], table[world, None]
    return {
        "kind": kind,
        "spoke": text is not None,
        "success": fmean(episode.success for episode in ended),
        "harm": fmean(
            float(episode.success < baseline.success) for episode, baseline in zip(ended, control, strict=True)
        ),
        "tokens": fmean(episode.tokens for episode in ended),
        "guide_tokens": guide_tokens,
    }


# -- the report ------------------------------------------------------------------------------------


def summarize(seeds: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Summarize each arm.

    Returns:
        Per arm: means over seeds, the success of each seed, and the learned guide's advantage over the arm, by world.
    """
    arms = {arm: list(zip(*(seed["arms"][arm] for seed in seeds.values()), strict=True)) for arm in ARMS}
    summaries = {}
    for arm, worlds in arms.items():
        ended = [compute_mean(each, "success") for each in worlds]
        ahead = [
            compute_mean(ours, "success") - theirs for ours, theirs in zip(arms["learned guide"], ended, strict=True)
        ]
        flat = [result for each in worlds for result in each]
        summaries[arm] = {
            "success": fmean(ended),
            "interval": bootstrap(ended),
            "seeds": [compute_mean(seed["arms"][arm], "success") for seed in seeds.values()],
            "ahead": fmean(ahead),
            "ahead_interval": bootstrap(ahead),
            **{name: compute_mean(flat, name) for name in ("harm", "tokens", "guide_tokens")},
            "spoke": compute_means_by_kind(flat, "spoke"),
            "by_kind": compute_means_by_kind(flat, "success"),
        }
    return summaries


def compute_mean(each: Iterable[Mapping[str, Any]], name: str) -> float:
    """Return the mean of one figure."""
    return fmean(float(result[name]) for result in each)


def compute_means_by_kind(each: Sequence[Mapping[str, Any]], name: str) -> dict[str, float]:
    """Return the mean of one figure per kind of recalled walk; kinds without data are left out."""
    parts = {kind: [result for result in each if result["kind"] == kind] for kind in (*KINDS, EASY)}
    return {kind: compute_mean(part, name) for kind, part in parts.items() if part}


def format_tables(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return two Markdown tables: results per arm, and results per kind of recalled walk."""
    lines = [
        "| | success (95 %) | by seed | learned guide less it (95 %) | harm | policy's tokens | guide's tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm, summary in summaries.items():
        low, high = summary["interval"]
        least, most = summary["ahead_interval"]
        ahead = "" if arm == "learned guide" else f"{summary['ahead']:+.3f} ({least:+.3f} to {most:+.3f})"
        seeds = ", ".join(f"{value:.2f}" for value in summary["seeds"])
        lines.append(
            f"| {arm} | {summary['success']:.3f} ({low:.2f} to {high:.2f}) | {seeds} | {ahead} | {summary['harm']:.3f} "
            f"| {summary['tokens']:.0f} | {summary['guide_tokens']:.0f} |"
        )
    kinds = [*summaries["no memory"]["by_kind"]]
    lines += ["", f"| recalled | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    lines += [format_row(f"{arm}: success", summary["by_kind"].values()) for arm, summary in summaries.items()]
    lines += [
        format_row(f"{arm}: speaks", summaries[arm]["spoke"].values()) for arm in ("after stage 1", "learned guide")
    ]
    return "\n".join(lines) + "\n"


def format_row(name: str, values: Iterable[float]) -> str:
    """Return a line of a Markdown table."""
    return f"| {name} | {' | '.join(f'{value:.2f}' for value in values)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the seeds and write the results as JSON and as Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Folder for results.json and results.md.")
    parser.add_argument("--seeds", default="0,1,2", help="Seeds, separated by commas.")
    parser.add_argument("--tuning", action="store_true", help="Report on the tuning worlds instead of the test worlds.")
    parser.add_argument("--json", action="store_true", help="Print the figures as JSON.")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # CPU seconds are comparable only with one thread
    setting, seeds = prepare_setting(TUNING if options.tuning else TEST), dict[str, Any]()
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in map(int, options.seeds.split(",")):
        seeds[str(seed)] = run(setting, seed)
        summaries = summarize(seeds)
        (options.out / "results.json").write_text(
            json.dumps({"summary": summaries, "seeds": seeds}) + "\n", encoding="utf-8"
        )
        (options.out / "results.md").write_text(format_tables(summaries), encoding="utf-8")
    summaries = summarize(seeds)
    print(json.dumps(summaries) if options.json else format_tables(summaries))


if __name__ == "__main__":
    main()
