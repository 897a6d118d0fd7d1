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
_NUMBER = re.compile(r"\s*@?([+-]?\d{1,25}(?:\.\d*)?(?:[eE][+-]?\d\d?)?)\s?(s|ms|us|µs|ns)?\s*")
_COMPACT = r"((?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01]))(?:([012]\d[0-5]\d(?:[0-5]\d)?)(\d{3}(?:\d{3})?)?)?"
"""A number whose digits are a day and a clock: no log has times of 1970 in seconds."""
_ISO = re.compile(
    r"\s*(?:\+0{0,2})?(\d{4}-?(?:\d\d-?\d\d|W\d\d-?\d|\d{3}))[Tt\s_-]?\s*+"
    r"(\d\d(?:(?::?\d\d){0,2}|-\d\d-\d\d))?(?:[.,]?(\d+))?"
    r"\s*+(Z|z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?Z?\s*+"
)
"""LangSmith writes no point before the fraction (20260101T100000123456Z)."""
_WRAPPERS = ("date", "numberlong", "iso", "as_str", "datetime", "timestamp", "time", "value", "millis", "s", "n")
"""Names of a time in an object: of MongoDB, Parse, BigQuery, PHP, DynamoDB and others."""
_SECONDS = ("seconds", "epochsecond", "secs", "sec", "t")
_NANOS = ("nanos", "nanoseconds", "nano", "nsec")
"""Names of the parts of a time, as protocol buffers, Firestore and Java write them."""
_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "µs": 10**3, "ns": 1}


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

    ISO 8601, also of a week, of a day of the year or a leap second, with or without an offset (none is UTC), with a
    space or nothing for the T; the forms of `time_words`; objects and lists with the parts; and numbers, also as text:
    seconds, milliseconds, microseconds or nanoseconds, told apart by their unit or their size.
    """
    value, unit = _unwrap(value), None
    if isinstance(value, datetime):
        value = value.isoformat()
    if isinstance(value, str):
        if "Date(" in value:  # of JavaScript and .NET
            value = re.split(r"[^\d.]", value.partition("Date(")[2])[0]
        if not (number := _NUMBER.fullmatch(value)):
            value = re.sub("[−–]", "-", value.strip("[]") if value.startswith("[") else value)
            match = _ISO.fullmatch(value) or _ISO.fullmatch(spell_time(value))
            return _parse_iso(*match.groups()) if match else None
        value, unit = float(number[1]) if re.search(r"[.eE]", number[1]) else int(number[1]), _UNITS.get(number[2])
    # bool is a subclass of int, NaN equals nothing
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 10**21:
        return None
    if isinstance(value, int) and not unit and (match := re.fullmatch(_COMPACT, str(value))):
        return _parse_iso(match[1], match[2], match[3], None)
    unit = unit or next((10 ** (9 - 3 * n) for n in range(3) if abs(value) < 10 ** (11 + 3 * n)), 1)
    moment = int(value // 1) * unit + round(value % 1 * unit)  # in parts: the product would round
    return moment if abs(moment) < 2**63 else None  # about the year 2262


def _unwrap(value: Any) -> Any:
    """Return a time that a program wrote as an object, or as a list of its parts, as text or a number."""
    while isinstance(value, dict):
        named = {str(name).strip("_$").lower(): inner for name, inner in value.items()}
        whole, nanos = (next((named[name] for name in names if name in named), 0) for names in (_SECONDS, _NANOS))
        value = [whole, nanos] if whole else next((named[name] for name in _WRAPPERS if name in named), None)
    if not isinstance(value, list):
        return value
    parts: list[Any] = [
        int(part) if isinstance(part, str) and part.isdecimal() and len(part) < 20 else part for part in value
    ]
    if not 2 <= len(parts) <= 7 or any(type(part) is not int or part < 0 for part in parts):
        return None
    if len(parts) == 2:
        return f"{parts[0] * 10**9 + parts[1]}ns"
    day, clock = parts[:3], [*parts[3:], 0, 0, 0, 0]
    return "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:09}".format(*day, *clock[:4])


def _parse_iso(day: str, clock: str | None, fraction: str | None, zone: str | None) -> int | None:
    try:
        zone = "+00:00" if zone in (None, "UTC", "GMT", "Z", "z") else zone
        clock, later = (clock or "00:00").replace("-", ":"), timedelta()
        if leap := re.fullmatch(r"(\d\d:?\d\d:?)60", clock):  # a leap second counts as the next second
            clock, later = f"{leap[1]}59", timedelta(seconds=1)
        if re.fullmatch(r"24(?::?00)*", clock):
            clock, later = f"00{clock[2:]}", timedelta(days=1)
        if "W" not in day and len(digits := day.replace("-", "")) == 7:
            day = f"{datetime.strptime(digits, '%Y%j'):%Y-%m-%d}"
        moment = datetime.fromisoformat(f"{day}T{clock}{zone}") + later
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
