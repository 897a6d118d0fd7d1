"""Define the pages of items: a list with filters and search, and a page per item with its evidence and actions."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Query
from nicegui import ui

from hardwon.apps.render.failures import name_failure
from hardwon.apps.render.views import (
    EFFECTS,
    build_effect_rows,
    describe_item,
    format_blocks,
    format_estimates,
    format_failures,
    format_probation,
    format_unused,
    format_usefulness,
    list_changes,
)
from hardwon.apps.shared import editing, explain, lists
from hardwon.apps.shared.common import excerpt
from hardwon.memory import ExperienceLibrary, Failure, Item
from hardwon.memory.errors import HardwonError
from hardwon.memory.records import KINDS, SOURCES

from . import figures
from .frame import Room, filters, framed, html, page, show, show_error
from .lessons import find_examples
from .markup import Html, Link, choice, count, join, linked, pager, pairs, section, shorten, table, tag

PAGE = 25
WORDS = (
    "Score: 0 turns successes into failures, 0.5 is neutral, 1 turns failures into successes. Confidence: how sure it "
    "is that the lesson is right. Episodes: in how many it played a part."
)
WAYS = {"words": "all these words", "hybrid": "words and meaning", "dense": "meaning", "text": "rare words first"}
"""Search modes of the text filter; all but the first rank by similarity."""


def add(api: FastAPI) -> None:
    """Add the list of items and the page of an item."""

    @page(api, "/items")
    async def items(
        room: Room,
        text: str = "",
        how: str = "words",
        kind: str = "",
        status: str = "active",
        source: str = "",
        sort: str = "score",
        offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
    ) -> None:
        query = {"text": text, "how": how, "kind": kind, "status": status, "source": source, "sort": sort}

        def render(contents: tuple[lists.PageRows, Sequence[int], Sequence[str]]) -> None:
            (rows, total), used, examples = contents
            html(section("Find", _render_filters(room, query)))
            is_filtered = any(query[name] for name in ("text", "kind", "source"))
            listed = _render_list(rows, used, examples, room.link, is_filtered=is_filtered)
            words = tag("p", WORDS, class_="soft")
            html(section(count(total, "lesson"), words, listed, pager(room.link, "/items", total, PAGE, offset, query)))

        await show(room, "Lessons", "/items", partial(_read_list, offset=offset, query=query), render)

    @page(api, "/items/{item_id}")
    async def item(room: Room, item_id: str) -> None:
        explanation = await room.read(explain.explain_item, item_id)
        with framed(room, explanation["title"], "/items"):
            html(_render_badges(explanation))
            if room.may_write:
                _add_actions(room, explanation)
            html(section("Content", pairs(describe_item(explanation), room.link)))
            html(section("Why it exists", *_render_evidence(explanation, room.link)))
            html(section("Effect", *_render_effect(explanation)))
            html(section("History", _render_history(explanation["history"], room.link)))


def _read_list(library: ExperienceLibrary, offset: int, query: Mapping[str, str]) -> Any:
    """Return a page of items with the total, how often each was used, and an example of each."""
    rows, total = _find_items(library, offset, query)
    examples = find_examples(library, [item.provenance[0] if item.provenance else None for item in rows])
    return (rows, total), lists.count_uses(library, rows), examples


def _find_items(library: ExperienceLibrary, offset: int, query: Mapping[str, str]) -> lists.PageRows:
    """Return a page of items.

    A search by meaning ranks the best hits; "words" lists all items that contain the words, whatever their status.
    """
    text, how, status, source = query["text"], query["how"], query["status"], query["source"]
    kinds = [query["kind"]] if query["kind"] else None
    if text.strip() and how != "words" and status in ("active", "all"):
        hits = lists.search(library, text, 50, how=how, among="items", kinds=kinds)
        items = [hit.what for hit in hits if isinstance(hit.what, Item) and source in ("", hit.what.source)]
        return items[offset : offset + PAGE], len(items)
    return lists.list_items(
        library,
        kinds,
        status=status,
        source=source or None,
        sort=query["sort"],
        text=text or None,
        limit=PAGE,
        offset=offset,
    )


def _render_filters(room: Room, query: Mapping[str, str]) -> Html:

    def plain(*names: str, every: str = "") -> dict[str, str]:
        return ({"": every} if every else {}) | {name: name for name in names}

    menus = (
        ("how", "Search by", WAYS),
        ("kind", "Kind", plain(*KINDS, every="every kind")),
        ("status", "Status", plain("active", "quarantined", "retired", "all")),
        ("source", "Source", plain(*SOURCES, every="any")),
        ("sort", "Order", plain("score", "confidence", "new", "old", "used")),
    )
    return filters(
        room,
        "/items",
        tag("label", "Text", tag("input", name="text", value=query["text"], type="search"), class_="long"),
        *(choice(name, label, options, query[name]) for name, label, options in menus),
    )


def _render_list(
    items: Sequence[Item], used: Sequence[int], examples: Sequence[str], link: Link, *, is_filtered: bool
) -> Html:
    rows = [
        (
            tag(
                "span",
                tag("a", linked(item.title), href=link(f"/items/{item.id}")),
                tag("br"),
                tag("span", linked(f"Example: {example}"), tag("br"), class_="under") if example else "",
                tag("span", item.id, class_="under code"),
                class_="says",
            ),
            item.kind,
            item.score,
            item.confidence,
            count,
            _render_marks(item.status, item.trust, item.pinned),
        )
        for item, count, example in zip(items, used, examples, strict=True)
    ]
    head = ("lesson", "kind", "score", "confidence", "episodes", "state")
    empty = (
        "No lesson matches." if is_filtered else "No lesson yet. The overview has the line that connects your agent."
    )
    return table(head, rows, caption="Lessons", numbers=head[2:5], empty=empty)


def _render_marks(status: str, trust: str, pinned: bool) -> Html:
    marks = [tag("span", status, class_="badge warn" if status == "quarantined" else "badge")]
    if trust != "trusted":
        marks.append(tag("span", trust, class_="badge warn"))
    if pinned:
        marks.append(tag("span", "pinned", class_="badge"))
    return join(part for mark in marks for part in (mark, " "))


def _render_badges(item: Mapping[str, Any]) -> Html:
    kind = tag("span", item["kind"], class_="badge")
    return tag(
        "p",
        kind,
        " ",
        _render_marks(item["status"], item["trust"], item["pinned"]),
        tag("span", item["id"], class_="code"),
    )


def _render_evidence(item: Mapping[str, Any], link: Link) -> Iterator[Html]:
    steps = item["evidence"]
    if not steps:
        yield tag("p", f"Written by {item['writer']} ({item['source']}), without steps as evidence.")
        return
    if item.get("failures"):
        yield tag("p", format_failures(item["failures"]))
    yield tag("p", f"Created by {item['writer']} from {count(len(steps), 'step')}. The newest:", class_="soft")
    has_places = any(step["location"] for step in steps)
    head = ("step", *(["where"] if has_places else []), "did", "then", "how it went", "return", "in episode")
    yield table(
        head,
        [
            (
                linked(f"step:{step['id']}", link),
                *([step["location"] or "-"] if has_places else []),
                tag("code", step["action"]),
                tag("span", step["happened"][:300], class_="says"),
                tag("span", _format_failure(step), class_="says"),
                step["return_to_go"],
                tag(
                    "a",
                    excerpt(step["task"], 60) or shorten(step["episode"]),
                    href=link(f"/episodes/{step['episode']}", t=step["t"]),
                ),
            )
            # The ten newest, newest first.
            for step in steps[:-11:-1]
        ],
        caption="Evidence",
        numbers=("return",),
    )


def _format_failure(step: Mapping[str, Any]) -> str:
    """Return how a step failed and the words that show it: `the tool reported an error: permission denied`.

    Words that the column before has are not repeated.
    """
    if step["failure"] == Failure.NONE:
        return "it worked"
    words, evidence = name_failure(step["failure"]), step["evidence"][:200]
    return f"{words}: {evidence}" if evidence and evidence not in step["happened"] else words


def _render_effect(item: Mapping[str, Any]) -> Iterator[Html]:
    if item.get("estimated"):
        yield tag("p", format_estimates(item["estimated"]))
    if not item["fared"]:
        yield tag("p", format_unused(item["kind"]), class_="soft")
        return
    head = ("use", "how it played", "steps", "episodes", "succeeded", "mean without")
    counts = ("steps", "episodes", "succeeded", "control_mean")
    rows = [(use["mode"], figures.name_group(use["arm"]), *(use[name] for name in counts)) for use in item["fared"]]
    yield table(head, rows, caption="Uses", numbers=head[2:])
    if "guarded" in item:
        yield tag("p", format_blocks(item["guarded"]))
        yield tag("p", format_probation(item["probation"]))
    yield tag("p", format_usefulness(item["usefulness"]))
    if item["effects"]:
        yield table(EFFECTS, build_effect_rows(item["effects"]), caption="Effect by world", numbers=EFFECTS[1:4])


def _render_history(changes: Sequence[Mapping[str, Any]], link: Link) -> Html:
    rows = []
    for change, fields in list_changes(changes):
        at = change["at"][:19].replace("T", " ")
        text = tag("span", linked(fields or "-", link), class_="says")
        rows.append((tag("span", at, class_="date"), change["op"], text))
    return table(("at (UTC)", "change", "fields"), rows[::-1], caption="History, newest first")


# -- actions of a person -----------------------------------------------------------------------------


def _add_actions(room: Room, item: Mapping[str, Any]) -> None:
    """Add buttons that run the commands of `hardwon memory` and reload the page."""
    ref = item["id"]

    async def do(what: Callable[[ExperienceLibrary], Any]) -> None:
        try:
            await room.write(what)
        except HardwonError as error:
            show_error(error)
        else:
            ui.navigate.reload()

    with ui.element("div").classes("actions").props('role="group" aria-label="Change this item"'):
        pinned = item["pinned"]
        ui.button(
            "Unpin" if pinned else "Pin", on_click=lambda: do(lambda it: it.items.update(ref, pinned=not pinned))
        ).props("outline")
        ui.button("Edit", on_click=_build_editor(item, do).open).props("outline")
        ui.button("Undo", on_click=lambda: do(lambda it: it.items.undo(ref))).props("outline")
        if item["status"] == "quarantined":
            release = _build_reason_dialog(
                "Release from quarantine", lambda why: do(lambda it: it.items.release(ref, why))
            )
            ui.button("Release", on_click=release.open).props("outline color=positive")
        if item["status"] != "retired":
            retire = _build_reason_dialog("Retire this item", lambda why: do(lambda it: it.items.retire(ref, why)))
            ui.button("Retire", on_click=retire.open).props("outline color=negative")


def _build_reason_dialog(title: str, then: Callable[[str], Any]) -> ui.dialog:
    """Return a dialog that asks for the reason of a change."""
    with ui.dialog().props(f'aria-label="{title}"') as dialog, ui.card():
        html(tag("h2", title))
        why = ui.input("Reason, kept in the history").props("autofocus outlined").style("width: min(420px, 75vw)")

        async def go() -> None:
            if reason := (why.value or "").strip():
                await then(reason)
            else:
                ui.notify("Give a short reason.", type="warning")

        with ui.element("div").classes("actions"):
            ui.button(title, on_click=go)
            ui.button("Cancel", on_click=dialog.close).props("flat")
    return dialog


def _build_editor(item: Mapping[str, Any], do: Callable[[Callable[[ExperienceLibrary], Any]], Any]) -> ui.dialog:
    """Return a dialog to edit the fields of an item as JSON; invalid values are rejected."""
    fields = {name: item[name] for name in editing.FIELDS}
    with ui.dialog().props('aria-label="Edit this item"') as dialog, ui.card().style("width: min(760px, 92vw)"):
        html(tag("h2", "Edit this item"))
        text = ui.textarea("Its fields, as JSON", value=json.dumps(fields, indent=2, ensure_ascii=False))
        text.props("outlined autogrow input-class=code").style("width: 100%; max-height: 60vh; overflow-y: auto")

        async def save() -> None:
            await do(lambda library: _save_edits(library, item["id"], text.value or ""))

        with ui.element("div").classes("actions"):
            ui.button("Save", on_click=save)
            ui.button("Cancel", on_click=dialog.close).props("flat")
    return dialog


def _save_edits(library: ExperienceLibrary, ref: str, text: str) -> None:
    item = library.items.get(ref)
    # Compared as JSON, the form in which the dialog returns the fields; unchanged fields are left out.
    current = json.loads(json.dumps(asdict(item)))
    given = editing.parse_fields(text, "the text")
    changes = editing.check_changes(item, {k: v for k, v in given.items() if k not in current or v != current[k]})
    if changes:
        library.items.update(ref, **changes)
