"""What every page stands in: who looks, at which namespace, the way to the other pages, and what goes wrong.

A page is a function from a `Room` and the address's parameters to elements. What it reads of the library it
reads in a thread, so that one slow page keeps nobody waiting.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse
from nicegui import ui

from hardwon.apps.http.access.auth import LOCAL, Caller
from hardwon.apps.http.access.problems import status_of
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import HardwonError, LibraryForbidden

from .markup import Html, linked, tag

T = TypeVar("T")

ACCENT = "#0b5cad"
"""Of links and buttons; dark enough for small print."""

PATIENCE_S = 60.0
"""For a page to be made: the first search of a process may load a model."""
PAGES = {"/": "Overview", "/items": "Items", "/map": "Map", "/episodes": "Episodes", "/runs": "Runs"}
STYLE = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")


class Room:
    """The library as one visitor sees it."""

    def __init__(self, api: FastAPI, caller: Caller, namespace: str) -> None:
        self.api = api
        self.caller = caller
        self.namespace = namespace
        self.names: list[str] = []

    @property
    def may_write(self) -> bool:
        """Whether this visitor may change something here."""
        return not self.api.state.shelf.read_only and self.caller.may(self.namespace, "write")

    async def read(self, what: Callable[..., T], *args: Any, **options: Any) -> T:
        """What a function makes of the library, in a thread."""

        def reading() -> T:
            self._must_be_known()
            self.caller.must(self.namespace, "read")
            self.names = [n for n in self.api.state.shelf.names() if self.caller.may(n, "read")]
            with self.api.state.shelf.reading(self.namespace) as library:
                return what(library, *args, **options)

        return await run_in_threadpool(reading)

    async def write(self, what: Callable[[ExperienceLibrary], T]) -> T:
        """The same for a function that changes the library; a token that was revoked meanwhile may not."""

        def writing() -> T:
            self._must_be_known()
            self.caller.must(self.namespace, "write")
            with self.api.state.shelf.reading(self.namespace) as library:
                return what(library)

        return await run_in_threadpool(writing)

    def _must_be_known(self) -> None:
        """Raise LibraryForbidden for a page that was open when its token was revoked."""
        if self.caller not in self.api.state.tokens:
            known = self.caller is not LOCAL
            what = f"the token {self.caller.name!r} was revoked" if known else "the library has tokens now"
            raise LibraryForbidden(f"{what}. Log in with a token.")

    def link(self, path: str, **query: Any) -> str:
        """The address of a page in this namespace."""
        known = {name: value for name, value in query.items() if value not in (None, "", [])}
        if self.namespace != "default":
            known["namespace"] = self.namespace
        return quote(path) + (f"?{urlencode(known, doseq=True)}" if known else "")


def page(api: FastAPI, path: str) -> Callable[[Callable[..., Awaitable[None]]], None]:
    """Make a page of a function whose first parameter is the room; `namespace` is taken from the address."""

    def register(build: Callable[..., Awaitable[None]]) -> None:
        async def built(request: Request, namespace: str | None = None, **parameters: Any) -> Response | None:
            caller: Caller = request.state.caller
            try:
                await build(Room(api, caller, namespace or _first(caller)), **parameters)
            except HardwonError as error:
                return _gone_wrong(status_of(error), str(error))
            return None

        known = list(signature(build).parameters.values())[1:]
        own = list(signature(built).parameters.values())[:2]
        built.__signature__ = signature(built).replace(  # type: ignore[attr-defined]
            parameters=[p.replace(kind=p.KEYWORD_ONLY) for p in (*own, *known)], return_annotation=Any
        )
        ui.page(path, response_timeout=PATIENCE_S)(built)

    return register


def _first(caller: Caller) -> str:
    """The namespace that a visitor sees who asks for none: the default one, or the first that is theirs."""
    names = caller.namespaces
    return "default" if not names or "default" in names else names[0]


def _gone_wrong(status: int, words: str) -> Response:
    return HTMLResponse(
        plain_page("Not found" if status == 404 else "That did not work", tag("p", words)), status_code=status
    )


def plain_page(title: str, *contents: Any) -> str:
    """A page without a connection to the server: the login, and what is not there."""
    return "<!doctype html>" + tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", f"{title} · hardwon"),
            tag("link", rel="icon", href="data:,"),
            tag("style", Html(STYLE)),
        ),
        tag("body", tag("main", tag("h1", title), *contents, tag("p", tag("a", "Overview", href="/")), class_="page")),
        lang="en",
    )


@contextmanager
def framed(room: Room, title: str, here: str = "") -> Iterator[None]:
    """The head of a page, and its main part to be filled."""
    ui.page_title(f"{title} · hardwon")
    ui.add_css(STYLE)
    ui.colors(primary=ACCENT)
    html(tag("a", "Skip to the content", href="#main", class_="skip"))
    html(
        tag(
            "header",
            tag(
                "div",
                tag("strong", "hardwon"),
                tag(
                    "nav",
                    *(
                        tag("a", name, href=room.link(path), aria_current="page" if path == here else None)
                        for path, name in PAGES.items()
                    ),
                    aria_label="Pages",
                ),
                _namespaces(room),
            ),
            class_="top",
        )
    )
    with ui.element("div").classes("page").props('id=main tabindex="-1"'):
        html(tag("h1", linked(title)))
        yield


def _namespaces(room: Room) -> Html:
    """A choice of the namespace, where there are several."""
    if len(room.names) < 2:
        return Html("")
    options = [tag("option", name, value=name, selected=name == room.namespace) for name in room.names]
    return tag(
        "form",
        tag("label", "Namespace", for_="namespace"),
        tag("select", *options, name="namespace", id="namespace"),
        tag("button", "Go", class_="plain"),
        method="get",
    )


def html(content: str) -> ui.html:
    """HTML of `markup`, which is escaped where it is written."""
    return ui.html(content, sanitize=False)


def told(error: Exception) -> None:
    """Say what went wrong, without leaving the page."""
    ui.notify(str(error), type="negative", multi_line=True, close_button="Close", timeout=0)
