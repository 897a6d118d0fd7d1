"""Define the page of one situation: what was tried in it, and how that went."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI

from hardwon.apps.render.failures import name_failure
from hardwon.apps.render.views import format_count
from hardwon.apps.shared import explain
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import UnknownName
from hardwon.memory.situations.titles import fill_holes

from .frame import Room, framed, html, page
from .markup import Html, Link, linked, section, table, tag

SITUATIONS = 300
"""Number of situations that have a page, the most frequent ones."""


def add(api: FastAPI) -> None:
    """Add the page of a situation."""

    @page(api, "/situations/{signature}")
    async def situation(room: Room, signature: str) -> None:
        row = await room.read(_find_situation, signature)
        with framed(room, f"Situation {signature}", "/episodes"):
            html(section("Example", tag("p", row["example"])))
            html(section("Actions and outcomes", _render_attempts(row["attempts"], room.link)))


def _find_situation(library: ExperienceLibrary, signature: str) -> dict[str, Any]:
    for row in explain.list_clusters(library, SITUATIONS):
        if row["signature"] == signature:
            return row
    raise UnknownName(f"there is no situation {signature!r} among the {SITUATIONS} most frequent.")


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
