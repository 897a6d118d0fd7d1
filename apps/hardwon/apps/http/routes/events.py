"""What happens, as it happens: server-sent events of a library's change log, and of a run's lines.

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
from .models import Run, Runs, said
from .place import At, Place

POLL_S = 0.5
"""Seconds between two looks for what is new."""
QUIET_S = 15.0
"""Seconds after which a stream with no news says that it is alive."""
AT_ONCE = 500
"""Changes read by one look."""
EVENT_STREAM = "text/event-stream"

Event = tuple[str, str, str]
"""Id, kind, and data in one line."""
router = APIRouter(prefix="/v1", tags=["events"], route_class=CheckedRoute)
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {EVENT_STREAM: {"schema": {"type": "string"}}}, "description": "Server-sent events."}
}
Follow = Annotated[bool, Query(description="Go on with what comes; otherwise end where there is no more.")]


@router.get("/events", response_class=StreamingResponse, responses=_STREAM)
async def events(
    request: Request,
    at: At,
    after: Annotated[int | None, Query(ge=0, le=2**62, description="The last change known; none begins now.")] = None,
    follow: Follow = True,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Episodes recorded and items changed in a namespace, by this server or any other writer."""
    changes = await run_in_threadpool(Changes, at)
    known = int(last_event_id) if last_event_id and last_event_id.isdigit() and len(last_event_id) < 19 else after
    changes.last = await run_in_threadpool(changes.newest) if known is None else known
    return _streamed(request, changes.news, follow, changes.close)


class Changes:
    """The change log of a namespace, read on a connection of its own."""

    def __init__(self, at: Place) -> None:
        self._at = at
        with at.reading() as library:
            self._store = Store(library.path, read_only=True)
        rows = self._store.rows("SELECT id FROM namespaces WHERE name = ?", (at.namespace,))
        if not rows:
            self._store.close()
            raise UnknownName(f"unknown namespace {at.namespace!r}.")
        self._number = int(rows[0][0])
        self.last = 0

    def newest(self) -> int:
        """The number of the newest change."""
        return int(self._store.rows("SELECT coalesce(max(seq), 0) FROM changes")[0][0])

    def news(self) -> list[Event]:
        """What came after the last change known."""
        with self._at.reading() as library:
            _ = library.episodes  # what was recorded and waits is filed before it is looked for
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
        """Give the connection back."""
        self._store.close()


@router.get("/runs", response_model=Runs)
def runs(request: Request, at: At) -> Response:
    """Training runs and experiments in the folder of runs, the newest first."""
    folder = _folder(request, at)
    return said(Runs, Runs(runs=[Run(**row) for row in run_folder.found(folder)]))


@router.get("/runs/{name:path}/events", response_class=StreamingResponse, responses=_STREAM)
def run_events(request: Request, name: str, at: At, follow: Follow = True) -> Response:
    """The lines of a run, from its first: metrics of an iteration, or an episode."""
    kind, path = run_folder.file_of(_folder(request, at), name)
    tail, count = run_folder.Tail(path), 0

    def news() -> list[Event]:
        nonlocal count
        lines = tail.lines()
        count += len(lines)
        return [(str(number), kind, line) for number, line in enumerate(lines, count - len(lines) + 1)]

    return _streamed(request, news, follow)


def _folder(request: Request, at: Place) -> Path:
    at.caller.must(None, "read")
    folder: Path = request.app.state.runs
    return folder


def _streamed(
    request: Request, news: Callable[[], Sequence[Event]], follow: bool, close: Callable[[], None] = lambda: None
) -> StreamingResponse:
    async def stream() -> AsyncIterator[str]:
        quiet_s = 0.0
        try:
            yield ": hardwon\n\n"
            while not request.app.state.stopping.is_set() and request.state.caller in request.app.state.tokens:
                found = await run_in_threadpool(news)
                for name, kind, data in found:
                    yield f"id: {name}\nevent: {kind}\ndata: {data}\n\n"
                if not found and not follow:
                    return
                quiet_s = 0.0 if found else quiet_s + POLL_S
                if quiet_s >= QUIET_S:
                    quiet_s = 0.0
                    yield ": still here\n\n"
                if not found:
                    await asyncio.sleep(POLL_S)
        finally:
            close()

    return StreamingResponse(stream(), media_type=EVENT_STREAM, headers={"Cache-Control": "no-store"})
