"""Evaluation of arms on the same held-out task instances: intervals, paired differences and harm.

    report = summarise(played)
    report["experience"].difference, report["experience"].harm

Task instances are the sampling unit. Intervals come from a bootstrap over instances, or from Wilson's
formula if each instance was played once. Harm counts the episodes that fail although the control episode
of the same instance and copy succeeded. An evaluation changes neither weights nor libraries.
"""

import math
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev

from hardwon.memory import Trajectory
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime.interfaces.arms import CONTROL

from .algorithms.outcomes import OutcomeKind, measure_outcome
from .algorithms.samples import Rollout
from .config.schema import TaskInstances
from .player import Player
from .session import Session, read_config

Z = 1.959964
"""Standard deviations of a two-sided 95% interval."""
RESAMPLES = 2000
"""Bootstrap resamples, over task instances."""


@dataclass(frozen=True, slots=True)
class Played:
    """One episode of an evaluation."""

    arm: str
    world: str
    copy: int
    success: bool | None
    """Success of the task; None if the episode is excluded."""
    steps: int
    tokens: int
    outcome: float | None = None
    """Outcome of the episode if it is not the success."""
    measure: OutcomeKind = "success"
    problem: str = ""
    """Why the episode is excluded, such as context_exceeded; empty if it is not."""

    @property
    def value(self) -> float:
        """Return what is averaged and compared: the outcome, or 1 for a success."""
        return float(bool(self.success)) if self.outcome is None else self.outcome


@dataclass(frozen=True, slots=True)
class ArmResult:
    """The results of an arm."""

    episodes: int
    success: float
    low: float
    """Lower bound of the 95% interval of the mean outcome: of the success rate, unless `measure` says otherwise."""
    high: float
    difference: float | None
    """Mean over task instances of the mean outcome minus that of control; None for control itself."""
    error: float | None
    """Standard error of the difference."""
    harm: float | None
    """Share of episodes whose outcome is below that of the control episode of the same instance and copy."""
    steps: float
    tokens: float
    """Mean number of prompt and completion tokens per episode."""
    excluded: int
    """Episodes that are in no other figure."""
    outcome: float = 0.0
    """Mean outcome by `measure`."""
    measure: OutcomeKind = "success"
    """The kind of outcome of an episode."""
    problems: Mapping[str, int] = field(default_factory=dict)
    """Number of excluded episodes by cause, such as context_exceeded."""
    worlds: Mapping[str, float] = field(default_factory=dict)
    """Mean outcome by task instance, as SPLIT#SEED, to compare two evaluations in pairs."""


def collect_episodes(rollouts: Sequence[Rollout]) -> list[Played]:
    """Return one `Played` per rollout, in the order of play; repeats within an arm and group are numbered."""
    counts: dict[tuple[str, str], int] = {}
    played = []
    for rollout in rollouts:
        # failed rollouts are numbered too, so later copies stay paired with their control
        copy = counts.get((rollout.trajectory.arm, rollout.group), 0)
        counts[rollout.trajectory.arm, rollout.group] = copy + 1
        played.append(
            _to_episode(rollout.trajectory, rollout.group, copy, problem=rollout.failed, measure=rollout.measure)
        )
    return played


def _to_episode(
    trajectory: Trajectory, world: str, copy: int, *, problem: str, measure: OutcomeKind = "success"
) -> Played:
    """Return the figures of a trajectory that an evaluation needs."""
    spent = trajectory.meta.get("prompt_tokens", 0) + trajectory.meta.get("completion_tokens", 0)
    success = None if problem else trajectory.success
    outcome = None if problem else measure_outcome(trajectory, measure)
    return Played(trajectory.arm, world, copy, success, len(trajectory.steps), int(spent), outcome, measure, problem)


def summarise(played: Sequence[Played]) -> dict[str, ArmResult]:
    """Return the results of every arm, in the order of first appearance."""
    counted = [episode for episode in played if episode.success is not None]
    by_world: dict[str, dict[str, list[Played]]] = {arm: {} for arm in dict.fromkeys(e.arm for e in played)}
    for episode in counted:
        by_world[episode.arm].setdefault(episode.world, []).append(episode)
    results = {}
    for arm, worlds in by_world.items():
        problems = Counter(e.problem or "unknown" for e in played if e.arm == arm and e.success is None)
        result = _summarize_arm(arm, worlds, by_world.get(CONTROL, {}), problems.total())
        results[arm] = replace(result, problems=dict(problems.most_common()))
    return results


def _summarize_arm(
    name: str, worlds: Mapping[str, Sequence[Played]], control: Mapping[str, Sequence[Played]], excluded: int
) -> ArmResult:
    """Return the results of one arm, compared with the control episodes of the same task instances."""
    episodes = [episode for played in worlds.values() for episode in played]
    if not episodes:
        return ArmResult(0, 0.0, 0.0, 1.0, None, None, None, 0.0, 0.0, excluded)
    low, high = _interval(worlds)
    compared = name != CONTROL and bool(control)
    differences = [_mean(worlds[world]) - _mean(control[world]) for world in worlds if world in control]
    return ArmResult(
        len(episodes),
        fmean(bool(episode.success) for episode in episodes),
        low,
        high,
        fmean(differences) if compared and differences else None,
        stdev(differences) / math.sqrt(len(differences)) if compared and len(differences) > 1 else None,
        _harm_rate(worlds, control) if compared else None,
        fmean(episode.steps for episode in episodes),
        fmean(episode.tokens for episode in episodes),
        excluded,
        _mean(episodes),
        episodes[0].measure,
        worlds={world: _mean(played) for world, played in worlds.items()},
    )


def _mean(episodes: Sequence[Played]) -> float:
    """Return the mean outcome of some episodes."""
    return fmean(episode.value for episode in episodes)


def _harm_rate(worlds: Mapping[str, Sequence[Played]], control: Mapping[str, Sequence[Played]]) -> float | None:
    """Return the share of episodes that did worse than their control episode, or None without pairs."""
    outcomes = {(e.world, e.copy): e.value for played in control.values() for e in played}
    pairs = [
        (outcomes[e.world, e.copy], e.value)
        for played in worlds.values()
        for e in played
        if (e.world, e.copy) in outcomes
    ]
    return fmean(own < baseline for baseline, own in pairs) if pairs else None


def _interval(worlds: Mapping[str, Sequence[Played]]) -> tuple[float, float]:
    # Resampling worlds of one episode each would give an interval of width 0 when all succeed.
    """Return the 95% interval of the mean outcome."""
    graded = any(episode.measure != "success" for played in worlds.values() for episode in played)
    if not graded and all(len(played) == 1 for played in worlds.values()):
        return wilson(sum(bool(played[0].success) for played in worlds.values()), len(worlds))
    means = [_mean(played) for played in worlds.values()]
    rng = random.Random(0)  # fixed seed: the same episodes always give the same interval
    resampled = sorted(fmean(rng.choices(means, k=len(means))) for _ in range(RESAMPLES))
    return resampled[int(0.025 * RESAMPLES)], resampled[int(0.975 * RESAMPLES) - 1]


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Return Wilson's 95% interval of a proportion; (0, 1) if n is 0."""
    if n == 0:
        return 0.0, 1.0
    share, square = successes / n, Z * Z
    middle = (share + square / (2 * n)) / (1 + square / n)
    half = Z / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def flatten_report(report: Mapping[str, ArmResult]) -> dict[str, float]:
    """Return the results as numbers by name, such as `success/control`, for the metrics log."""
    return {
        f"{name}/{arm}": value
        for arm, result in report.items()
        for name, value in asdict(result).items()
        if isinstance(value, int | float)
    }


# -- complete evaluations ---------------------------------------------------------------------------


async def evaluate_checkpoint(
    checkpoint: Path,
    worlds: TaskInstances | None = None,
    arms: Sequence[str] | None = None,
    copies: int | None = None,
    temperature: float | None = None,
    tell: Callable[[str], None] | None = None,
    library: str | Path | None = None,
    at_once: int | None = None,
) -> dict[str, ArmResult]:
    """Evaluate the policy of a checkpoint together with its library, or with another one.

    Arguments that are None take the value of the checkpoint's settings.

    Args:
        checkpoint: Folder of one checkpoint.
        worlds: Task instances to play.
        arms: Names of the arms to play; None or empty plays all of them. Arms that learn also exist as
            `NAME-frozen`, with the guidance of the start of training.
        copies: Episodes per task instance and arm.
        temperature: Sampling temperature of the policy; 0 is greedy.
        tell: Receives a line of progress now and then.
        library: Path or address of a library that all arms recall from in place of the checkpoint's own.
        at_once: Episodes that run at once; fewer need less memory.

    Returns:
        The results by arm.

    Raises:
        ConfigError: The checkpoint's settings use no library, and one was passed.
        UnknownName: The checkpoint has no arm of that name.
    """
    config = read_config(checkpoint)
    if at_once is not None:
        config = replace(config, run=replace(config.run, at_once=at_once))
    available = config.list_evaluated_arms(copies)
    names = [arm.name for arm in available]
    for name in arms or ():
        if name not in names:
            raise UnknownName.of("arm", name, names)
    if library is not None and not config.uses_library:
        raise ConfigError(f"{library} would not be read: no arm of {checkpoint} recalls. Leave it out.")
    with (
        # works on copies of the libraries, so the checkpoint stays intact
        tempfile.TemporaryDirectory() as folder,
        closing(Session.restore(checkpoint, Path(folder), config, recalled=library)) as session,
        closing(Player(session, tell)) as player,
    ):
        rollouts = await player.play(
            (worlds or config.tasks.eval).all,
            {arm: number for arm, number in available.items() if not arms or arm.name in arms},
            salt=f"eval/{config.run.seed}",
            temperature=config.eval.temperature if temperature is None else temperature,
        )
    return summarise(collect_episodes(rollouts))


def summarize_composed(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return the success of episodes that a composer began in another way, and counts of those that failed."""
    failures = Counter(rollout.failed for rollout in rollouts if rollout.failed)
    counted = [rollout for rollout in rollouts if not rollout.failed]
    metrics = {f"compose/failed/{why}": float(number) for why, number in sorted(failures.items())}
    if counted:
        metrics["compose/success"] = fmean(bool(rollout.trajectory.success) for rollout in counted)
        metrics["compose/prefix_steps_mean"] = fmean(rollout.start for rollout in counted)
    return metrics


def summarize_episodes(rollouts: Sequence[Rollout], arms: Sequence[str], measure: OutcomeKind) -> dict[str, float]:
    """Return success, the outcome if it is another figure, and steps by arm, mean reward, and counts of failures."""
    failures = Counter(rollout.failed for rollout in rollouts if rollout.failed)
    counted = [rollout.trajectory for rollout in rollouts if not rollout.failed]
    metrics: dict[str, float] = {f"failed/{why}": float(number) for why, number in sorted(failures.items())}
    for arm in arms:
        of_arm = [trajectory for trajectory in counted if trajectory.arm == arm]
        if of_arm:
            metrics[f"success/{arm}"] = fmean(bool(trajectory.success) for trajectory in of_arm)
            if measure != "success":
                metrics[f"{measure}/{arm}"] = fmean(measure_outcome(episode, measure) or 0.0 for episode in of_arm)
            metrics[f"steps/{arm}"] = fmean(len(trajectory.steps) for trajectory in of_arm)
    if counted:
        metrics["reward"] = fmean(trajectory.total_reward for trajectory in counted)
    metrics["episodes"] = float(len(counted))
    return metrics
