"""Deadlines: how long the calls inside a `with` block may wait for other threads and processes altogether.

Locks, the turn to write to the file, and the embedding of texts that have no vector yet end with `LibraryBusy` when the
time is over. Code that stands between an agent and its model sets one, and goes on without experience.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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
