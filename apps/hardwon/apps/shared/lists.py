"""Lists of what a library holds, a page at a time, and how they are printed.

A list is the rows of its page and how many there are in all. On paper a row is a line of figures and
a line of words, cut to the width of the page; `hardwon memory show` has them whole.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from hardwon.memory import ExperienceLibrary, Hit, Item, Step
from hardwon.memory.errors import UnknownName
from hardwon.memory.records import KINDS, SOURCES, Kind

from . import file_queries
from .common import WIDEST, as_text, cell, excerpt

SEARCHED = 400
"""Hits that are looked through where a filter leaves some out."""
_STATUS = {"active": "active", "quarantined": "quarantined", "retired": "retired", "all": None}
_TRUST = ("trusted", "untrusted")
_SORTS = ("score", "confidence", "new", "old", "used")
_HOW = ("hybrid", "dense", "text")
_WHAT = ("items", "steps", "all")

Found = tuple[list[Any], int]
"""The rows of a page, and how many there are in all."""


def known_status(status: str) -> str | None:
    """The status to filter by; None for all. Raises UnknownName."""
    return _STATUS[_known("status", status, tuple(_STATUS))]


def _known(what: str, name: str, names: Sequence[str]) -> str:
    if name not in names:
        raise UnknownName.of(what, name, names)
    return name


def items(
    library: ExperienceLibrary,
    kinds: Sequence[str] | None = None,
    *,
    status: str = "active",
    trust: str | None = None,
    source: str | None = None,
    min_score: float = 0.0,
    sort: str = "score",
    limit: int,
    offset: int = 0,
    **among: str | None,
) -> Found:
    """Items, filtered and sorted. Raises UnknownName for a kind, status, trust, source or order that does not exist.

    `among` are the other filters of `ExperienceLibrary.items`: writer, tag, location, signature, text.
    """
    _known("order", sort, _SORTS)
    if trust is not None:
        _known("trust", trust, _TRUST)
    if source is not None:
        _known("source", source, SOURCES)
    filters = {"status": known_status(status), "trust": trust, "source": source}
    filters |= {name: value if value is None else as_text(value) for name, value in among.items()}
    found = library.items(cast("Sequence[Kind] | None", kinds or None), sort=cast(Any, sort), **cast(Any, filters))
    found = [item for item in found if item.score >= min_score]
    if sort == "used":  # as it is listed: also in estimates
        counts = dict(zip([item.id for item in found], uses(library, found), strict=True))
        found.sort(key=lambda item: -counts[item.id])
    return found[offset : offset + limit], len(found)


def uses(library: ExperienceLibrary, found: Sequence[Item]) -> list[int]:
    """In how many episodes each item was shown, followed, blocked an action, or was part of the estimate of one."""
    held_back = "withheld"
    estimated = estimates(library, found)
    return [
        len(
            {usage["trajectory_id"] for usage in library.usages(item.id) if usage["mode"] != held_back}
            | estimated.get(item.id, set())
        )
        for item in found
    ]


def estimates(library: ExperienceLibrary, found: Sequence[Item]) -> dict[str, set[str]]:
    """Return the episodes in which each strategy was part of the estimate that chose an action, by the item's id."""
    strategies = {item.id: item.provenance for item in found if item.kind == "strategy"}
    if not strategies or not Path(library.path).is_file():
        return {}
    return file_queries.deciding(Path(library.path), library.namespace, strategies)


def episodes(library: ExperienceLibrary, limit: int, offset: int = 0) -> Found:
    """Episodes, newest first; `success` is true, false, or null for an excluded one."""
    rows = library.trajectories()
    page = rows[offset : offset + limit]
    return [{**row, "success": None if row["success"] is None else bool(row["success"])} for row in page], len(rows)


def search(
    library: ExperienceLibrary,
    text: str,
    k: int,
    *,
    how: str = "hybrid",
    among: str = "all",
    kinds: Sequence[str] | None = None,
) -> list[Hit]:
    """Items and steps that speak of a text, or only one of them. Raises UnknownName for what does not exist."""
    _known("way to search", how, _HOW)
    _known("thing to find", among, _WHAT)
    for kind in kinds or ():
        _known("kind of item", kind, KINDS)
    filtered = among != "all" or bool(kinds)
    found = library.search(text, max(k, SEARCHED) if filtered else k, how=cast(Any, how))
    return [hit for hit in found if _wanted(hit.what, among, kinds)][:k]


def _wanted(what: Item | Step, among: str, kinds: Sequence[str] | None) -> bool:
    if isinstance(what, Item):
        return among != "steps" and (not kinds or what.kind in kinds)
    return among != "items" and not kinds


def item_listing(found: Sequence[Item], used: Sequence[int]) -> Group:
    """Two lines an item: its figures, and what it says."""
    rows = [
        (item.id, item.kind, item.score, item.confidence, count, _special(item))
        for item, count in zip(found, used, strict=True)
    ]
    return listing("id", "kind", "score", "conf.", "used", "", rows=rows, says=[_said(item) for item in found])


def _special(item: Item) -> str:
    """What sets an item apart from most."""
    marks = (
        item.status if item.status != "active" else "",
        item.trust if item.trust != "trusted" else "",
        "pinned" if item.pinned else "",
    )
    return ", ".join(filter(None, marks))


def _said(item: Item) -> str:
    return f"{item.title}. {item.body}" if item.body else item.title


def quarantine_listing(found: Sequence[Item]) -> Group:
    """Two lines an item that waits: where it came from, and what it says."""
    rows = [(item.id, item.kind, item.source, item.writer) for item in found]
    return listing("id", "kind", "source", "writer", rows=rows, says=[_said(item) for item in found])


def episode_listing(found: Sequence[Mapping[str, Any]]) -> Group:
    """Two lines an episode: how it went, and its task."""
    rows = [(row["id"], row["ending"], row["score"], row["n_steps"], row["arm"], row["seed"]) for row in found]
    says = [row["task"] for row in found]
    return listing("id", "ending", "score", "steps", "arm", "seed", rows=rows, says=says)


def hit_listing(hits: Sequence[Hit]) -> Group:
    """Two lines a hit: how near it is and why it was found, and what it says."""
    rows: list[tuple[Any, ...]] = []
    says: list[str] = []
    for hit in hits:
        if isinstance(hit.what, Item):
            rows.append((hit.similarity, hit.why, hit.what.id, hit.what.kind))
            says.append(_said(hit.what))
        else:
            rows.append((hit.similarity, hit.why, f"step:{hit.what.id}", "step"))
            says.append(_did(hit.what))
    return listing("near", "by", "id", "kind", rows=rows, says=says)


def _did(step: Step) -> str:
    return f"`{step.action}` (return {step.return_to_go or 0:.2f}) after: {step.pre.observation}"


def guardrail_listing(found: Sequence[Mapping[str, Any]]) -> Group:
    """Two lines a guardrail; `right` is how often what it blocked failed, of the times it was overridden."""
    rows = [
        (row["id"], row["evidence"], row["confidence"], row["blocked"], _right(row), row["precision"], _state(row))
        for row in found
    ]
    says = [f"do not `{row['forbids']}` when {row['when']}. {row['because']}{_causes(row)}" for row in found]
    return listing("id", "evidence", "conf.", "blocked", "right", "precision", "", rows=rows, says=says)


def _causes(row: Mapping[str, Any]) -> str:
    """The first cause of its evidence's failures, and when it is tried next."""
    told = [f" ({one['cause']}: {one['words'][:80]})" for one in row["failures"][:1]]
    after = row["probation"]["next_trial_after_refusals"]
    return "".join(told) + (f"; next trial after {after} refusals" if after is not None else "")


def _right(row: Mapping[str, Any]) -> str | None:
    return f"{row['overridden'] - row['worked']} of {row['overridden']}" if row["overridden"] else None


def _state(row: Mapping[str, Any]) -> str:
    marks = [row["status"]] if row["status"] != "active" else []
    return ", ".join([*marks, *(["pinned"] if row["pinned"] else [])])


def listing(*columns: str, rows: Sequence[Sequence[Any]], says: Sequence[str]) -> Group:
    """Two lines a row: its cells in columns, and a text cut to the width of the page."""
    cells = [[cell(value) for value in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *cells, strict=True)]
    right = [any(isinstance(row[at], int | float) for row in rows) for at in range(len(columns))]

    def line(values: Sequence[str], style: str = "") -> Text:
        padded = [
            " " * (width - cell_len(value)) + value if number else value + " " * (width - cell_len(value))
            for value, width, number in zip(values, widths, right, strict=True)
        ]
        return Text("  ".join(padded).rstrip(), style, no_wrap=True, overflow="ellipsis")

    lines = [line(columns, "bold")]
    for values, said in zip(cells, says, strict=True):
        words = Text(f"    {excerpt(said, WIDEST)}", "dim", no_wrap=True, overflow="ellipsis")
        lines += [line(values), words]
    return Group(*lines)
