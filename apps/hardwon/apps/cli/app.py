"""The command line, `hardwon`: doors to rooms that are built elsewhere.

Results go to stdout, progress and logs to stderr. Exit codes: 0 done, 1 the work failed, 2 the call
was wrong, 130 interrupted. `hardwon --help` imports no room: no library, no LangGraph, no torch.
"""

import errno
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from . import bench, curate, doctor, memory, serve
from .eval import evaluate
from .mcp import mcp
from .run import run
from .team import team
from .train import train

__all__ = ["app", "main"]


class Commands(TyperGroup):
    """The root group: what goes wrong becomes one line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            typer.echo(" ".join(["interrupted.", *getattr(stop, "__notes__", ())]), err=True)
            raise typer.Exit(130) from stop
        except (RuntimeError, ValueError, LookupError, ImportError, OSError) as error:
            code = exit_code(error)
            if code is None:
                raise
            typer.echo(f"error: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(code) from error


def exit_code(error: Exception) -> int | None:
    """2 when the call was wrong, 1 when the work failed, None for what nobody raised on purpose."""
    if isinstance(error, typer.Exit):
        return None
    from hardwon.memory.errors import ConfigError, HardwonError, MissingExtra, UnknownName

    if isinstance(error, ConfigError | UnknownName | MissingExtra):
        return 2
    if isinstance(error, OSError):
        return None if error.errno == errno.EPIPE else 1
    return 1 if isinstance(error, HardwonError) else None


app = typer.Typer(
    name="hardwon",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="An agent runtime that consults a durable library of its own experience at every step.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hardwon {version('hardwon')}")
        raise typer.Exit


@app.callback()
def hardwon(
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """An agent runtime that consults a durable library of its own experience at every step."""


app.command()(run)
app.command()(team)
app.command()(train)
app.command("eval")(evaluate)
app.command()(mcp)
app.command()(doctor.doctor)
memory.app.add_typer(curate.app)
app.add_typer(memory.app, name="memory")
bench.add_to(app)
app.add_typer(serve.app, name="serve")


def main() -> None:
    """The `hardwon` command."""
    app()
