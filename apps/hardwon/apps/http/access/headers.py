"""Security headers of every response, and the response to unexpected errors."""

import logging

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import problem

POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'; form-action 'self'; "
    "base-uri 'self'; object-src 'none'"
)
"""Content a browser may load for a page: only from this server. NiceGUI writes scripts and styles into the page."""
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
    """Adds the headers to every response. This is the outermost middleware, so nothing responds without them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def guarded(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                # Responses hold private experience; only a route that sets its own caching may be cached.
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            await self._app(scope, receive, guarded)
        except Exception as error:  # the framework's own error response would lack the headers
            if has_begun:
                raise
            request_id = scope.get("state", {}).get("request_id", "")
            logger.error("failed", exc_info=error)
            words = "internal server error. The server's log has the details under this request id."
            await problem(500, words, "", request_id, {"X-Request-ID": request_id})(scope, receive, guarded)
