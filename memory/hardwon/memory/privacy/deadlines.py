"""Deadlines: how long the calls inside a `with` block may wait for other threads and processes altogether.

Locks, the turn to write to the file, and the embedding of texts end with `LibraryBusy` when the time is over. Code that
stands between an agent and its model sets one, and goes on without experience.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Thread
from typing import Any, TypeVar

from hardwon.memory.errors import LibraryBusy

_T = TypeVar("_T")
_UNTIL: ContextVar[float | None] = ContextVar("hardwon.deadline", default=None)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Let the calls inside wait for at most so many seconds altogether. An outer deadline holds as well."""
    outer, until = _UNTIL.get(), time.monotonic() + seconds
    token = _UNTIL.set(until if outer is None else min(outer, until))
    try:
        yield
    finally:
        _UNTIL.reset(token)


def seconds_left() -> float | None:
    """Return the seconds until the deadline, at least 0, or None if there is none."""
    until = _UNTIL.get()
    return None if until is None else max(0.0, until - time.monotonic())


class Interruptible:
    """Ends the wait for calls that cannot be interrupted, such as those of a remote model, at the deadline."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._late: Future[Any] | None = None
        """The call that nobody waits for any more. Until it ends, no other one begins, or threads would pile up."""

    def call(self, work: Callable[[], _T]) -> _T:
        """Return the result of `work`, which runs in a thread of its own if there is a deadline."""
        left = seconds_left()
        if left is None:
            return work()
        if self._late is None or self._late.done():
            future = Future[_T]()
            Thread(target=_complete, args=(future, work), daemon=True).start()
            try:
                return future.result(left)
            except TimeoutError:
                if future.done():  # the call itself raised it
                    raise
                self._late = future
        raise LibraryBusy(f"{self._what} does not answer in time. Check that it can be reached.")


def _complete(future: Future[Any], work: Callable[[], Any]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
