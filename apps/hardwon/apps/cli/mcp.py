"""`hardwon mcp`: the library for any client of the Model Context Protocol. What it offers is in `mcp_server`.

hardwon mcp work.db                       over stdin and stdout: a client starts it
hardwon mcp work.db --http --port 8765    at http://127.0.0.1:8765/mcp, for programs of this machine
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from hardwon.apps.shared.common import Namespace, must_exist, tell


def mcp(
    path: Annotated[
        Path, typer.Argument(metavar="LIBRARY", help="The library file, made when new.", show_default=False)
    ],
    http: Annotated[bool, typer.Option("--http", help="Listen for HTTP instead of stdin and stdout.")] = False,
    host: Annotated[str, typer.Option(help="With --http: an address of this machine alone.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="With --http: the port.")] = 8765,
    read_only: Annotated[bool, typer.Option("--read-only", help="Offer no tool that writes.")] = False,
    trusted: Annotated[
        bool,
        typer.Option(
            "--trusted", help="You alone use this server: use what clients add at once, and recall it in its own words."
        ),
    ] = False,
    guardrails: Annotated[
        str, typer.Option(help="What check does with an action that kept failing: warn, block or off.")
    ] = "warn",
    namespace: Namespace = "default",
) -> None:
    """Offer the library to an MCP client: recall, check, record, add, feedback, stats, and items as resources."""
    from hardwon.memory import ExperienceLibrary
    from hardwon.memory.errors import MissingExtra

    try:
        from hardwon.apps import mcp_server
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] in ("mcp", "mcp_types"):
            raise MissingExtra.of("mcp", "mcp") from error
        raise
    if read_only:
        must_exist(path)
    with ExperienceLibrary.open(path, namespace=namespace, read_only=read_only) as library:
        mode: Any = False if guardrails == "off" else guardrails
        server = mcp_server.build(library, trusted=trusted, guardrails=mode)
        mcp_server.serve(server, http=http, host=host, port=port, say=tell)
