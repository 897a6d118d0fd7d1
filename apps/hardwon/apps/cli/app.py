"""Define the `hardwon` command line.

Results go to stdout, progress and logs to stderr. Exit codes: 0 success, 1 the work failed, 2 the command was used
incorrectly, 130 interrupted. `hardwon --help` imports neither the library nor LangGraph nor torch.
"""

import errno
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hardwon.apps.shared.common import tell
from hardwon.trainers.__main__ import replace_unprintable, train

from . import bench, connect, curate, doctor, memory, review, serve
from .eval import evaluate
from .mcp import mcp
from .model import methods, model, scaffold
from .run import check_env, run
from .team import team

__all__ = ["app", "main"]


class Commands(TyperGroup):
    """Root command group that reports an error as one line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            # Commands add notes that name the state left on disk, for example the path of the library.
            typer.echo(" ".join(["interrupted.", *getattr(stop, "__notes__", ())]), err=True)
            raise typer.Exit(130) from stop
        except (RuntimeError, ValueError, LookupError, ImportError, OSError) as error:
            code = exit_code(error)
            if code is None:
                raise
            # The message goes on one line so that scripts can read it.
            tell(f"error: {' '.join(describe_error(error).split())}")
            raise typer.Exit(code) from error


def describe_error(error: Exception) -> str:
    """Return the message of an error; one of the system gets the path and a next step."""
    from hardwon.memory.errors import HardwonError

    if isinstance(error, OSError) and error.filename and not isinstance(error, HardwonError):
        return f"{error.filename!s:.200} cannot be used: {error.strerror}. Give another path, or check its permissions."
    return str(error)


def exit_code(error: Exception) -> int | None:
    """Return the exit code for an error."""
    if isinstance(error, typer.Exit):
        return None
    # Imported here so that `hardwon --help` does not load the library.
    from hardwon.memory.errors import ConfigError, HardwonError, MissingExtra, UnknownName

    if isinstance(error, ConfigError | UnknownName | MissingExtra):
        return 2
    if isinstance(error, OSError):
        # EPIPE means that the reader closed the pipe (`hardwon ... | head`); click exits quietly on it.
        return None if error.errno == errno.EPIPE else 1
    return 1 if isinstance(error, HardwonError) else None


app = typer.Typer(
    name="hardwon",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="An agent runtime that consults a durable library of its own experience at every step.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hardwon {version('hardwon')}")
        raise typer.Exit


@app.callback()
def hardwon(
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Run the `hardwon` command line."""


app.command()(run)
app.command("check-env")(check_env)
app.command()(team)
app.command()(train)
app.command("eval")(evaluate)
app.command()(methods)
app.command()(model)
app.command()(scaffold)
app.command()(mcp)
app.command()(connect.proxy)
app.add_typer(connect.hook_app, name="hook")
app.command()(doctor.doctor)
memory.app.add_typer(curate.app)
memory.app.add_typer(review.app)
app.add_typer(memory.app, name="memory")
bench.add_to(app)
app.add_typer(serve.app, name="serve")


def main() -> None:
    """Run the `hardwon` command."""
    replace_unprintable()
    app()
