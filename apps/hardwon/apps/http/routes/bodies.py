"""Bodies of JSON: what JSON allows and no record can hold is refused before anything is made of it.

Python reads NaN, halves of characters, numbers of any length, and objects nested a thousand deep; SQLite, UTF-8 and
the code that walks records do not. `CheckedRoute` names the place and the value; the routes of the API are made of it.
"""

import json
import math
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

DEPTH = 64
"""Lists and objects inside one another at most: a condition of a guardrail has a few."""
WHOLE = 2**63
"""Whole numbers lie between minus this and this; SQLite holds no larger ones."""
SHOWN = 60
"""Characters of a value that a message shows."""
_UNUSUAL = re.compile(rb"\\u[dD][89abAB]|\d{19}|[eE]\+?\d{3}")
"""Half characters, long numbers: what makes it worth to look at every value."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class CheckedRequest(Request):
    """A request whose JSON is checked as it is read."""

    async def json(self) -> Any:
        """Return the body. Raises HTTPException 400 or 422 with the reason."""
        if not hasattr(self, "_json"):
            self._json = read(await self.body())
        return self._json


class CheckedRoute(APIRoute):
    """A route that reads its body so."""

    def get_route_handler(self) -> Handler:
        """Return what answers a request."""
        answer = super().get_route_handler()

        async def checked(request: Request) -> Response:
            return await answer(CheckedRequest(request.scope, request.receive))

        return checked


def read(body: bytes) -> Any:
    """Return what a body of JSON says. Raises HTTPException for what no record can hold."""
    try:
        value = json.loads(body.decode(), parse_constant=_no_number)
    except UnicodeDecodeError as error:
        seen = f"byte {error.start} is {body[error.start]:#04x}"
        raise _wrong(400, f"the body is not UTF-8: {seen}. Send UTF-8.") from error
    except RecursionError as error:
        raise _wrong(422, _too_deep()) from error
    except ValueError as error:
        words = str(error)[:200]
        raise _wrong(400, f"the body is not JSON ({words}); it begins with {_shown(body[:200])}. Send JSON.") from error
    if body.count(b"[") + body.count(b"{") > DEPTH or _UNUSUAL.search(body):
        _check(value)
    return value


def _check(value: Any) -> None:
    """Look at every value, without recursion."""
    left: list[tuple[str, Any, int]] = [("body", value, 1)]
    while left:
        place, value, depth = left.pop()
        if depth > DEPTH:
            raise _wrong(422, _too_deep())
        if isinstance(value, dict):
            for name, inner in value.items():
                _check_text(f"a name in {place}", name)
                left.append((f"{place}.{name[:SHOWN]}", inner, depth + 1))
        elif isinstance(value, list):
            left.extend((f"{place}.{index}", inner, depth + 1) for index, inner in enumerate(value))
        elif isinstance(value, str):
            _check_text(place, value)
        elif isinstance(value, int) and not -WHOLE <= value < WHOLE:
            raise _wrong(422, f"{place} is {_shown(value)}: whole numbers have 64 bits. Give a smaller one.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise _wrong(422, f"{place} is beyond every number that can be kept. Give a smaller one.")


def _check_text(place: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        shown = ascii(text[error.start : error.start + 1])
        raise _wrong(422, f"{place} has half a character, {shown}. Send whole characters.") from error


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _too_deep() -> str:
    return f"the body has more than {DEPTH} lists and objects inside one another. Send a flatter one."


def _shown(value: Any) -> str:
    text = ascii(value) if not isinstance(value, int) else f"{value:.3e}" if abs(value) < 10**300 else "a huge number"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _wrong(status: int, detail: str) -> HTTPException:
    return HTTPException(status, detail)
