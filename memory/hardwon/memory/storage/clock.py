"""Times: the one that is written to the library, and those that other programs write, in whatever form.

The time that is written is the clock of this machine, or the time of the entry that is being applied.

Replicas of one log must not differ by when they applied it, so `fix_time` makes every row that is written inside it
carry the time of the entry.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from .time_words import spell_time

_FIXED: ContextVar[str | None] = ContextVar("hardwon.fixed_time", default=None)
_NUMBER = re.compile(r"\s*[+-]?\d{1,25}(?:\.\d*)?(?:[eE][+-]?\d\d?)?\s*")
_ISO = re.compile(
    r"\s*(\d{4}-?(?:\d\d-?\d\d|W\d\d-?\d))[Tt\s]?\s*+(\d\d(?::?\d\d){0,2})?(?:[.,]?(\d+))?\s*+(Z|z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?\s*+"
)
"""LangSmith writes no point before the fraction (20260101T100000123456Z)."""
_WRAPPERS = {"$date", "$numberLong"}
"""Keys around a time in the JSON of MongoDB."""


def now() -> str:
    """Return the current time in the stored format: UTC, ISO 8601, to the second."""
    return _FIXED.get() or _format_time(int(time.time()))


def read_clock() -> float:
    """Return the current time in seconds since the epoch."""
    fixed = _FIXED.get()
    return time.time() if fixed is None else datetime.fromisoformat(fixed).timestamp()


@contextmanager
def fix_time(at: str) -> Iterator[None]:
    """Let `now` and `read_clock` return a given time inside this context, in this thread."""
    token = _FIXED.set(at)
    try:
        yield
    finally:
        _FIXED.reset(token)


@lru_cache(maxsize=1)
def _format_time(second: int) -> str:
    """Return a time in the stored format. Cached, because many rows are written within one second."""
    return datetime.fromtimestamp(second, UTC).isoformat()


def parse_time(value: Any) -> int | None:
    """Return the moment of a time in nanoseconds since the epoch; None if it is none.

    ISO 8601, also of a week or a leap second, with or without an offset (none is UTC), with a space or nothing for the
    T; the forms of `time_words`; that of MongoDB; and numbers, also as text: seconds, milliseconds, microseconds or
    nanoseconds, told apart by their size.
    """
    while isinstance(value, dict) and len(value) == 1 and not value.keys().isdisjoint(_WRAPPERS):
        (value,) = value.values()
    if isinstance(value, datetime):
        value = value.isoformat()
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value):
            match = _ISO.fullmatch(value) or _ISO.fullmatch(spell_time(value))
            return _parse_iso(*match.groups()) if match else None
        value = float(value) if re.search(r"[.eE]", value) else int(value)
    # bool is a subclass of int, NaN equals nothing
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 10**21:
        return None
    unit = next((10 ** (9 - 3 * n) for n in range(3) if abs(value) < 10 ** (11 + 3 * n)), 1)
    moment = int(value // 1) * unit + round(value % 1 * unit)  # in parts: the product would round
    return moment if abs(moment) < 2**63 else None  # about the year 2262


def _parse_iso(day: str, clock: str, fraction: str | None, zone: str | None) -> int | None:
    try:
        zone = "+00:00" if zone in (None, "UTC", "GMT", "Z", "z") else zone
        clock = clock or "00:00"
        leap = re.fullmatch(r"(\d\d:?\d\d:?)60", clock)  # a leap second counts as the next second
        moment = datetime.fromisoformat(f"{day}T{f'{leap[1]}59' if leap else clock}{zone}")
        moment += timedelta(seconds=bool(leap))
    except (ValueError, OverflowError):
        return None
    # Not `timestamp`, whose float has no nanoseconds.
    whole = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
    return whole * 10**9 + int(f"{fraction or '0':0<9.9}") if abs(whole) < 2**33 else None


def format_moment(moment: int) -> str:
    """Return a moment in nanoseconds since the epoch in the stored format, with a fraction if it has one.

    Texts of this form are in the order of their moments.
    """
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment // 1000)).isoformat()


def normalize_time(value: Any) -> str:
    """Return a time in the stored format; the current time if the value is none."""
    moment = parse_time(value)
    return now() if moment is None else _format_time(moment // 10**9)
