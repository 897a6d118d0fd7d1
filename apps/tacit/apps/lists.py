"""Lists of what a library holds, and the tables they are printed as."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from rich.table import Table

from tacit.memory import ExperienceLibrary, Hit, Item
from tacit.memory.errors import UnknownName
from tacit.memory.records import Kind

from .doors import excerpt, table

_STATUS = {"active": "active", "retired": "retired", "all": None}
_HOW = ("hybrid", "dense", "text")


def known_status(status: str) -> str | None:
    """The status to filter by; None for all. Raises UnknownName."""
    if status not in _STATUS:
        raise UnknownName.of("status", status, _STATUS)
    return _STATUS[status]


def items(
    library: ExperienceLibrary, kinds: Sequence[str] | None, status: str, sort: str, limit: int, offset: int
) -> list[Item]:
    """Items, filtered and sorted. Raises UnknownName for a kind, status or order that does not exist."""
    wanted = cast("Sequence[Kind] | None", kinds or None)
    return library.items(wanted, status=known_status(status), sort=sort, limit=limit, offset=offset)  # type: ignore[arg-type]


def episodes(library: ExperienceLibrary, limit: int, offset: int) -> list[dict[str, Any]]:
    """Episodes, newest first; `success` is true, false, or null for an excluded one."""
    rows = library.trajectories(limit=limit, offset=offset)
    return [{**row, "success": None if row["success"] is None else bool(row["success"])} for row in rows]


def search(library: ExperienceLibrary, text: str, k: int, how: str) -> list[Hit]:
    """Items and steps that speak of a text. Raises UnknownName for another way to search."""
    if how not in _HOW:
        raise UnknownName.of("way to search", how, _HOW)
    return library.search(text, k, how=how)  # type: ignore[arg-type]


def item_table(found: Sequence[Item]) -> Table:
    """A row an item."""
    rows = [
        (
            item.id,
            f"{item.kind}{'' if item.status == 'active' else ' (retired)'}",
            item.score,
            item.confidence,
            _said(item),
        )
        for item in found
    ]
    return table("id", "kind", "score", "trust", "says", rows=rows, numbers=("score", "trust"), whole=("id",))


def _said(item: Item) -> str:
    return excerpt(f"{item.title}. {item.body}" if item.body else item.title, 240)


def episode_table(found: Sequence[Mapping[str, Any]]) -> Table:
    """A row an episode."""
    rows = [
        (row["id"], row["ending"], row["score"], row["n_steps"], row["arm"], row["seed"], excerpt(row["task"], 80))
        for row in found
    ]
    return table(
        "id", "ending", "score", "steps", "arm", "seed", "task",
        rows=rows, numbers=("score", "steps", "seed"), whole=("id",),
    )  # fmt: skip


def hit_table(hits: Sequence[Hit]) -> Table:
    """A row a hit: how near, what it is, and why it was found."""
    rows = []
    for hit in hits:
        if isinstance(hit.what, Item):
            rows.append((hit.similarity, hit.why, hit.what.id, f"{hit.what.kind}: {_said(hit.what)}"))
        else:
            step = hit.what
            did = f"`{step.action}` (return {step.return_to_go or 0:.2f}) after: {excerpt(step.pre.observation)}"
            rows.append((hit.similarity, hit.why, f"step:{step.id}", did))
    return table("near", "by", "id", "says", rows=rows, numbers=("near",), whole=("id",))


def guardrail_table(found: Sequence[Mapping[str, Any]]) -> Table:
    """A row a guardrail."""
    rows = [
        (
            row["id"],
            row["evidence"],
            row["confidence"],
            row["blocked"],
            f"do not `{row['forbids']}`: {row['when']}. {row['because']}",
        )
        for row in found
    ]
    return table(
        "id", "evidence", "trust", "blocked", "says",
        rows=rows, numbers=("evidence", "trust", "blocked"), whole=("id",),
    )  # fmt: skip


def cluster_table(found: Sequence[Mapping[str, Any]]) -> Table:
    """A row a situation."""
    rows = [
        (
            row["signature"],
            row["states"],
            row["steps"],
            row["failed"],
            row["mean_return"],
            _best(row),
            excerpt(row["example"], 120),
        )
        for row in found
    ]
    return table(
        "signature", "states", "steps", "failed", "return", "pays best", "for example",
        rows=rows, numbers=("states", "steps", "failed", "return"), whole=("signature",),
    )  # fmt: skip


def _best(row: Mapping[str, Any]) -> str:
    best = row["best_action"]
    return f"`{best['action']}` {best['mean_return']:.2f} (n={best['steps']})" if best else "-"
