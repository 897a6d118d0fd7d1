"""Run the proxy as a server process."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import uvicorn

from hardwon.apps.http.access.browsers import is_loopback
from hardwon.apps.server import Server, log_lines, open_socket
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError

from .app import create_proxy
from .conversations import ProxySettings
from .library_access import LibraryAccess

logger = logging.getLogger("hardwon.proxy")

GRACE_S = 5
"""Seconds in which running requests may finish after a shutdown signal."""
NO_OWN_HEADERS: Any = {"server_header": False, "date_header": False}
"""Settings with which a client gets the headers of the upstream server alone."""


def _is_url(text: str) -> bool:
    """Return whether a text is the URL of an HTTP server."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # such as a lone "[", or a port above 65535
        return False


def serve_proxy(
    opener: Callable[[], ExperienceLibrary],
    upstream: str,
    *,
    host: str,
    port: int,
    settings: ProxySettings,
    timeout_s: float,
    tell: Callable[[str], None],
) -> None:
    """Serve until a signal arrives."""
    if not _is_url(upstream):
        raise ConfigError(f"upstream is {upstream!r}; use a URL such as https://api.openai.com/v1.")
    if not is_loopback(host):
        raise ConfigError(
            f"host is {host!r}: this proxy asks nobody who they are, so it listens on 127.0.0.1 alone. Start one "
            "on each machine, with a shared library (postgresql://USER@HOST/DB)."
        )
    listening = open_socket(host, port)
    access = None
    try:
        access = LibraryAccess(opener)
        app = create_proxy(access, upstream, settings=settings, timeout_s=timeout_s)
        app.state.stopping = asyncio.Event()
        warm_up(access)
        log_lines()
        bound = listening.getsockname()[1]
        tell(f"Proxy of {upstream}. Base URL for clients: http://{host}:{bound}/v1   (stop with Ctrl-C)")
        config = uvicorn.Config(
            app, log_config=None, access_log=False, timeout_graceful_shutdown=GRACE_S, **NO_OWN_HEADERS
        )
        Server(config, app).run([listening])
    finally:
        listening.close()
        if access is not None:
            access.close()


def warm_up(access: LibraryAccess) -> None:
    """Recall once, so that the first call does not wait for imports and indexes."""
    try:
        access.get().recall("warm-up")
    except Exception as error:
        logger.warning("the library cannot be used yet: %s", error)
