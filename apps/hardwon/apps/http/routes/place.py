"""The namespace of a request, and the access that its caller has to it."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Query, Request, Response

from hardwon.apps.http.access.auth import Caller
from hardwon.apps.http.state.reader import BackgroundReader
from hardwon.apps.http.state.shelf import Shelf
from hardwon.apps.http.state.watch import Measures
from hardwon.apps.shared.feedback import Feedback
from hardwon.memory import ExperienceLibrary
from hardwon.memory.parts.admin import WriteKind
from hardwon.memory.records import Trust
from hardwon.runtime.guidance.base import Guidance
from hardwon.runtime.teams.sharing_policy import SharingPolicy

from .models import Asked
from .writers import door_of

QUICK_S = 0.01
"""Longest time in seconds that a call may take in the event loop's thread."""

RouteFunction = Callable[..., Response]
CallKind = tuple[object, ...]
"""A namespace, a route, and the set of its fields that are used."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """A namespace of the shelf, as one caller may use it."""

    shelf: Shelf
    measures: Measures
    caller: Caller
    namespace: str
    turn: "StepQueue"
    feedback: Feedback
    short: bool
    """Whether the body is shorter than 64 KiB."""
    writer: str
    """Name under which the library stores the caller's data."""
    trust: Trust
    """Whether the caller's steps are trusted."""
    guidance: Guidance | None = None
    """Writes the lines of a recall; None shows the recalled experience as it is."""
    reader: BackgroundReader | None = None
    """Reads recorded episodes with an extractor, if there is one."""
    admission: SharingPolicy | None = None
    """Decides which entries a bank takes; None takes all."""
    key: str = ""
    """Hash of the caller, the namespace and the `Idempotency-Key`; empty if the request has none."""
    request: str = ""
    """Hash of the request that has the key."""

    @contextmanager
    def reading(self) -> Iterator[ExperienceLibrary]:
        """Open the library for reading."""
        self.caller.must(self.namespace, "read")
        with self.shelf.reading(self.namespace) as library:
            yield library

    @contextmanager
    def logging(self) -> Iterator[ExperienceLibrary]:
        """Open the library for reading recorded episodes and items word for word."""
        self.caller.must(self.namespace, "log")
        with self.shelf.reading(self.namespace) as library:
            yield library

    def must_read_raw(self) -> None:
        """Check that the caller may ask for `raw` records."""
        self.caller.must(self.namespace, "log")

    @contextmanager
    def seeing(self) -> Iterator[ExperienceLibrary]:
        """Open the library for a caller that may read it or record to it."""
        if not self.caller.may(self.namespace, "record"):
            self.caller.must(self.namespace, "read")
        with self.shelf.reading(self.namespace) as library:
            yield library

    @contextmanager
    def recording(self) -> Iterator[ExperienceLibrary]:
        """Open the library for adding episodes and feedback.

        A token without the right to write creates a namespace only if the token is limited to named namespaces.
        """
        self.caller.must(self.namespace, "record")
        # An unlimited token that may only record could otherwise create any number of namespaces.
        if self.caller.write or self.caller.namespaces is not None:
            lease = self.shelf.writing(self.namespace)
        else:
            lease = self.shelf.recording(self.namespace)
        with lease as library:
            yield library

    @contextmanager
    def writing(self) -> Iterator[ExperienceLibrary]:
        """Open the library for writing, and create the namespace if it is new."""
        self.caller.must(self.namespace, "write")
        with self.shelf.writing(self.namespace) as library:
            yield library

    @contextmanager
    def changing(self) -> Iterator[ExperienceLibrary]:
        """Open the library for changing existing data. Unlike `writing`, this creates no namespace."""
        self.caller.must(self.namespace, "write")
        with self.shelf.reading(self.namespace) as library:
            yield library


async def _place(
    request: Request,
    namespace: Annotated[str, Query(max_length=200, description="Namespace of the library.")] = "default",
) -> RequestContext:
    state = request.app.state
    length = request.headers.get("content-length", "")
    short = length.isascii() and length.isdigit() and int(length[:20]) < 64 * 1024
    caller = request.state.caller
    writer, trust = door_of(caller, state.trust)
    context = RequestContext(
        state.shelf, state.measures, caller, namespace, state.turn, state.feedback, short, writer, trust,
        state.guidance, state.reader, state.admission,
    )  # fmt: skip
    key = request.headers.get("idempotency-key", "")
    return await _identify(context, key, request) if key else context


async def _identify(context: RequestContext, key: str, request: Request) -> RequestContext:
    """Return the context with the key of a write and what a repeated one must equal."""
    # A route that reads its body in parts adds it itself.
    body = await request.body() if request.scope["route"].body_field is not None else b""
    parts = (request.method, request.url.path, request.url.query, hash_parts(body))
    return replace(context, key=hash_parts(key, context.caller.id, context.namespace), request=hash_parts(*parts))


def hash_parts(*parts: str | bytes) -> str:
    """Return one hash of several texts."""
    return hashlib.sha256(b"\0".join(part if isinstance(part, bytes) else part.encode() for part in parts)).hexdigest()


def once(
    access: Callable[[RequestContext], AbstractContextManager[ExperienceLibrary]], *, change: WriteKind = "items"
) -> Callable[[RouteFunction], RouteFunction]:
    """Let a route that writes answer a repeated request as the first time, without writing again.

    Another request with the same `Idempotency-Key` is an error. `change` is that of `LibraryAdmin.once`.
    """

    def wrap(route: RouteFunction) -> RouteFunction:
        @wraps(route)
        def answer(at: RequestContext, **values: Any) -> Response:
            if not at.key:
                return route(at=at, **values)
            with access(at) as library:
                write = partial(route, at=at, **values)
                text = library.admin.once(at.key, at.request, lambda: bytes(write().body).decode(), change=change)
            return Response(text, media_type="application/json") if text else Response(status_code=204)

        return answer

    return wrap


At = Annotated[RequestContext, Depends(_place)]


class StepQueue:
    """Serves agents' steps one after the other, in order of arrival. Threads waiting at a lock have no order.

    Fast calls run in the event loop's own thread, because waking another thread and sharing the interpreter costs
    more than the call. A call is fast if a call of the same kind was fast at the same state of the library.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._thread = CapacityLimiter(1)
        self._quick: dict[CallKind, object] = {}

    async def take(self, at: RequestContext, kind: CallKind, call: Callable[[], Response]) -> Response:
        """Run the call when it is its turn, and return its answer."""
        async with self._lock:
            await asyncio.sleep(0)  # let finished answers be sent before this call blocks the loop
            with at.shelf.at_once(at.namespace) as moment:
                if at.short and moment is not None and moment == self._quick.get(kind):
                    answer, quick = _timed(call)
                    if not quick:
                        del self._quick[kind]
                    return answer
            answer, quick = await to_thread.run_sync(_timed, call, limiter=self._thread)
            # Callers choose the namespace and the fields, so the number of kinds must be bounded.
            if len(self._quick) >= 1000:
                self._quick.clear()
            # Read after the call, because the call itself may have written.
            with at.shelf.at_once(at.namespace) as moment:
                self._quick[kind] = moment if quick else None
            return answer


def _timed(call: Callable[[], Response]) -> tuple[Response, bool]:
    """Run the call. Return its answer and whether it was fast."""
    began = time.perf_counter()
    return call(), time.perf_counter() - began < QUICK_S


def in_turn(route: Callable[..., Response]) -> Callable[..., Awaitable[Response]]:
    """Serve a route in turn. For routes of milliseconds that an agent's step waits for."""

    @wraps(route)
    async def waiting(at: RequestContext, body: Asked) -> Response:
        # Which fields are set, not their values: a kind must recur for its speed to be of use.
        fields = [value if name == "level" else bool(value) for name, value in body]
        return await at.turn.take(at, (at.namespace, route, *fields), partial(route, at=at, body=body))

    return waiting
