"""All pages, and what NiceGUI is told once."""

from fastapi import FastAPI
from nicegui import app as nicegui_app, ui
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import episode_pages, item_pages, login, map_page, overview_page, run_pages

POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'self'"
)
"""What a browser may load for a page: from this server alone. NiceGUI writes scripts and styles into the page."""
RECONNECT_S = 5.0


def mount(api: FastAPI) -> None:
    """Add every page to the API's application."""
    login.add(api, api.state.tokens)
    for part in (overview_page, item_pages, map_page, episode_pages, run_pages):
        part.add(api)
    nicegui_app.add_middleware(Guarded)
    ui.run_with(
        api, title="hardwon", language="en-US", tailwind=False, reconnect_timeout=RECONNECT_S,
        show_welcome_message=False, favicon=ICON,
    )  # fmt: skip


ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#0b5cad"/>'
    '<path d="M8 10h16M16 10v13" stroke="#fff" stroke-width="4" stroke-linecap="round"/></svg>'
)


class Guarded:
    """Every answer of the dashboard carries the policy."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = POLICY
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "same-origin"
            await send(message)

        await self._app(scope, receive, guarded if scope["type"] == "http" else send)
