"""Define the frame of every page: the visitor, the namespace, the navigation and the handling of errors.

A page is a function of a `Room` and the parameters of the address that adds elements. It reads the library in a
thread, so that a slow page does not block others.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from nicegui import app as pages, ui

from hardwon.apps.http.access.auth import LOCAL, Caller
from hardwon.apps.http.access.problems import status_of
from hardwon.apps.shared.argument_errors import sentence
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import HardwonError, LibraryForbidden
from hardwon.memory.upkeep.damage import readable

from .markup import Html, linked, tag

T = TypeVar("T")

ACCENT = "#0b5cad"
"""Color of links and buttons, with enough contrast for small text."""

PAGES = {"/": "Overview", "/items": "Lessons", "/episodes": "Episodes", "/runs": "Runs"}
STYLE = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
DARK = (
    "--ink: #e6edf3; --soft: #9aa4af; --line: #30363d; --paper: #161b22; --ground: #0d1117; --accent: #6cb6ff; "
    "--good: #4cc38a; --bad: #ff8a80; --mark: #10304f; --warn: #3a2d05; --warn-line: #8a6d1a; --bad-ground: #3d1513; "
    "--button: #1f6feb; --field: #6e7681; color-scheme: dark;"
)
"""Colors of the dark theme; those of the light one are in style.css."""
DARK_BUTTONS = "--q-primary: #3f86da !important; --q-negative: #e5534b !important; --q-positive: #3a9d6e !important;"
"""Colors of NiceGUI's buttons in the dark theme, readable as text on the page and as a ground for white text."""
THEMES = ("", "dark", "light")
"""Names of the themes; "" follows the system."""
PATIENCE = 0.3
"""Seconds after which a page that is still being read appears without its contents."""
THEME_COOKIE = "hardwon_theme"
_SWITCH_BUTTONS = ".light-system { display: none; } .dark-system { display: inline-block; }"
"""Style of the two buttons of `_render_theme` if the system is dark."""


def build_style(theme: str) -> str:
    """Return the style sheet of a theme.

    The server writes the chosen theme into the page, so no script runs and no page flashes in the other colors.
    """
    dark = f":root {{ {DARK} }} body {{ {DARK_BUTTONS} }}"
    in_dark_system = "@media (prefers-color-scheme: dark)"
    buttons = f".dark-system {{ display: none; }} {in_dark_system} {{ {_SWITCH_BUTTONS} }}"
    return STYLE + buttons + {"dark": dark, "light": ""}.get(theme, f"{in_dark_system} {{ {dark} }}")


def read_theme(request: Request) -> str:
    """Return the theme that the visitor chose; "" for the theme of the system."""
    chosen = request.cookies.get(THEME_COOKIE, "")
    return chosen if chosen in THEMES else ""


class Room:
    """The library as one visitor sees it."""

    def __init__(self, api: FastAPI, caller: Caller, namespace: str, *, theme: str = "", address: str = "/") -> None:
        self.api = api
        self.caller = caller
        self.namespace = namespace
        self.names: list[str] = []
        self.theme = theme
        self.address = address
        """The path and the query of this page."""

    @property
    def may_write(self) -> bool:
        """Return whether the visitor may change this namespace."""
        return not self.api.state.shelf.read_only and self.caller.may(self.namespace, "write")

    async def read(self, what: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a function with the library in a thread and return its result."""

        def reading() -> T:
            self._check_token()
            self.caller.must(self.namespace, "log")
            self.names = [n for n in self.api.state.shelf.names() if self.caller.may(n, "log")]
            with self.api.state.shelf.reading(self.namespace) as library:
                return what(library, *args, **options)

        return await run_in_threadpool(reading)

    async def write(self, what: Callable[[ExperienceLibrary], T]) -> T:
        """Call a function that changes the library in a thread and return its result."""

        def writing() -> T:
            # Checked again on every call: a page can stay open for days after its token was revoked.
            self._check_token()
            self.caller.must(self.namespace, "write")
            with self.api.state.shelf.reading(self.namespace) as library:
                return what(library)

        return await run_in_threadpool(writing)

    def _check_token(self) -> None:
        """Raise LibraryForbidden if the token was revoked after the page was opened."""
        if self.caller not in self.api.state.tokens:
            has_token = self.caller is not LOCAL
            what = f"the token {self.caller.name!r} was revoked" if has_token else "the library has tokens now"
            raise LibraryForbidden(f"{what}. Log in with a token.")

    def link(self, path: str, **query: Any) -> str:
        """Return the address of a page in this namespace."""
        parameters = {name: value for name, value in query.items() if value not in (None, "", [])}
        if self.namespace != "default":
            parameters["namespace"] = self.namespace
        return quote(path) + (f"?{urlencode(parameters, doseq=True)}" if parameters else "")


def page(api: FastAPI, path: str) -> Callable[[Callable[..., Awaitable[None]]], None]:
    """Register a function as a page."""

    def register(build: Callable[..., Awaitable[None]]) -> None:
        async def built(request: Request, namespace: str | None = None, **parameters: Any) -> Response | None:
            caller: Caller = request.state.caller
            address = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            initial: str = await run_in_threadpool(_choose_namespace, caller, api.state.shelf.names, namespace or "")
            room = Room(api, caller, initial, theme=read_theme(request), address=address)
            return await _build(build, room, parameters)

        # FastAPI reads the query parameters of a page from its signature: combine both signatures.
        page_parameters = list(signature(build).parameters.values())[1:]
        own = list(signature(built).parameters.values())[:2]
        built.__signature__ = signature(built).replace(  # type: ignore[attr-defined]
            parameters=[p.replace(kind=p.KEYWORD_ONLY) for p in (*own, *page_parameters)], return_annotation=Any
        )
        # Time limit, in seconds, to build a page; the first search of a process may load a model.
        ui.page(path, response_timeout=60.0)(built)

    return register


async def _build(build: Callable[..., Awaitable[None]], room: "Room", parameters: Mapping[str, Any]) -> Response | None:
    """Build a page; return an error page if it cannot be built, also because of a damaged row, or None."""
    try:
        with readable("LIBRARY"):
            await build(room, **parameters)
    except HardwonError as error:
        return _render_error(status_of(error), str(error), room.theme)
    return None


def _choose_namespace(caller: Caller, list_all: Callable[[], list[str]], wanted: str = "") -> str:
    """Return the namespace that a visitor wants, else the default one, or the first that the visitor may see."""
    names = list(caller.namespaces or ())
    with suppress(HardwonError):  # the page says what is wrong with the library
        names = names or ([] if wanted else list_all())
    return wanted or ("default" if not names or "default" in names else names[0])


def add_error_pages() -> None:
    """Replace NiceGUI's answers to unknown paths and wrong parameters by pages in the visitor's colors."""

    async def render_unknown(request: Request, error: Exception) -> Response:
        # Files of NiceGUI that do not exist reach this handler, too; only a browser's address bar shows the page.
        return _render_error(404, f"there is no page {request.url.path!r:.200}.", read_theme(request))

    async def render_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # registered for nothing else
        return _render_error(422, " ".join(map(sentence, error.errors()[:5])), read_theme(request))

    pages.add_exception_handler(404, render_unknown)
    pages.add_exception_handler(RequestValidationError, render_invalid)


def _render_error(status: int, words: str, theme: str) -> Response:
    title = "Not found" if status == 404 else "Request failed"
    names, mark, existing = words.partition(" There are: ")
    # A person finds a lesson or an episode in the lists, not among twenty ids.
    text = names if len(existing) > 200 else names + mark + existing
    page = plain_page(title, tag("p", text[:1].upper() + text[1:]), theme=theme, top=_render_top(str))
    return HTMLResponse(page, status_code=status)


def _render_top(link: Callable[[str], str], current: str = "", *fields: Html) -> Html:
    """Return the top of a page: links to the lists and the search field, and further fields."""
    links = [
        tag("a", name, href=link(path), aria_current="page" if path == current else None)
        for path, name in PAGES.items()
    ]
    nav = tag("nav", *links, aria_label="Pages")
    return tag("header", tag("div", tag("strong", "hardwon"), nav, *(fields or [_render_search()])), class_="top")


def plain_page(title: str, *contents: Any, theme: str = "", top: str = "") -> str:
    """Return a page without a connection to the server, for the login and for errors."""
    return "<!doctype html>" + tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", f"{title} · hardwon"),
            # An empty icon, so that browsers do not request /favicon.ico.
            tag("link", rel="icon", href="data:,"),
            tag("style", Html(build_style(theme))),
        ),
        tag("body", Html(top), tag("main", tag("h1", title), *contents, class_="page")),
        lang="en",
    )


@contextmanager
def framed(room: Room, title: str, current: str = "") -> Iterator[None]:
    """Add the head of a page and open its main part."""
    ui.page_title(f"{title} · hardwon")
    ui.add_css(build_style(room.theme))
    ui.colors(primary=ACCENT)
    ui.dark_mode({"dark": True, "light": False}.get(room.theme))  # None follows the system
    html(tag("a", "Skip to the content", href="#main", class_="skip"))
    fields = _render_search(room.namespace), _render_namespaces(room, current), _render_theme(room)
    html(_render_top(room.link, current, *fields))
    with ui.element("div").classes("page").props('id=main tabindex="-1"'):
        html(tag("h1", linked(title)))
        yield


async def show(
    room: Room, title: str, current: str, read: Callable[[ExperienceLibrary], T], render: Callable[[T], None]
) -> None:
    """Add what was read to a page. A page that takes longer than a moment says so, and is filled in later."""
    task = asyncio.create_task(room.read(read))
    await asyncio.wait([task], timeout=PATIENCE)
    contents = await task if task.done() else None  # an error of the library is a page of its own
    with framed(room, title, current):
        if contents is not None:
            render(contents)
            return
        place = ui.element("div").classes("filled")
        with place:
            html(tag("p", "Reading the library …", class_="soft", role="status"))

        async def fill() -> None:
            try:
                contents, problem = await task, ""
            except HardwonError as error:
                contents, problem = None, str(error)
            place.clear()
            with place:
                if contents is not None:
                    render(contents)
                else:
                    html(tag("p", problem[:1].upper() + problem[1:], role="alert"))

        ui.timer(0.05, fill, once=True)


def filters(room: Room, path: str, *fields: Html) -> Html:
    """Return a filter form. It submits a plain address, so it works without scripts and can be bookmarked."""
    # Browsers drop the query of a GET form's action, so the namespace must be a field.
    hidden = [tag("input", type="hidden", name="namespace", value=room.namespace)] * (room.namespace != "default")
    find = tag("button", "Find", class_="plain")
    return tag("form", *fields, *hidden, find, method="get", action=path, class_="filters", role="search")


def _render_search(namespace: str = "default") -> Html:
    """Return the search field over lessons, episodes and steps."""
    hidden = tag("input", type="hidden", name="namespace", value=namespace)
    return tag(
        "form",
        tag("input", name="text", type="search", placeholder="Search everything", aria_label="Search everything"),
        *([hidden] if namespace != "default" else []),
        tag("button", "Search", class_="plain"),
        method="get",
        action="/search",
        role="search",
        class_="search",
    )


def _render_theme(room: Room) -> Html:
    """Return the button that switches between dark and light colors.

    Only the browser knows the colors of the system, so there is a button for each case, and the style hides one.
    Whoever chooses the colors of the system follows it again.
    """
    buttons = []
    for system, other in (("light", "dark"), ("dark", "light")):
        wanted = other if room.theme in ("", system) else system
        value = "" if wanted == system else wanted
        words = f"{wanted.capitalize()} colors"
        buttons.append(tag("button", words, name="theme", value=value, class_=f"quiet {system}-system"))
    return tag(
        "form",
        tag("input", type="hidden", name="next", value=room.address),
        *buttons,
        method="post",
        action="/theme",
        class_="theme",
    )


def _render_namespaces(room: Room, current: str) -> Html:
    """Return a form to select the namespace; empty if there is only one."""
    if len(room.names) < 2:
        return Html("")
    options = [tag("option", name, value=name, selected=name == room.namespace) for name in room.names]
    return tag(
        "form",
        tag("label", "Namespace", for_="namespace"),
        tag("select", *options, name="namespace", id="namespace"),
        tag("button", "Go", class_="quiet"),
        method="get",
        action=current or "/",
        class_="namespaces",
    )


def html(content: str) -> ui.html:
    """Add HTML from `markup`, which escapes text when it builds tags."""
    return ui.html(content, sanitize=False)


def show_error(error: Exception) -> None:
    """Show an error without leaving the page."""
    ui.notify(str(error), type="negative", multi_line=True, close_button="Close", timeout=0)
