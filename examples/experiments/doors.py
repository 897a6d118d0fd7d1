"""Compare step-level and episode-level credit in a harder game: rooms with closed doors.

    python -m examples.experiments.doors examples/train_doors.yaml runs/doors --seeds 0,1 --credits dr-grpo,slea

For each seed, one policy gets a warm start. Each credit estimator then trains a copy of it in the same worlds and in
the same order. The final policies play the held-out worlds of the configuration and are compared world by world.
Finished runs in the output folder are reused, and interrupted runs are continued. This program is not a command of
`hardwon`.
"""

import asyncio
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

import typer

from hardwon.memory.errors import HardwonError

START = "start"
"""The policy after its warm start."""
SMOOTH = 10
"""Window of the moving average, in iterations."""
COLOURS = ("#0b6e6e", "#c98a2b", "#7a5ea8")

Worlds = dict[str, float]
"""Success rate by world."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The held-out success of a run, and its cost."""

    worlds: Worlds
    cpu_s: float
    """CPU seconds of training, rollouts and exploration, without the evaluation and the game process."""
    weights: int


def main(
    config: Annotated[Path, typer.Argument(help="Training configuration with a warm start.")],
    out: Annotated[Path, typer.Argument(help="Output folder for the runs; existing results are reused.")],
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds.")] = "0,1",
    credits: Annotated[str, typer.Option(help="Comma-separated credit estimators.")] = "dr-grpo,slea",
    draw: Annotated[Path | None, typer.Option(help="File for a plot of the learning curves.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Train from one warm start with several credit estimators, and print their success in held-out worlds."""
    kinds, numbers = credits.split(","), [int(seed) for seed in seeds.split(",")]
    reached = {seed: {name: load_or_run(config, out, seed, name) for name in (START, *kinds)} for seed in numbers}
    if draw is not None:
        draw_curves(out, numbers, kinds, draw)
    if as_json:
        print(json.dumps({seed: {name: asdict(run) for name, run in runs.items()} for seed, runs in reached.items()}))
    else:
        print(f"{format_table(reached)}\n\n{format_costs(reached)}")


def load_or_run(config: Path, out: Path, seed: int, name: str) -> Reached:
    """Return the saved result of a run; train and evaluate it first if there is none."""
    path = out / f"{name}-{seed}.json"
    if not path.exists():
        cpu_s = train_run(config, out, seed, name)
        worlds, weights = asyncio.run(_evaluate(out / f"{name}-{seed}"))
        path.write_text(json.dumps(asdict(Reached(worlds, cpu_s, weights))) + "\n", encoding="utf-8")
    return Reached(**json.loads(path.read_text(encoding="utf-8")))


def train_run(config: Path, out: Path, seed: int, name: str) -> float:
    """Train the warm start or a run from it, continuing an interrupted one.

    Args:
        config: Training configuration.
        out: Output folder.
        seed: Seed of the run.
        name: START, or a credit estimator.

    Returns:
        CPU seconds of all parts of the run. A part that was killed is not counted.

    Raises:
        HardwonError: The run was stopped before its end.
    """
    from hardwon.trainers import train

    run, export = out / f"{name}-{seed}", out / f"{START}-{seed}" / "export"
    overrides = [f"run.seed={seed}", f"run.out={run}", "eval.every=0"]
    if name == START:
        overrides += [f"warmstart.learning.seed={seed}", "run.iterations=0"]
        report = train(config, overrides, resume=True, export=export)
    else:
        # Start from the exported warm start, so that all estimators begin with the same weights.
        overrides += ["warmstart=null", f"model.base={export / 'policy'}", f"roles.policy.credit.name={name}"]
        report = train(config, overrides, resume=True, quiet=False)
    spent = run / "cpu_s"
    cpu_s = report.cpu_s + (float(spent.read_text(encoding="utf-8")) if spent.exists() else 0.0)
    # Add to earlier parts of an interrupted run.
    spent.write_text(f"{cpu_s}\n", encoding="utf-8")
    if report.stopped:
        raise HardwonError(f"{run} was stopped after {report.iterations} iterations; run the same command to continue.")
    return cpu_s


async def _evaluate(run: Path) -> tuple[Worlds, int]:
    """Return the newest checkpoint's success by held-out world, sampled as by `hardwon eval`, and its weight count."""
    from hardwon.trainers.checkpoint import find
    from hardwon.trainers.evaluate import collect_episodes
    from hardwon.trainers.player import Player
    from hardwon.trainers.session import Session, read_config

    checkpoint = find(run)
    config = read_config(checkpoint)
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Session.restore(checkpoint, Path(folder))) as session,
        closing(Player(session)) as player,
    ):
        arms = config.list_evaluated_arms()
        rollouts = await player.play(config.tasks.eval.all, arms, salt=f"eval/{config.run.seed}")
        weights = sum(weight.numel() for weight in session.roles["policy"].model.parameters())
    by_world: dict[str, list[bool]] = {}
    for episode in collect_episodes(rollouts):
        if episode.success is not None:
            by_world.setdefault(episode.world, []).append(episode.success)
    return {world: fmean(successes) for world, successes in by_world.items()}, weights


# -- output --------------------------------------------------------------------------------------


def format_table(reached: Mapping[int, Mapping[str, Reached]]) -> str:
    """Return a table with a row per run and a column per seed: success (difference to the start ± standard error).

    The last column averages the seeds in each world, so its standard errors are over worlds, not over seeds.
    """
    worlds = {seed: {name: run.worlds for name, run in runs.items()} for seed, runs in reached.items()}
    columns = {**{f"seed {seed}": runs for seed, runs in worlds.items()}, "mean": _average_seeds(list(worlds.values()))}
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    names = list(columns["mean"])
    lines += [f"| {name} | {' | '.join(_format_cell(runs, name) for runs in columns.values())} |" for name in names]
    first, *kinds = names[1:]
    for name in kinds:
        cells = (_format_difference(runs[name], runs[first]) for runs in columns.values())
        lines.append(f"| {name} beside {first} | {' | '.join(cells)} |")
    return "\n".join(lines)


def format_costs(reached: Mapping[int, Mapping[str, Reached]]) -> str:
    """Return one line per run with the CPU seconds of its training and its number of weights."""
    return "\n".join(
        f"{name}, seed {seed}: {run.cpu_s:,.0f} CPU-s, {run.weights / 1e6:.2f} M weights"
        for seed, runs in reached.items()
        for name, run in runs.items()
    )


def _average_seeds(runs: Sequence[Mapping[str, Worlds]]) -> dict[str, Worlds]:
    """Return the mean over seeds, world by world."""
    return {
        name: {world: fmean(seed[name][world] for seed in runs if world in seed[name]) for world in runs[0][name]}
        for name in runs[0]
    }


def _format_cell(runs: Mapping[str, Worlds], name: str) -> str:
    success = f"{fmean(runs[name].values()):.3f}"
    return success if name == START else f"{success} ({_format_difference(runs[name], runs[START])})"


def _format_difference(worlds: Worlds, baseline: Worlds) -> str:
    """Format the mean difference, paired by world: `+0.055 ± 0.021`."""
    differences = [worlds[world] - baseline[world] for world in worlds if world in baseline]
    return f"{fmean(differences):+.3f} ± {stdev(differences) / math.sqrt(len(differences)):.3f}"


def draw_curves(out: Path, seeds: Sequence[int], kinds: Sequence[str], path: Path) -> None:
    """Plot success in training: each seed as a thin line, their mean as a thick one."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.0), dpi=150)
    for colour, kind in zip(COLOURS, kinds, strict=False):
        curves = [_read_curve(out / f"{kind}-{seed}" / "metrics.jsonl") for seed in seeds]
        at = range(SMOOTH, SMOOTH + len(curves[0]))
        for curve in curves:
            axes.plot(at, curve, color=colour, linewidth=1, alpha=0.35)
        axes.plot(at, [fmean(column) for column in zip(*curves, strict=True)], color=colour, linewidth=2, label=kind)
    axes.locator_params(axis="x", integer=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel(f"iterations, each point the mean of {SMOOTH}")
    axes.set_ylabel("success in training")
    axes.set_title("Coin with doors, by credit: seeds thin, their mean thick", loc="left", fontsize=11)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)


def _read_curve(metrics: Path) -> list[float]:
    lines: list[dict[str, Any]] = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    values = [line["success/control"] for line in lines if line["kind"] == "train"]
    return [fmean(values[at - SMOOTH : at]) for at in range(SMOOTH, len(values) + 1)]


if __name__ == "__main__":
    typer.run(main)
