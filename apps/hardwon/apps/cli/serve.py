"""`hardwon serve`: a library over HTTP, and its dashboard, from one process; and the tokens that open it.

hardwon serve experience.db                              API and dashboard for this machine
hardwon serve experience.db --trust trusted              the same, for an agent of yours that learns through it
hardwon serve token add experience.db --name ci --write
hardwon serve token add experience.db --name agent --read --record
hardwon serve experience.db --host 0.0.0.0               for others, who need a token
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from hardwon.apps.shared.common import AsJson, out, say_json, table, tell

PORT = 8420


class Serving(TyperGroup):
    """`hardwon serve LIBRARY` is `hardwon serve start LIBRARY`."""

    default = "start"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take what is no command for the arguments of `start`."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=Serving,
    no_args_is_help=True,
    help="Serve a library: HTTP API and dashboard. `hardwon serve LIBRARY` is `hardwon serve start LIBRARY`.",
)
tokens_app = typer.Typer(no_args_is_help=True, help="Tokens: who may call, for which namespaces, to read or write.")
app.add_typer(tokens_app, name="token")

Library = Annotated[Path, typer.Argument(metavar="LIBRARY", help="The library file.", show_default=False)]


@app.command()
def start(
    path: Annotated[
        Path, typer.Argument(metavar="LIBRARY", help="The library file, made when new.", show_default=False)
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; beyond this machine a token is needed.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = PORT,
    runs: Annotated[Path, typer.Option(help="Folder of training runs and experiments to show.")] = Path("runs"),
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every write, whatever a token may.")] = False,
    dashboard: Annotated[bool, typer.Option(help="Serve the pages for people as well as the API.")] = True,
    max_body: Annotated[int, typer.Option(min=1, max=1024, help="Largest body of a request, in MiB.")] = 16,
    rate: Annotated[float, typer.Option(min=1, help="Requests a second that one caller may send.")] = 1000,
    trust: Annotated[
        Literal["trusted", "untrusted"],
        typer.Option(help="Whether to believe episodes of programs of this machine, which need no token."),
    ] = "untrusted",
) -> None:
    """Serve LIBRARY until it is stopped: its HTTP API and its dashboard.

    The log is lines of JSON on stderr. SIGTERM and Ctrl-C let running requests end.
    """
    from hardwon.memory.errors import ConfigError, MissingExtra

    try:
        from hardwon.apps import server
    except ImportError as error:
        raise MissingExtra.of(error.name or "fastapi", "serve") from error
    if not path.exists() and not read_only:
        tell(f"There is no library at {path} yet: it is made.")
    if not rate > 0:
        raise ConfigError(f"--rate is {rate}; use 1 or more requests a second.")
    server.serve(
        path,
        host=host,
        port=port,
        runs=runs,
        read_only=read_only,
        dashboard=dashboard,
        max_body_bytes=max_body * 1024 * 1024,
        rate=rate,
        trust=trust,
        tell=tell,
    )


@tokens_app.command("add")
def token_add(
    path: Library,
    name: Annotated[str, typer.Option(help="Whose it is, or what for; each name once.", show_default=False)],
    namespace: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", help="Only this one; may be given several times.", show_default="all"),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Let it change everything: items, edits, imports.")] = False,
    record: Annotated[
        bool,
        typer.Option("--record", help="Let it add episodes and feedback, as a writer who is not trusted."),
    ] = False,
    read: Annotated[bool | None, typer.Option(help="Let it look.", show_default="unless it has --record alone")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it. Only its hash is kept: it cannot be shown again.

    An agent that recalls and records has --read --record; a program that only delivers episodes has --record.
    """
    secret = _tokens(path).add(name, namespaces=namespace, write=write, record=record, read=read)
    say_json({"name": name, "token": secret}) if as_json else out().print(secret, soft_wrap=True)


@tokens_app.command("list")
def token_list(path: Library, as_json: AsJson = False) -> None:
    """Who has a token, and what each may do."""
    from hardwon.apps.http.access.auth import RIGHTS, rights_text

    tokens = _tokens(path)
    callers = tokens.callers()
    if as_json:
        rows: list[Any] = [
            {
                "id": one.id, "name": one.name, "namespaces": one.namespaces, "write": "write" in one.rights,
                "rights": [right for right in RIGHTS if right in one.rights],
            }
            for one in callers
        ]  # fmt: skip
        say_json({"tokens": rows})
    elif callers:
        rows = [
            (one.id, one.name, rights_text(one.rights), ", ".join(one.namespaces or ["all namespaces"]))
            for one in callers
        ]
        out().print(table("id", "name", "may", "in", rows=rows, whole=("id",)))
    else:
        none_left = tokens.closed()
        who = "There were tokens, and none is left: nobody" if none_left else "There are no tokens: only this machine"
        out().print(f"{who} may call. Make one with:")
        out().print(f"  hardwon serve token add {path} --name NAME", soft_wrap=True)


@tokens_app.command("revoke")
def token_revoke(
    path: Library,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="Its name or id.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Take a token away; a running server refuses it from then on."""
    tokens = _tokens(path)
    gone = tokens.revoke(token)
    if as_json:
        say_json({"revoked": {"id": gone.id, "name": gone.name, "namespaces": gone.namespaces}})
        return
    out().print(f"{gone.name} may not call any more.")
    if not tokens.callers():
        out().print("It was the last token: nobody may call now, not even this machine. Make another one with:")
        out().print(f"  hardwon serve token add {path} --name NAME", soft_wrap=True)


def _tokens(path: Path) -> Any:
    from hardwon.apps.http.access.auth import Tokens
    from hardwon.apps.shared.common import must_exist

    must_exist(path)
    return Tokens.beside(path)
