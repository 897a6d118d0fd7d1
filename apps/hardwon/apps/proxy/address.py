"""Join the path of a request with the address of the upstream server, of which no request can change a part."""

import re
from urllib.parse import unquote

import httpx

_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\#]")


class PathRefused(ValueError):
    """The target of a request is no path below the upstream server's address."""


def join_path(upstream: httpx.URL, path: bytes, query: bytes) -> httpx.URL:
    """Return the URL of a path below the upstream server's address, which stands for the proxy's `/v1`."""
    if not _leads_down(path.decode("latin-1")):
        raise PathRefused(f"{path[:80]!r} is no path below /v1; use one such as /v1/chat/completions")
    below = path.removeprefix(b"/v1") if path == b"/v1" or path.startswith(b"/v1/") else path
    target = upstream.raw_path.partition(b"?")[0].rstrip(b"/") + below + (b"?" + query if query else b"")
    try:
        return upstream.copy_with(raw_path=target)
    except httpx.InvalidURL as error:
        raise PathRefused(f"the target {target[:80]!r} is refused: {error}") from error


def _leads_down(path: str) -> bool:
    """Return whether every segment of a path leads down, however often it is decoded."""
    while (decoded := unquote(path, "latin-1")) != path:
        path = decoded
    before, *segments = path.removeprefix("/v1").split("/") if path.startswith("/v1/") else path.split("/")
    if before or not segments or _UNSAFE.search(path) or {"@", ":"} & set(segments[0]):
        return False
    names = [segment.partition(";")[0] for segment in segments]
    return not {".", ".."} & set(names) and all(names[:-1])


def name_route(path: str) -> str:
    """Return what a server may take a path for: in lower case, decoded, and without empty parts and parameters.

    >>> name_route("/v1/Chat/completions/")
    'chat/completions'
    """
    while (decoded := unquote(path, "latin-1")) != path:
        path = decoded
    names = [segment.partition(";")[0] for segment in path.casefold().split("/")]
    return "/".join(filter(None, names)).removeprefix("v1/")
