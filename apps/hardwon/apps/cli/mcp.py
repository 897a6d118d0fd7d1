"""Define `hardwon mcp`, which serves a library to Model Context Protocol clients; `mcp_server` implements the tools.

hardwon mcp work.db                       over stdin and stdout, started by a client
hardwon mcp work.db --http --port 8765    at http://127.0.0.1:8765/mcp, for programs on this machine
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from hardwon.apps.shared.common import Namespace, ServedLibrary, is_address, must_exist, tell
from hardwon.apps.shared.trained import HELP, ExtractorOption, open_extractor, open_server_roles


def mcp(
    path: ServedLibrary,
    http: Annotated[bool, typer.Option("--http", help="Listen on HTTP instead of stdin and stdout.")] = False,
    host: Annotated[str, typer.Option(help="With --http: a loopback address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="With --http: the port to listen on.")] = 8765,
    read_only: Annotated[bool, typer.Option("--read-only", help="Disable the tools that write.")] = False,
    trusted: Annotated[
        bool,
        typer.Option(
            "--trusted", help="You are the only user: record results, use added items at once, and recall full text."
        ),
    ] = False,
    guardrails: Annotated[
        str, typer.Option(help="Answer of `check` for an action that failed repeatedly: warn, block or off.")
    ] = "warn",
    namespace: Namespace = "default",
    roles: Annotated[
        Path | None,
        typer.Option(
            help=f"{HELP} The guide writes the advice of a recall; the extractor reads recorded episodes.",
            show_default=False,
        ),
    ] = None,
    extractor: ExtractorOption = None,
) -> None:
    """Serve LIBRARY to an MCP client: recall, check, why, record, add, feedback, stats, and items as resources."""
    from hardwon.memory import ExperienceLibrary
    from hardwon.memory.errors import require_extra

    with require_extra("agent"):
        from hardwon.apps import mcp_server
    if read_only and not is_address(path):  # otherwise opening creates the library
        must_exist(path)
    trained = open_server_roles(roles, "guidance", "extractor")
    reader = open_extractor(extractor, trained.extractor)
    keeps = is_address(path) and not read_only  # a client of MCP does not repeat a call when the server is up again
    with ExperienceLibrary.open(path, namespace=namespace, read_only=read_only, outbox=keeps) as library:
        mode: Any = False if guardrails == "off" else guardrails
        # A client starts the server over stdin for its own user; over HTTP, it may be any program on this machine.
        trust: Any = "trusted" if trusted else "untrusted" if http else "own"
        server = mcp_server.build(
            library, trust=trust, guardrails=mode, guidance=trained.guidance, extractor=reader,
            recall_k=trained.recall_k,
        )  # fmt: skip
        mcp_server.serve(server, http=http, host=host, port=port, say=tell)
