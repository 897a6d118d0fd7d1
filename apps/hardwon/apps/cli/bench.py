"""Add `hardwon bench` when hardwon runs from a clone; the package does not include the benchmarks."""

import typer

from hardwon.apps.shared.clone import find_clone, use_clone

_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add_to(commands: typer.Typer) -> None:
    """Add `bench` to a command line: the benchmarks, or a command that explains how to get them."""
    if find_clone() is None:
        commands.command("bench", context_settings=_ANYTHING)(explain_missing)
        return
    use_clone("hardwon bench")
    # Only the command definitions are imported: a benchmark loads the systems it measures when it runs.
    from benchmarks.cli import app

    commands.add_typer(app, name="bench")


def explain_missing() -> None:
    """Run benchmarks of speed, retrieval, training and learning. Needs a clone of the repository."""
    use_clone("hardwon bench")
