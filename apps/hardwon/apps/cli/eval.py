"""Define `hardwon eval`, which evaluates a checkpoint on held-out tasks; `hardwon run --episodes 0` evaluates a policy.

Nothing is learned and no library is written. The settings of a checkpoint are the defaults of the options.
"""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hardwon.apps.shared import common
from hardwon.memory.errors import ConfigError


def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A checkpoint, or the folder of a run.")],
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
        float | None, typer.Option(min=0, help="Sampling temperature; 0 is greedy.", show_default=False)
    ] = None,
    library: Annotated[
        Path | None,
        typer.Option(
            metavar="LIBRARY",
            help="The library to recall from, a file or postgresql://USER@HOST/DB.",
            show_default="the checkpoint's own",
            parser=common.parse_library,
        ),
    ] = None,
    at_once: Annotated[
        int | None,
        typer.Option(min=1, help="Episodes that run at once; fewer need less memory.", show_default="run.at_once"),
    ] = None,
    as_json: common.AsJson = False,
) -> None:
    """Evaluate a checkpoint on held-out tasks and compare its arms: success with 95% intervals, harm, steps, tokens."""
    if library is not None and not common.is_address(library):
        common.must_exist(library)
    if not folder.is_dir():
        raise ConfigError(
            f"there is no folder {folder}. For a policy of that name: hardwon run ENVIRONMENT --policy {folder} "
            "--episodes 0 --library LIBRARY --arms empty,step"
        )
    from hardwon.memory.validation import check_id
    from hardwon.trainers.__main__ import print_arms
    from hardwon.trainers.checkpoint import find
    from hardwon.trainers.config.schema import TaskInstances
    from hardwon.trainers.evaluate import evaluate_checkpoint
    from hardwon.trainers.session import read_config

    check_id("--fold", fold or "")
    checkpoint = find(folder, common.tell)
    config = read_config(checkpoint)
    defaults = config.tasks.eval
    worlds = TaskInstances(fold=defaults.fold if fold is None else fold, seeds=seeds or defaults.seeds)
    played = evaluate_checkpoint(checkpoint, worlds, arm, copies, temperature, common.tell, library, at_once)
    used = config.eval.temperature if temperature is None else temperature
    report = {name: {**asdict(part), "temperature": used} for name, part in asyncio.run(played).items()}
    if as_json:
        common.say_json(report)
    else:
        print_arms(report)
