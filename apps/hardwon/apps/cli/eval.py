"""`hardwon eval`: a checkpoint, or any policy of the runtime, in worlds it has not learnt from.

Nothing is learnt and no library is written. What a checkpoint's own settings say need not be said.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardwon.apps.shared import common
from hardwon.memory.errors import ConfigError

if TYPE_CHECKING:
    from hardwon.trainers.config.schema import Worlds


def evaluate(
    what: Annotated[
        str, typer.Argument(help="A checkpoint, a run's folder, or a policy: episodic, random, openai:gpt-5 ...")
    ],
    environment: Annotated[
        str | None,
        typer.Option(help="For a policy: one of `hardwon run --help`.", show_default=False),
    ] = None,
    game: Annotated[str | None, typer.Option(help="Which of its games.", show_default=False)] = None,
    params: Annotated[str, typer.Option(help="The game's parameters, as NAME=NUMBER, NAME=NUMBER.")] = "",
    max_steps: Annotated[int, typer.Option(min=1, help="Steps after which a policy's episode ends.")] = 50,
    fold: Annotated[
        str | None, typer.Option(help="Fold of the worlds: train, dev, test. Default: the settings'.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds of the worlds, as A-B. Default: the settings'.")] = None,
    arm: Annotated[
        list[str] | None, typer.Option("--arm", "-a", help="Only this arm; repeat it for several.", show_default=False)
    ] = None,
    copies: Annotated[int | None, typer.Option(min=1, help="Episodes a world and arm.", show_default=False)] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Of a checkpoint's policy; 0 is greedy.", show_default=False)
    ] = None,
    library: Annotated[
        Path | None, typer.Option(help="The library that a policy recalls from.", show_default=False)
    ] = None,
    as_json: common.AsJson = False,
) -> None:
    """Play WHAT in held-out worlds and compare its arms: success with 95% ranges, harm, steps, tokens."""
    if Path(what).is_dir():
        given = {"--environment": environment, "--game": game, "--params": params, "--library": library}
        if extra := [name for name, value in given.items() if value]:
            raise ConfigError(f"{extra[0]} is for a policy; the checkpoint {what} says it itself. Leave it out.")
        report = _checkpoint(Path(what), fold, seeds, arm, copies, temperature)
    else:
        report = _policy(what, environment, game, params, max_steps, fold, seeds, library, arm, copies)
    if as_json:
        common.say_json(report)
    else:
        from hardwon.trainers.__main__ import print_arms

        print_arms(report)


def _checkpoint(
    folder: Path,
    fold: str | None,
    seeds: str | None,
    arms: list[str] | None,
    copies: int | None,
    temperature: float | None,
) -> Mapping[str, Any]:
    from hardwon.trainers.checkpoint import find
    from hardwon.trainers.evaluate import evaluate_checkpoint
    from hardwon.trainers.session import read_config

    checkpoint = find(folder, common.tell)
    worlds = _worlds(read_config(checkpoint).tasks.eval, fold, seeds)
    report = asyncio.run(evaluate_checkpoint(checkpoint, worlds, arms, copies, temperature))
    return {name: asdict(part) for name, part in report.items()}


def _policy(
    name: str,
    environment: str | None,
    game: str | None,
    params: str,
    max_steps: int,
    fold: str | None,
    seeds: str | None,
    library: Path | None,
    arms: list[str] | None,
    copies: int | None,
) -> Mapping[str, Any]:
    if environment is None:
        raise ConfigError(f"there is no folder {name}; for the policy of that name, say --environment textworld.")
    if library is not None:
        common.must_exist(library)
    from hardwon.trainers.config.schema import EnvironmentConfig, Worlds
    from hardwon.trainers.evaluate import evaluate_policy

    world = EnvironmentConfig(name=environment, game=game, params=params, max_steps=max_steps)
    worlds = _worlds(Worlds(fold="dev" if environment == "textworld" else "", seeds="0-29"), fold, seeds)
    report = evaluate_policy(name, world, worlds, library, arms or (), copies or 1)
    return {arm: asdict(part) for arm, part in report.items()}


def _worlds(known: "Worlds", fold: str | None, seeds: str | None) -> "Worlds":
    from hardwon.trainers.config.schema import Worlds

    return Worlds(fold=known.fold if fold is None else fold, seeds=known.seeds if seeds is None else seeds)
