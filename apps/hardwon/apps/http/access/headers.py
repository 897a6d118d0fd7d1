"""What every answer carries, pages, problems and files alike; and the answer to an error that nobody foresaw."""

import logging

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import problem

POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'; form-action 'self'; "
    "base-uri 'self'; object-src 'none'"
)
"""What a browser may load for a page: from this server alone. NiceGUI writes scripts and styles into the page."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

logger = logging.getLogger("hardwon.http")


class SecureHeaders:
    """Puts the headers on every answer. The outermost part: nothing answers outside of it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            await self._app(scope, receive, guarded)
        except Exception as error:  # the framework would answer outside of this, without the headers
            if begun:
                raise
            request_id = scope.get("state", {}).get("request_id", "")
            logger.error("failed", exc_info=error)
            words = "an error of the server's own; its log has it under this request."
            await problem(500, words, "", request_id, {"X-Request-ID": request_id})(scope, receive, guarded)
