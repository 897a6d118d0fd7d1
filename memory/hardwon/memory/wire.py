"""HTTP client of a served library: retries, JSON conversion of records, and conversion of the server's errors.

The calls themselves are in `remote`. httpx is imported when a `Wire` is created.
"""

import json
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from functools import cache
from math import isfinite
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from urllib.parse import quote

from . import errors
from .errors import ConfigError, HardwonError, LibraryError, LibraryUnreachable, MissingExtra
from .privacy.deadlines import Interruptible, deadline, seconds_left

if TYPE_CHECKING:
    from httpx import Response

T = TypeVar("T")

TRIES = 4
"""Maximum number of attempts for a request that may be repeated."""
WAIT_S = 0.2
"""Seconds before the second attempt. The wait doubles before each further one."""
MOST_WAIT_S = 10.0
"""Longest wait in seconds that a server can request between two attempts."""
LIMITS_S = {"query": 30.0, "write": 60.0, "whole": 300.0}
"""Seconds until a call gives up, with all its attempts and however slowly an answer arrives. `whole` holds for calls
that read or write the whole library."""
MOST_BYTES = 2**26
"""Largest answer in bytes that is kept in memory: four times the largest body that a server takes, and longer than any
page. An export is written to a file part by part."""
PLAIN_ANSWERS = {"Accept-Encoding": "identity"}
"""Header of a request: a small compressed answer may stand for gigabytes."""
KEY = "Idempotency-Key"
"""Header of a write. A server that has answered a key before returns that answer and writes nothing."""
PAGE = 1000
"""Rows per request."""


class Wire:
    """Client for one namespace of a server. Safe to use from several threads."""

    def __init__(self, url: str, token: str | None, namespace: str) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtra.of("httpx", "agent") from error
        self.url, self.token = url.rstrip("/"), token
        self._namespace = namespace
        # The time-outs of a socket begin anew with each byte, so a server that sends slowly could hold up a caller.
        self._calls = Interruptible(self.url)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers |= PLAIN_ANSWERS
        try:
            self._http = httpx.Client(base_url=f"{self.url}/v1", headers=headers, timeout=60.0)
        except (ValueError, httpx.InvalidURL) as error:
            raise ConfigError(f"{url!r} is not a valid server address ({error}). Give http://HOST:PORT.") from error

    def paged(
        self, path: str, name: str, limit: int | None, offset: int, filters: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Return the rows from `offset` up to `limit`, requested in pages of `PAGE` rows."""
        rows: list[Any] = []
        while limit is None or len(rows) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(rows))
            page = read(list[Any], self.get(path, limit=size, offset=offset + len(rows), **(filters or {}))[name])
            rows += page[:size]
            if len(page) < size:
                break
        return rows

    def get(self, path: str, **query: Any) -> Any:
        """Return the JSON at a path."""
        return self.answer("GET", path, query, limit="query")

    def ask(self, path: str, body: Mapping[str, Any]) -> Any:
        """Post a query that changes nothing on the server, and return the JSON answer."""
        return self.answer("POST", path, has_key=False, limit="query", json=body)

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a JSON body, and return the JSON answer."""
        return self.answer(method, path, json=body)

    def answer(self, method: str, path: str, query: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Send a request with retries, and return the JSON object of the server's answer; see `request`."""
        answer = self.request(method, path, query, **options)
        if answer.status == 204:
            empty = Fields()
            empty.has_content = False
            return empty
        if (values := answer.parse()) is None:
            raise self._foreign(answer)
        return Fields(values)

    def download(self, path: str, into: IO[bytes]) -> None:
        """Write the lines of JSON at a path to a file, part by part."""
        answer = self.request("GET", path, limit="whole", into=into)
        if not answer.kind.endswith("json"):
            raise self._foreign(answer)

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        *,
        has_key: bool = True,
        limit: str = "write",
        into: IO[bytes] | None = None,
        **body: Any,
    ) -> "HttpAnswer":
        """Send a request with retries, and return the server's answer.

        Every attempt of a write has the same key, so that one whose answer was lost is not carried out twice.

        Args:
            method: Method of HTTP.
            path: Path below the version of the API.
            query: Parameters; None is left out.
            has_key: Whether a write has a key.
            limit: Which of the `LIMITS_S` holds.
            into: File for the content of a successful answer, which may then be of any size.
            **body: The body, as for httpx.
        """
        given = {name: value for name, value in (query or {}).items() if value is not None}
        body |= {"params": {"namespace": self._namespace, **given}}
        if has_key and method != "GET":
            body["headers"] = {KEY: uuid.uuid4().hex}
        _url.set(self.url)
        with deadline(LIMITS_S[limit]):
            until = time.monotonic() + (seconds_left() or 0.0)
            return self._repeat(lambda: self._exchange(method, path, body, until, into))

    def _repeat(self, exchange: "Callable[[], HttpAnswer]") -> "HttpAnswer":
        """Carry out an exchange until it is answered, in the time that is left."""
        import httpx

        for left in reversed(range(TRIES)):
            wait_s = WAIT_S * 2 ** (TRIES - 1 - left)
            try:
                answer = self._calls.call(exchange)
            except httpx.TransportError as error:
                if not left or wait_s > (seconds_left() or 0.0):
                    raise self._unreachable(error) from error
            except httpx.HTTPError as error:
                raise self._unreachable(error) from error
            except (ValueError, httpx.InvalidURL) as error:  # before anything was sent
                advice = "Use finite numbers and short texts."
                raise ConfigError(f"a value cannot be sent to {self.url} ({error}). {advice}") from error
            else:
                if answer.status != 429 or not left:  # rate limit
                    return self._accept(answer)
                wait_s = max(wait_s, parse_wait(answer.retry_after, 1.0, MOST_WAIT_S))
            time.sleep(wait_s)
        raise AssertionError("the last attempt returns or raises")

    def _exchange(
        self, method: str, path: str, options: Mapping[str, Any], until: float, into: IO[bytes] | None
    ) -> "HttpAnswer":
        """Send a request once, and return the answer. Nobody waits for a part of it after `until`."""
        import httpx

        with self._http.stream(method, path, **options) as response:
            content = bytearray()
            is_kept = into is None or not response.is_success
            if into is not None:  # an earlier attempt may have ended in the middle
                into.seek(0)
                into.truncate()
            for chunk in response.iter_raw():
                if time.monotonic() > until:
                    raise httpx.ReadTimeout("the answer does not end in time")
                if is_kept:
                    add_chunk(content, chunk)
                elif into is not None:
                    into.write(chunk)
        return HttpAnswer.of(response, content)

    def _accept(self, answer: "HttpAnswer") -> "HttpAnswer":
        if 200 <= answer.status < 300:
            return answer
        raise self._error(answer)

    def _foreign(self, answer: "HttpAnswer") -> LibraryError:
        """Return the error for an answer that no hardwon server gives."""
        return LibraryError(
            f"{self.url} answered {answer.status} with {len(answer.content)} bytes of {answer.kind or 'no type'}, and "
            "is not a hardwon server. Check the address."
        )

    def _unreachable(self, error: Exception) -> LibraryUnreachable:
        """Return the error for a server that does not answer."""
        return LibraryUnreachable(
            f"{self.url} does not answer ({error or type(error).__name__}). Start it with: hardwon serve LIBRARY"
        )

    def _error(self, answer: "HttpAnswer") -> HardwonError:
        """Return the error that the server reported, as an instance of its own class."""
        body = answer.parse() or {}
        if "detail" not in body or "error" not in body:
            return self._foreign(answer)
        detail, name = str(body["detail"]), str(body["error"])
        # only classes of this package: the name comes from the network
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, HardwonError):
            return kind(detail)
        return LibraryError(f"{self.url} answered {answer.status}: {detail}")

    def close(self) -> None:
        """Close the connections. Closing twice is allowed."""
        self._http.close()


class HttpAnswer(NamedTuple):
    """What a server answered, whole and not compressed."""

    status: int
    kind: str
    """Type of the content, without parameters."""
    content: bytes
    retry_after: str = ""

    @classmethod
    def of(cls, response: "Response", content: bytes | bytearray) -> "HttpAnswer":
        """Return the answer of a response of httpx, whose content was read raw."""
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        kind = "compressed" if "content-encoding" in response.headers else kind
        return cls(response.status_code, kind, bytes(content), response.headers.get("retry-after", ""))

    def parse(self) -> dict[str, Any] | None:
        """Return the JSON object of the answer; None if it is none."""
        with suppress(ValueError, RecursionError):
            values = json.loads(self.content) if self.kind.endswith("json") else None
            return values if isinstance(values, dict) else None
        return None


def add_chunk(content: bytearray, chunk: bytes, most_bytes: int | None = None) -> None:
    """Add a part of an answer, up to `MOST_BYTES` or another limit."""
    content += chunk
    if len(content) > (most_bytes or MOST_BYTES):
        import httpx

        raise httpx.DecodingError(f"the answer has more than {most_bytes or MOST_BYTES:,} bytes")


def parse_wait(text: str | None, otherwise_s: float, most_s: float) -> float:
    """Return the seconds of a Retry-After header, within bounds."""
    try:
        wait_s = float(text or "")
    except ValueError:
        return otherwise_s
    return min(max(wait_s, 0.0), most_s) if isfinite(wait_s) else most_s


def part(ref: str) -> str:
    """Return an id quoted for use in a path."""
    from .validation import check_id

    check_id("id", ref)
    return quote(ref, safe="")


@cache
def _adapter(kind: Any) -> Any:
    """Return the cached pydantic adapter of a type."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


_url: ContextVar[str] = ContextVar("_url", default="the server")
"""Address of the server that answered last, for messages about its answer."""


def make_answer_error(what: str) -> LibraryError:
    """Return the error for an answer of another shape than that of hardwon."""
    return LibraryError(f"the answer of {_url.get()} {what}. Update hardwon on both machines, or check the address.")


class Fields(dict[str, Any]):
    """An answer, whose missing fields are named."""

    has_content = True

    def __missing__(self, name: str) -> Any:
        raise make_answer_error(f"has no {name!r}")


def read(kind: type[T], value: Any) -> T:
    """Return a record from JSON values of an answer."""
    from pydantic import ValidationError

    name = getattr(kind, "__name__", str(kind))
    # A record whose fields all have defaults could be made of any object.
    if is_dataclass(kind) and isinstance(value, Mapping) and value.keys().isdisjoint(f.name for f in fields(kind)):
        raise make_answer_error(f"is not a valid {name:.60}")
    try:
        return cast(T, _adapter(cast(Any, kind)).validate_python(value))
    except (ValidationError, ConfigError, RecursionError) as error:
        raise make_answer_error(f"is not a valid {name:.60} ({error!s:.160})") from error


def read_fields(answer: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer whose fields were checked against their types, in which further ones may be."""
    return {**answer, **{name: read(kind, answer[name]) for name, kind in kinds.items()}}


def plain(kind: Any, value: Any) -> Any:
    """Return a record as JSON values."""
    return _adapter(kind).dump_python(value, mode="json")
