"""Define `hardwon serve`, which serves a library over HTTP with a dashboard, and the commands for its tokens.

hardwon serve experience.db                              API and dashboard for this machine
hardwon serve experience.db --trust trusted              the same, for your own agent
hardwon serve token add experience.db --name ci --write
hardwon serve token add experience.db --name agent --read --record
hardwon serve experience.db --host 0.0.0.0               for other machines, which need a token
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from hardwon.apps.shared.common import (
    AsJson,
    Library,
    ServedLibrary,
    is_address,
    library_name,
    must_exist,
    out,
    say_json,
    table,
    tell,
)
from hardwon.apps.shared.trained import HELP, ExtractorOption, open_extractor, open_server_roles

PORT = 8420


class ServeGroup(TyperGroup):
    """Command group that reads `hardwon serve LIBRARY` as `hardwon serve start LIBRARY`."""

    default = "start"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default command if the first argument is not the name of a command."""
        # A library file that is named like a command needs `start` or a path such as ./token.
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=ServeGroup,
    no_args_is_help=True,
    help="Serve a library over HTTP, with a dashboard. `hardwon serve LIBRARY` means `hardwon serve start LIBRARY`.",
)
tokens_app = typer.Typer(
    no_args_is_help=True, help="Manage tokens: who may call, in which namespaces, to read or write."
)
app.add_typer(tokens_app, name="token")

HostOption = Annotated[str, typer.Option(help="Address to listen on; callers from other machines need a token.")]
RolesOption = Annotated[
    Path | None,
    typer.Option(
        help=f"{HELP} The guide writes the lines of a recall, the extractor reads recorded episodes, and the "
        "admission decides which entries a team's bank takes.",
        show_default=False,
    ),
]


@app.command()
def start(
    path: ServedLibrary,
    host: HostOption = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free port.")] = PORT,
    runs: Annotated[Path, typer.Option(help="Folder with the training runs and experiments to show.")] = Path("runs"),
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Refuse every write, whatever the rights of a token.")
    ] = False,
    dashboard: Annotated[bool, typer.Option(help="Serve the dashboard as well as the API.")] = True,
    max_body: Annotated[int, typer.Option(min=1, max=1024, help="Largest request body, in MiB.")] = 16,
    rate: Annotated[float, typer.Option(min=1, help="Largest number of requests per second from one caller.")] = 1000,
    trust: Annotated[
        Literal["trusted", "untrusted"],
        typer.Option(help="Trust in episodes from callers on this machine, which need no token."),
    ] = "untrusted",
    roles: RolesOption = None,
    extractor: ExtractorOption = None,
) -> None:
    """Serve LIBRARY, with its HTTP API and dashboard, until stopped.

    The log goes to stderr as JSON lines. After SIGTERM or Ctrl-C, running requests finish first.
    """
    from hardwon.memory.errors import ConfigError, MissingExtra

    try:
        from hardwon.apps import server
    except ImportError as error:
        raise MissingExtra.of(error.name or "fastapi", "agent") from error
    if not is_address(path) and not path.exists() and not read_only:
        tell(f"There is no library at {path} yet; it is created now.")
    # `not >` also rejects NaN, which passes `min=1`.
    if not rate > 0:
        raise ConfigError(f"--rate is {rate}; use 1 or more requests a second.")
    trained = open_server_roles(roles, "guidance", "extractor", "admission")
    reader = open_extractor(extractor, trained.extractor)
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
        guidance=trained.guidance,
        extractor=reader,
        admission=trained.admission,
        tell=tell,
    )


@tokens_app.command("add")
def token_add(
    path: Library,
    name: Annotated[str, typer.Option(help="A unique name for its owner or purpose.", show_default=False)],
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace", "-n", help="Restrict the token to this namespace; repeat it for several.", show_default="all"
        ),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Allow every change: items, edits, imports.")] = False,
    record: Annotated[
        bool,
        typer.Option("--record", help="Allow adding episodes and feedback, as an untrusted writer."),
    ] = False,
    read: Annotated[
        bool | None, typer.Option(help="Allow reading.", show_default="on, except with --record alone")
    ] = None,
    log: Annotated[
        bool | None,
        typer.Option(
            help="Allow reading recorded episodes word for word, and the dashboard.",
            show_default="on, except with --record",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print it. Only its hash is stored, so it cannot be shown again.

    An agent that recalls and records needs --read --record; a program that only delivers episodes needs --record.
    """
    secret = _open_tokens(path).add(name, namespaces=namespace, write=write, record=record, read=read, log=log)
    # `soft_wrap` keeps the secret on one line, so that it can be copied in one piece.
    say_json({"name": name, "token": secret}) if as_json else out().print(secret, soft_wrap=True)


@tokens_app.command("list")
def token_list(path: Library, as_json: AsJson = False) -> None:
    """List the tokens and the rights of each."""
    from hardwon.apps.http.access.auth import RIGHTS, rights_text

    tokens = _open_tokens(path)
    callers = tokens.callers()
    if as_json:
        rows: list[Any] = [
            {
                "id": caller.id, "name": caller.name, "namespaces": caller.namespaces,
                "write": "write" in caller.rights,
                "rights": [right for right in RIGHTS if right in caller.rights],
            }
            for caller in callers
        ]  # fmt: skip
        say_json({"tokens": rows})
    elif callers:
        rows = [
            (caller.id, caller.name, rights_text(caller.rights), ", ".join(caller.namespaces or ["all namespaces"]))
            for caller in callers
        ]
        out().print(table("id", "name", "rights", "namespaces", rows=rows, whole=("id",)))
    else:
        # After its last token is revoked, a library stays closed instead of opening to every local program.
        who = "All tokens are revoked: nobody" if tokens.closed() else "There are no tokens: only this machine"
        out().print(f"{who} may call. Create a token with:")
        out().print(f"  hardwon serve token add {library_name(path)} --name NAME", soft_wrap=True)


@tokens_app.command("revoke")
def token_revoke(
    path: Library,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="The name or id of the token.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Revoke a token. A running server refuses it from then on."""
    tokens = _open_tokens(path)
    revoked = tokens.revoke(token)
    if as_json:
        say_json({"revoked": {"id": revoked.id, "name": revoked.name, "namespaces": revoked.namespaces}})
        return
    out().print(f"The token {revoked.name} is revoked.")
    if not tokens.callers():
        out().print("It was the last token: nobody may call now, not even this machine. Create another with:")
        out().print(f"  hardwon serve token add {library_name(path)} --name NAME", soft_wrap=True)


def _open_tokens(path: Path) -> Any:
    from hardwon.apps.http.access.auth import Tokens

    if not is_address(path):
        must_exist(path)
    return Tokens.of(path)
