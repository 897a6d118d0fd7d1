"""Routes of a team's bank: entries that agents share during one task, possibly from several machines."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from hardwon.memory import Admission

from .bodies import CheckedRoute
from .models import Entries, EntryId, EntryTold, Promotion, Pull, Pulls, Value, item_of, to_response
from .place import At

router = APIRouter(prefix="/v1/bank", tags=["bank"], route_class=CheckedRoute)

Task = Annotated[str, Query(min_length=1, max_length=10_000, description="The task that the bank belongs to.")]


@router.post("/entries", response_model=EntryId)
def put(task: Task, body: EntryTold, at: At) -> Response:
    """Share a value under a short key."""
    with at.writing() as library:
        return to_response(EntryId, EntryId(id=library.bank(task).put(body.team, body.key, body.value)))


@router.get("/entries", response_model=Entries)
def entries(task: Task, at: At, after: Annotated[int, Query(ge=0, le=2**62)] = 0) -> Response:
    """List entries without their values, oldest first."""
    with at.reading() as library:
        return to_response(Entries, Entries.model_construct(entries=library.bank(task).entries(after)))


@router.post("/pull", response_model=Value)
def pull(task: Task, body: Pull, at: At) -> Response:
    """Return the value of an entry. The pull is logged."""
    with at.changing() as library:
        return to_response(Value, Value(value=library.bank(task).pull(body.entry, body.reader)))


@router.get("/pulls", response_model=Pulls)
def pulls(task: Task, at: At, own: bool = False) -> Response:
    """List the pulls by other teams, or with `own`, all pulls including a team's own."""
    with at.reading() as library:
        rows = library.bank(task).pulls(own=own)
    return to_response(Pulls, Pulls(pulls=[Pull(entry=entry, reader=reader) for entry, reader in rows]))


@router.post("/promote", response_model=Admission)
def promote(task: Task, body: Promotion, at: At) -> Response:
    """Keep an item beyond the task, supported by an episode that succeeded."""
    with at.changing() as library:
        return to_response(Admission, library.bank(task).promote(item_of(body.item, at.caller), body.episode))


@router.delete("/entries", status_code=204, response_class=Response)
def drop(task: Task, at: At) -> None:
    """Delete all entries of the task."""
    with at.changing() as library:
        library.bank(task).drop()
