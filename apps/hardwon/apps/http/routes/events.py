"""Server-sent events: the change log of a library, and the lines of a run.

curl -N localhost:8420/v1/events                                  recorded episodes, changed items
curl -N localhost:8420/v1/runs/train_coin/events                  the metrics of a training run
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from hardwon.apps.http.state import runs as run_folder
from hardwon.memory.upkeep.figures import list_changes, newest_change

from .bodies import CheckedRoute
from .models import RunEntry, Runs, to_response
from .place import At, RequestContext

POLL_S = 0.5
"""Seconds between two polls for news."""
AT_ONCE = 500
"""Largest number of changes in one poll."""
EVENT_STREAM = "text/event-stream"

_POSITION = re.compile("[0-9]{1,18}")
"""Not `str.isdigit`, which accepts digits that `int` does not read."""

ServerEvent = tuple[str, str, str]
"""Id, kind, and data on one line."""
router = APIRouter(prefix="/v1", tags=["events"], route_class=CheckedRoute)
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {EVENT_STREAM: {"schema": {"type": "string"}}}, "description": "Server-sent events."}
}
Follow = Annotated[bool, Query(description="Keep the stream open for new events; otherwise end after the last one.")]


@router.get("/events", response_class=StreamingResponse, responses=_STREAM)
async def events(
    request: Request,
    at: At,
    after: Annotated[
        int | None,
        Query(ge=0, le=2**62, description="Number of the last change received; without it, the stream starts now."),
    ] = None,
    follow: Follow = True,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Stream recorded episodes and changed items of a namespace, by this server or any other writer."""
    # Up to 18 digits fit SQLite's 64-bit integers.
    position = int(last_event_id) if last_event_id and _POSITION.fullmatch(last_event_id) else after
    changes = Changes(at)
    await run_in_threadpool(changes.begin, position)
    return _streamed(request, changes.news, follow)


class Changes:
    """The change log of a namespace, from a position on."""

    def __init__(self, at: RequestContext) -> None:
        self._at = at
        self.last = 0

    def begin(self, position: int | None) -> None:
        """Start after a change; None starts after the newest one."""
        with self._at.reading() as library:
            self.last = library.admin.query(newest_change) if position is None else position

    def news(self) -> list[ServerEvent]:
        """Return the changes after the last one returned, at most AT_ONCE."""
        # Leased for each poll, because a stream lives on while the shelf closes and reopens the namespace.
        with self._at.reading() as library:
            changes = library.admin.query(list_changes, self.last, limit=AT_ONCE)
        self.last = changes[-1].seq if changes else self.last
        return [
            (
                str(change.seq),
                change.what,
                json.dumps(
                    {"seq": change.seq, "at": change.at, "what": change.what, "id": change.ref, "op": change.op}
                ),
            )
            for change in changes
        ]


@router.get("/runs", response_model=Runs)
def runs(request: Request, at: At) -> Response:
    """List training runs and experiments in the folder of runs, newest first."""
    folder = _folder(request, at)
    return to_response(Runs, Runs(runs=[RunEntry(**row) for row in run_folder.list_runs(folder)]))


@router.get("/runs/{name:path}/events", response_class=StreamingResponse, responses=_STREAM)
def run_events(request: Request, name: str, at: At, follow: Follow = True) -> Response:
    """Stream the lines of a run from the first: the metrics of an iteration, or an episode."""
    kind, path = run_folder.find_run(_folder(request, at), name)
    tail, count = run_folder.Tail(path), 0

    def news() -> list[ServerEvent]:
        nonlocal count
        lines = tail.lines()
        count += len(lines)
        return [(str(number), kind, line) for number, line in enumerate(lines, count - len(lines) + 1)]

    return _streamed(request, news, follow)


def _folder(request: Request, at: RequestContext) -> Path:
    """Return the folder of runs, for callers that may read the log of all namespaces."""
    at.caller.must(None, "log")
    folder: Path = request.app.state.runs
    return folder


def _streamed(request: Request, news: Callable[[], Sequence[ServerEvent]], follow: bool) -> StreamingResponse:
    """Poll `news` and send the events until there are no more, the server stops, or the token is revoked."""

    async def stream() -> AsyncIterator[str]:
        quiet_s = 0.0
        yield ": hardwon\n\n"
        # checked on every poll: a revoked token or a shutdown ends open streams
        while not request.app.state.stopping.is_set() and request.state.caller in request.app.state.tokens:
            batch = await run_in_threadpool(news)
            for name, kind, data in batch:
                yield f"id: {name}\nevent: {kind}\ndata: {data}\n\n"
            if not batch and not follow:
                return
            quiet_s = 0.0 if batch else quiet_s + POLL_S
            # Seconds without news after which a stream sends a keep-alive comment.
            if quiet_s >= 15.0:
                quiet_s = 0.0
                yield ": keep-alive\n\n"
            # After a full batch the next poll follows at once, so that a late client catches up.
            if not batch:
                await asyncio.sleep(POLL_S)

    return StreamingResponse(stream(), media_type=EVENT_STREAM, headers={"Cache-Control": "no-store"})
