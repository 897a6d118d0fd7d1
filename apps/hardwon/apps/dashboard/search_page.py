"""Define the search over lessons, steps and episodes, and the button that forgets what was found."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import FastAPI
from nicegui import ui

from hardwon.apps.render.views import describe_end
from hardwon.apps.shared import lists
from hardwon.apps.shared.common import excerpt
from hardwon.memory import ExperienceLibrary, Hit, Item
from hardwon.memory.errors import HardwonError

from .frame import Room, html, page, show, show_error
from .markup import Html, Link, count, linked, section, shorten, table, tag

HITS = 25
"""Largest number of hits of each kind."""


def add(api: FastAPI) -> None:
    """Add the search page."""

    @page(api, "/search")
    async def search(room: Room, text: str = "") -> None:
        wanted = text.strip()

        def render(hits: dict[str, list[Any]]) -> None:
            if not wanted:
                html(section("Search", tag("p", "Type words into the field at the top of the page.")))
                return
            html(section(count(len(hits["items"]), "lesson"), _render_items(hits["items"], room.link)))
            noun = "newest episode" if len(hits["episodes"]) == HITS else "episode"
            html(section(count(len(hits["episodes"]), noun), _render_episodes(hits["episodes"], room.link)))
            html(section(count(len(hits["steps"]), "step"), _render_steps(hits["steps"], room.link)))
            if room.may_write and any(hits.values()):
                _add_forget(room, wanted)

        title = f"Search: {wanted}" if wanted else "Search"
        await show(room, title, "/search", partial(find_everything, text=wanted), render)


def find_everything(library: ExperienceLibrary, text: str) -> dict[str, list[Any]]:
    """Return matches of a text, best first: `items` and `steps` by words or meaning, `episodes` by task, id or end."""
    if not text:
        return {"items": [], "steps": [], "episodes": []}
    words = text.casefold().split()

    def contains(row: Mapping[str, Any]) -> bool:
        content = " ".join(str(row[name]) for name in ("id", "task", "ending", "writer")).casefold()
        return all(word in content for word in words)

    return {
        "items": lists.search(library, text, HITS, among="items"),
        "steps": lists.search(library, text, HITS, among="steps"),
        "episodes": lists.sort_episodes(row for row in library.episodes.find() if contains(row))[:HITS],
    }


def _render_items(hits: Sequence[Hit], link: Link) -> Html:
    rows = [
        (tag("a", linked(hit.what.title), href=link(f"/items/{hit.what.id}")), hit.what.kind, hit.why)
        for hit in hits
        if isinstance(hit.what, Item)
    ]
    return table(("lesson", "kind", "found by"), rows, caption="Lessons found", empty="No lesson matches.")


def _render_episodes(rows: Sequence[Mapping[str, Any]], link: Link) -> Html:
    cells = [
        (
            tag("a", excerpt(row["task"], 110) or shorten(row["id"]), href=link(f"/episodes/{row['id']}")),
            describe_end(row),
            lists.find_moment(row)[:16].replace("T", " "),
        )
        for row in rows
    ]
    head = ("episode", "ended", "at (UTC)")
    return table(head, cells, caption="Episodes found", empty="No episode has all these words in its task or id.")


def _render_steps(hits: Sequence[Hit], link: Link) -> Html:
    rows = [
        (
            linked(f"step:{hit.what.id}", link),
            tag("code", hit.what.action),
            tag("span", excerpt(hit.what.pre.observation, 110), class_="says soft"),
        )
        for hit in hits
        if not isinstance(hit.what, Item)
    ]
    return table(("step", "action", "in the situation"), rows, caption="Steps found", empty="No step matches.")


def _add_forget(room: Room, text: str) -> None:
    """Add the button that forgets every episode and lesson that contains the text."""
    with ui.element("section"):
        html(tag("h2", "Forget"))
        html(tag("p", f"Delete every episode and lesson that contains “{text}” in any field, for good."))
        add_forget_button(room, f"Forget everything with “{excerpt(text, 40)}”", then="/", text=text)


def add_forget_button(room: Room, label: str, *, then: str, **what: Any) -> None:
    """Add a button that counts what would be deleted, asks, and deletes it."""
    with ui.dialog().props(f'aria-label="{label.replace(chr(34), "")}"') as dialog, ui.card():
        html(tag("h2", label))
        counted = html("")

        async def forget() -> None:
            try:
                await room.write(lambda library: library.admin.forget(**what))
            except HardwonError as error:
                show_error(error)
            else:
                ui.navigate.to(room.link(then))

        with ui.element("div").classes("actions"):
            ui.button("Forget for good", on_click=forget).props("color=negative")
            ui.button("Cancel", on_click=dialog.close).props("flat autofocus")

    async def ask() -> None:
        try:
            receipt = await room.write(lambda library: library.admin.forget(**what, dry_run=True))
        except HardwonError as error:
            show_error(error)
            return
        rows = ", ".join(f"{n} {name}" for name, n in receipt.counts.items() if n) or "nothing"
        counted.set_content(tag("p", f"This deletes from the file: {rows}. It cannot be undone."))
        dialog.open()

    with ui.element("div").classes("actions"):
        ui.button(label, on_click=ask).props("outline color=negative")
