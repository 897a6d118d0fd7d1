"""The gate: who may come in, to what, how often. Nothing behind it is reached by anybody unknown.

Where the library has or ever had tokens, one is needed: in the Authorization header, or, in a browser, in the cookie
that the login page sets. Where it never had one, the gate is open to this machine alone: `Host` must name it, a
page of another origin is refused, so that no web site in a browser here can call it either, and so is what came
through a proxy, which may have come from anywhere. A connection that stays open ends soon after its token does.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote, urlsplit

from fastapi.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hardwon.memory.errors import HardwonError

from .auth import LOCAL, Caller, Tokens
from .limits import Rates
from .problems import problem, status_of

COOKIE = "hardwon_token"
OPEN = frozenset({"/healthz", "/login"})
"""What needs no token."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
FORWARDED = ("x-forwarded", "x-real-", "x-original-", "x-envoy-", "x-proxy", "x-appengine-", "x-azure-", "cf-", "fly-")
"""How the names of headers begin that a proxy adds."""
PROXIED = frozenset({
    "forwarded", "via", "cdn-loop", "client-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip",
    "fastly-client-ip", "proxy-connection", "x-host", "x-scheme", "x-amzn-trace-id", "x-cloud-trace-context",
})  # fmt: skip
"""Other names of such headers."""
RECHECK_S = 1.0
"""How often an open WebSocket is checked for whether its token is still good."""


def is_loopback(host: str) -> bool:
    """Whether a server at this address is reached from this machine alone."""
    return host in LOOPBACK


class Gate:
    """Lets requests through that may come, with their `caller` in the state."""

    def __init__(self, app: ASGIApp, tokens: Tokens, rates: Rates, *, local: bool) -> None:
        self._app = app
        self._tokens = tokens
        self._rates = rates
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or let it through."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            refusal = self._refused(scope, headers)
        except HardwonError as error:  # whether there are tokens cannot be read: nobody comes in
            refusal = problem(status_of(error), str(error), type(error).__name__, scope["state"].get("request_id", ""))
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
        watched = Watched(receive, send, lambda: caller in self._tokens)
        try:
            await self._app(scope, watched.receive, watched.send)
        finally:
            watched.close()

    def _refused(self, scope: Scope, headers: dict[str, str]) -> Response | None:
        """Return why a request may not come, as the answer to it."""
        request_id = scope["state"].get("request_id", "")
        scope["state"]["caller"] = None
        if self._local and (_host(headers.get("host", "")) not in LOOPBACK or _repeated(scope, b"host")):
            return problem(421, "this server is for this machine alone: call it by 127.0.0.1.", "", request_id)
        bearer = _bearer(headers)
        if not bearer and _foreign(headers):
            return problem(403, f"a page of {headers['origin'][:200]} may not call this server.", "", request_id)
        is_open = self._local and not self._tokens.closed()
        if is_open and (through := _proxy(headers)):
            detail = (
                f"this request came through a proxy (it has the header {through!r}), and the server has no tokens: "
                "whoever reaches the proxy could call. Make a token first: hardwon serve token add"
            )
            return problem(403, detail, "LibraryForbidden", request_id)
        secret = bearer or _cookie(headers)
        caller = LOCAL if is_open else self._tokens.caller(secret) if secret else None
        scope["state"]["caller"] = caller
        address = (scope.get("client") or ("",))[0]
        if wait_s := self._rates.wait_s(caller.id if caller else address):
            detail = f"more than {self._rates.rate:g} requests a second. Try again in {wait_s:.3f} s."
            return problem(429, detail, "", request_id, {"Retry-After": str(int(wait_s) + 1)})
        if caller is not None or scope["path"] in OPEN:
            return None
        if scope["type"] == "http" and scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
            return RedirectResponse(f"/login?next={quote(scope['path'])}", 303)
        detail = "a token is needed. Send one as `Authorization: Bearer TOKEN`; make one with: hardwon serve token add"
        return problem(401, detail, "LibraryForbidden", request_id, {"WWW-Authenticate": "Bearer"})


class Watched:
    """The two ends of a WebSocket, which closes soon after its caller is no longer allowed."""

    def __init__(self, receive: Receive, send: Send, allowed: Callable[[], bool]) -> None:
        self._receive = receive
        self._send = send
        self._allowed = allowed
        self._next: asyncio.Task[Message] | None = None
        self._ended = False

    async def receive(self) -> Message:
        """Return the next message, or that the connection ended, once it must."""
        while not self._ended:
            if self._next is None:
                self._next = asyncio.ensure_future(_awaited(self._receive()))
            await asyncio.wait([self._next], timeout=RECHECK_S)
            if not self._still():
                self._ended = True
                with suppress(Exception):  # the other side may have gone already
                    await self._send({"type": "websocket.close", "code": 1008, "reason": "the token was revoked"})
            elif self._next.done():
                message, self._next = self._next.result(), None
                return message
        return {"type": "websocket.disconnect", "code": 1008}

    async def send(self, message: Message) -> None:
        """Send a message, unless the connection must end."""
        if not self._ended:
            await self._send(message)

    def _still(self) -> bool:
        try:
            return self._allowed()
        except HardwonError:
            return False

    def close(self) -> None:
        """Stop waiting for what comes."""
        if self._next is not None:
            self._next.cancel()


async def _awaited(message: Awaitable[Message]) -> Message:
    return await message


def _bearer(headers: dict[str, str]) -> str:
    kind, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


def _cookie(headers: dict[str, str]) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def _foreign(headers: dict[str, str]) -> bool:
    """Return whether a browser sends this for a page of another origin."""
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc != headers.get("host")
    except ValueError:
        return True


def _host(told: str) -> str | None:
    try:
        return urlsplit(f"//{told}").hostname
    except ValueError:  # "[" alone is no address
        return None


def _repeated(scope: Scope, header: bytes) -> bool:
    return [name for name, _ in scope["headers"]].count(header) > 1


def _proxy(headers: dict[str, str]) -> str:
    """Return a header that a proxy added, if there is one."""
    return next((name for name in headers if name in PROXIED or name.startswith(FORWARDED)), "")
