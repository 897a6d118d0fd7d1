"""The gate: who may come in, to what, how often. Nothing behind it is reached by anybody unknown.

Where the library has tokens, one is needed: in the Authorization header, or, in a browser, in the cookie
that the login page sets. Where it has none, the gate is open to this machine alone: `Host` must name it and a
page of another origin is refused, so that no web site in a browser here can call it either.
"""

from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote, urlsplit

from fastapi.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from .auth import LOCAL, Caller, Tokens
from .limits import Rates
from .problems import problem

COOKIE = "hardwon_token"
OPEN = frozenset({"/healthz", "/login"})
"""What needs no token."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


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
        refusal = self._refused(scope, headers)
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
        else:
            await refusal(scope, receive, send)

    def _refused(self, scope: Scope, headers: dict[str, str]) -> Response | None:
        """Why a request may not come, as the answer to it."""
        request_id = scope["state"].get("request_id", "")
        if self._local and urlsplit(f"//{headers.get('host', '')}").hostname not in LOOPBACK:
            return problem(421, "this server is for this machine alone: call it by 127.0.0.1.", "", request_id)
        bearer = _bearer(headers)
        if not bearer and _foreign(headers):
            return problem(403, f"a page of {headers['origin']} may not call this server.", "", request_id)
        caller = self._caller(bearer or _cookie(headers))
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

    def _caller(self, secret: str) -> Caller | None:
        if self._local and not self._tokens.callers():
            return LOCAL
        return self._tokens.caller(secret) if secret else None


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
    """Whether a browser sends this for a page of another origin."""
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != headers.get("host")
