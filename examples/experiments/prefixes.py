"""Begin episodes with the first part of a solution: which groups have different outcomes, and the effect of training.

    python -m examples.experiments.prefixes examples/algorithms/prefixed.yaml runs/prefixes --seeds 0,1,2

First, actions are chosen at random after the first f of the environment's own solution, for each share f, and groups
whose episodes end differently are counted: only these give a group-relative method anything to learn from. Then, for
each seed, a tiny base gets the warm start of the configuration, one run trains from it with prefixes as configured and
one without, and all three policies play held-out instances after each share. Finished parts in the output folder are
reused, and interrupted runs are continued. This program is not a command of `hardwon`.
"""

import asyncio
import json
import math
import random
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

SHARES = (0.0, 0.5, 0.75, 0.9)
COPIES = 6
"""Random episodes in a group."""
START, PLAIN, PREFIXED = "start", "plain", "prefixed"
"""The run that ends with the warm start, and those that train from it."""


@dataclass(frozen=True, slots=True)
class ShareCounts:
    """The groups of episodes that began after one share of a solution."""

    mixed: int
    """Groups with a success and a failure."""
    groups: int
    wins: int
    episodes: int


Counts = dict[float, ShareCounts]


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a policy."""

    counts: Counts
    """Held-out episodes, by the share of the solution that they began after."""
    signal: float | None
    """Share of the groups of training in which some advantage was not 0; None for the warm start."""
    cpu_s: float


def main(
    config: Annotated[Path, typer.Argument(help="Configuration with tasks.compose.prefixed and a warm start.")],
    out: Annotated[Path, typer.Argument(help="Output folder; existing results are reused.")],
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds; none plays random actions only.")] = "0,1,2",
    worlds: Annotated[int, typer.Option(help="Training instances that random actions play after each share.")] = 60,
    iterations: Annotated[int, typer.Option(help="Updates of each run.")] = 20,
    copies: Annotated[int, typer.Option(help="Episodes per held-out instance and share.")] = 3,
) -> None:
    """Count groups with different outcomes after each share of a solution, and train with and without prefixes."""
    print(f"{format_counts({'random actions': play_randomly(config, worlds)})}\n")
    for seed in [int(part) for part in seeds.split(",") if part]:
        runs = {name: load_or_run(config, out, seed, name, iterations, copies) for name in (START, PLAIN, PREFIXED)}
        print(f"seed {seed}\n\n{format_counts({name: run.counts for name, run in runs.items()})}\n")
        signals = ", ".join(f"{name} {run.signal:.2f}" for name, run in runs.items() if run.signal is not None)
        cost = sum(run.cpu_s for run in runs.values())
        print(f"groups of training with a signal: {signals}; {cost:.0f} CPU-s without the game's process\n", flush=True)


# -- random actions ---------------------------------------------------------------------------------


def play_randomly(config: Path, worlds: int) -> Counts:
    """Return the groups of random actions after each share of a solution, in instances of training."""
    from hardwon.trainers.config.schema import load
    from hardwon.trainers.rollouts.explore import open_world
    from hardwon.trainers.rollouts.paths import Demonstrations

    settings = load(config)
    with closing(open_world(settings.environment)) as environment:
        with closing(Demonstrations(environment, ("gold",), lambda *_: None)) as demonstrations:
            paths = {task: demonstrations.find(*task) for task in settings.tasks.train.all[:worlds]}
        counts = {}
        for share in SHARES:
            groups = []
            for task, path in paths.items():
                if path is not None:
                    actions = [step.action for step in path.steps]
                    prefix = actions[: min(math.ceil(share * len(actions)), len(actions) - 1)]
                    chances = [random.Random(f"{task}/{share}/{copy}") for copy in range(COPIES)]
                    limit = settings.environment.max_steps
                    groups.append([_walk(environment, task, prefix, limit, chance) for chance in chances])
            counts[share] = count_mixed(groups)
    return counts


def _walk(environment: Any, task: tuple[str, int], prefix: Sequence[str], limit: int, chance: random.Random) -> float:
    """Return whether random actions after a prefix solve a task instance within a number of steps, as 1 or 0."""
    state, over, info = environment.reset(*task), False, {}
    for number in range(limit):
        action = prefix[number] if number < len(prefix) else chance.choice(sorted(environment.admissible(state)))
        state, _, over, info = environment.step(action)
        if over:
            break
    return float(bool(over and info.get("success")))


def count_mixed(groups: Sequence[Sequence[float | None]]) -> ShareCounts:
    """Return the counts of groups of outcomes. None, an episode that broke, counts nowhere."""
    wins = [[outcome > 0 for outcome in group if outcome is not None] for group in groups]
    return ShareCounts(sum(len({*own}) > 1 for own in wins), len(wins), sum(map(sum, wins)), sum(map(len, wins)))


# -- training ---------------------------------------------------------------------------------------


def load_or_run(config: Path, out: Path, seed: int, name: str, iterations: int, copies: int) -> RunResult:
    """Return the saved result of a policy; it is trained and played first if there is none."""
    path, run = out / f"{name}-{seed}.json", out / f"{name}-{seed}"
    if not path.exists():
        signal, cpu_s = train_run(config, out, seed, name, iterations)
        counts = asyncio.run(_play_shares(run, copies))
        saved = {"counts": [[share, asdict(own)] for share, own in counts.items()], "signal": signal, "cpu_s": cpu_s}
        path.write_text(json.dumps(saved) + "\n", encoding="utf-8")
    saved = json.loads(path.read_text(encoding="utf-8"))
    return RunResult({share: ShareCounts(**own) for share, own in saved["counts"]}, saved["signal"], saved["cpu_s"])


def train_run(config: Path, out: Path, seed: int, name: str, iterations: int) -> tuple[float | None, float]:
    """Train the warm start or a run from it, continuing an interrupted one.

    Returns:
        The share of groups with a signal, or None for the warm start, and the CPU seconds.
    """
    from hardwon.trainers import metrics, train
    from hardwon.trainers.config.schema import load

    run, export = out / f"{name}-{seed}", out / f"{START}-{seed}" / "export"
    overrides = [f"run.seed={seed}", f"run.out={run}", "eval.every=0", "run.save_every=5"]
    if name == START:
        overrides += [f"warmstart.learning.seed={seed}", "run.iterations=0"]
        return None, train(config, overrides, resume=True, export=export).cpu_s
    # from the exported warm start, so that both runs begin with the same weights
    overrides += ["warmstart=null", f"model.base={export / 'policy'}", "model.prompt=compact"]
    overrides += [f"run.iterations={iterations}"]
    if name == PLAIN:
        overrides += ["tasks.compose={}", "tasks.demonstrations=[explored]"]
    report = train(config, overrides, resume=True)
    silent = fmean(row["groups_without_signal"] for row in metrics.read(run))
    return 1 - silent / load(config).run.groups, report.cpu_s


async def _play_shares(run: Path, copies: int) -> Counts:
    """Play the held-out instances with the newest weights of a run, after each share of the environment's solution."""
    from hardwon.runtime.interfaces.arms import Arm
    from hardwon.trainers.algorithms.composers import ComposerParts
    from hardwon.trainers.algorithms.composers.starts import Prefixed
    from hardwon.trainers.checkpoint import find
    from hardwon.trainers.loop import group_by_world
    from hardwon.trainers.player import Player
    from hardwon.trainers.rollouts.paths import Demonstrations
    from hardwon.trainers.session import Session, read_config

    checkpoint, counts = find(run), {}
    tasks = read_config(checkpoint).tasks.eval.all
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Session.restore(checkpoint, Path(folder))) as session,
        closing(Player(session)) as player,
        closing(Demonstrations(session.environment, ("gold",), lambda *_: None)) as demonstrations,
    ):
        solved = [task for task in tasks if demonstrations.find(*task)]
        parts = ComposerParts(demonstrate=demonstrations.find)
        for share in SHARES:
            composer = Prefixed(parts, shares=str(share), groups=1.0) if share else None
            rollouts = await player.play(solved, {Arm("control"): copies}, salt=f"share/{share}", composer=composer)
            groups = group_by_world(rollouts).values()
            counts[share] = count_mixed([[rollout.outcome for rollout in group] for group in groups])
    return counts


# -- output -----------------------------------------------------------------------------------------


def format_counts(policies: Mapping[str, Counts]) -> str:
    """Return a table with a row per share and two columns per policy: groups that differ, and successes."""
    from hardwon.trainers.evaluate import wilson

    cells = [f"{name}: groups with both outcomes | successes (95 %)" for name in policies]
    lines = [f"| f | {' | '.join(cells)} |", "|---" * (2 * len(policies) + 1) + "|"]
    for share in SHARES:
        row = []
        for counts in policies.values():
            own = counts[share]
            low, high = wilson(own.wins, own.episodes)
            row += [f"{own.mixed} of {own.groups}", f"{own.wins} of {own.episodes} ({low:.2f} to {high:.2f})"]
        lines.append(f"| {share:g} | {' | '.join(row)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
