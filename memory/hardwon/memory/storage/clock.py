"""The time that is written to the library: the clock of this machine, or the time of the entry that is being applied.

Replicas of one log must not differ by when they applied it, so `fix_time` makes every row that is written inside it
carry the time of the entry.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache

_FIXED: ContextVar[str | None] = ContextVar("hardwon.fixed_time", default=None)


def now() -> str:
    """Return the current time in the stored format: UTC, ISO 8601, to the second."""
    return _FIXED.get() or _format_time(int(time.time()))


def read_clock() -> float:
    """Return the current time in seconds since the epoch."""
    fixed = _FIXED.get()
    return time.time() if fixed is None else datetime.fromisoformat(fixed).timestamp()


@contextmanager
def fix_time(at: str) -> Iterator[None]:
    """Let `now` and `read_clock` return a given time inside this context, in this thread.

    Args:
        at: The time in the stored format.
    """
    token = _FIXED.set(at)
    try:
        yield
    finally:
        _FIXED.reset(token)


@lru_cache(maxsize=1)
def _format_time(second: int) -> str:
    """Return a time in the stored format. Cached, because many rows are written within one second."""
    return datetime.fromtimestamp(second, UTC).isoformat()
