"""The ablation of co-evolution: all four roles learn, each is frozen in turn, and none learns, from one start.

    python -m examples.experiments.together runs/together --seeds 0,1

A run of `examples/train_together.yaml` is begun once a seed: warm start, and stage 1 of the guide. Every arm goes on
from that checkpoint with the same worlds, chance and turns; a frozen role takes its turns with a learning rate of 0.
Then the held-out worlds are played: shown nothing, what the library recalls, what the guide says, and by teams whose
steps the admission shares. Differences are paired by seed and world. What an arm found is kept in the folder and not
asked for again. It is a program on its own and no command of `hardwon`.
"""

import asyncio
import json
import random
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardwon.apps.shared.common import tell

if TYPE_CHECKING:
    from hardwon.trainers.config.schema import TrainConfig, Worlds
    from hardwon.trainers.session import Stage

ROLES = ("policy", "extractor", "guide", "admission")
ARMS = ("all learn", *(f"{role} frozen" for role in ROLES), "none learns")
MEMORY = ("control", "retrieved", "guided")
"""Arms of an evaluation."""
TEAM_WORLDS = 20
"""Held-out worlds into which teams are sent."""
RESAMPLES = 2000
"""Of the bootstrap behind an interval."""
Figures = dict[str, dict[str, float]]
"""By world, what was found there."""


def main(
    out: Annotated[Path, typer.Argument(help="Folder of runs and figures; what is there is not run again.")],
    config: Annotated[Path, typer.Option(help="The training configuration.")] = Path("examples/train_together.yaml"),
    seeds: Annotated[str, typer.Option(help="Seeds, with commas.")] = "0,1",
    iterations: Annotated[int, typer.Option(min=1, help="Iterations of each run.")] = 24,
    held_out: Annotated[str, typer.Option(help="Seeds of the dev fold that are reported, as A-B.")] = "300-339",
    copies: Annotated[int, typer.Option(min=1, help="Episodes a world and arm.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Train with all roles, with each one frozen and with none, and print what they reach in held-out worlds."""
    import torch

    from hardwon.trainers.config.schema import Worlds, load

    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    path, found = out / "results.json", dict[str, dict[str, Figures]]()
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
    worlds, wanted = Worlds(fold="dev", seeds=held_out), seeds.split(",")
    for seed in wanted:
        shared = [f"run.seed={seed}", "eval.every=0", f"tasks.eval={{fold: dev, seeds: {held_out}}}", "run.keep=1"]
        settings = load(config, [*shared, f"run.iterations={iterations}", f"run.out={out / seed / 'start'}"])
        for arm in ARMS:
            if arm not in found.setdefault(seed, {}):
                began = time.process_time()
                found[seed][arm] = measured(trained(settings, arm, out / seed), worlds, copies)
                path.write_text(json.dumps(found) + "\n", encoding="utf-8")
                tell(f"seed {seed}, {arm}: {time.process_time() - began:.0f} CPU-s")
    report = {seed: found[seed] for seed in wanted}
    print(json.dumps(report) if as_json else tables(report))


# -- training -------------------------------------------------------------------------------------


def trained(settings: "TrainConfig", arm: str, folder: Path) -> Path:
    """The last checkpoint of an arm, which begins where all of a seed begin."""
    from hardwon.trainers import train
    from hardwon.trainers.checkpoint import find

    start = Path(settings.run.out)
    if not start.exists():
        train(replace(settings, run=replace(settings.run, iterations=0)))
    if arm == ARMS[-1]:
        return find(start)
    mine = frozen(settings, arm, folder / arm.replace(" ", "-"))
    if not Path(mine.run.out).exists():
        branched(find(start), mine)
    report = train(mine, resume=True)
    if report.stopped:
        raise typer.Exit(1)
    return Path(report.checkpoint)


def frozen(settings: "TrainConfig", arm: str, out: Path) -> "TrainConfig":
    """The settings with the role that an arm names at a learning rate of 0."""
    role = arm.removesuffix(" frozen")
    roles = dict(settings.roles)
    if role in roles:
        roles[role] = replace(roles[role], learner=replace(roles[role].learner, lr=0.0))
    return replace(settings, roles=roles, run=replace(settings.run, out=str(out)))


def branched(start: Path, settings: "TrainConfig") -> None:
    """Another run's first checkpoint: as that of the start, with other settings."""
    from hardwon.trainers.checkpoint import MANIFEST, Checkpoints
    from hardwon.trainers.config.schema import as_dict

    def write(folder: Path) -> None:
        shutil.copytree(start, folder, dirs_exist_ok=True)
        (folder / MANIFEST).unlink()
        (folder / "config.json").write_text(json.dumps(as_dict(settings), indent=2) + "\n", encoding="utf-8")

    Checkpoints(Path(settings.run.out) / "checkpoints").save(0, write)


# -- measuring ------------------------------------------------------------------------------------


def measured(checkpoint: Path, worlds: "Worlds", copies: int) -> Figures:
    """By seed and world of a checkpoint: success, harm and tokens by arm, and how its teams did."""
    from hardwon.trainers.session import Stage

    with TemporaryDirectory() as folder:
        stage = Stage.restore(checkpoint, Path(folder))
        try:
            return asyncio.run(_measured(stage, worlds, copies))
        finally:
            stage.close()


async def _measured(stage: "Stage", worlds: "Worlds", copies: int) -> Figures:
    from hardwon.trainers.evaluate import Played, collect_episodes

    rollouts = await stage.play(worlds.all, dict.fromkeys(MEMORY, copies), salt="held out")
    parts: dict[tuple[str, str], list[Played]] = {}
    for played in collect_episodes(rollouts):
        parts.setdefault((played.world, played.arm), []).append(played)
    found: Figures = {}
    for (world, arm), ended in parts.items():
        pairs = list(zip(ended, parts[world, "control"], strict=True))
        found.setdefault(world, {}).update(
            {
                f"success {arm}": fmean(bool(one.success) for one in ended),
                f"harm {arm}": fmean(bool(other.success and not one.success) for one, other in pairs),
                f"tokens {arm}": fmean(one.tokens for one in ended),
            }
        )
    for fold, seed in worlds.all[:TEAM_WORLDS]:
        found[f"{fold}#{seed}"].update(await _teams(stage, fold, seed))
    return found


async def _teams(stage: "Stage", fold: str, seed: int) -> dict[str, float]:
    """One team in a world: its reward, and shares of its steps that were shared, and shared and pulled."""
    role: Any = stage.roles["admission"]
    episode, _ = await role.send(fold, seed, "held out")
    decided = episode.decisions
    if not decided:  # the coin was beside everybody from the start
        return {"team reward": episode.reward}
    shared, pulled = fmean(one.admit for one in decided), fmean(one.used for one in decided)
    return {"team reward": episode.reward, "shared": shared, "pulled": pulled}


# -- what is told ---------------------------------------------------------------------------------


Report = Mapping[str, Mapping[str, Figures]]
"""By seed and arm."""
COLUMNS = {
    "success": [f"success {arm}" for arm in MEMORY],
    "harm": [f"harm {arm}" for arm in MEMORY[1:]],
    "tokens": [f"tokens {arm}" for arm in MEMORY],
    "team": ["team reward", "shared", "pulled"],
}
COMPARED = (*COLUMNS["success"], *COLUMNS["harm"], *COLUMNS["tokens"][1:], *COLUMNS["team"])
"""Of which the difference is taken."""


def values(report: Report, arm: str, name: str) -> dict[tuple[str, str], float]:
    """One figure of an arm, by seed and world, of the seeds in which it was run."""
    return {
        (seed, world): found[name]
        for seed, arms in report.items()
        for world, found in arms.get(arm, {}).items()
        if name in found
    }


def differences(report: Report, arm: str, name: str) -> list[float]:
    """All learn, less the arm, in each world of each seed that both have."""
    ours, theirs = values(report, ARMS[0], name), values(report, arm, name)
    return [ours[at] - theirs[at] for at in ours if at in theirs]


def bootstrap(of: Sequence[float]) -> tuple[float, float]:
    """95% range of the mean."""
    chance = random.Random(0)
    means = sorted(fmean(chance.choices(of, k=len(of))) for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]


def tables(report: Report) -> str:
    """Two markdown tables: every arm, and what all learning is ahead of it, each with its 95% range."""
    names = [name for part in COLUMNS.values() for name in part]
    return "\n".join(
        [
            *_table(names, ARMS, lambda arm, name: _cell(list(values(report, arm, name).values()), name)),
            "",
            "All learn, less the arm; `*`: the 95% range leaves 0 out.",
            "",
            *_table(COMPARED, ARMS[1:], lambda arm, name: _ahead(differences(report, arm, name), name)),
        ]
    )


def _table(names: Iterable[str], arms: Iterable[str], cell: Callable[[str, str], str]) -> list[str]:
    names = list(names)
    head = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    return [*head, *(f"| {arm} | {' | '.join(cell(arm, name) for name in names)} |" for arm in arms)]


def _cell(found: Sequence[float], name: str) -> str:
    if name.startswith("tokens"):
        return f"{fmean(found):.0f}"
    low, high = bootstrap(found)
    return f"{fmean(found):.2f} ({low:.2f} to {high:.2f})"


def _ahead(found: Sequence[float], name: str) -> str:
    low, high = bootstrap(found)
    sign = " *" if low > 0 or high < 0 else ""
    digits = 0 if name.startswith("tokens") else 2
    return f"{fmean(found):+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f}){sign}"


if __name__ == "__main__":
    typer.run(main)
