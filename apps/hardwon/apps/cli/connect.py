"""Define `hardwon proxy` and `hardwon hook`, which connect programs that you do not change.

hardwon proxy work.db --upstream https://api.openai.com/v1
hardwon hook install claude-code
"""

import json
import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from hardwon.apps.shared.common import AsJson, Namespace, ServedLibrary, is_address, out, parse_library, tell
from hardwon.apps.shared.trained import HELP, open_server_roles

hook_app = typer.Typer(
    no_args_is_help=True, help="Let coding agents (claude-code, codex, cursor) recall and record by themselves."
)
AgentName = Annotated[
    Literal["claude-code", "codex", "cursor"],
    typer.Argument(metavar="AGENT", help="claude-code, codex or cursor.", show_default=False),
]
HookLibrary = Annotated[
    str,
    typer.Option("--library", help="The library, created if it does not exist.", show_default="~/.hardwon/coding.db"),
]
InProject = Annotated[
    bool, typer.Option("--project", help="Change the settings of the project in this folder instead of your own.")
]
HookGuardrails = Annotated[
    Literal["warn", "block", "off"], typer.Option(help="warn the model of a call that kept failing, or refuse it.")
]
HookTrust = Annotated[
    Literal["own", "trusted", "untrusted"],
    typer.Option(
        help="own: record requests, calls and their outcomes, and no words of results. trusted: also the words "
        "of results. untrusted: recall only forms of calls and their outcomes."
    ),
]


ProxyGuardrails = Annotated[
    Literal["warn", "block", "off"],
    typer.Option(help="warn: put a warning below a bad call's answer. block: refuse the call."),
]
RunOutcome = Annotated[
    Literal["calls", "unknown"],
    typer.Option(
        help="Outcome of a run. calls: success if the last call of every tool worked. unknown: nothing is learned "
        "until somebody grades it."
    ),
]
ClientTrust = Annotated[
    Literal["own", "trusted", "untrusted"],
    typer.Option(
        help="own: record requests, calls and their outcomes, and no words of results. trusted: also the words of "
        "results. untrusted: clients of other people; recall only forms of calls."
    ),
]
HintPlace = Annotated[
    Literal["message", "system"],
    typer.Option(help="Where recalled experience stands: in a message before the request, or in the system message."),
]
ServedRoles = Annotated[
    Path | None,
    typer.Option(
        help=f"{HELP} The guide writes the recalled text; the extractor reads recorded runs.", show_default=False
    ),
]


def proxy(
    path: ServedLibrary,
    upstream: Annotated[
        str, typer.Option(help="Base URL of the OpenAI-compatible server that answers, with its /v1.")
    ] = "https://api.openai.com/v1",
    host: Annotated[str, typer.Option(help="A loopback address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free port.")] = 8430,
    guardrails: ProxyGuardrails = "warn",
    outcome: RunOutcome = "calls",
    trust: ClientTrust = "own",
    place: HintPlace = "message",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the server's next bytes.")] = 600.0,
    namespace: Namespace = "default",
    roles: ServedRoles = None,
) -> None:
    """Add experience to any OpenAI client: recall, guardrails and recording, by its base URL.

    The client's key goes to the server that answers; it is neither stored nor logged.
    """
    from hardwon.memory import ExperienceLibrary
    from hardwon.memory.errors import require_extra
    from hardwon.memory.storage.database import check_library_file
    from hardwon.runtime.loop.enforcement import mode_of

    # The proxy waits for a library that is locked or down; for a mistyped path it would wait forever.
    if not is_address(path):
        check_library_file(path, read_only=False)
    with require_extra("agent"):
        from hardwon.apps.proxy.conversations import ProxySettings
        from hardwon.apps.proxy.serving import serve_proxy
    trained = open_server_roles(roles, "guidance", "extractor")
    settings = ProxySettings(
        mode=mode_of(False if guardrails == "off" else guardrails), outcome=outcome, place=place,
        trust=trust, recall_k=trained.recall_k, guidance=trained.guidance,
        extractor=trained.extractor,
    )  # fmt: skip
    serve_proxy(
        lambda: ExperienceLibrary.open(path, namespace=namespace, outbox=is_address(path)), upstream,
        host=host, port=port, settings=settings, timeout_s=timeout, tell=tell,
    )  # fmt: skip


@hook_app.command("install")
def hook_install(
    agent: AgentName,
    library: HookLibrary = "",
    project: InProject = False,
    guardrails: HookGuardrails = "warn",
    trust: HookTrust = "own",
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Add the hooks to the settings of a coding agent. Repeat it to change the options."""
    from hardwon.apps.coding_agents.install import find_settings, format_command, install_hooks
    from hardwon.apps.coding_agents.journal import default_library
    from hardwon.memory.storage.database import check_library_file

    # An absolute path, because the agent runs its hooks in the folder of a project.
    path = library or default_library()
    if not is_address(parse_library(path)):
        path = str(Path(path).absolute())
    if not is_address(path):  # hooks fail in silence
        check_library_file(Path(path), read_only=False)
    options = ["--library", path, "--guardrails", guardrails, "--namespace", namespace]
    settings = find_settings(agent, project=project)
    install_hooks(agent, settings, format_command(agent, [*options, "--trust", trust]))
    if as_json:
        print(json.dumps({"agent": agent, "library": path, "settings": str(settings)}))
        return
    out().print(f"{agent} records to {path} from its next session on. Its hooks are in {settings}.", soft_wrap=True)
    out().print(f"See what it learned: hardwon memory ls {shlex.quote(path)} --episodes", soft_wrap=True)


@hook_app.command("uninstall")
def hook_uninstall(agent: AgentName, project: InProject = False, as_json: AsJson = False) -> None:
    """Take the hooks out of the settings of a coding agent; the library stays."""
    from hardwon.apps.coding_agents.install import find_settings, uninstall_hooks

    settings = find_settings(agent, project=project)
    was_installed = uninstall_hooks(settings)
    if as_json:
        print(json.dumps({"agent": agent, "settings": str(settings), "removed": was_installed}))
    else:
        out().print(f"{settings}: {'the hooks are removed' if was_installed else 'there were no hooks'}.")


@hook_app.command("run")
def hook_run(
    agent: AgentName,
    library: HookLibrary = "",
    guardrails: HookGuardrails = "warn",
    trust: HookTrust = "own",
    namespace: Namespace = "default",
) -> None:
    """Answer one call of a hook: the agent's JSON on stdin, the answer on stdout. It always exits with 0."""
    from hardwon.apps.coding_agents.hook import main

    options = ["--library", library, "--guardrails", guardrails, "--namespace", namespace]
    main([agent, *options, "--trust", trust])
