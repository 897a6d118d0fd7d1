"""The server process of the HTTP API: its address, its startup checks, and its shutdown.

Without a token, the server refuses to listen beyond this machine, because anybody could read and write.
"""

import gc
import logging
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from hardwon.memory.errors import ConfigError
from hardwon.memory.learning.extraction import Extractor
from hardwon.memory.records import Trust
from hardwon.runtime.guidance.base import Guidance
from hardwon.runtime.teams.sharing_policy import SharingPolicy

from .http.access.auth import Tokens
from .http.access.browsers import is_loopback
from .http.access.patience import PatientProtocol
from .http.app import create_app
from .http.state.watch import JsonLines
from .shared.common import library_name

GRACE_S = 5
"""Seconds in which running requests may finish after a shutdown signal."""


def _check_access(path: str, tokens: Tokens, host: str, trust: Trust) -> None:
    """Raise ConfigError if the address or the trust is not allowed with these tokens."""
    if not is_loopback(host) and not tokens.has_any():
        raise ConfigError(
            f"--host {host} can be reached from other machines, and {path} has no tokens. "
            f"Make one first: hardwon serve token add {path} --name NAME"
        )
    if trust == "trusted" and tokens.closed():
        raise ConfigError(
            f"--trust trusted is for programs without a token, and {path} lets none in: it has or had tokens. "
            f"Leave it out; what a token that may write records is trusted: hardwon serve token add {path} --write"
        )


def serve(
    path: Path | str,
    *,
    host: str,
    port: int,
    runs: Path,
    read_only: bool,
    dashboard: bool,
    max_body_bytes: int,
    rate: float,
    trust: Trust,
    guidance: Guidance | None = None,
    extractor: Extractor | None = None,
    admission: SharingPolicy | None = None,
    tell: Callable[[str], None],
) -> None:
    """Serve until a signal arrives."""
    tokens, name = Tokens.of(path), library_name(path)
    _check_access(name, tokens, host, trust)
    # Before the library opens, so that a port in use fails early; with port 0 the message needs the real port.
    listening = open_socket(host, port)
    try:
        app = create_app(
            path, tokens=tokens, runs=runs, read_only=read_only, local=is_loopback(host),
            max_body_bytes=max_body_bytes, rate=rate, trust=trust, guidance=guidance,
            extractor=extractor, admission=admission,
        )  # fmt: skip
        if dashboard:
            from hardwon.apps.dashboard import mount

            mount(app)
        address = f"http://{'[' + host + ']' if ':' in host else host}:{listening.getsockname()[1]}"
        if tokens.closed() and not app.state.tokens.has_any():
            tell(
                f"Nobody may call: {name} had tokens, and none is left. This server takes a new one as soon as it is "
                f"made: hardwon serve token add {name} --name NAME"
            )
        tell(f"{'Dashboard and API' if dashboard else 'API'} of {name}: {address}/   (stop with Ctrl-C)")
        if trust == "untrusted" and not read_only and not tokens.closed():
            tell("Episodes recorded without a token are untrusted. If you alone use this machine: --trust trusted")
        log_lines()
        config = uvicorn.Config(
            app, log_config=None, access_log=False, timeout_graceful_shutdown=GRACE_S, server_header=False,
            http=PatientProtocol,
        )  # fmt: skip
        Server(config, app).run([listening])
    finally:
        listening.close()


class Server(uvicorn.Server):
    """uvicorn's server, which also ends open event streams on shutdown. They would run forever."""

    def __init__(self, config: uvicorn.Config, app: Starlette) -> None:
        super().__init__(config)
        self._app = app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening. Existing objects are frozen first, so that garbage collection does not delay requests."""
        # Collected first, because frozen garbage is never freed.
        gc.collect()
        gc.freeze()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the shutdown. SIGTERM is an ordinary end, so it is not raised again."""
        self._app.state.stopping.set()
        if self.should_exit and sig == signal.SIGINT:
            # The second Ctrl-C ends it at once, and uvicorn would log what that interrupts with its traceback.
            logging.getLogger("uvicorn.error").disabled = True
        super().handle_exit(sig, frame)
        if sig == signal.SIGTERM:
            # uvicorn raises captured signals again after the shutdown, which would kill the process.
            self._captured_signals.clear()


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    # Without it, a restart fails while connections of the old process are in TIME_WAIT.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ConfigError(f"cannot listen on {host}:{port} ({error.strerror}). Give another --port.") from error
    return listening


def log_lines() -> None:
    """Log JSON lines to stderr: requests from `hardwon.http`, and warnings from everything else."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("hardwon.http").setLevel(logging.INFO)
