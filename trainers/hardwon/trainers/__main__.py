"""The command line of the trainers: `python -m hardwon.trainers CONFIG.yaml`, the same as `hardwon train`.

Results go to stdout, progress to stderr. Exit codes: 0 for a finished or cleanly stopped run, 1 for a
failure, 2 for a usage error. torch is imported only after the arguments are parsed.
"""

import io
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardwon.memory.errors import ConfigError, HardwonError, MissingExtra, UnknownName, require_extra

if TYPE_CHECKING:
    from .trainer import TrainReport


def train(
    config: Annotated[Path, typer.Argument(help="YAML file with the settings of the run.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="Settings that replace those of the file: roles.policy.learner.lr=1e-4 ...", show_default=False
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(help="Published method whose settings replace those of the file; see `hardwon methods`."),
    ] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint in run.out.")] = False,
    export: Annotated[
        Path | None,
        typer.Option(help="Folder for the trained weights, in a format that peft, transformers and vLLM load."),
    ] = None,
    extrapolate: Annotated[
        int | None,
        typer.Option(
            help="Train nothing: write a new run with the weights that run.history predicts for this iteration.",
            show_default=False,
        ),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print every setting with its description, and exit.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON document.")] = False,
) -> None:
    """Train the roles of an agent with the settings of CONFIG; SIGTERM saves and stops."""
    with require_extra("train"):
        from .config.loading import load
        from .config.schema import as_yaml

    settings = load(config, overrides or [], method=method)
    if print_config:
        typer.echo(as_yaml(settings), nl=False)
        return
    with require_extra("train"):
        from .trainer import extrapolate_run, train as run

    if extrapolate is not None:
        typer.echo(f"derived     {extrapolate_run(settings, extrapolate)}")
        return

    try:
        report = run(settings, resume=resume, export=export, quiet=quiet)
    except KeyboardInterrupt as stop:
        stop.add_note(f"To continue from the newest checkpoint in {settings.run.out}, add --resume.")
        raise
    if report.rank:  # only the first of several processes prints a report
        return
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
    else:
        _print_report(report)


def _print_report(report: "TrainReport") -> None:
    """Print the report of a run."""
    state = "stopped after" if report.stopped else "done:"
    typer.echo(f"{state} {report.iterations} iterations, {report.cpu_s:.0f} CPU-s, {report.wall_s:.0f} s")
    if report.final:
        print_arms({arm: {**part, "temperature": report.temperature} for arm, part in report.final.items()})
    typer.echo(f"checkpoint  {report.checkpoint}")
    if report.best:
        typer.echo(f"best        {report.best}")
    for folder in report.exported:
        typer.echo(f"exported    {folder}")
    for warning in report.warnings:
        typer.echo(f"warning     {warning}")


def print_arms(arms: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the results of all arms as a table."""
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = 100
    table = Table(box=None, pad_edge=False, header_style="bold")
    measure = next((arm.get("measure", "success") for arm in arms.values()), "success")
    graded = [] if measure == "success" else [measure]
    for name in ("arm", "episodes", "success", *graded, "95% range", "minus control", "harm", "steps", "tokens"):
        table.add_column(name, justify="left" if name == "arm" else "right", overflow="fold")
    for name, arm in arms.items():
        error = "" if arm["error"] is None else f" ± {arm['error']:.3f}"
        table.add_row(
            name,
            str(arm["episodes"]),
            f"{arm['success']:.3f}",
            *(f"{arm['outcome']:.3f}" for _ in graded),
            f"{arm['low']:.2f} - {arm['high']:.2f}",
            "-" if arm["difference"] is None else f"{arm['difference']:+.3f}{error}",
            "-" if arm["harm"] is None else f"{arm['harm']:.3f}",
            f"{arm['steps']:.1f}",
            f"{arm['tokens']:.0f}",
        )
    console.print(table)
    temperatures = {arm["temperature"] for arm in arms.values() if arm.get("temperature") is not None}
    for temperature in temperatures:
        typer.echo("greedy actions" if temperature == 0 else f"actions sampled at temperature {temperature:g}")
    for name, arm in arms.items():
        if arm["excluded"]:
            causes = ", ".join(f"{problem} ({count})" for problem, count in arm.get("problems", {}).items())
            played = arm["episodes"] + arm["excluded"]
            typer.echo(f"{name}: {arm['excluded']} of {played} episodes are in no figure: {causes or 'unknown'}")


def replace_unprintable() -> None:
    """Print `?` for characters that the console cannot encode, such as those of code page 1252, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None without a console
            stream.reconfigure(errors="replace")


def main() -> None:
    """Run the command and exit with its code."""
    replace_unprintable()
    try:
        typer.run(train)
    except HardwonError as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        sys.exit(2 if isinstance(error, ConfigError | UnknownName | MissingExtra) else 1)


if __name__ == "__main__":
    main()
