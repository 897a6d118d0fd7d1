"""Where a request wants to go: a namespace, and whether its caller may read or write it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Annotated

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Query, Request, Response

from hardwon.apps.http.access.auth import Caller
from hardwon.apps.http.state.shelf import Shelf
from hardwon.apps.http.state.watch import Measures
from hardwon.apps.shared.feedback import Feedback
from hardwon.memory import ExperienceLibrary
from hardwon.memory.records import Trust

from .models import Asked
from .writers import door_of

QUICK_S = 0.01
"""What an agent's step may take of the event loop's time."""
SHORT_BYTES = 64 * 1024
"""The longest body that is worked on there."""
KINDS = 1000
"""Kinds of calls that are remembered as quick."""

Kind = tuple[object, ...]
"""A namespace, a route, and which of its fields are asked with."""


@dataclass(frozen=True, slots=True)
class Place:
    """A namespace of the shelf, as one caller may use it."""

    shelf: Shelf
    measures: Measures
    caller: Caller
    namespace: str
    turn: "Turn"
    feedback: Feedback
    short: bool
    """Whether what is asked is short."""
    writer: str
    """The name under which the library keeps what the caller adds."""
    trust: Trust
    """Whether the steps of the caller are believed."""

    @contextmanager
    def reading(self) -> Iterator[ExperienceLibrary]:
        """The library to read. Raises LibraryForbidden, UnknownName."""
        self.caller.must(self.namespace, "read")
        with self.shelf.reading(self.namespace) as library:
            yield library

    @contextmanager
    def seeing(self) -> Iterator[ExperienceLibrary]:
        """The library to those who may read it or add to it. Raises LibraryForbidden, UnknownName."""
        if not self.caller.may(self.namespace, "record"):
            self.caller.must(self.namespace, "read")
        with self.shelf.reading(self.namespace) as library:
            yield library

    @contextmanager
    def recording(self) -> Iterator[ExperienceLibrary]:
        """The library to add episodes and feedback to. Raises LibraryForbidden, LibraryReadOnly, UnknownName.

        A token that may not write makes a namespace only where it was made for that namespace.
        """
        self.caller.must(self.namespace, "record")
        if self.caller.write or self.caller.namespaces is not None:
            taken = self.shelf.writing(self.namespace)
        else:
            taken = self.shelf.recording(self.namespace)
        with taken as library:
            yield library

    @contextmanager
    def writing(self) -> Iterator[ExperienceLibrary]:
        """The library to write, its namespace made where it is new. Raises LibraryForbidden, LibraryReadOnly."""
        self.caller.must(self.namespace, "write")
        with self.shelf.writing(self.namespace) as library:
            yield library

    @contextmanager
    def changing(self) -> Iterator[ExperienceLibrary]:
        """The library to change what is there; a namespace is not made by it."""
        self.caller.must(self.namespace, "write")
        with self.shelf.reading(self.namespace) as library:
            yield library


async def _place(
    request: Request,
    namespace: Annotated[str, Query(max_length=200, description="The part of the library.")] = "default",
) -> Place:
    state = request.app.state
    told = request.headers.get("content-length", "")
    short = told.isdigit() and int(told) < SHORT_BYTES
    caller = request.state.caller
    writer, trust = door_of(caller, state.trust)
    return Place(state.shelf, state.measures, caller, namespace, state.turn, state.feedback, short, writer, trust)


At = Annotated[Place, Depends(_place)]


class Turn:
    """Agents' steps one after the other, in the order in which they were asked: threads at a lock have none.

    What takes milliseconds and waits for nobody is done in the event loop's own thread: to wake another one, and to
    share Python with it, costs too much. That is a call of a kind that was quick at this moment of the library.
    """

    def __init__(self) -> None:
        self._mine = asyncio.Lock()
        self._thread = CapacityLimiter(1)
        self._quick: dict[Kind, object] = {}

    async def take(self, at: Place, kind: Kind, call: Callable[[], Response]) -> Response:
        """What the call returns, once it is its turn."""
        async with self._mine:
            await asyncio.sleep(0)  # answers that are ready go out before this one is worked on
            with at.shelf.at_once(at.namespace) as moment:
                if at.short and moment is not None and moment == self._quick.get(kind):
                    answer, quick = _timed(call)
                    if not quick:
                        del self._quick[kind]
                    return answer
            answer, quick = await to_thread.run_sync(_timed, call, limiter=self._thread)
            if len(self._quick) >= KINDS:
                self._quick.clear()
            with at.shelf.at_once(at.namespace) as moment:
                self._quick[kind] = moment if quick else None
            return answer


def _timed(call: Callable[[], Response]) -> tuple[Response, bool]:
    """What the call returns, and whether it was quick."""
    began = time.perf_counter()
    return call(), time.perf_counter() - began < QUICK_S


def in_turn(route: Callable[..., Response]) -> Callable[..., Awaitable[Response]]:
    """A route of milliseconds: an agent's step waits for it."""

    @wraps(route)
    async def waiting(at: Place, asked: Asked) -> Response:
        fields = [value if name == "level" else bool(value) for name, value in asked]
        return await at.turn.take(at, (at.namespace, route, *fields), partial(route, at=at, asked=asked))

    return waiting
