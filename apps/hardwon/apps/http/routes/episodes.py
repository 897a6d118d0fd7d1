"""Episodes and what is derived from them: steps, segments, attempts, situations, figures, export and import."""

import tempfile
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Path as InPath, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask

from hardwon.apps.shared import explain, lists
from hardwon.memory import Add, Operation, Trajectory, Update
from hardwon.memory.records import Trust

from .bodies import CheckedRoute
from .items import Offset, admitted, rows
from .models import (
    Admissions,
    Count,
    Lines,
    Problems,
    Reading,
    Rows,
    Segments,
    StepIds,
    Steps,
    Summaries,
    item_of,
    said,
)
from .place import At, Place

router = APIRouter(prefix="/v1", tags=["episodes"], route_class=CheckedRoute)

NDJSON = "application/x-ndjson"
Number = Annotated[int, InPath(ge=0, le=2**62)]


@router.get("/episodes", response_model=Rows)
def episodes(at: At, limit: Count = 100, offset: Offset = 0) -> Response:
    """Rows about episodes, newest first, without their steps."""
    with at.reading() as library:
        found, total = lists.list_episodes(library, limit, offset)
    return rows(found, total)


@router.get("/episodes/{episode_id}", response_model=Trajectory)
def episode(episode_id: str, at: At) -> Response:
    """One episode with its steps; an unambiguous beginning of the id is enough."""
    with at.reading() as library:
        return said(Trajectory, library.trajectory(episode_id))


@router.get("/episodes/{episode_id}/segments", response_model=Segments)
def segments(episode_id: str, at: At) -> Response:
    """The stretches of an episode between its gains."""
    with at.reading() as library:
        return said(Segments, Segments.model_construct(segments=library.segments(episode_id)))


@router.post("/episodes/{episode_id}/reading", response_model=Admissions)
def apply(episode_id: str, told: Reading, at: At) -> Response:
    """Carry out what an extractor asks for after reading an episode; one admission for each operation."""
    operations: list[Operation] = [
        Add(item_of(one.item, at.caller))
        if one.indices is None
        else Update(tuple(one.indices), item_of(one.item, at.caller))
        for one in told.operations
    ]
    with at.changing() as library:
        return admitted(library.apply(operations, library.trajectory(episode_id), told.shown))


@router.get("/steps", response_model=Steps)
def steps(at: At, id: Annotated[list[Annotated[int, Query(ge=0, le=2**62)]], Query(max_length=1000)]) -> Response:
    """Steps by id, in the order of the ids; those that do not exist are left out."""
    with at.reading() as library:
        return said(Steps, Steps.model_construct(steps=library.steps(id)))


@router.get("/summaries", response_model=Summaries)
def summaries(at: At, signature: str | None = None, limit: Count = 100, offset: Offset = 0) -> Response:
    """What came of every kind of action, in one kind of situation or in all; the most tried first."""
    with at.reading() as library:
        found = library.summaries(signature, limit=limit, offset=offset)
    return said(Summaries, Summaries.model_construct(summaries=found))


@router.get("/summaries/{summary_id}/evidence", response_model=StepIds)
def evidence(summary_id: Number, at: At, failure: str | None = None) -> Response:
    """The ids of the steps behind a count of a summary: all, or those with a failure (`none`: without)."""
    with at.reading() as library:
        return said(StepIds, StepIds(steps=library.evidence(summary_id, failure)))


@router.get("/clusters", response_model=Rows)
def clusters(at: At, limit: Count = 100, offset: Offset = 0) -> Response:
    """Situations that share a signature, the most frequent first, and what pays there."""
    with at.reading() as library:
        return rows(library.clusters(limit, offset), library.stats()["clusters"])


@router.get("/explain/{ref:path}", response_model=dict[str, Any])
def explained(ref: str, at: At) -> Response:
    """An item, an episode, `step:1234` or `attempt:17`, and what each rests on: as `hardwon memory show`."""
    with at.reading() as library:
        return said(dict[str, Any], explain.explain(library, ref))


@router.get("/stats", response_model=dict[str, Any])
def stats(at: At) -> Response:
    """Counts, sizes and ages."""
    with at.reading() as library:
        told = library.stats()
    mine = [name for name in told["namespaces"] if at.caller.may(name, "read")]
    return said(dict[str, Any], {**told, "path": Path(told["path"]).name, "namespaces": mine})


@router.get("/verify", response_model=Problems)
def verify(at: At) -> Response:
    """Every derived structure checked against the truth; empty when all agree."""
    with at.reading() as library:
        return said(Problems, Problems.model_construct(problems=library.verify()))


@router.get(
    "/export",
    response_class=FileResponse,
    responses={200: {"content": {NDJSON: {"schema": {"type": "string"}}}, "description": "A line for everything."}},
)
def export(at: At) -> FileResponse:
    """Items and episodes as lines of JSON, all of one moment."""
    path = _scratch()
    try:
        with at.reading() as library:
            library.export_jsonl(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return FileResponse(path, media_type=NDJSON, background=BackgroundTask(path.unlink, missing_ok=True))


@router.post(
    "/import",
    response_model=Lines,
    openapi_extra={"requestBody": {"required": True, "content": {NDJSON: {"schema": {"type": "string"}}}}},
)
async def import_(request: Request, at: At, trust: Trust = "untrusted") -> Response:
    """Read what export wrote, all or nothing. Items are quarantined unless it says `trust=trusted`."""
    path = _scratch()
    try:
        with path.open("wb") as file:
            async for part in request.stream():
                file.write(part)
        return await run_in_threadpool(_read_in, at, path, trust)
    finally:
        path.unlink(missing_ok=True)


def _read_in(at: Place, path: Path, trust: Trust) -> Response:
    with at.writing() as library:
        return said(Lines, Lines(lines=library.import_jsonl(path, trust)))


def _scratch() -> Path:
    with tempfile.NamedTemporaryFile(prefix="hardwon-", suffix=".jsonl", delete=False) as file:
        return Path(file.name)
