"""Where a request wants to go: a namespace, and whether its caller may read or write it."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Query, Request, Response

from tacit.memory import ExperienceLibrary

from .auth import Caller
from .shelf import Shelf
from .watch import Measures


class Place:
    """A namespace of the shelf, as one caller may use it."""

    def __init__(self, shelf: Shelf, measures: Measures, caller: Caller, namespace: str, turn: CapacityLimiter) -> None:
        self.shelf = shelf
        self.turn = turn
        self.measures = measures
        self.caller = caller
        self.namespace = namespace

    @contextmanager
    def reading(self) -> Iterator[ExperienceLibrary]:
        """The library to read. Raises LibraryForbidden, UnknownName."""
        self.caller.must(self.namespace, write=False)
        with self.shelf.reading(self.namespace) as library:
            yield library

    @contextmanager
    def writing(self) -> Iterator[ExperienceLibrary]:
        """The library to write, its namespace made where it is new. Raises LibraryForbidden, LibraryReadOnly."""
        self.caller.must(self.namespace, write=True)
        with self.shelf.writing(self.namespace) as library:
            yield library

    @contextmanager
    def changing(self) -> Iterator[ExperienceLibrary]:
        """The library to change what is there; a namespace is not made by it."""
        self.caller.must(self.namespace, write=True)
        with self.shelf.reading(self.namespace) as library:
            yield library


async def _place(
    request: Request,
    namespace: Annotated[str, Query(max_length=200, description="The part of the library.")] = "default",
) -> Place:
    state = request.app.state
    return Place(state.shelf, state.measures, request.state.caller, namespace, state.turn)


At = Annotated[Place, Depends(_place)]


def in_turn(route: Callable[..., Response]) -> Callable[..., Awaitable[Response]]:
    """A route of milliseconds, worked on in the order in which it was asked: threads at a lock have none."""

    @wraps(route)
    async def waiting(at: Place, **asked: Any) -> Response:
        return await to_thread.run_sync(partial(route, at=at, **asked), limiter=at.turn)

    return waiting
