"""Define `hardwon eval`, which evaluates a checkpoint or a policy on held-out tasks.

Nothing is learned and no library is written. The settings of a checkpoint are the defaults of the options.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from hardwon.apps.shared import common
from hardwon.apps.shared.trained import check_policy, open_agent_policy
from hardwon.memory.errors import ConfigError

if TYPE_CHECKING:
    from hardwon.trainers.config.schema import TaskInstances


def evaluate(
    what: Annotated[
        str,
        typer.Argument(help="A checkpoint, a run's folder, or a policy: episodic, openai:gpt-5, folder:PATH ..."),
    ],
    environment: Annotated[
        str | None,
        typer.Option(help="For a policy: an environment listed in `hardwon run --help`.", show_default=False),
    ] = None,
    game: Annotated[str | None, typer.Option(help="A game of the environment.", show_default=False)] = None,
    params: Annotated[str, typer.Option(help="Parameters of the game, as NAME=NUMBER, NAME=NUMBER.")] = "",
    max_steps: Annotated[int, typer.Option(min=1, help="Largest number of steps of an episode, for a policy.")] = 50,
    fold: Annotated[
        str | None, typer.Option(help="Fold of the tasks: train, dev or test. Default: from the settings.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds of the tasks, as A-B. Default: from the settings.")] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option("--arm", "-a", help="Evaluate only this arm; repeat it for several.", show_default=False),
    ] = None,
    copies: Annotated[int | None, typer.Option(min=1, help="Episodes per task and arm.", show_default=False)] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Sampling temperature of a checkpoint; 0 is greedy.", show_default=False)
    ] = None,
    library: Annotated[
        Path | None,
        typer.Option(
            metavar="LIBRARY",
            help="The library to recall from, a file or postgresql://USER@HOST/DB.",
            show_default="a checkpoint's own, none for a policy",
            parser=common.parse_library,
        ),
    ] = None,
    at_once: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Episodes that run at once, for a checkpoint; fewer need less memory.",
            show_default="run.at_once",
        ),
    ] = None,
    as_json: common.AsJson = False,
) -> None:
    """Evaluate WHAT on held-out tasks and compare its arms: success with 95% intervals, harm, steps and tokens."""
    if library is not None and not common.is_address(library):
        common.must_exist(library)
    from hardwon.memory.validation import check_id

    check_id("--fold", fold or "")
    options = _Options(fold, seeds, arm, copies, temperature, library, at_once)
    if Path(what).is_dir():
        given = {"--environment": environment, "--game": game, "--params": params}
        if extra := [name for name, value in given.items() if value]:
            raise ConfigError(
                f"{extra[0]} applies to a policy; the checkpoint {what} has its own setting. Leave it out."
            )
        report = _evaluate_checkpoint(Path(what), options)
    elif at_once is not None:
        raise ConfigError(f"--at-once applies to a checkpoint; the policy {what} plays one episode after another.")
    else:
        world = {"name": environment, "game": game, "params": params, "max_steps": max_steps}
        report = _evaluate_policy(what, world, options)
    if as_json:
        common.say_json(report)
    else:
        from hardwon.trainers.__main__ import print_arms

        print_arms(report)


class _Options(NamedTuple):
    """The options of an evaluation; None keeps a setting of the checkpoint."""

    fold: str | None
    seeds: str | None
    arms: list[str] | None
    copies: int | None
    temperature: float | None
    library: Path | None
    at_once: int | None


def _evaluate_checkpoint(folder: Path, options: _Options) -> Mapping[str, Any]:
    from hardwon.trainers.checkpoint import find
    from hardwon.trainers.evaluate import evaluate_checkpoint
    from hardwon.trainers.session import read_config

    checkpoint = find(folder, common.tell)
    worlds = _override_worlds(read_config(checkpoint).tasks.eval, options)
    arms, copies, temperature = options.arms, options.copies, options.temperature
    played = evaluate_checkpoint(
        checkpoint, worlds, arms, copies, temperature, common.tell, options.library, options.at_once
    )
    report = asyncio.run(played)
    if temperature is None:
        temperature = read_config(checkpoint).eval.temperature
    return {name: {**asdict(part), "temperature": temperature} for name, part in report.items()}


def _evaluate_policy(name: str, world: Mapping[str, Any], options: _Options) -> Mapping[str, Any]:
    if world["name"] is None:
        raise ConfigError(f"there is no folder {name}; for a policy of that name, add --environment textworld.")
    check_policy(name)
    from hardwon.trainers.config.schema import EnvironmentConfig, TaskInstances
    from hardwon.trainers.evaluate import evaluate_policy

    environment = EnvironmentConfig(**world)
    worlds = _override_worlds(
        TaskInstances(fold="dev" if environment.name == "textworld" else "", seeds="0-29"), options
    )
    report = evaluate_policy(
        open_agent_policy(name), environment, worlds, options.library, options.arms or (), options.copies or 1
    )
    return {arm: asdict(part) for arm, part in report.items()}


def _override_worlds(defaults: "TaskInstances", options: _Options) -> "TaskInstances":
    from hardwon.trainers.config.schema import TaskInstances

    return TaskInstances(
        fold=defaults.fold if options.fold is None else options.fold,
        seeds=defaults.seeds if options.seeds is None else options.seeds,
    )
