"""Routes of a team's bank: entries that agents share during one task, possibly from several machines."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Response

from hardwon.memory import Admission as ItemAdmission
from hardwon.runtime.teams.sharing_policy import SharingInput, SharingPolicy

from .bodies import CheckedRoute
from .models import Entries, EntryId, EntryTold, EntryValue, Promotion, Pull, Pulls, item_of, to_response
from .place import At, RequestContext, once

router = APIRouter(prefix="/v1/bank", tags=["bank"], route_class=CheckedRoute)

TaskQuery = Annotated[str, Query(min_length=1, max_length=10_000, description="The task that the bank belongs to.")]


@router.post("/entries", response_model=EntryId)
def put(task: TaskQuery, body: EntryTold, at: At) -> Response:
    """Share a value under a short key. A server with an admission decides whether the bank takes it."""
    if at.admission is not None and not _is_admitted(at.admission, at, task, body):
        return to_response(EntryId, EntryId(id=None))
    return _put(at=at, task=task, body=body)


@once(RequestContext.writing, change="records")
def _put(task: str, body: EntryTold, at: RequestContext) -> Response:
    with at.writing() as library:
        return to_response(EntryId, EntryId(id=library.admin.bank(task).put(body.team, body.key, body.value)))


def _is_admitted(admission: SharingPolicy, at: RequestContext, task: str, body: EntryTold) -> bool:
    """Return whether the server's admission shares an entry. The library is not open while it decides.

    It sees the task, the keys of the bank, the key and the value. The agent's own admission saw the rest.
    """
    with at.writing() as library:  # whoever may not share is refused before a model is asked
        keys = tuple(entry.key for entry in library.admin.bank(task).entries())
    candidate = SharingInput(task, keys, body.key.partition(" -> ")[0], body.key, body.value)
    return asyncio.run(admission.decide(candidate)).admit


@router.get("/entries", response_model=Entries)
def entries(task: TaskQuery, at: At, after: Annotated[int, Query(ge=0, le=2**62)] = 0) -> Response:
    """List entries without their values, oldest first."""
    with at.reading() as library:
        return to_response(Entries, Entries.model_construct(entries=library.admin.bank(task).entries(after)))


@router.post("/pull", response_model=EntryValue)
@once(RequestContext.changing, change="records")
def pull(task: TaskQuery, body: Pull, at: At) -> Response:
    """Return the value of an entry. The pull is logged."""
    with at.changing() as library:
        return to_response(EntryValue, EntryValue(value=library.admin.bank(task).pull(body.entry, body.reader)))


@router.get("/pulls", response_model=Pulls)
def pulls(task: TaskQuery, at: At, own: bool = False) -> Response:
    """List the pulls by other teams, or with `own`, all pulls including a team's own."""
    with at.reading() as library:
        rows = library.admin.bank(task).pulls(own=own)
    return to_response(Pulls, Pulls(pulls=[Pull(entry=entry, reader=reader) for entry, reader in rows]))


@router.post("/promote", response_model=ItemAdmission)
@once(RequestContext.changing)
def promote(task: TaskQuery, body: Promotion, at: At) -> Response:
    """Keep an item beyond the task, supported by an episode that succeeded."""
    with at.changing() as library:
        return to_response(ItemAdmission, library.admin.bank(task).promote(item_of(body.item, at.caller), body.episode))


@router.delete("/entries", status_code=204, response_class=Response)
@once(RequestContext.changing, change="records")
def drop(task: TaskQuery, at: At) -> Response:
    """Delete all entries of the task."""
    with at.changing() as library:
        library.admin.bank(task).drop()
    return Response(status_code=204)
