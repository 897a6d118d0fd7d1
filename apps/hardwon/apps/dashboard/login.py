"""Define the login: a token, entered once and stored in an HttpOnly, SameSite cookie."""

from urllib.parse import parse_qs, urlsplit

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from hardwon.apps.http.access.auth import Tokens
from hardwon.apps.http.access.gate import COOKIE

from .frame import THEME_COOKIE, THEMES, plain_page, read_theme
from .markup import Html, linked, tag

UNKNOWN = "This token is unknown. Check it, or create one with `hardwon serve token add`."


def add(app: FastAPI, tokens: Tokens) -> None:
    """Add the routes of the login."""

    @app.get("/login", include_in_schema=False)
    def login(request: Request, next: str = "/") -> HTMLResponse:
        return HTMLResponse(_render_page(next, theme=read_theme(request)))

    @app.post("/login", include_in_schema=False)
    async def enter(request: Request) -> Response:
        form = parse_qs((await request.body())[:4096].decode(errors="replace"))
        secret, then = form.get("token", [""])[0].strip(), form.get("next", ["/"])[0]
        if await run_in_threadpool(tokens.caller, secret) is None:
            return HTMLResponse(_render_page(then, UNKNOWN, read_theme(request)), 401)
        # 303, so that the browser continues with GET instead of repeating the POST.
        answer = RedirectResponse(_restrict_path(then), 303)
        # `secure` depends on the scheme, because browsers discard Secure cookies that arrive over plain HTTP.
        answer.set_cookie(
            COOKIE, secret, httponly=True, samesite="strict", secure=request.url.scheme == "https", max_age=30 * 86400
        )
        return answer

    @app.post("/theme", include_in_schema=False)
    async def choose_theme(request: Request) -> Response:
        form = parse_qs((await request.body())[:4096].decode(errors="replace"))
        theme = form.get("theme", [""])[0]
        answer = RedirectResponse(_restrict_path(form.get("next", ["/"])[0]), 303)
        if theme in THEMES:
            answer.set_cookie(THEME_COOKIE, theme, httponly=True, samesite="strict", max_age=365 * 86400)
        return answer

    @app.get("/logout", include_in_schema=False)
    def leave() -> Response:
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE)
        return answer


def _restrict_path(path: str) -> str:
    """Return a path of this server, or "/" if the address leads to another site."""
    try:
        parts = urlsplit(path)
    except ValueError:
        return "/"
    # Browsers read a backslash as a slash, so `/\\host` would lead to another site.
    return path if path.startswith("/") and not (parts.netloc or parts.scheme or "\\" in path) else "/"


def _render_page(then: str, wrong: str = "", theme: str = "") -> str:
    return plain_page(
        "Log in",
        tag(
            "form",
            tag("p", wrong, class_="bad", role="alert") if wrong else Html(""),
            tag("p", linked("This library requires a token. Create one with `hardwon serve token add`.")),
            tag("input", type="hidden", name="next", value=_restrict_path(then)),
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
        theme=theme,
    )
