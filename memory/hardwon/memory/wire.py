"""HTTP client of a served library: retries, JSON conversion of records, and conversion of the server's errors.

The calls themselves are in `remote`. httpx is imported when a `Wire` is created.
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
"""Maximum number of attempts for a request that may be repeated."""
WAIT_S = 0.2
"""Seconds before the second attempt. The wait doubles before each further one."""
TIMEOUT_S = 60.0
"""Seconds until a request times out."""
PAGE = 1000
"""Rows per request."""


class Wire:
    """Client for one namespace of a server. Safe to use from several threads."""

    def __init__(self, url: str, token: str | None, namespace: str) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtra.of("httpx", "serve") from error
        self.url, self.token = url.rstrip("/"), token
        self._namespace = namespace
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            self._http = httpx.Client(base_url=f"{self.url}/v1", headers=headers, timeout=TIMEOUT_S)
        except (ValueError, httpx.InvalidURL) as error:
            raise ConfigError(f"{url!r} is not a valid server address ({error}). Give http://HOST:PORT.") from error

    def paged(
        self, path: str, name: str, limit: int | None, offset: int, filters: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Return the rows from `offset` up to `limit`, requested in pages of `PAGE` rows."""
        rows: list[Any] = []
        while limit is None or len(rows) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(rows))
            page = self.get(path, limit=size, offset=offset + len(rows), **(filters or {}))[name]
            rows += page
            if len(page) < size:
                break
        return rows

    def get(self, path: str, **query: Any) -> Any:
        """Return the JSON at a path."""
        return self.answer("GET", path, query, again=True).json()

    def ask(self, path: str, body: Mapping[str, Any]) -> Any:
        """Post a query that changes nothing on the server, with retries, and return the JSON answer."""
        return self.send("POST", path, body, again=True)

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, again: bool = False) -> Any:
        """Send a JSON body, and return the JSON answer.

        Set `again` only if the server can process the request twice without harm.
        """
        return self.answer(method, path, json=body, again=again).json()

    def answer(
        self, method: str, path: str, query: Mapping[str, Any] | None = None, *, again: bool = False, **body: Any
    ) -> Any:
        """Send a request with retries, and return the server's response.

        Args:
            method: HTTP method.
            path: Path below /v1.
            query: Query parameters; None values are left out.
            again: The request is idempotent, so it may be repeated after an error in transit.
            **body: Body of the request, as arguments of httpx.

        Raises:
            LibraryUnreachable: The server does not answer.
            HardwonError: The error that the server reported.
        """
        import httpx

        given = {name: value for name, value in (query or {}).items() if value is not None}
        parameters = {"namespace": self._namespace, **given}
        for left in reversed(range(TRIES)):
            wait_s = WAIT_S * 2 ** (TRIES - 1 - left)
            try:
                answer = self._http.request(method, path, params=parameters, **body)
            except httpx.ConnectError as error:  # nothing was sent: any request may be repeated
                if not left:
                    raise self._unreachable(error) from error
            except httpx.TransportError as error:  # the server may have processed the request
                if not again or not left:
                    raise self._unreachable(error) from error
            except ValueError as error:  # of the JSON encoder, before anything was sent
                raise ConfigError(f"a value cannot be sent to {self.url} ({error}). Use finite numbers.") from error
            else:
                if answer.status_code == 429 and left:  # rate limit, not processed: any request may be repeated
                    wait_s = max(wait_s, float(answer.headers.get("retry-after", 1)))
                elif answer.status_code < 400:
                    return answer
                else:
                    raise self._error(answer)
            time.sleep(wait_s)
        raise AssertionError("the last attempt returns or raises")

    def _unreachable(self, error: Exception) -> LibraryUnreachable:
        """Return the error for a server that does not answer."""
        return LibraryUnreachable(
            f"{self.url} does not answer ({error or type(error).__name__}). Start it with: hardwon serve LIBRARY"
        )

    def _error(self, answer: Any) -> HardwonError:
        """Return the error that the server reported, as an instance of its own class."""
        try:
            body = answer.json()
            detail, name = str(body["detail"]), str(body["error"])
        except (ValueError, LookupError, TypeError):
            return LibraryError(
                f"{self.url} answered {answer.status_code} and is not a hardwon server. Check the address."
            )
        # only classes of this package: the name comes from the network
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, HardwonError):
            return kind(detail)
        return LibraryError(f"{self.url} answered {answer.status_code}: {detail}")

    def close(self) -> None:
        """Close the connections. Closing twice is allowed."""
        self._http.close()


def part(ref: str) -> str:
    """Return an id quoted for use in a path.

    Raises:
        ConfigError: It is no id.
    """
    from .validation import check_id

    check_id("id", ref)
    return quote(ref, safe="")


@cache
def _adapter(kind: Any) -> Any:
    """Return the cached pydantic adapter of a type."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def read(kind: type[T], value: Any) -> T:
    """Return a record from JSON values."""
    return cast(T, _adapter(cast(Any, kind)).validate_python(value))


def plain(kind: Any, value: Any) -> Any:
    """Return a record as JSON values."""
    return _adapter(kind).dump_python(value, mode="json")
