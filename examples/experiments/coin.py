"""Measure the effect of memory on a tiny policy, and train an extractor from that effect alone.

    python -m examples.experiments.coin runs/coin --seeds 0,1,2 --stages AB

In TextWorldExpress coin (six rooms, no doors, ten moves), models with half a million weights are trained from scratch:

    A  a policy imitates random walks and learns to follow a route that it is shown;
    B  an extractor learns which routes of an exploring walk to keep, from paired outcome differences only;
    C  policy and extractor are trained together;
    D  the policy is trained by reinforcement learning, with episode-level and with step-level credit;
    E  an extractor writes the route instead of choosing one.

All episodes are sampled in worlds that were used neither for training nor for tuning. Differences are paired by
world. Times are CPU seconds of this process. Results are saved in the output folder and reused, so stages can be run
one at a time. This program is not a command of `hardwon`.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardwon.memory.errors import ConfigError, UnknownName

if TYPE_CHECKING:
    from .coin_policy import CoinData

Figures = dict[str, Any]


def main(
    out: Annotated[Path, typer.Argument(help="Output folder for results and weights; existing results are reused.")],
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds.")] = "0,1,2",
    stages: Annotated[
        str, typer.Option(help="Stages to run: any of A, B, C, D, E. The policy of stage A is always trained.")
    ] = "ABCDE",
    draw: Annotated[Path | None, typer.Option(help="Folder for plots of the learning curves.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Train tiny models in coin, stage by stage, and print their success in held-out worlds.

    A: a policy by imitation that uses the route it is shown. B: extractors that learn which routes to keep.
    C: both together. D: the policy alone, with two kinds of credit. E: an extractor that writes, taught by B's.
    """
    wanted = [int(seed) for seed in seeds.split(",")]
    for stage in stages:
        if stage not in STAGES:
            raise UnknownName.of("stage", stage, STAGES)
    out.mkdir(parents=True, exist_ok=True)
    results = run_stages(out, wanted, stages)
    if draw is not None:
        from .coin_figures import draw_curves

        draw_curves(results, draw)
    from .coin_figures import format_tables

    print(json.dumps(results) if as_json else format_tables(results))


def run_stages(out: Path, seeds: Iterable[int], stages: str) -> dict[str, dict[str, Figures]]:
    """Run the stages that have no saved results, and return the results by stage and seed.

    Args:
        out: Output folder.
        seeds: Seeds of the runs.
        stages: Stages, for example "ABC".
    """
    import torch

    from .coin_policy import CoinData, build_data

    torch.set_num_threads(1)  # the models are too small to profit from more, and CPU times stay comparable
    path, results = out / "results.json", dict[str, dict[str, Figures]]()
    if path.exists():
        results = json.loads(path.read_text(encoding="utf-8"))
    data: CoinData | None = None  # collecting the walks is slow; do it only if a stage has to run
    for stage in stages:
        for seed in seeds:
            if str(seed) not in results.setdefault(stage, {}):
                data = data or build_data()
                results[stage][str(seed)] = STAGES[stage](data, seed, out)
                # Written after every seed, so that an interrupted experiment loses at most one.
                path.write_text(json.dumps(results) + "\n", encoding="utf-8")
    return {stage: {str(seed): results[stage][str(seed)] for seed in seeds} for stage in stages}


def load_policy(data: "CoinData", seed: int, out: Path) -> tuple[Any, float]:
    """Return the policy after its warm start and the CPU seconds it took; train it if it is not saved."""
    import time

    import torch

    from .coin_policy import create_model, train_warm_start

    path = out / f"policy-{seed}.pt"
    if not path.exists():
        began = time.process_time()
        torch.save({"weights": train_warm_start(data, seed).state_dict(), "cpu_s": time.process_time() - began}, path)
    saved = torch.load(path, weights_only=True)
    model = create_model(data, seed)
    model.load_state_dict(saved["weights"])
    return model.eval(), saved["cpu_s"]


def run_stage_a(data: "CoinData", seed: int, out: Path) -> Figures:
    """Run stage A: evaluate the policy after its warm start in four conditions."""
    from .coin_policy import compare_with_base, evaluate
    from .coin_worlds import ACTED_IN, build_conditions

    policy, spent = load_policy(data, seed, out)
    return {
        **compare_with_base(evaluate(policy, data.transcript, build_conditions(data.looks, ACTED_IN), seed)),
        "cpu_s": spent,
    }


def run_stage_b(data: "CoinData", seed: int, out: Path) -> Figures:
    """Run stage B: train extractors with a frozen policy and save the one rewarded by the paired difference."""
    import torch

    from .coin_extractor import compare_extractors

    model, report = compare_extractors(load_policy(data, seed, out)[0], data, seed)
    torch.save(model.state_dict(), out / f"extractor-{seed}.pt")
    return report


def run_stage_c(data: "CoinData", seed: int, out: Path) -> Figures:
    """Run stage C: train policy and extractor together; the baselines are a frozen extractor and the start."""
    from .coin_extractor import read_choices, score_choices, select_oracle, select_surest, train_together
    from .coin_policy import compare_paired, compare_with_base, evaluate
    from .coin_worlds import KEPT_IN, select_usable

    start, _ = load_policy(data, seed, out)
    held_out = select_usable(data.looks, KEPT_IN)
    first = evaluate(start, data.transcript, {"oracle": select_oracle(data, held_out)}, seed)
    report: Figures = {"start": compare_with_base(first)}
    ended = {}
    for name, learns in (("frozen extractor", False), ("together", True)):
        policy, reader, training = train_together(start, data, seed, learns=learns)
        chosen = read_choices(reader, data, held_out)
        ended[name] = evaluate(policy, data.transcript, {"memory": select_surest(chosen)}, seed)
        report[name] = {**compare_with_base(ended[name]), "choice": score_choices(chosen, data.looks), **training}
    report["together beside frozen, memory on"] = compare_paired(
        ended["together"]["memory"], ended["frozen extractor"]["memory"]
    )
    report["together beside the start, memory off"] = compare_paired(ended["together"]["none"], first["none"])
    return report


def run_stage_d(data: "CoinData", seed: int, out: Path) -> Figures:
    """Run stage D: train the policy without memory, with two kinds of credit."""
    from .coin_policy import compare_paired, compare_with_base, measure_success, reinforce
    from .coin_worlds import HELD_OUT

    start, _ = load_policy(data, seed, out)
    worlds = [world for world in HELD_OUT if world in data.looks]
    ended, report = {"start": measure_success(start, data, worlds, seed)}, Figures()
    for credit in ("grpo", "slea"):
        model, report[credit] = reinforce(start, data, seed, credit)
        ended[credit] = measure_success(model, data, worlds, seed)
    for name, figures in {
        **compare_with_base(ended, "start"),
        "slea beside grpo": compare_paired(ended["slea"], ended["grpo"]),
    }.items():
        report.setdefault(name, {}).update(figures)
    return report


def run_stage_e(data: "CoinData", seed: int, out: Path) -> Figures:
    """Run stage E: train a writer, taught by the extractor of stage B."""
    import torch

    from .coin_policy import create_model
    from .coin_writer import compare_writers

    path, teacher = out / f"extractor-{seed}.pt", create_model(data, seed)
    if not path.exists():
        raise ConfigError(
            f"Stage E needs the extractor of stage B, but {path} does not exist. Run stage B with seed {seed} first."
        )
    teacher.load_state_dict(torch.load(path, weights_only=True))
    return compare_writers(load_policy(data, seed, out)[0], teacher.eval(), data, seed)


STAGES: dict[str, Callable[["CoinData", int, Path], Figures]] = {
    "A": run_stage_a,
    "B": run_stage_b,
    "C": run_stage_c,
    "D": run_stage_d,
    "E": run_stage_e,
}
"""The function of each stage."""

if __name__ == "__main__":
    typer.run(main)
