"""Calls to a served library: requests that are tried again where that does no harm, records out of JSON and into it,
and the server's errors as the library's own. What is called is in `remote`. httpx is imported when a wire is made.
"""

import time
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, cast
from urllib.parse import quote

from . import errors
from .errors import ConfigError, HardwonError, LibraryError, LibraryUnreachable, MissingExtra

T = TypeVar("T")

TRIES = 4
"""How often a call that may be repeated is made before the server counts as unreachable."""
WAIT_S = 0.2
"""Before the second try; twice as long before each further one."""
TIMEOUT_S = 60.0
PAGE = 1000
"""Rows that one request asks for."""


class Wire:
    """One namespace of a server, as JSON; safe for many threads."""

    def __init__(self, url: str, token: str | None, namespace: str) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtra.of("httpx", "serve") from error
        self.url = url.rstrip("/")
        self._namespace = namespace
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            self._http = httpx.Client(base_url=f"{self.url}/v1", headers=headers, timeout=TIMEOUT_S)
        except (ValueError, httpx.InvalidURL) as error:
            raise ConfigError(f"{url!r} is no address of a server ({error}). Give http://HOST:PORT.") from error

    def paged(
        self, path: str, name: str, limit: int | None, offset: int, filters: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """All rows that are asked for, a page at a time."""
        found: list[Any] = []
        while limit is None or len(found) < limit:
            wanted = PAGE if limit is None else min(PAGE, limit - len(found))
            page = self.get(path, limit=wanted, offset=offset + len(found), **(filters or {}))[name]
            found += page
            if len(page) < wanted:
                break
        return found

    def get(self, path: str, **query: Any) -> Any:
        """What is at a path."""
        return self.answer("GET", path, query, again=True).json()

    def ask(self, path: str, body: Mapping[str, Any]) -> Any:
        """A question that changes nothing."""
        return self.send("POST", path, body, again=True)

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, again: bool = False) -> Any:
        """The answer to a body."""
        return self.answer(method, path, json=body, again=again).json()

    def answer(
        self, method: str, path: str, query: Mapping[str, Any] | None = None, *, again: bool = False, **body: Any
    ) -> Any:
        """The server's answer; `again`: the call may be repeated without harm."""
        import httpx

        known = {name: value for name, value in (query or {}).items() if value is not None}
        parameters = {"namespace": self._namespace, **known}
        for left in reversed(range(TRIES)):
            wait_s = WAIT_S * 2 ** (TRIES - 1 - left)
            try:
                answer = self._http.request(method, path, params=parameters, **body)
            except httpx.ConnectError as error:  # nothing was sent: any call may be repeated
                if not left:
                    raise self._unreachable(error) from error
            except httpx.TransportError as error:
                if not again or not left:
                    raise self._unreachable(error) from error
            else:
                if answer.status_code == 429 and left:  # it was not let in: any call may be repeated
                    wait_s = max(wait_s, float(answer.headers.get("retry-after", 1)))
                elif answer.status_code < 400:
                    return answer
                else:
                    raise self._error(answer)
            time.sleep(wait_s)
        raise AssertionError("the last try returns or raises")

    def _unreachable(self, error: Exception) -> LibraryUnreachable:
        return LibraryUnreachable(
            f"{self.url} does not answer ({error or type(error).__name__}). Start it with: hardwon serve LIBRARY"
        )

    def _error(self, answer: Any) -> HardwonError:
        """The error that the server raised."""
        try:
            told = answer.json()
            detail, name = str(told["detail"]), str(told["error"])
        except (ValueError, LookupError, TypeError):
            return LibraryError(f"{self.url} answered {answer.status_code}, not as hardwon does. Is the address right?")
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, HardwonError):
            return kind(detail)
        return LibraryError(f"{self.url} answered {answer.status_code}: {detail}")

    def close(self) -> None:
        """Close the connections. Closing twice is fine."""
        self._http.close()


def part(ref: str) -> str:
    """An id as a part of a path."""
    return quote(ref, safe="")


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def read(kind: type[T], value: Any) -> T:
    """A record out of JSON."""
    return cast(T, _adapter(cast(Any, kind)).validate_python(value))


def plain(kind: Any, value: Any) -> Any:
    """A record as JSON."""
    return _adapter(kind).dump_python(value, mode="json")
