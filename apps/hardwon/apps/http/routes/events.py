"""Server-sent events: the change log of a library, and the lines of a run.

curl -N localhost:8420/v1/events                                  recorded episodes, changed items
curl -N localhost:8420/v1/runs/train_coin/events                  the metrics of a training run
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from hardwon.apps.http.state import runs as run_folder
from hardwon.memory.errors import UnknownName
from hardwon.memory.storage.database import Store

from .bodies import CheckedRoute
from .models import Run, Runs, to_response
from .place import At, Place

POLL_S = 0.5
"""Seconds between two polls for news."""
QUIET_S = 15.0
"""Seconds without news after which a stream sends a keep-alive comment."""
AT_ONCE = 500
"""Largest number of changes in one poll."""
EVENT_STREAM = "text/event-stream"

Event = tuple[str, str, str]
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
    changes = await run_in_threadpool(Changes, at)
    # Up to 18 digits fit SQLite's 64-bit integers.
    position = int(last_event_id) if last_event_id and last_event_id.isdigit() and len(last_event_id) < 19 else after
    changes.last = await run_in_threadpool(changes.newest) if position is None else position
    return _streamed(request, changes.news, follow, changes.close)


class Changes:
    """The change log of a namespace, read on its own connection."""

    def __init__(self, at: Place) -> None:
        self._at = at
        with at.reading() as library:
            # Its own connection: a stream outlives the lease, and the shelf may close the namespace between polls.
            self._store = Store(library.path, read_only=True)
        rows = self._store.rows("SELECT id FROM namespaces WHERE name = ?", (at.namespace,))
        if not rows:
            self._store.close()
            raise UnknownName(f"unknown namespace {at.namespace!r}.")
        self._number = int(rows[0][0])
        self.last = 0

    def newest(self) -> int:
        """Return the number of the newest change."""
        # Over all namespaces: `seq` numbers the changes of the whole file.
        return int(self._store.rows("SELECT coalesce(max(seq), 0) FROM changes")[0][0])

    def news(self) -> list[Event]:
        """Return the changes after the last one returned, at most AT_ONCE."""
        with self._at.reading() as library:
            _ = library.episodes  # empties the write buffer, so that waiting episodes are in the change log
        rows = self._store.rows(
            "SELECT seq, at, what, ref, op FROM changes WHERE seq > ? AND namespace = ? ORDER BY seq LIMIT ?",
            (self.last, self._number, AT_ONCE),
        )
        self.last = rows[-1][0] if rows else self.last
        return [
            (str(seq), what, json.dumps({"seq": seq, "at": at, "what": what, "id": ref, "op": op}))
            for seq, at, what, ref, op in rows
        ]

    def close(self) -> None:
        """Close the connection."""
        self._store.close()


@router.get("/runs", response_model=Runs)
def runs(request: Request, at: At) -> Response:
    """List training runs and experiments in the folder of runs, newest first."""
    folder = _folder(request, at)
    return to_response(Runs, Runs(runs=[Run(**row) for row in run_folder.list_runs(folder)]))


@router.get("/runs/{name:path}/events", response_class=StreamingResponse, responses=_STREAM)
def run_events(request: Request, name: str, at: At, follow: Follow = True) -> Response:
    """Stream the lines of a run from the first: the metrics of an iteration, or an episode."""
    kind, path = run_folder.find_run(_folder(request, at), name)
    tail, count = run_folder.Tail(path), 0

    def news() -> list[Event]:
        nonlocal count
        lines = tail.lines()
        count += len(lines)
        return [(str(number), kind, line) for number, line in enumerate(lines, count - len(lines) + 1)]

    return _streamed(request, news, follow)


def _folder(request: Request, at: Place) -> Path:
    """Return the folder of runs, for callers that may read all namespaces."""
    at.caller.must(None, "read")
    folder: Path = request.app.state.runs
    return folder


def _streamed(
    request: Request, news: Callable[[], Sequence[Event]], follow: bool, close: Callable[[], None] = lambda: None
) -> StreamingResponse:
    """Poll `news` and send the events until there are no more, the server stops, or the token is revoked."""

    async def stream() -> AsyncIterator[str]:
        quiet_s = 0.0
        try:
            yield ": hardwon\n\n"
            # checked on every poll: a revoked token or a shutdown ends open streams
            while not request.app.state.stopping.is_set() and request.state.caller in request.app.state.tokens:
                batch = await run_in_threadpool(news)
                for name, kind, data in batch:
                    yield f"id: {name}\nevent: {kind}\ndata: {data}\n\n"
                if not batch and not follow:
                    return
                quiet_s = 0.0 if batch else quiet_s + POLL_S
                if quiet_s >= QUIET_S:
                    quiet_s = 0.0
                    yield ": keep-alive\n\n"
                # After a full batch the next poll follows at once, so that a late client catches up.
                if not batch:
                    await asyncio.sleep(POLL_S)
        finally:
            close()

    return StreamingResponse(stream(), media_type=EVENT_STREAM, headers={"Cache-Control": "no-store"})
