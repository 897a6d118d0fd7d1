"""The proof on coin: what memory is worth to a tiny policy, and what an extractor learns from that alone.

    python -m examples.experiments.coin runs/coin --seeds 0,1,2 --stages AB

In TextWorldExpress coin (six rooms, no doors, ten moves) models of half a million weights learn from nothing

    A  to act, by imitation of random walks, and to follow a way that they are shown;
    B  which of the ways that an exploring walk saw is worth keeping, from the paired difference alone;
    C  both at once, policy and extractor, each changing what the other learns from;
    D  to act better by outcomes, with the credit of episodes and with that of steps;
    E  to write the way down, instead of choosing one.

Everything is sampled, in worlds that nothing was trained or tuned in; differences are paired by world. Times
are CPU seconds of this process. What a stage found is kept in the folder and not asked for again, so that
stages can be run one at a time. It is a program on its own and no command of `hardwon`.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardwon.memory.errors import ConfigError, UnknownName

if TYPE_CHECKING:
    from .coin_policy import Ground

Figures = dict[str, Any]


def main(
    out: Annotated[
        Path, typer.Argument(help="Folder of the figures and the policies; what is there is not run again.")
    ],
    seeds: Annotated[str, typer.Option(help="Seeds, with commas.")] = "0,1,2",
    stages: Annotated[str, typer.Option(help="Which of A, B, C, D, E; A's policy is made in any case.")] = "ABCDE",
    draw: Annotated[Path | None, typer.Option(help="Folder for pictures of the curves.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Train tiny models in coin, stage by stage, and print what they reached in held-out worlds.

    A: a policy by imitation, that uses the way it is shown. B: extractors that learn what is worth keeping.
    C: both at once. D: the policy alone, by two kinds of credit. E: an extractor that writes, taught by B's.
    """
    wanted = [int(seed) for seed in seeds.split(",")]
    for stage in stages:
        if stage not in STAGES:
            raise UnknownName.of("stage", stage, STAGES)
    out.mkdir(parents=True, exist_ok=True)
    results = run(out, wanted, stages)
    if draw is not None:
        from .coin_figures import draw_curves

        draw_curves(results, draw)
    from .coin_figures import tables

    print(json.dumps(results) if as_json else tables(results))


def run(out: Path, seeds: Iterable[int], stages: str) -> dict[str, dict[str, Figures]]:
    """By stage and seed, what was found; what is not in the folder yet is run."""
    import torch

    from .coin_policy import Ground, ground

    torch.set_num_threads(1)
    path, found = out / "results.json", dict[str, dict[str, Figures]]()
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
    stands: Ground | None = None
    for stage in stages:
        for seed in seeds:
            if str(seed) not in found.setdefault(stage, {}):
                stands = stands or ground()
                found[stage][str(seed)] = STAGES[stage](stands, seed, out)
                path.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return {stage: {str(seed): found[stage][str(seed)] for seed in seeds} for stage in stages}


def policy_of(ground: "Ground", seed: int, out: Path) -> tuple[Any, float]:
    """The policy after its warm start, and what it cost: made once and kept."""
    import time

    import torch

    from .coin_policy import fresh, warm

    path = out / f"policy-{seed}.pt"
    if not path.exists():
        began = time.process_time()
        torch.save({"weights": warm(ground, seed).state_dict(), "cpu_s": time.process_time() - began}, path)
    saved = torch.load(path, weights_only=True)
    model = fresh(ground, seed)
    model.load_state_dict(saved["weights"])
    return model.eval(), saved["cpu_s"]


def acts(ground: "Ground", seed: int, out: Path) -> Figures:
    """A: the warm start in four conditions."""
    from .coin_policy import compared, evaluate
    from .coin_worlds import ACTED_IN, four

    policy, spent = policy_of(ground, seed, out)
    return {**compared(evaluate(policy, ground.transcript, four(ground.looks, ACTED_IN), seed)), "cpu_s": spent}


def keeps(ground: "Ground", seed: int, out: Path) -> Figures:
    """B: extractors beside a frozen policy; the one that the difference pays is kept."""
    import torch

    from .coin_extractor import alone

    model, report = alone(policy_of(ground, seed, out)[0], ground, seed)
    torch.save(model.state_dict(), out / f"extractor-{seed}.pt")
    return report


def both(ground: "Ground", seed: int, out: Path) -> Figures:
    """C: policy and extractor together, beside the same with a frozen extractor, and the start."""
    from .coin_extractor import by_oracle, choices, judged, surest, together
    from .coin_policy import compared, evaluate, paired
    from .coin_worlds import KEPT_IN, usable

    start, _ = policy_of(ground, seed, out)
    held_out = usable(ground.looks, KEPT_IN)
    first = evaluate(start, ground.transcript, {"oracle": by_oracle(ground, held_out)}, seed)
    report: Figures = {"start": compared(first)}
    ended = {}
    for name, learns in (("frozen extractor", False), ("together", True)):
        policy, reader, told = together(start, ground, seed, learns=learns)
        chosen = choices(reader, ground, held_out)
        ended[name] = evaluate(policy, ground.transcript, {"memory": surest(chosen)}, seed)
        report[name] = {**compared(ended[name]), "choice": judged(chosen, ground.looks), **told}
    report["together beside frozen, memory on"] = paired(
        ended["together"]["memory"], ended["frozen extractor"]["memory"]
    )
    report["together beside the start, memory off"] = paired(ended["together"]["none"], first["none"])
    return report


def acts_better(ground: "Ground", seed: int, out: Path) -> Figures:
    """D: the policy alone, shown nothing, by two kinds of credit."""
    from .coin_policy import compared, paired, reinforce, success_of
    from .coin_worlds import HELD_OUT

    start, _ = policy_of(ground, seed, out)
    worlds = [world for world in HELD_OUT if world in ground.looks]
    ended, report = {"start": success_of(start, ground, worlds, seed)}, Figures()
    for credit in ("grpo", "slea"):
        model, report[credit] = reinforce(start, ground, seed, credit)
        ended[credit] = success_of(model, ground, worlds, seed)
    for name, figures in {**compared(ended, "start"), "slea beside grpo": paired(ended["slea"], ended["grpo"])}.items():
        report.setdefault(name, {}).update(figures)
    return report


def writes(ground: "Ground", seed: int, out: Path) -> Figures:
    """E: a writer, taught by B's extractor."""
    import torch

    from .coin_policy import fresh
    from .coin_writer import written

    path, teacher = out / f"extractor-{seed}.pt", fresh(ground, seed)
    if not path.exists():
        raise ConfigError(
            f"stage E is taught by stage B's extractor and {path} is not there; run stage B of seed {seed}."
        )
    teacher.load_state_dict(torch.load(path, weights_only=True))
    return written(policy_of(ground, seed, out)[0], teacher.eval(), ground, seed)


STAGES: dict[str, Callable[["Ground", int, Path], Figures]] = {
    "A": acts,
    "B": keeps,
    "C": both,
    "D": acts_better,
    "E": writes,
}
"""What each stage runs."""

if __name__ == "__main__":
    typer.run(main)
