"""Routes for episodes and data derived from them, and for export and import."""

import hashlib
import json
import os
import tempfile
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path as InPath, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask

from hardwon.apps.shared import explain, lists
from hardwon.memory import Add, ExperienceLibrary, Grade, Operation, Trajectory, Update
from hardwon.memory.errors import UnknownName
from hardwon.memory.records import Trust
from hardwon.memory.trust.support import drop_doubtful
from hardwon.memory.upkeep.figures import read_clusters
from hardwon.runtime.guidance.abstraction import abstract_summary
from hardwon.runtime.guidance.rendering import Visible

from .bodies import CheckedRoute
from .items import OffsetQuery, admitted, rows
from .models import (
    Admissions,
    Count,
    Grades,
    GradeTold,
    Lines,
    Problems,
    ReadingAsked,
    RowList,
    StepIds,
    StepList,
    Summaries,
    item_of,
    to_response,
)
from .place import At, RequestContext, hash_parts, once

router = APIRouter(prefix="/v1", tags=["episodes"], route_class=CheckedRoute)

NDJSON = "application/x-ndjson"
Number = Annotated[int, InPath(ge=0, le=2**62)]


@router.get("/episodes", response_model=RowList)
def episodes(
    at: At, limit: Count = 100, offset: OffsetQuery = 0, sort: Literal["began", "recorded"] = "began"
) -> Response:
    """List episodes without their steps, newest first, by the time at which they began or were recorded."""
    with at.logging() as library:
        records, total = lists.list_episodes(library, limit, offset, sort)
    return rows(records, total)


@router.get("/episodes/{episode_id}", response_model=Trajectory)
def episode(episode_id: str, at: At) -> Response:
    """Return one episode with its steps. An unambiguous prefix of the id is enough."""
    with at.logging() as library:
        return to_response(Trajectory, library.episodes.get(episode_id))


@router.post("/episodes/{episode_id}/reading", response_model=Admissions)
@once(RequestContext.changing)
def apply(episode_id: str, body: ReadingAsked, at: At) -> Response:
    """Apply the operations that an extractor proposed after reading an episode. Return one admission per operation."""
    operations: list[Operation] = [
        Add(item_of(operation.item, at.caller))
        if operation.indices is None
        else Update(tuple(operation.indices), item_of(operation.item, at.caller))
        for operation in body.operations
    ]
    with at.changing() as library:
        return admitted(library.apply(operations, library.episodes.get(episode_id), body.shown))


@router.post("/episodes/{episode_id}/grade", response_model=Grade)
def grade(episode_id: str, body: GradeTold, at: At) -> Response:
    """Grade, correct or explain a recorded episode. Everything learned from it is computed again.

    A token with the right `write` grades every episode, and one that may only record those that it recorded. Words of a
    token without the right `write` wait in quarantine. The same grade twice changes nothing.
    """
    answer = _grade(episode_id=episode_id, body=body, at=at)
    given = json.loads(bytes(answer.body))
    if at.reader is not None and given["previous_success"] is None and given["success"] is not None:
        at.reader.submit(at.namespace, [given["episode"]])
    return answer


def _grading(at: RequestContext) -> AbstractContextManager[ExperienceLibrary]:
    return at.changing() if at.caller.may(at.namespace, "write") else at.recording()


@once(_grading, change="outcomes")
def _grade(episode_id: str, body: GradeTold, at: RequestContext) -> Response:
    may_write = at.caller.may(at.namespace, "write")
    with _grading(at) as library:
        if not may_write:
            _check_own(library, episode_id, at.writer)
        values = body.model_dump()
        values["grader"] = f"{at.writer}/{body.grader}" if body.grader else at.writer
        given = library.grade(episode_id, **values, trust=at.trust)
        if not may_write:  # it may not call `/v1/evolve`
            library.evolve()
    return to_response(Grade, given)


def _check_own(library: ExperienceLibrary, episode_id: str, writer: str) -> None:
    """Check that a caller recorded an episode."""
    try:
        is_own = library.episodes.get(episode_id).writer == writer
    except UnknownName:
        is_own = False
    if not is_own:
        raise UnknownName(f"you recorded no episode {episode_id[:80]!r}. Give the id that recording it returned.")


@router.get("/episodes/{episode_id}/grades", response_model=Grades)
def grades(episode_id: str, at: At) -> Response:
    """Return the grades of an episode, oldest first: who gave which outcome, when and why."""
    with at.logging() as library:
        return to_response(Grades, Grades.model_construct(grades=library.episodes.grades(episode_id)))


@router.get("/steps", response_model=StepList)
def steps(at: At, id: Annotated[list[Annotated[int, Query(ge=0, le=2**62)]], Query(max_length=1000)]) -> Response:
    """Return steps by id, in the order of the ids. Unknown ids are skipped."""
    with at.logging() as library:
        return to_response(StepList, StepList.model_construct(steps=library.episodes.steps(id)))


@router.get("/summaries", response_model=Summaries)
def summaries(at: At, signature: str | None = None, limit: Count = 100, offset: OffsetQuery = 0) -> Response:
    """Return the results of every kind of action, in one kind of situation or in all, most tried first."""
    with at.reading() as library:
        records = library.episodes.summaries(signature, limit=limit, offset=offset)
        if not at.caller.may(at.namespace, "log"):
            sayable = library.admin.query(drop_doubtful, records)
            records = [abstract_summary(summary, Visible(None)) for summary in sayable]
    return to_response(Summaries, Summaries.model_construct(summaries=records))


@router.get("/summaries/{summary_id}/evidence", response_model=StepIds)
def evidence(summary_id: Number, at: At, failure: str | None = None) -> Response:
    """Return the ids of the steps behind a summary: all, or those with this failure (`none`: without failure)."""
    with at.reading() as library:
        return to_response(StepIds, StepIds(steps=library.episodes.evidence(summary_id, failure)))


@router.get("/clusters", response_model=RowList)
def clusters(at: At, limit: Count = 100, offset: OffsetQuery = 0) -> Response:
    """List situations that share a signature, most frequent first, with their best actions."""
    with at.logging() as library:
        return rows(library.admin.query(read_clusters, limit, offset), library.admin.stats()["clusters"])


@router.get("/explain/{ref:path}", response_model=dict[str, Any])
def explained(ref: str, at: At) -> Response:
    """Explain an item, an episode, `step:1234` or `attempt:17` with its evidence, as `hardwon memory show` does."""
    with at.logging() as library:
        return to_response(dict[str, Any], explain.explain(library, ref))


@router.get("/why", response_model=dict[str, Any])
def why(at: At, about: str = "", episode: str = "") -> Response:
    """Say why an episode, the newest by default, was told something, or why not, as `hardwon memory why` does."""
    with at.logging() as library:
        return to_response(dict[str, Any], explain.explain_advice(library, about, episode))


@router.get("/stats", response_model=dict[str, Any])
def stats(at: At) -> Response:
    """Return counts, sizes and ages."""
    with at.reading() as library:
        figures = library.admin.stats()
    # Neither the server's folders nor the names of other namespaces may reach a restricted token.
    visible = [name for name in figures["namespaces"] if at.caller.may(name, "read")]
    name = os.fsencode(Path(figures["path"]).name).decode(errors="replace")
    return to_response(dict[str, Any], {**figures, "path": name, "namespaces": visible})


@router.get("/verify", response_model=Problems)
def verify(at: At) -> Response:
    """Check every derived structure against the episode store. The list is empty if all agree."""
    with at.reading() as library:
        problems = [replace(each, what=at.shelf.hide_folders(each.what)) for each in library.admin.verify()]
    return to_response(Problems, Problems.model_construct(problems=problems))


@router.get(
    "/export",
    response_class=FileResponse,
    responses={
        200: {"content": {NDJSON: {"schema": {"type": "string"}}}, "description": "One line per item and episode."}
    },
)
def export(at: At) -> FileResponse:
    """Export items and episodes as lines of JSON, in one consistent snapshot."""
    path = _scratch()
    try:
        with at.logging() as library:
            library.admin.export_jsonl(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    # The file is sent after this function returns, so only the background task may delete it.
    return FileResponse(path, media_type=NDJSON, background=BackgroundTask(path.unlink, missing_ok=True))


@router.post(
    "/import",
    response_model=Lines,
    openapi_extra={"requestBody": {"required": True, "content": {NDJSON: {"schema": {"type": "string"}}}}},
)
async def import_(request: Request, at: At, trust: Trust = "untrusted") -> Response:
    """Import an export file, all or nothing. Items are quarantined unless `trust=trusted` is set."""
    path = _scratch()
    try:
        content = hashlib.sha256()
        with path.open("wb") as file:
            async for part in request.stream():
                content.update(part)
                file.write(part)
        at = replace(at, request=hash_parts(at.request, content.digest()))
        return await run_in_threadpool(_read_in, at=at, path=path, trust=trust)
    finally:
        path.unlink(missing_ok=True)


@once(RequestContext.writing, change="records")
def _read_in(at: RequestContext, path: Path, trust: Trust) -> Response:
    """Import the file into the namespace."""
    with at.writing() as library:
        return to_response(Lines, Lines(lines=library.admin.import_jsonl(path, trust)))


def _scratch() -> Path:
    """Create an empty temporary file."""
    with tempfile.NamedTemporaryFile(prefix="hardwon-", suffix=".jsonl", delete=False) as file:
        return Path(file.name)
