"""`hardwon bench`: the benchmarks of the clone that hardwon runs from. They are not part of the package."""

import typer

from hardwon.apps.shared.clone import find_clone, use_clone

_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add_to(commands: typer.Typer) -> None:
    """Add `bench` to a command line: the benchmarks, or one command that says where they are."""
    if find_clone() is None:
        commands.command("bench", context_settings=_ANYTHING)(explain_missing)
        return
    use_clone("hardwon bench")
    # Nothing else of the clone is imported here: a benchmark loads what it measures when it runs.
    from benchmarks.cli import app

    commands.add_typer(app, name="bench")


def explain_missing() -> None:
    """Measure: speed, other memories, retrieval, training, and what is learnt. Needs a clone."""
    use_clone("hardwon bench")
