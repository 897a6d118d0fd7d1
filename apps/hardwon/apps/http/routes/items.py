"""Routes for items: list, read, add, edit, and follow their effects."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response

from hardwon.apps.shared import editing, explain, lists
from hardwon.apps.shared.general_search import search_general
from hardwon.memory import Admission, Hit, Item
from hardwon.memory.records import Kind, Trust
from hardwon.runtime.guidance.abstraction import abstract_item
from hardwon.runtime.guidance.rendering import Visible

from .bodies import CheckedRoute
from .models import (
    Admissions,
    Count,
    FeedbackTold,
    Hits,
    ItemEffects,
    Items,
    ItemsTold,
    Pinned,
    ReasonAsked,
    Rewriting,
    RowList,
    item_of,
    to_response,
    typed,
)
from .place import At, RequestContext, once

router = APIRouter(prefix="/v1", tags=["items"], route_class=CheckedRoute)

StatusQuery = Literal["active", "quarantined", "retired", "all"]
Sort = Literal["score", "confidence", "new", "old", "used"]
OffsetQuery = Annotated[int, Query(ge=0, le=1_000_000_000)]
KindsQuery = Annotated[list[Kind] | None, Query(alias="kind")]


@router.get("/items", response_model=Items)
def items(
    at: At,
    kind: KindsQuery = None,
    status: StatusQuery = "active",
    trust: Trust | None = None,
    source: str | None = None,
    writer: str | None = None,
    tag: str | None = None,
    location: str | None = None,
    signature: str | None = None,
    text: str | None = None,
    min_score: Annotated[float, Query(ge=0, le=1)] = 0.0,
    sort: Sort = "score",
    limit: Count = 100,
    offset: OffsetQuery = 0,
) -> Response:
    """List items, filtered and sorted. `text` selects items that contain all its words.

    A filter on the words of items needs the right `log`, because its answers would reveal them.
    """
    if any(value is not None for value in (text, tag, location, signature)):
        at.must_read_raw()
    among = {"writer": writer, "tag": tag, "location": location, "signature": signature, "text": text}
    with at.reading() as library:
        records, total = lists.list_items(
            library, kind, status=status, trust=trust, source=source, min_score=min_score, sort=sort,
            limit=limit, offset=offset, **among,
        )  # fmt: skip
    records = [permitted(at, item) for item in records]
    return to_response(Items, Items.model_construct(items=records, total=total))


def permitted(at: RequestContext, item: Item) -> Item:
    """Return an item as the caller may read it: without values of other requests unless it may read the log."""
    return item if at.caller.may(at.namespace, "log") else abstract_item(item, Visible(None))


@router.post("/items", response_model=Admissions)
@once(RequestContext.writing)
def add(body: ItemsTold, at: At) -> Response:
    """Add items in one transaction. The answer has one admission per item, with the reason of a rejection.

    Items are quarantined unless they set `trust: "trusted"`.
    """
    with at.writing() as library:
        return admitted(library.items.add_many([item_of(item, at.caller) for item in body.items]))


def admitted(admissions: Sequence[Admission]) -> Response:
    """Return admissions as JSON."""
    return to_response(Admissions, Admissions.model_construct(admissions=list(admissions)))


@router.post("/items/rewrite", response_model=Admission)
@once(RequestContext.changing)
def rewrite(body: Rewriting, at: At) -> Response:
    """Rewrite several items into one. The first stays, the others retire, and their evidence is merged."""
    with at.changing() as library:
        return to_response(Admission, library.items.merge(body.ids, item_of(body.item, at.caller)))


@router.get("/items/{item_id}", response_model=Item)
def get(item_id: str, at: At) -> Response:
    """Return an item by its id or an unambiguous prefix of it."""
    with at.reading() as library:
        return to_response(Item, permitted(at, library.items.get(item_id)))


@router.patch("/items/{item_id}", response_model=Item)
@once(RequestContext.changing)
def update(item_id: str, changes: dict[str, Any], at: At) -> Response:
    """Change fields of an item. The old values stay in the history. An invalid value rejects the whole change."""
    with at.changing() as library:
        item = library.items.get(item_id)
        return to_response(Item, library.items.update(item.id, **editing.check_changes(item, changes)))


@router.post("/items/{item_id}/pin", response_model=Item)
@once(RequestContext.changing)
def pin(item_id: str, body: Pinned, at: At) -> Response:
    """Protect an item from replacement and eviction, or end the protection."""
    with at.changing() as library:
        return to_response(Item, library.items.update(item_id, pinned=body.pinned))


@router.post("/items/{item_id}/retire", response_model=Item)
@once(RequestContext.changing)
def retire(item_id: str, body: ReasonAsked, at: At) -> Response:
    """Take an item out of use. The item and the reason stay in the history."""
    with at.changing() as library:
        library.items.retire(item_id, body.why)
        return to_response(Item, library.items.get(item_id))


@router.post("/items/{item_id}/release", response_model=Item)
@once(RequestContext.changing)
def release(item_id: str, body: ReasonAsked, at: At) -> Response:
    """Release an item from quarantine. It is trusted from then on."""
    with at.changing() as library:
        return to_response(Item, library.items.release(item_id, body.why))


@router.post("/items/{item_id}/undo", response_model=Item)
@once(RequestContext.changing)
def undo(item_id: str, at: At) -> Response:
    """Undo the last change that is not undone yet."""
    with at.changing() as library:
        return to_response(Item, library.items.undo(item_id))


@router.post("/items/{item_id}/feedback", response_model=Item)
@once(RequestContext.recording)
def feedback(item_id: str, body: FeedbackTold, at: At) -> Response:
    """Report once whether an item helped in an episode. The item's score moves a tenth of the way to 1 or 0."""
    with at.recording() as library:
        # The full id: two prefixes of one id must not count as two episodes.
        episode = library.episodes.get(body.episode).id if body.episode else ""
        trusted = at.trust == "trusted"
        moved = at.feedback.give(
            library, item_id, body.helped, client=at.caller.id, episode=episode, trusted=trusted, writer=at.writer
        )
    # A token that may only record must not read the item through the answer.
    if at.caller.may(at.namespace, "read"):
        return to_response(Item, permitted(at, moved))
    return Response(status_code=204)


@router.get("/items/{item_id}/history", response_model=RowList)
def history(item_id: str, at: At) -> Response:
    """Return every change of an item, oldest first."""
    with at.logging() as library:
        return rows(library.items.history(item_id))


@router.get("/items/{item_id}/usages", response_model=RowList)
def usages(item_id: str, at: At) -> Response:
    """Return every use of an item: the agent, the time, the arm, and the outcome of the episode."""
    with at.reading() as library:
        return rows(library.items.usages(item_id))


@router.get("/items/{item_id}/effects", response_model=ItemEffects)
def effects(item_id: str, at: At) -> Response:
    """Return the effect of showing an item in each world, and whether the item is masked there."""
    with at.reading() as library:
        return to_response(ItemEffects, ItemEffects.model_construct(effects=library.items.effects(item_id)))


@router.get("/items/{item_id}/usefulness", response_model=dict[str, Any])
def usefulness(item_id: str, at: At) -> Response:
    """Estimate the benefit of an item from randomized withholding, with a 95% interval."""
    with at.reading() as library:
        return to_response(dict[str, Any], library.items.usefulness(item_id))


@router.get("/guardrails", response_model=RowList)
def guardrails(at: At, status: StatusQuery = "active", limit: Count = 100, offset: OffsetQuery = 0) -> Response:
    """List guardrails with their conditions, evidence, number of blocks, and precision."""
    parsed_status = lists.parse_status(status)
    with at.logging() as library:
        records = explain.list_guardrails(library, parsed_status, limit, offset)
        return rows(records, len(library.items.find(["guardrail"], status=parsed_status)))


@router.get("/search", response_model=Hits)
def search(
    at: At,
    text: Annotated[str, Query(min_length=1, max_length=100_000)],
    how: Literal["hybrid", "dense", "text"] = "hybrid",
    among: Literal["all", "items", "steps"] = "all",
    kind: KindsQuery = None,
    k: Count = 10,
) -> Response:
    """Search items and steps by text. Each hit has the reason for the match.

    A token without the right `log` searches general texts by words: abstracted items and forms of actions.
    """
    with at.reading() as library:
        hits: list[Hit] = (
            lists.search(library, text, k, how=how, among=among, kinds=kind)
            if at.caller.may(at.namespace, "log")
            else search_general(library, text, k, among=among, kinds=kind)
        )
    return to_response(Hits, Hits.model_construct(hits=list(map(typed, hits))))


def rows(records: list[dict[str, Any]], total: int | None = None) -> Response:
    """Return plain rows as JSON."""
    return to_response(RowList, RowList.model_construct(rows=records, total=len(records) if total is None else total))
