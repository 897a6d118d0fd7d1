"""Evaluation: arms on the same held-out worlds, with intervals, paired differences and harm.

    report = summarise(played)
    report["experience"].difference, report["experience"].harm

Worlds are what was drawn, so intervals and standard errors are over worlds: a bootstrap of them, or
Wilson's where each was played once. Harm is an episode that fails where control's of the same world
and copy succeeded. This file changes no weights and no library.
"""

import math
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.memory.errors import UnknownName
from hardwon.runtime import Agent

from .algorithms.samples import Rollout
from .config.schema import CONTROL, EnvironmentConfig, Worlds
from .rollouts.explore import open_world
from .session import Stage, read_config

Z = 1.959964
"""Standard deviations of a two-sided 95% interval."""
RESAMPLES = 2000
"""Of worlds, for a bootstrap interval."""
RUNTIME_ARMS = (CONTROL, "library")
"""Arms of a policy that is not a checkpoint."""


@dataclass(frozen=True, slots=True)
class Played:
    """One episode."""

    arm: str
    world: str
    copy: int
    success: bool | None
    """None where the environment failed."""
    steps: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Arm:
    """How an arm did."""

    episodes: int
    success: float
    low: float
    """Of a 95% interval."""
    high: float
    difference: float | None
    """Mean over worlds of the success minus control's; None for control itself."""
    error: float | None
    """Standard error of the difference."""
    harm: float | None
    """Share of episodes that fail where control's of the same world and copy succeeded."""
    steps: float
    tokens: float
    """Read and said, an episode."""
    excluded: int
    """Episodes that the environment broke."""


def of_rollouts(rollouts: Sequence[Rollout]) -> list[Played]:
    """What was played, in the order of play."""
    counts: dict[tuple[str, str], int] = {}
    played = []
    for rollout in rollouts:
        copy = counts.get((rollout.trajectory.arm, rollout.group), 0)
        counts[rollout.trajectory.arm, rollout.group] = copy + 1
        played.append(_played(rollout.trajectory, rollout.group, copy, failed=bool(rollout.failed)))
    return played


def _played(trajectory: Trajectory, world: str, copy: int, *, failed: bool) -> Played:
    spent = trajectory.meta.get("prompt_tokens", 0) + trajectory.meta.get("completion_tokens", 0)
    success = None if failed else trajectory.success
    return Played(trajectory.arm, world, copy, success, len(trajectory.steps), int(spent))


def summarise(played: Sequence[Played]) -> dict[str, Arm]:
    """Every arm, in the order of first appearance."""
    counted = [episode for episode in played if episode.success is not None]
    by_world: dict[str, dict[str, list[Played]]] = {arm: {} for arm in dict.fromkeys(e.arm for e in played)}
    for episode in counted:
        by_world[episode.arm].setdefault(episode.world, []).append(episode)
    excluded = {arm: sum(e.arm == arm and e.success is None for e in played) for arm in by_world}
    return {arm: _arm(arm, worlds, by_world.get(CONTROL, {}), excluded[arm]) for arm, worlds in by_world.items()}


def _arm(
    name: str, worlds: Mapping[str, Sequence[Played]], control: Mapping[str, Sequence[Played]], excluded: int
) -> Arm:
    episodes = [episode for played in worlds.values() for episode in played]
    if not episodes:
        return Arm(0, 0.0, 0.0, 1.0, None, None, None, 0.0, 0.0, excluded)
    low, high = _interval(worlds)
    compared = name != CONTROL and bool(control)
    differences = [_mean(worlds[world]) - _mean(control[world]) for world in worlds if world in control]
    return Arm(
        len(episodes),
        _mean(episodes),
        low,
        high,
        fmean(differences) if compared and differences else None,
        stdev(differences) / math.sqrt(len(differences)) if compared and len(differences) > 1 else None,
        _harm(worlds, control) if compared else None,
        fmean(episode.steps for episode in episodes),
        fmean(episode.tokens for episode in episodes),
        excluded,
    )


def _mean(episodes: Sequence[Played]) -> float:
    return fmean(bool(episode.success) for episode in episodes)


def _harm(worlds: Mapping[str, Sequence[Played]], control: Mapping[str, Sequence[Played]]) -> float | None:
    known = {(e.world, e.copy): e.success for played in control.values() for e in played}
    pairs = [
        (known[e.world, e.copy], e.success) for played in worlds.values() for e in played if (e.world, e.copy) in known
    ]
    return fmean(bool(without and not shown) for without, shown in pairs) if pairs else None


def _interval(worlds: Mapping[str, Sequence[Played]]) -> tuple[float, float]:
    if all(len(played) == 1 for played in worlds.values()):
        return wilson(sum(bool(played[0].success) for played in worlds.values()), len(worlds))
    means = [_mean(played) for played in worlds.values()]
    chance = random.Random(0)
    drawn = sorted(fmean(chance.choices(means, k=len(means))) for _ in range(RESAMPLES))
    return drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES) - 1]


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share; (0, 1) of nothing."""
    if n == 0:
        return 0.0, 1.0
    share, square = successes / n, Z * Z
    middle = (share + square / (2 * n)) / (1 + square / n)
    half = Z / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def metrics_of(report: Mapping[str, Arm]) -> dict[str, float]:
    """An evaluation as numbers by name, for the log."""
    return {
        f"{name}/{arm}": value
        for arm, result in report.items()
        for name, value in asdict(result).items()
        if value is not None
    }


# -- whole evaluations ------------------------------------------------------------------------------


async def evaluate_checkpoint(
    checkpoint: Path,
    worlds: Worlds | None = None,
    arms: Sequence[str] | None = None,
    copies: int | None = None,
    temperature: float | None = None,
) -> dict[str, Arm]:
    """A checkpoint's policy with the library that it had; what is not given is as its settings say."""
    config = read_config(checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage.restore(checkpoint, Path(folder))
        try:
            known = stage.arms_to_evaluate(copies or config.eval.copies)
            for arm in arms or ():
                if arm not in known:
                    raise UnknownName.of("arm", arm, known)
            rollouts = await stage.play(
                (worlds or config.tasks.eval).all,
                {arm: number for arm, number in known.items() if not arms or arm in arms},
                salt=f"eval/{config.run.seed}",
                temperature=config.eval.temperature if temperature is None else temperature,
            )
        finally:
            stage.close()
    return summarise(of_rollouts(rollouts))


def evaluate_policy(
    policy: Any,
    environment: EnvironmentConfig,
    worlds: Worlds,
    library: str | Path | None = None,
    arms: Sequence[str] = (),
    copies: int = 1,
) -> dict[str, Arm]:
    """Any policy of the runtime, without memory and with what a library recalls; nothing is learnt."""
    arms = arms or (RUNTIME_ARMS if library else (CONTROL,))
    for arm in arms:
        if arm not in RUNTIME_ARMS:
            raise UnknownName.of("arm", arm, RUNTIME_ARMS)
    world = open_world(environment)
    played: list[Played] = []
    try:
        for arm in arms:
            played += _play_policy(policy, world, environment.max_steps, worlds, library, arm, copies)
    finally:
        world.close()
    return summarise(played)


def _play_policy(
    policy: Any, world: Any, max_steps: int, worlds: Worlds, library: str | Path | None, arm: str, copies: int
) -> list[Played]:
    remembers = arm != CONTROL and library is not None
    path = library if remembers and library is not None else ":memory:"
    played = []
    with ExperienceLibrary.open(path, read_only=remembers) as opened:
        for copy in range(copies):
            agent = Agent(
                policy,
                opened,
                world.clone(),
                arm=arm,
                learn=False,
                guardrails=remembers,
                max_steps=max_steps,
                seed=copy,
            )
            for fold, seed in worlds.all:
                result = agent.run(fold, seed)
                failed = result.success is None
                played.append(_played(result.trajectory, f"{fold}#{seed}", copy, failed=failed))
            agent.close()
    return played
