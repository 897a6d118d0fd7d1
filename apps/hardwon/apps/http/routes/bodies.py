"""JSON bodies: values that JSON allows but no record can hold are rejected before they are used.

Python reads NaN, lone surrogates, integers of any length, and objects nested a thousand levels deep. SQLite, UTF-8 and
the code that walks records do not support them. `CheckedRoute` rejects them and names the position and the value. All
routes of the API use it.
"""

import json
import math
import re
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

DEPTH = 64
"""Deepest nesting of lists and objects. The condition of a guardrail has only a few levels."""
SHOWN = 60
"""Length limit of values in messages, in characters."""
_UNUSUAL = re.compile(rb"\\u[dD][89abAB]|\d{19}|[eE]\+?\d{3}")
"""Surrogates and long numbers. Only bodies that contain these are checked value by value."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_NO_BRACKETS = bytes({*range(256)} - {*b"[]{}"})

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class CheckedRequest(Request):
    """A request whose JSON is checked when it is read."""

    async def json(self) -> Any:
        """Return the parsed body."""
        if not hasattr(self, "_json"):
            self._json = read(await self.body())
        return self._json


class CheckedRoute(APIRoute):
    """A route that checks its body."""

    def get_route_handler(self) -> Handler:
        """Return the handler of requests."""
        answer = super().get_route_handler()

        async def checked(request: Request) -> Response:
            return await answer(CheckedRequest(request.scope, request.receive))

        return checked


def read(body: bytes) -> Any:
    """Parse and check a JSON body."""
    try:
        value = json.loads(body.decode(), parse_constant=_no_number)
    except UnicodeDecodeError as error:
        seen = f"byte {error.start} is {body[error.start]:#04x}"
        raise _wrong(400, f"the body is not UTF-8: {seen}. Send UTF-8.") from error
    except RecursionError as error:
        raise _wrong(422, _too_deep()) from error
    except ValueError as error:
        words = str(error)[:200]
        raise _wrong(
            400, f"the body is not JSON ({words}); it starts with {_abbreviate(body[:200])}. Send JSON."
        ) from error
    # Scans of the bytes prove most bodies harmless: to look at a million values takes seconds, and others wait.
    if body.count(b"[") + body.count(b"{") > DEPTH and _measure_depth(body) > DEPTH:
        raise _wrong(422, _too_deep())
    if _UNUSUAL.search(body):
        _check(value)
    return value


def _measure_depth(body: bytes) -> int:
    """Return the number of levels of lists and objects in valid JSON."""
    brackets = np.frombuffer(_STRING.sub(b"", body).translate(None, _NO_BRACKETS), np.uint8)
    # of both pairs of brackets, the closing one is two characters after the opening one
    return int(np.cumsum(np.where(brackets & 4, -1, 1)).max(initial=0))


def _check(value: Any) -> None:
    """Check every value."""
    left: list[tuple[str, Any]] = [("body", value)]
    while left:
        place, value = left.pop()
        if isinstance(value, dict):
            for name, inner in value.items():
                _check_text(f"a name in {place}", name)
                left.append((f"{place}.{name[:SHOWN]}", inner))
        elif isinstance(value, list):
            left.extend((f"{place}.{index}", inner) for index, inner in enumerate(value))
        elif isinstance(value, str):
            _check_text(place, value)
        # Exclusive bound of integers: SQLite stores 64 bits.
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise _wrong(422, f"{place} is {_abbreviate(value)}: integers are limited to 64 bits. Send a smaller one.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise _wrong(422, f"{place} is too large. Send a finite number.")


def _check_text(place: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        character = ascii(text[error.start : error.start + 1])
        raise _wrong(422, f"{place} has a lone surrogate, {character}. Send valid Unicode.") from error


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not valid in JSON")


def _too_deep() -> str:
    return f"the body has more than {DEPTH} levels of lists and objects. Send a flatter one."


def _abbreviate(value: Any) -> str:
    text = ascii(value) if not isinstance(value, int) else f"{value:.3e}" if abs(value) < 10**300 else "a huge number"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _wrong(status: int, detail: str) -> HTTPException:
    return HTTPException(status, detail)
