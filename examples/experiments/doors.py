"""A harder setting: what the credit of steps is worth in a game of rooms with closed doors.

    python -m examples.experiments.doors examples/train_doors.yaml runs/doors --seeds 0,1 --credits dr-grpo,slea

For each seed a policy is warmed up once; then every kind of credit trains a copy of it, in the same worlds in the
same order. What each ends as plays the settings' held-out worlds, and is compared world by world. What is in the
folder is not run again, and what was interrupted goes on. It chooses no settings, and is a program on its own and
no command of `hardwon`.
"""

import asyncio
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

import typer

from hardwon.memory.errors import HardwonError

START = "start"
"""The policy after its warm start."""
SMOOTH = 10
"""Iterations whose mean is a point of a curve."""
COLOURS = ("#0b6e6e", "#c98a2b", "#7a5ea8")

Worlds = dict[str, float]
"""Share of a world's episodes that succeeded, by world."""


@dataclass(frozen=True, slots=True)
class Reached:
    """What came of a run, and what it took."""

    worlds: Worlds
    cpu_s: float
    """Of training, rollouts and exploration among it; not of the held-out worlds, nor of the game's own process."""
    weights: int


def main(
    config: Annotated[Path, typer.Argument(help="Settings of a run, with a warm start.")],
    out: Annotated[Path, typer.Argument(help="Folder of the runs; what is there is not run again.")],
    seeds: Annotated[str, typer.Option(help="Seeds, with commas.")] = "0,1",
    credits: Annotated[str, typer.Option(help="Kinds of credit, with commas.")] = "dr-grpo,slea",
    draw: Annotated[Path | None, typer.Option(help="Picture of the curves to write.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Train from one warm start with several kinds of credit, and print what they reached in held-out worlds."""
    kinds, numbers = credits.split(","), [int(seed) for seed in seeds.split(",")]
    reached = {seed: {name: reach(config, out, seed, name) for name in (START, *kinds)} for seed in numbers}
    if draw is not None:
        draw_curves(out, numbers, kinds, draw)
    if as_json:
        print(json.dumps({seed: {name: asdict(run) for name, run in runs.items()} for seed, runs in reached.items()}))
    else:
        print(f"{table(reached)}\n\n{costs(reached)}")


def reach(config: Path, out: Path, seed: int, name: str) -> Reached:
    """What a run reached in the held-out worlds; it is trained and played if it was not yet."""
    kept = out / f"{name}-{seed}.json"
    if not kept.exists():
        cpu_s = trained(config, out, seed, name)
        worlds, weights = asyncio.run(_played(out / f"{name}-{seed}"))
        kept.write_text(json.dumps(asdict(Reached(worlds, cpu_s, weights))) + "\n", encoding="utf-8")
    return Reached(**json.loads(kept.read_text(encoding="utf-8")))


def trained(config: Path, out: Path, seed: int, name: str) -> float:
    """CPU-seconds of the warm start alone, or of a run from it; whatever was begun goes on.

    A part that was killed is not counted. Raises HardwonError where the run was asked to stop before its end.
    """
    from hardwon.trainers import train

    run, warm = out / f"{name}-{seed}", out / f"{START}-{seed}" / "export"
    said = [f"run.seed={seed}", f"run.out={run}", "eval.every=0"]
    if name == START:
        said += [f"warmstart.learning.seed={seed}", "run.iterations=0"]
        report = train(config, said, resume=True, export=warm)
    else:
        said += ["warmstart=null", f"model.base={warm / 'policy'}", f"roles.policy.credit.name={name}"]
        report = train(config, said, resume=True, quiet=False)
    spent = run / "cpu_s"
    cpu_s = report.cpu_s + (float(spent.read_text(encoding="utf-8")) if spent.exists() else 0.0)
    spent.write_text(f"{cpu_s}\n", encoding="utf-8")
    if report.stopped:
        raise HardwonError(f"{run} was stopped after {report.iterations} iterations; the same command goes on.")
    return cpu_s


async def _played(run: Path) -> tuple[Worlds, int]:
    """The newest checkpoint in the held-out worlds, sampled as `hardwon eval` does; and how many weights it has."""
    from hardwon.trainers.checkpoint import find
    from hardwon.trainers.evaluate import collect_episodes
    from hardwon.trainers.session import Stage, read_config

    checkpoint = find(run)
    config = read_config(checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage.restore(checkpoint, Path(folder))
        try:
            arms = stage.arms_to_evaluate(config.eval.copies)
            rollouts = await stage.play(config.tasks.eval.all, arms, salt=f"eval/{config.run.seed}")
            weights = sum(weight.numel() for weight in stage.roles["policy"].model.parameters())
        finally:
            stage.close()
    by_world: dict[str, list[bool]] = {}
    for episode in collect_episodes(rollouts):
        if episode.success is not None:
            by_world.setdefault(episode.world, []).append(episode.success)
    return {world: fmean(successes) for world, successes in by_world.items()}, weights


# -- what is printed --------------------------------------------------------------------------------


def table(reached: Mapping[int, Mapping[str, Reached]]) -> str:
    """A row a run and a column a seed: success, and in brackets the difference to the start ± its standard error.

    The last column is the mean of the seeds in each world, so its errors are over worlds, not over seeds.
    """
    worlds = {seed: {name: run.worlds for name, run in runs.items()} for seed, runs in reached.items()}
    columns = {**{f"seed {seed}": runs for seed, runs in worlds.items()}, "mean": _over_seeds(list(worlds.values()))}
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    names = list(columns["mean"])
    lines += [f"| {name} | {' | '.join(_cell(runs, name) for runs in columns.values())} |" for name in names]
    first, *others = names[1:]
    for name in others:
        cells = (_difference(runs[name], runs[first]) for runs in columns.values())
        lines.append(f"| {name} beside {first} | {' | '.join(cells)} |")
    return "\n".join(lines)


def costs(reached: Mapping[int, Mapping[str, Reached]]) -> str:
    """A line a run: the CPU-seconds of its training, and its weights."""
    return "\n".join(
        f"{name}, seed {seed}: {run.cpu_s:,.0f} CPU-s, {run.weights / 1e6:.2f} M weights"
        for seed, runs in reached.items()
        for name, run in runs.items()
    )


def _over_seeds(runs: Sequence[Mapping[str, Worlds]]) -> dict[str, Worlds]:
    """The mean of the seeds, world by world."""
    return {
        name: {world: fmean(seed[name][world] for seed in runs if world in seed[name]) for world in runs[0][name]}
        for name in runs[0]
    }


def _cell(runs: Mapping[str, Worlds], name: str) -> str:
    success = f"{fmean(runs[name].values()):.3f}"
    return success if name == START else f"{success} ({_difference(runs[name], runs[START])})"


def _difference(one: Worlds, other: Worlds) -> str:
    """Paired by world: `+0.055 ± 0.021`."""
    found = [one[world] - other[world] for world in one if world in other]
    return f"{fmean(found):+.3f} ± {stdev(found) / math.sqrt(len(found)):.3f}"


def draw_curves(out: Path, seeds: Sequence[int], kinds: Sequence[str], path: Path) -> None:
    """Success in training, the mean of the seeds drawn thick over each of them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.0), dpi=150)
    for colour, kind in zip(COLOURS, kinds, strict=False):
        curves = [_curve(out / f"{kind}-{seed}" / "metrics.jsonl") for seed in seeds]
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


def _curve(metrics: Path) -> list[float]:
    lines: list[dict[str, Any]] = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    values = [line["success/control"] for line in lines if line["kind"] == "train"]
    return [fmean(values[at - SMOOTH : at]) for at in range(SMOOTH, len(values) + 1)]


if __name__ == "__main__":
    typer.run(main)
