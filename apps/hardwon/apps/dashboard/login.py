"""The login: a token, typed once, kept in a cookie that scripts cannot read and other sites cannot send."""

from urllib.parse import parse_qs, urlsplit

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from hardwon.apps.http.access.auth import Tokens
from hardwon.apps.http.access.gate import COOKIE

from .frame import plain_page
from .markup import Html, linked, tag

LONGEST = 4096
"""Bytes of a form that are read."""


def add(app: FastAPI, tokens: Tokens) -> None:
    """The routes of the login."""

    @app.get("/login", include_in_schema=False)
    def login(next: str = "/") -> HTMLResponse:
        return HTMLResponse(_page(next))

    @app.post("/login", include_in_schema=False)
    async def enter(request: Request) -> Response:
        form = parse_qs((await request.body())[:LONGEST].decode(errors="replace"))
        secret, then = form.get("token", [""])[0].strip(), form.get("next", ["/"])[0]
        if await run_in_threadpool(tokens.caller, secret) is None:
            return HTMLResponse(_page(then, "This token is not known here."), 401)
        answer = RedirectResponse(_own(then), 303)
        answer.set_cookie(
            COOKIE, secret, httponly=True, samesite="strict", secure=request.url.scheme == "https", max_age=30 * 86400
        )
        return answer

    @app.get("/logout", include_in_schema=False)
    def leave() -> Response:
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE)
        return answer


def _own(path: str) -> str:
    """A path of this server, whatever was asked for."""
    try:
        parts = urlsplit(path)
    except ValueError:
        return "/"
    return path if path.startswith("/") and not (parts.netloc or parts.scheme or "\\" in path) else "/"


def _page(then: str, wrong: str = "") -> str:
    return plain_page(
        "Log in",
        tag(
            "form",
            tag("p", wrong, class_="bad", role="alert") if wrong else Html(""),
            tag("p", linked("This library is opened by a token. `hardwon serve token add` makes one.")),
            tag("input", type="hidden", name="next", value=_own(then)),
            tag(
                "p",
                tag("label", "Token ", for_="token"),
                tag("input", id="token", name="token", type="password", required=True, autocomplete="current-password"),
            ),
            tag("button", "Log in", class_="plain"),
            method="post",
            action="/login",
            class_="box",
        ),
    )
