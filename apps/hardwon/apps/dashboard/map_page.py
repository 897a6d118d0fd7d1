"""Define the map of situations, where similar situations are close, and the page of one situation."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from nicegui import ui

from hardwon.apps.render.failures import name_failure
from hardwon.apps.render.views import format_count
from hardwon.apps.shared import explain
from hardwon.apps.shared.common import excerpt
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import UnknownName
from hardwon.memory.situations.titles import fill_holes

from . import charts, figures
from .frame import Room, framed, html, page
from .markup import EMPTY, Html, Link, linked, section, table, tag

LISTED = 25
"""Number of situations in the list below the map."""


def add(api: FastAPI) -> None:
    """Add the map and the page of a situation."""

    @page(api, "/map")
    async def situations(room: Room) -> None:
        rows, points = await room.read(figures.situations)
        with framed(room, "Map of situations", "/map"):
            with ui.element("section"):
                states = sum(row["states"] for row in rows)
                words = _describe_map(len(points), states, len(rows))
                html(tag("p", words) if points else tag("p", EMPTY, class_="empty"))
                if points:
                    ui.echart(
                        charts.situations(points), on_point_click=lambda e: _open_situation(room, e.name)
                    ).classes("chart tall").props(
                        'role="img" aria-label="Map of situations; the list below has the same data"'
                    )
            if points:
                html(section("Situations, most frequent first", _render_list(rows[:LISTED], room.link)))

    @page(api, "/situations/{signature}")
    async def situation(room: Room, signature: str) -> None:
        row = await room.read(_find_situation, signature)
        with framed(room, f"Situation {signature}", "/map"):
            html(section("Example", tag("p", row["example"])))
            html(section("Actions and outcomes", _render_attempts(row["attempts"], room.link)))


def _describe_map(points: int, states: int, situations: int) -> str:
    which = f"the {situations} most frequent" if situations == figures.SITUATIONS else str(situations)
    return (
        f"{points} points represent {states:,} states of {which} situations. States of one situation differ only in "
        "names and numbers; in a library with few situations, a point is a group of similar states. Points with "
        "similar texts are close to each other. Large points are frequent; blue points led to high returns, "
        "orange ones to low returns."
    )


def _open_situation(room: Room, signature: str) -> None:
    ui.navigate.to(room.link(f"/situations/{signature}"))


def _render_list(rows: Sequence[Mapping[str, Any]], link: Link) -> Html:
    head = ("situation", "states", "steps", "failed", "mean return", "best action", "example")
    return table(
        head,
        [
            (
                tag("a", row["signature"], href=link(f"/situations/{row['signature']}"), class_="code"),
                row["states"],
                row["steps"],
                row["failed"],
                row["mean_return"],
                tag("code", row["best_action"]["action"]) if row["best_action"] else "-",
                tag("span", excerpt(row["example"], 110), class_="says soft"),
            )
            for row in rows
        ],
        caption="Situations",
        numbers=head[1:5],
        empty=EMPTY,
    )


def _find_situation(library: ExperienceLibrary, signature: str) -> dict[str, Any]:
    for row in explain.list_clusters(library, figures.SITUATIONS):
        if row["signature"] == signature:
            return row
    raise UnknownName(f"there is no situation {signature!r} among the {figures.SITUATIONS} most frequent.")


def _render_attempts(attempts: Sequence[Mapping[str, Any]], link: Link) -> Html:
    head = ("attempt", "action", "tried", "mean return", "best", "failures")
    return table(
        head,
        [
            (
                linked(f"attempt:{attempt['id']}", link),
                tag("code", fill_holes(attempt["pattern"])),
                attempt["n"],
                attempt["mean_return"],
                linked(f"step:{attempt['best']}", link),
                ", ".join(f"{name_failure(name)} {format_count(n)}" for name, n in attempt["failures"].items())
                or "none",
            )
            for attempt in attempts
        ],
        caption="Attempts",
        numbers=head[2:4],
        empty="No action was tried in it.",
    )
