"""Items: found by filters, words or meaning; one of them: why it exists, how it fared, and what a person may do."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import FastAPI, Query
from nicegui import ui

from hardwon.apps.render.views import (
    EFFECTS,
    build_effect_rows,
    describe_item,
    format_blocks,
    format_changes,
    format_estimates,
    format_failures,
    format_probation,
    format_unused,
    format_usefulness,
)
from hardwon.apps.shared import editing, explain, lists
from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.errors import HardwonError
from hardwon.memory.records import KINDS, SOURCES

from .frame import Room, framed, html, page, told
from .markup import Html, Link, join, linked, pager, pairs, section, table, tag

PAGE = 25
HITS = 50
"""Items that a search finds at most."""
WAYS = {"words": "all these words", "hybrid": "words and meaning", "dense": "meaning", "text": "rare words first"}
"""How the text of the filter is looked for; all but the first rank by nearness."""


def add(api: FastAPI) -> None:
    """The list of items, and a page for each."""

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
        found, total = await room.read(_found, offset, **query)
        used = await room.read(lists.count_uses, found)
        with framed(room, "Items", "/items"):
            html(section("Find", _filters(room, query)))
            listed = _listed(found, used, room.link)
            html(section(f"{total} items", listed, pager(room.link, "/items", total, PAGE, offset, query)))

    @page(api, "/items/{item_id}")
    async def item(room: Room, item_id: str) -> None:
        told_of = await room.read(explain.explain_item, item_id)
        with framed(room, told_of["title"], "/items"):
            html(_badges(told_of))
            if room.may_write:
                _actions(room, told_of)
            html(section("What it says", pairs(describe_item(told_of), room.link)))
            html(section("Why it exists", *_evidence(told_of, room.link)))
            html(section("Effect", *_fared(told_of)))
            html(section("History", _history(told_of["history"], room.link)))


def _found(
    library: ExperienceLibrary, offset: int, *, text: str, how: str, kind: str, status: str, source: str, sort: str
) -> lists.Found:
    """A page of items: the nearest, of those in use, or all that have the words, whatever became of them."""
    kinds = [kind] if kind else None
    if text.strip() and how != "words" and status in ("active", "all"):
        hits = lists.search(library, text, HITS, how=how, among="items", kinds=kinds)
        found = [hit.what for hit in hits if isinstance(hit.what, Item) and source in ("", hit.what.source)]
        return found[offset : offset + PAGE], len(found)
    return lists.list_items(
        library, kinds, status=status, source=source or None, sort=sort, text=text or None, limit=PAGE, offset=offset
    )


def _filters(room: Room, query: Mapping[str, str]) -> Html:
    """A form that makes an address: it works without scripts, and can be kept."""

    def choice(name: str, label: str, options: Mapping[str, str]) -> Html:
        written = [tag("option", words, value=value, selected=value == query[name]) for value, words in options.items()]
        return tag("label", label, tag("select", *written, name=name))

    def plain(*names: str, every: str = "") -> dict[str, str]:
        return ({"": every} if every else {}) | {name: name for name in names}

    hidden = tag("input", type="hidden", name="namespace", value=room.namespace)
    return tag(
        "form",
        tag("label", "Text", tag("input", name="text", value=query["text"], type="search"), class_="long"),
        choice("how", "Found by", WAYS),
        choice("kind", "Kind", plain(*KINDS, every="every kind")),
        choice("status", "Status", plain("active", "quarantined", "retired", "all")),
        choice("source", "Source", plain(*SOURCES, every="any")),
        choice("sort", "Order", plain("score", "confidence", "new", "old", "used")),
        *([hidden] if room.namespace != "default" else []),
        tag("button", "Find", class_="plain"),
        method="get",
        action="/items",
        class_="filters",
        role="search",
    )


def _listed(found: Sequence[Item], used: Sequence[int], link: Link) -> Html:
    rows = [
        (
            tag(
                "span",
                tag("a", linked(item.title), href=link(f"/items/{item.id}")),
                tag("br"),
                tag("span", item.id, class_="under code"),
                class_="says",
            ),
            item.kind,
            item.score,
            item.confidence,
            count,
            _marks(item.status, item.trust, item.pinned),
        )
        for item, count in zip(found, used, strict=True)
    ]
    head = ("item", "kind", "score", "confidence", "used", "state")
    return table(head, rows, caption="Items", numbers=head[2:5], empty="No item is like this.")


def _marks(status: str, trust: str, pinned: bool) -> Html:
    marks = [tag("span", status, class_="badge warn" if status == "quarantined" else "badge")]
    if trust != "trusted":
        marks.append(tag("span", trust, class_="badge warn"))
    if pinned:
        marks.append(tag("span", "pinned", class_="badge"))
    return join(part for mark in marks for part in (mark, " "))


def _badges(item: Mapping[str, Any]) -> Html:
    kind = tag("span", item["kind"], class_="badge")
    return tag(
        "p", kind, " ", _marks(item["status"], item["trust"], item["pinned"]), tag("span", item["id"], class_="code")
    )


def _evidence(item: Mapping[str, Any], link: Link) -> Iterator[Html]:
    steps = item["evidence"]
    if not steps:
        yield tag("p", f"Written by {item['writer']} ({item['source']}), without steps as evidence.")
        return
    if item.get("failures"):
        yield tag("p", format_failures(item["failures"]))
    yield tag("p", f"Made by {item['writer']} of {len(steps)} steps. The newest:", class_="soft")
    head = ("step", "where", "did", "then", "return", "in episode")
    yield table(
        head,
        [
            (
                linked(f"step:{step['id']}", link),
                step["location"] or "-",
                tag("code", step["action"]),
                tag("span", step["happened"][:300], class_="says"),
                step["return_to_go"],
                tag("a", step["episode"][:8], href=link(f"/episodes/{step['episode']}", t=step["t"]), class_="code"),
            )
            for step in steps[:-11:-1]
        ],
        caption="Evidence",
        numbers=("return",),
    )


def _fared(item: Mapping[str, Any]) -> Iterator[Html]:
    if item.get("estimated"):
        yield tag("p", format_estimates(item["estimated"]))
    if not item["fared"]:
        yield tag("p", format_unused(item["kind"]), class_="soft")
        return
    head = ("use", "arm", "steps", "episodes", "succeeded", "control mean")
    rows = [(r["mode"], r["arm"], r["steps"], r["episodes"], r["succeeded"], r["control_mean"]) for r in item["fared"]]
    yield table(head, rows, caption="Use by arm", numbers=head[2:])
    if "guarded" in item:
        yield tag("p", format_blocks(item["guarded"]))
        yield tag("p", format_probation(item["probation"]))
    yield tag("p", format_usefulness(item["usefulness"]))
    if item["effects"]:
        yield table(EFFECTS, build_effect_rows(item["effects"]), caption="Effect by world", numbers=EFFECTS[1:4])


def _history(changes: Sequence[Mapping[str, Any]], link: Link) -> Html:
    rows, before = [], dict[str, Any]()
    for change in changes:
        said = linked(format_changes(before, change["detail"]) or "-", link)
        at = change["at"][:19].replace("T", " ")
        rows.append((tag("span", at, class_="date"), change["op"], tag("span", said, class_="says")))
        before |= change["detail"]
    return table(("at (UTC)", "what", "changed"), rows[::-1], caption="History, the newest first")


# -- what a person may do -----------------------------------------------------------------------------


def _actions(room: Room, item: Mapping[str, Any]) -> None:
    """Buttons; each does what the command of `hardwon memory` does, and shows the page anew."""
    ref = item["id"]

    async def do(what: Callable[[ExperienceLibrary], Any]) -> None:
        try:
            await room.write(what)
        except HardwonError as error:
            told(error)
        else:
            ui.navigate.reload()

    with ui.element("div").classes("actions").props('role="group" aria-label="Change this item"'):
        pinned = item["pinned"]
        ui.button("Unpin" if pinned else "Pin", on_click=lambda: do(lambda it: it.pin(ref, not pinned))).props(
            "outline"
        )
        ui.button("Edit", on_click=_editor(item, do).open).props("outline")
        ui.button("Undo", on_click=lambda: do(lambda it: it.undo(ref))).props("outline")
        if item["status"] == "quarantined":
            release = _asked("Release from quarantine", lambda why: do(lambda it: it.release(ref, why)))
            ui.button("Release", on_click=release.open).props("outline color=positive")
        if item["status"] != "retired":
            retire = _asked("Retire this item", lambda why: do(lambda it: it.retire(ref, why)))
            ui.button("Retire", on_click=retire.open).props("outline color=negative")


def _asked(title: str, then: Callable[[str], Any]) -> ui.dialog:
    """A dialog that asks for the reason."""
    with ui.dialog().props(f'aria-label="{title}"') as dialog, ui.card():
        html(tag("h2", title))
        why = ui.input("Reason, kept in the history").props("autofocus outlined").style("width: min(420px, 75vw)")

        async def go() -> None:
            if reason := (why.value or "").strip():
                await then(reason)
            else:
                ui.notify("Give a reason in a few words.", type="warning")

        with ui.element("div").classes("actions"):
            ui.button(title, on_click=go)
            ui.button("Cancel", on_click=dialog.close).props("flat")
    return dialog


def _editor(item: Mapping[str, Any], do: Callable[[Callable[[ExperienceLibrary], Any]], Any]) -> ui.dialog:
    """A dialog with the fields that a person may write, as JSON; a value that cannot be is refused."""
    fields = {name: item[name] for name in editing.FIELDS}
    with ui.dialog().props('aria-label="Edit this item"') as dialog, ui.card().style("width: min(760px, 92vw)"):
        html(tag("h2", "Edit this item"))
        text = ui.textarea("Its fields, as JSON", value=json.dumps(fields, indent=2, ensure_ascii=False))
        text.props("outlined autogrow input-class=code").style("width: 100%; max-height: 60vh; overflow-y: auto")

        async def save() -> None:
            await do(lambda library: _edited(library, item["id"], text.value or ""))

        with ui.element("div").classes("actions"):
            ui.button("Save", on_click=save)
            ui.button("Cancel", on_click=dialog.close).props("flat")
    return dialog


def _edited(library: ExperienceLibrary, ref: str, text: str) -> None:
    item = library.get(ref)
    known = json.loads(json.dumps(asdict(item)))
    given = editing.parse_fields(text, "what you wrote")
    changes = editing.check_changes(item, {k: v for k, v in given.items() if k not in known or v != known[k]})
    if changes:
        library.update(ref, **changes)
