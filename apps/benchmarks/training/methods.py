"""`hardwon bench methods`: train one small policy by each of many published methods, at equal tokens.

Every seed imitates its own start once. From there each method trains in each world until it has sampled the budget of
choices, or trained on as many. What it solves of held-out tasks is paired by seed with plain GRPO. Intervals are
Dunnett's for a block of seeds: they hold for all methods of a world together. A killed measurement continues.
"""

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from benchmarks.harness.results import Results
from benchmarks.harness.tables import Row, print_rows
from hardwon.apps.shared.common import AsJson, tell
from hardwon.memory.errors import UnknownName, require_extra

from .method_settings import MAX_STEPS, METHODS, STEADY

WORLDS = {"end": "benchmarks.training.forks:Forks", "way": "benchmarks.training.forks:PaidForks"}
"""Worlds with a reward at the end alone, and with rewards on the way."""
PLAIN = "grpo"
LR, GROUPS = 6e-4, 4
BUDGET = 1800
"""Choices that a method may sample, and choices that it may train on."""
FIRST = 7
"""Iterations after which the number of all iterations is estimated."""
DRAWS = 100_000
EXPLORED = 300
"""Tasks whose random solutions a start imitates."""
TRAIN, DEV, TEST = "1000-4999", "5000-5099", "6000-6099"
"""Tasks for training, for choosing a checkpoint, and for the table."""
TINY = {"hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate": 128, "context": 256}
IMITATION: dict[str, dict[str, Any]] = {
    "examples": {"copies": 1, "memory_share": 0.0, "max_turns": MAX_STEPS},
    "learning": {"updates": 250, "batch": 8, "lr": 0.002},
}


def methods(
    methods: Annotated[str, typer.Option(help="Methods beside GRPO, separated by commas.", show_default="all")] = "",
    seeds: Annotated[str, typer.Option(help="Seeds, as A-B.")] = "20-24",
    world: Annotated[
        str, typer.Option(help="end: reward at the end alone. way: on the way.", show_default="both")
    ] = "",
    base: Annotated[
        str, typer.Option(help="Folder or name of a pretrained model.", show_default="a tiny one")
    ] = "tiny",
    out: Annotated[Path, typer.Option(help="Folder of the results; a killed measurement continues.")] = Path(
        "runs/methods"
    ),
    as_json: AsJson = False,
) -> None:
    """Compare published methods of training with plain GRPO: same starts, same tokens, two worlds."""
    chosen = _choose(methods, METHODS | STEADY, "method") if methods else METHODS
    names, worlds = [PLAIN, *(name for name in chosen if name != PLAIN)], _choose(world, WORLDS, "world")
    with require_extra("train"):
        from hardwon.trainers.config.schema import TaskInstances

        results = measure(names, worlds, [seed for _, seed in TaskInstances(seeds=seeds).all], base, out, tell)
    print_rows([row for name in worlds for row in compare(results, names, name)], as_json)


def _choose(text: str, options: Mapping[str, Any], what: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()] or [*options]
    for name in names:
        if name not in options:
            raise UnknownName.of(what, name, [*options])
    return names


# -- runs -----------------------------------------------------------------------------------------


def measure(
    names: Sequence[str], worlds: Sequence[str], seeds: Sequence[int], base: str, out: Path, say: Callable[[str], None]
) -> list[Row]:
    """Train and evaluate what is missing, seed by seed, and return the results that were asked for."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    results = Results(out / "results.jsonl", {"base": base, "budget": BUDGET, "test": TEST, "lr": LR, "groups": GROUPS})
    wanted = [(seed, world, name) for seed in seeds for world in worlds for name in ("start", *names)]
    missing = [(s, w, n) for s, w, n in wanted if not results.find(seed=s, world=w, method=n)]
    began = time.monotonic()
    for done, (seed, world, name) in enumerate(missing, 1):
        start = _prepare_start(base, seed, out / f"start-{seed}")
        row = _train(start, world, name, seed, folder := out / f"run-{seed}-{world}-{name}")
        results.add({"seed": seed, "world": world, "method": name, **row})
        shutil.rmtree(folder)
        minutes = (time.monotonic() - began) / done * (len(missing) - done) / 60
        say(
            f"{done} of {len(missing)}: seed {seed}, {world}, {name}: {row['success']:.2f} solved, "
            f"{row['sampled']} choices; about {minutes:.0f} min left"
        )
    return [results.find(seed=s, world=w, method=n)[0] for s, w, n in wanted]


def _prepare_start(base: str, seed: int, folder: Path) -> dict[str, Any]:
    """Let a base imitate, once for each seed, and return the settings of the runs that begin there."""
    from hardwon.trainers import train

    is_tiny = base == "tiny"
    model: dict[str, Any] = {"base": "tiny", "tiny": TINY} if is_tiny else {"base": base, "adapter": 16}
    learning = IMITATION["learning"] | ({} if is_tiny else {"lr": 2e-4})
    settings: dict[str, Any] = {
        "environment": {"name": WORLDS["end"], "max_steps": MAX_STEPS},
        "explore": {
            "worlds": {"fold": "start", "seeds": f"{EXPLORED * seed}-{EXPLORED * (seed + 1) - 1}"},
            "steps": MAX_STEPS,
            "tries": 2,
        },
        "tasks": {"train": {"seeds": TRAIN}, "eval": {"seeds": DEV}},
        "model": model,
        "arms": {"control": 8},
        "warmstart": IMITATION | {"learning": learning},
        "eval": {"every": 0, "copies": 1, "temperature": 0.0},
        "run": {"iterations": 0, "groups": GROUPS, "rerolls": 0, "save_every": 1000, "seed": seed, "threads": 1},
    }
    run, export = folder / "run", folder / "export"
    if not (export / "roles.json").exists():
        settings["run"] |= {"out": str(run)}
        train(settings, quiet=True, resume=run.exists(), export=export)
    if is_tiny:  # the vocabulary of a tiny base is made from what its run explored
        return settings | {"model": {"base": str(export / "policy"), "prompt": "compact"}, "warmstart": None}
    return settings | {"warmstart": {"run": str(run)}}


def _train(start: Mapping[str, Any], world: str, name: str, seed: int, folder: Path) -> Row:
    """Train by a method until the budget is spent, and return what is solved of the test's tasks, and the costs."""
    from hardwon.trainers import train

    method, overrides = (METHODS | STEADY).get(name, (PLAIN, ()))
    settings = {
        **start,
        "environment": start["environment"] | {"name": WORLDS[world]},
        "roles": {"policy": {"learner": {"lr": LR}, "credit": {"outcome": "score"}}},
    }
    began, iterations, spent = time.process_time(), 0 if name == "start" else FIRST, 0
    while True:
        run = start["run"] | {"out": str(folder), "iterations": iterations}
        report = train(settings | {"run": run}, overrides, method=method, quiet=True, resume=folder.exists())
        if report.stopped:  # by SIGTERM, which a run obeys at the end of an iteration
            raise typer.Exit(1)
        sampled, trained = _count_tokens(folder)
        spent = max(sampled, trained)
        needed = round(BUDGET / spent * report.iterations) if spent else 0
        if needed <= report.iterations:
            break
        iterations = needed
    checkpoint = Path(report.best or report.checkpoint)
    return {
        "success": _evaluate(checkpoint),
        "sampled": sampled,
        "trained": trained,
        "iterations": report.iterations,
        "cpu_s": round(time.process_time() - began, 1),
    }


def _count_tokens(folder: Path) -> tuple[int, int]:
    """Return the choices that a run sampled, and those that it trained on."""
    from hardwon.trainers.metrics import read

    rows = read(folder)
    sampled, trained = (sum(row.get(key, 0) for row in rows) for key in ("tokens_sampled", "policy/tokens_trained"))
    return int(sampled), int(trained)


def _evaluate(checkpoint: Path) -> float:
    from hardwon.trainers.config.schema import TaskInstances
    from hardwon.trainers.evaluate import evaluate_checkpoint

    return asyncio.run(evaluate_checkpoint(checkpoint, TaskInstances(seeds=TEST), temperature=0.0))["control"].success


# -- the table ------------------------------------------------------------------------------------


def compare(results: Sequence[Row], names: Sequence[str], world: str) -> list[Row]:
    """Return a row for each method of a world, the best first, with its difference to plain GRPO.

    The interval of a difference is Dunnett's: all of a world's intervals hold together with 95 %. Its error is that of
    what remains after the means of methods and of seeds.
    """
    import numpy as np  # no start of a command waits for it

    rows = [row for row in results if row["world"] == world]
    by_method = {
        name: [row for row in sorted(rows, key=lambda row: row["seed"]) if row["method"] == name]
        for name in ("start", *names)
    }
    values = np.array([[row["success"] for row in by_method[name]] for name in names])
    half = compute_margin(values)
    start = [row["success"] for row in by_method["start"]]
    table = []
    for name, own in zip(names, values, strict=True):
        gain, mine = float((own - values[0]).mean()), by_method[name]
        low, high = (None, None) if half is None or name == PLAIN else (round(gain - half, 3), round(gain + half, 3))
        table.append(
            {
                "world": world,
                "method": name,
                "success": round(float(own.mean()), 3),
                "minus_grpo": round(gain, 3),
                "low": low,
                "high": high,
                "worst_seed_minus_start": round(float((own - start).min()), 3),
                "sampled": round(fmean(row["sampled"] for row in mine)),
                "trained": round(fmean(row["trained"] for row in mine)),
                "cpu_s": round(fmean(row["cpu_s"] for row in mine), 1),
            }
        )
    return sorted(table, key=lambda row: -row["success"])


def compute_margin(values: Any) -> float | None:
    """Return half the width of Dunnett's 95 % intervals of each row of an array minus its first row.

    Args:
        values: A row for each method, the control first, with a column for each seed.

    Returns:
        The half width, or None if there are fewer than two methods or seeds.
    """
    import numpy as np

    methods, seeds = values.shape
    freedom = (methods - 1) * (seeds - 1)
    if not freedom:
        return None
    rest = values - values.mean(axis=1, keepdims=True) - values.mean(axis=0, keepdims=True) + values.mean()
    error = float(np.sqrt((rest**2).sum() / freedom * 2 / seeds))
    chance = np.random.default_rng(0)
    noise = chance.standard_normal((DRAWS, methods))
    largest = np.abs(noise[:, 1:] - noise[:, :1]).max(axis=1) / np.sqrt(2 * chance.chisquare(freedom, DRAWS) / freedom)
    return error * float(np.quantile(largest, 0.95))
