"""Pass requests and responses on as they came: headers, bytes, and the end of a client that goes away."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import httpx
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

logger = logging.getLogger("hardwon.proxy")

Headers = list[tuple[bytes, bytes]]
_T = TypeVar("_T")
_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
})  # fmt: skip
"""Headers of one connection, which the other side must not see."""
_OF_REQUEST = frozenset({b"host", b"content-length", b"expect"})
"""Headers that belong to the address and to the bytes of a request."""


class ClientGone(Exception):
    """The client closed its connection."""


def forward_headers(headers: Iterable[tuple[bytes, bytes]], *, is_read: bool) -> Headers:
    """Return a client's headers for the upstream server; a response that the proxy reads must not be compressed."""
    kept = [(name, value) for name, value in _drop_hop(headers) if name.lower() not in _OF_REQUEST]
    if not is_read:
        return kept
    return [
        *((name, value) for name, value in kept if name.lower() != b"accept-encoding"),
        (b"accept-encoding", b"identity"),
    ]


def return_headers(response: httpx.Response, *, is_whole: bool) -> Headers:
    """Return the upstream server's headers for the client."""
    dropped = () if is_whole else (b"content-length", b"content-encoding")
    return [(name.lower(), value) for name, value in _drop_hop(response.headers.raw) if name.lower() not in dropped]


def _drop_hop(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    kept = list(headers)
    named = {
        part.strip().lower() for name, value in kept if name.lower() == b"connection" for part in value.split(b",")
    }
    return [(name, value) for name, value in kept if name.lower() not in _HOP | named]


class Relay(StreamingResponse):
    """A response whose source is closed when it ends, also if the client goes away."""

    def __init__(self, source: AsyncGenerator[bytes], status: int, headers: Headers) -> None:
        super().__init__(source, status)
        self._source = source
        self.raw_headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response. One that the server breaks off gets no end, so that the connection breaks here too."""
        try:
            await super().__call__(scope, receive, send)
        except httpx.HTTPError as error:
            logger.warning("the upstream server broke off its answer: %s: %s", type(error).__name__, error)
        finally:
            # The client's end cancels this call, and the connection to the upstream server must still be given back.
            await asyncio.shield(self._source.aclose())


async def relay(response: httpx.Response) -> AsyncGenerator[bytes]:
    """Yield the bytes of a response as they come."""
    try:
        async for data in response.aiter_raw():
            yield data
    finally:
        await response.aclose()


def is_encoded(response: httpx.Response) -> bool:
    """Return whether the body of a response is compressed; servers may compress what they were asked not to."""
    return bool(response.headers.get("content-encoding", "identity") != "identity")


def decode_body(response: httpx.Response, raw: bytes) -> bytes:
    """Return the plain bytes of a body."""
    if not is_encoded(response):
        return raw
    headers = {"content-encoding": response.headers["content-encoding"]}
    try:
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(raw)).read()
    except httpx.DecodingError:
        return raw


async def await_client(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of some work, which ends when the client goes away."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_await_end(request))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for waiting in (task, gone):
            waiting.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await waiting


async def _await_end(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
