"""Run the ablation of joint training: all four roles learn, each role is frozen in turn, and none learns.

    python -m examples.experiments.together runs/together --seeds 0,1

Each seed starts one run of `examples/train_together.yaml` with the warm start and stage 1 of the guide. All arms
continue from this checkpoint with the same worlds, random numbers and turns; a frozen role has a learning rate of 0.
The evaluation plays held-out worlds without memory, with recall from the library, with the guide, and with teams
whose steps are shared by the admission role. Differences are paired by seed and world. Results are saved in the
output folder and reused. This program is not a command of `hardwon`.
"""

import asyncio
import json
import random
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardwon.apps.shared.common import tell

if TYPE_CHECKING:
    from hardwon.trainers.config.schema import TrainConfig, Worlds
    from hardwon.trainers.player import Player
    from hardwon.trainers.session import Session

ROLES = ("policy", "extractor", "guide", "admission")
FROZEN_ROLES = {f"{role} frozen": role for role in ROLES}
"""The role that an arm freezes, by the name of the arm."""
ARMS = ("all learn", *FROZEN_ROLES, "none learns")
MEMORY = ("control", "retrieved", "guided")
"""Arms of the evaluation."""
TEAM_WORLDS = 20
"""Number of held-out worlds that teams play."""
RESAMPLES = 2000
"""Bootstrap resamples of a confidence interval."""
Figures = dict[str, dict[str, float]]
"""Metrics by world."""


def main(
    out: Annotated[Path, typer.Argument(help="Output folder for runs and results; existing results are reused.")],
    config: Annotated[Path, typer.Option(help="The training configuration.")] = Path("examples/train_together.yaml"),
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds.")] = "0,1",
    iterations: Annotated[int, typer.Option(min=1, help="Iterations of each run.")] = 24,
    held_out: Annotated[str, typer.Option(help="Held-out seeds of the dev split, as A-B.")] = "300-339",
    copies: Annotated[int, typer.Option(min=1, help="Episodes per world and arm.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Train with all roles, with each one frozen and with none, and print their results in held-out worlds."""
    import torch

    from hardwon.trainers.config.schema import Worlds, load

    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    path, results = out / "results.json", dict[str, dict[str, Figures]]()
    if path.exists():
        results = json.loads(path.read_text(encoding="utf-8"))
    worlds, wanted = Worlds(fold="dev", seeds=held_out), seeds.split(",")
    for seed in wanted:
        shared = [f"run.seed={seed}", "eval.every=0", f"tasks.eval={{fold: dev, seeds: {held_out}}}", "run.keep=1"]
        settings = load(config, [*shared, f"run.iterations={iterations}", f"run.out={out / seed / 'start'}"])
        for arm in ARMS:
            if arm not in results.setdefault(seed, {}):
                began = time.process_time()
                results[seed][arm] = measure(train_arm(settings, arm, out / seed), worlds, copies)
                # Written after every arm, so that an interrupted experiment loses at most one.
                path.write_text(json.dumps(results) + "\n", encoding="utf-8")
                tell(f"seed {seed}, {arm}: {time.process_time() - began:.0f} CPU-s")
    report = {seed: results[seed] for seed in wanted}
    print(json.dumps(report) if as_json else format_tables(report))


# -- training -------------------------------------------------------------------------------------


def train_arm(settings: "TrainConfig", arm: str, folder: Path) -> Path:
    """Train an arm from the common start of its seed and return its last checkpoint.

    Args:
        settings: Settings of the start.
        arm: One of ARMS.
        folder: Folder of the seed's runs.

    Raises:
        typer.Exit: The run was stopped before its end.
    """
    from hardwon.trainers import train
    from hardwon.trainers.checkpoint import find

    start = Path(settings.run.out)
    if not start.exists():
        train(replace(settings, run=replace(settings.run, iterations=0)))
    if arm == ARMS[-1]:
        return find(start)
    arm_settings = freeze_role(settings, arm, folder / arm.replace(" ", "-"))
    if not Path(arm_settings.run.out).exists():
        branch_checkpoint(find(start), arm_settings)
    report = train(arm_settings, resume=True)
    if report.stopped:
        raise typer.Exit(1)
    return Path(report.checkpoint)


def freeze_role(settings: "TrainConfig", arm: str, out: Path) -> "TrainConfig":
    """Return the settings with a learning rate of 0 for the role that the arm freezes."""
    role = FROZEN_ROLES.get(arm)
    roles = dict(settings.roles)
    if role in roles:
        # A learning rate of 0 instead of no role: the arms keep the same turns and random numbers.
        roles[role] = replace(roles[role], learner=replace(roles[role].learner, lr=0.0))
    return replace(settings, roles=roles, run=replace(settings.run, out=str(out)))


def branch_checkpoint(start: Path, settings: "TrainConfig") -> None:
    """Create the first checkpoint of a run: a copy of the start with other settings."""
    from hardwon.trainers.checkpoint import MANIFEST, Checkpoints
    from hardwon.trainers.config.schema import as_dict

    def write(folder: Path) -> None:
        shutil.copytree(start, folder, dirs_exist_ok=True)
        (folder / MANIFEST).unlink()  # it has the checksums of the old settings; save() writes a new one
        (folder / "config.json").write_text(json.dumps(as_dict(settings), indent=2) + "\n", encoding="utf-8")

    Checkpoints(Path(settings.run.out) / "checkpoints").save(0, write)


# -- evaluation -----------------------------------------------------------------------------------


def measure(checkpoint: Path, worlds: "Worlds", copies: int) -> Figures:
    """Return success, harm and tokens by arm, and the team metrics, for each held-out world.

    Args:
        checkpoint: Folder of the checkpoint.
        worlds: Held-out worlds.
        copies: Episodes per world and arm.
    """
    from hardwon.trainers.player import Player
    from hardwon.trainers.session import Session

    with (
        TemporaryDirectory() as folder,
        closing(Session.restore(checkpoint, Path(folder))) as session,
        closing(Player(session)) as player,
    ):
        return asyncio.run(_measure_async(session, player, worlds, copies))


async def _measure_async(session: "Session", player: "Player", worlds: "Worlds", copies: int) -> Figures:
    from hardwon.trainers.evaluate import Played, collect_episodes

    arms = {arm: copies for arm in session.config.list_arms() if arm.name in MEMORY}
    rollouts = await player.play(worlds.all, arms, salt="held out")
    parts: dict[tuple[str, str], list[Played]] = {}
    for played in collect_episodes(rollouts):
        parts.setdefault((played.world, played.arm), []).append(played)
    figures: Figures = {}
    for (world, arm), ended in parts.items():
        pairs = list(zip(ended, parts[world, "control"], strict=True))
        figures.setdefault(world, {}).update(
            {
                f"success {arm}": fmean(bool(episode.success) for episode in ended),
                f"harm {arm}": fmean(bool(other.success and not episode.success) for episode, other in pairs),
                f"tokens {arm}": fmean(episode.tokens for episode in ended),
            }
        )
    for fold, seed in worlds.all[:TEAM_WORLDS]:
        figures[f"{fold}#{seed}"].update(await _play_team(session, fold, seed))
    return figures


async def _play_team(session: "Session", fold: str, seed: int) -> dict[str, float]:
    """Return a team's reward in one world, and the shares of its steps that were shared and that were pulled."""
    role: Any = session.roles["admission"]
    episode, _ = await role.send(fold, seed, "held out")
    decided = episode.decisions
    if not decided:  # the coin was in the first room, so no step could be shared
        return {"team reward": episode.reward}
    shared, pulled = fmean(step.admit for step in decided), fmean(step.used for step in decided)
    return {"team reward": episode.reward, "shared": shared, "pulled": pulled}


# -- output --------------------------------------------------------------------------------------


Report = Mapping[str, Mapping[str, Figures]]
"""Metrics by seed and arm."""
COLUMNS = {
    "success": [f"success {arm}" for arm in MEMORY],
    "harm": [f"harm {arm}" for arm in MEMORY[1:]],
    "tokens": [f"tokens {arm}" for arm in MEMORY],
    "team": ["team reward", "shared", "pulled"],
}
COMPARED = (*COLUMNS["success"], *COLUMNS["harm"], *COLUMNS["tokens"][1:], *COLUMNS["team"])
"""Metrics in the table of differences."""


def collect_values(report: Report, arm: str, name: str) -> dict[tuple[str, str], float]:
    """Return one metric of an arm by seed and world; seeds without this arm are left out."""
    return {
        (seed, world): figures[name]
        for seed, arms in report.items()
        for world, figures in arms.get(arm, {}).items()
        if name in figures
    }


def compute_differences(report: Report, arm: str, name: str) -> list[float]:
    """Return `all learn` minus the arm, for each seed and world that both have."""
    baseline, ablated = collect_values(report, ARMS[0], name), collect_values(report, arm, name)
    return [baseline[at] - ablated[at] for at in baseline if at in ablated]


def bootstrap(sample: Sequence[float]) -> tuple[float, float]:
    """Return the 95% bootstrap interval of the mean."""
    chance = random.Random(0)
    means = sorted(fmean(chance.choices(sample, k=len(sample))) for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]


def format_tables(report: Report) -> str:
    """Return two markdown tables: all arms, and the differences to `all learn`, with 95% intervals."""
    names = [name for part in COLUMNS.values() for name in part]
    return "\n".join(
        [
            *_format_table(
                names, ARMS, lambda arm, name: _format_cell(list(collect_values(report, arm, name).values()), name)
            ),
            "",
            "Difference of `all learn` to the arm; `*`: the 95% interval excludes 0.",
            "",
            *_format_table(
                COMPARED, ARMS[1:], lambda arm, name: _format_difference(compute_differences(report, arm, name), name)
            ),
        ]
    )


def _format_table(names: Iterable[str], arms: Iterable[str], cell: Callable[[str, str], str]) -> list[str]:
    names = list(names)
    head = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    return [*head, *(f"| {arm} | {' | '.join(cell(arm, name) for name in names)} |" for arm in arms)]


def _format_cell(values: Sequence[float], name: str) -> str:
    if name.startswith("tokens"):
        return f"{fmean(values):.0f}"
    low, high = bootstrap(values)
    return f"{fmean(values):.2f} ({low:.2f} to {high:.2f})"


def _format_difference(differences: Sequence[float], name: str) -> str:
    low, high = bootstrap(differences)
    sign = " *" if low > 0 or high < 0 else ""
    digits = 0 if name.startswith("tokens") else 2
    return f"{fmean(differences):+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f}){sign}"


if __name__ == "__main__":
    typer.run(main)
