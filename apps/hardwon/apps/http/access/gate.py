"""The gate: who may call, and how often. No unauthenticated request passes it.

If the library has or ever had tokens, a token is required: in the Authorization header or, in a browser, in the cookie
that the login page sets. Without tokens, the gate admits only this machine. `Host` must name it. Pages of another
origin are rejected, so that no website in a local browser can call. Proxied requests are rejected too, because they may
come from anywhere. A connection that stays open ends soon after its token is revoked.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote

from fastapi.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hardwon.memory.errors import HardwonError

from .auth import LOCAL, Caller, Tokens
from .browsers import is_for_loopback, is_foreign, is_link
from .limits import Rates
from .problems import hide_folders, problem, status_of

logger = logging.getLogger("hardwon.http")
COOKIE = "hardwon_token"
OPEN = frozenset({"/healthz", "/login"})
"""Paths that need no token."""
FORWARDED = (
    "x-forwarded", "x-real-", "x-original-", "x-envoy-", "x-proxy", "x-appengine-", "x-azure-", "cf-", "fly-",
    "x-arr-", "x-vercel-", "x-nf-", "x-remote-", "tailscale-", "ngrok-", "x-amz-cf-", "x-akamai-",
)  # fmt: skip
"""Prefixes of headers that proxies and tunnels add."""
OF_CLIENT = ("client-ip", "clientip", "connecting-ip", "remote-ip", "remote-addr", "user-ip", "source-ip")
"""Endings of headers in which a proxy names the client, such as `Fastly-Client-IP` and `DO-Connecting-IP`."""
PROXIED = frozenset({
    "forwarded", "via", "cdn-loop", "proxy-connection", "x-host", "x-scheme", "x-amzn-trace-id",
    "x-cloud-trace-context",
})  # fmt: skip
"""Other headers that proxies add."""


class AccessGate:
    """Admits requests and sets their `caller` in the state."""

    def __init__(self, app: ASGIApp, tokens: Tokens, rates: Rates, *, local: bool) -> None:
        self._app = app
        self._tokens = tokens
        self._rates = rates
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit or reject one request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            refusal = self._reject(scope, headers)
        except HardwonError as error:  # if the tokens cannot be read, reject everybody
            logger.error("closed", exc_info=error)
            detail = hide_folders(str(error), self._tokens.path)
            refusal = problem(status_of(error), detail, type(error).__name__, scope["state"].get("request_id", ""))
        if refusal is None and scope["type"] == "websocket":
            await self._while_allowed(scope, receive, send)
        elif refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
        else:
            await refusal(scope, receive, send)

    async def _while_allowed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket until its token is revoked."""
        caller: Caller = scope["state"]["caller"]
        watched = RevocableSocket(receive, send, lambda: caller in self._tokens)
        try:
            await self._app(scope, watched.receive, watched.send)
        finally:
            watched.close()

    def _reject(self, scope: Scope, headers: dict[str, str]) -> Response | None:
        """Return the response that rejects a request, or None if it is admitted."""
        request_id = scope["state"].get("request_id", "")
        scope["state"]["caller"] = None
        if self._local and not is_for_loopback(scope):
            return problem(421, "this server accepts only local requests. Call it at 127.0.0.1.", "", request_id)
        bearer = _bearer(headers)
        # CSRF: browsers attach cookies to requests of any page, but never an Authorization header.
        if not bearer and is_foreign(scope) and not is_link(scope):
            page = headers.get("origin", "another site")[:200]
            return problem(403, f"pages of {page} may not call this server.", "", request_id)
        is_open = self._local and not self._tokens.closed()
        if is_open and (through := _find_proxy_header(headers)):
            detail = (
                f"this request came through a proxy (header {through!r}) and the server has no tokens, so anybody "
                "who reaches the proxy could call. Create a token first: hardwon serve token add"
            )
            return problem(403, detail, "LibraryForbidden", request_id)
        secret = bearer or _cookie(headers)
        caller = LOCAL if is_open else self._tokens.caller(secret) if secret else None
        scope["state"]["caller"] = caller
        address = (scope.get("client") or ("",))[0]
        # Before the 401, so that guessing tokens is limited, too; unknown callers share their address's bucket.
        if wait_s := self._rates.wait_s(caller.id if caller else address):
            detail = f"more than {self._rates.rate:g} requests per second. Try again in {wait_s:.3f} s."
            return problem(429, detail, "", request_id, {"Retry-After": str(int(wait_s) + 1)})
        if caller is not None or scope["path"] in OPEN:
            return None
        if scope["type"] == "http" and scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
            return RedirectResponse(f"/login?next={quote(scope['path'])}", 303)
        detail = "a token is required. Send `Authorization: Bearer TOKEN`; create one with: hardwon serve token add"
        return problem(401, detail, "LibraryForbidden", request_id, {"WWW-Authenticate": "Bearer"})


class RevocableSocket:
    """The two ends of a WebSocket, which closes soon after its caller is no longer allowed."""

    def __init__(self, receive: Receive, send: Send, allowed: Callable[[], bool]) -> None:
        self._receive = receive
        self._send = send
        self._allowed = allowed
        self._next: asyncio.Task[Message] | None = None
        self._ended = False

    async def receive(self) -> Message:
        """Return the next message, or a disconnect once the token is revoked."""
        while not self._ended:
            # The task survives timeouts: `wait_for` would cancel it, and could lose a message that just arrived.
            if self._next is None:
                self._next = asyncio.ensure_future(_awaited(self._receive()))
            # Seconds between two checks of an open WebSocket's token.
            await asyncio.wait([self._next], timeout=1.0)
            if not self._still():
                self._ended = True
                with suppress(Exception):  # the client may have disconnected
                    await self._send({"type": "websocket.close", "code": 1008, "reason": "the token was revoked"})
            elif self._next.done():
                message, self._next = self._next.result(), None
                return message
        return {"type": "websocket.disconnect", "code": 1008}

    async def send(self, message: Message) -> None:
        """Send a message, unless the connection has ended."""
        if not self._ended:
            await self._send(message)

    def _still(self) -> bool:
        try:
            return self._allowed()
        except HardwonError:
            return False

    def close(self) -> None:
        """Stop waiting for the next message."""
        if self._next is not None:
            self._next.cancel()


async def _awaited(message: Awaitable[Message]) -> Message:
    return await message


def _bearer(headers: dict[str, str]) -> str:
    kind, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


def _cookie(headers: dict[str, str]) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


def _find_proxy_header(headers: dict[str, str]) -> str:
    """Return the name of a header that a proxy added, or an empty string."""
    for name in headers:
        plain = name.replace("_", "-")  # some proxies write X_Forwarded_For
        if plain in PROXIED or plain.startswith(FORWARDED) or plain.endswith(OF_CLIENT):
            return name
    return ""
