"""The map: situations as points, near where they are alike, and the same as a list."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from nicegui import ui

from hardwon.apps.shared import explain
from hardwon.apps.shared.common import excerpt
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import UnknownName

from . import charts, figures
from .frame import Room, framed, html, page
from .markup import Html, Link, linked, section, table, tag

LISTED = 25
"""Situations in the list under the map."""


def add(api: FastAPI) -> None:
    """The map, and the page of one situation."""

    @page(api, "/map")
    async def situations(room: Room) -> None:
        rows, points = await room.read(figures.situations)
        with framed(room, "Map of situations", "/map"):
            with ui.element("section"):
                html(tag("p", _about(len(points), sum(row["states"] for row in rows), len(rows))))
                if points:
                    ui.echart(charts.situations(points), on_point_click=lambda e: _go(room, e.name)).classes(
                        "chart tall"
                    ).props('role="img" aria-label="Map of situations; the list below has the same"')
            html(section("Situations, the most frequent first", _listed(rows[:LISTED], room.link)))

    @page(api, "/situations/{signature}")
    async def situation(room: Room, signature: str) -> None:
        row = await room.read(_one, signature)
        with framed(room, f"Situation {signature}", "/map"):
            html(section("What it looks like", tag("p", row["example"])))
            html(section("What was done there, and what came of it", _attempts(row["attempts"], room.link)))


def _about(points: int, states: int, situations: int) -> str:
    which = f"the {situations} most frequent" if situations == figures.SITUATIONS else str(situations)
    return (
        f"{points} points stand for {states:,} states of {which} situations. States look the same but for names "
        "and numbers within a situation; where there are few situations, a point is a group of states that are alike. "
        "Points lie near one another where the words are alike; large ones were met often, green ones led to high "
        "returns."
    )


def _go(room: Room, signature: str) -> None:
    ui.navigate.to(room.link(f"/situations/{signature}"))


def _listed(rows: Sequence[Mapping[str, Any]], link: Link) -> Html:
    head = ("situation", "states", "steps", "failed", "mean return", "best action", "looks like")
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
        empty="Nothing was recorded yet.",
    )


def _one(library: ExperienceLibrary, signature: str) -> dict[str, Any]:
    for row in explain.list_clusters(library, figures.SITUATIONS):
        if row["signature"] == signature:
            return row
    raise UnknownName(f"there is no situation {signature!r} among the {figures.SITUATIONS} most frequent.")


def _attempts(attempts: Sequence[Mapping[str, Any]], link: Link) -> Html:
    head = ("attempt", "action", "tried", "mean return", "best", "failures")
    return table(
        head,
        [
            (
                linked(f"attempt:{one['id']}", link),
                tag("code", one["pattern"]),
                one["n"],
                one["mean_return"],
                linked(f"step:{one['best']}", link),
                ", ".join(f"{name} {n}" for name, n in one["failures"].items()) or "none",
            )
            for one in attempts
        ],
        caption="Attempts",
        numbers=head[2:4],
        empty="Nothing was tried there.",
    )
