"""Recognize what a browser sends for a page of another origin; no such page may use a server on this machine.

The HTTP API, the dashboard and the proxy share these rules.
"""

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_OTHER_SITES = ("cross-site", "same-site")
"""Values of `Sec-Fetch-Site` for pages of another origin; another port of this machine is the same site."""


def is_loopback(host: str) -> bool:
    """Return whether a server at this address can be reached only from this machine."""
    return host in LOOPBACK


def is_for_loopback(scope: Scope) -> bool:
    """Return whether the only `Host` of a request names this machine; a page can point its own name at 127.0.0.1."""
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    try:
        return len(hosts) == 1 and urlsplit(f"//{hosts[0]}").hostname in LOOPBACK
    except ValueError:  # such as a lone "["
        return False


def is_foreign(scope: Scope) -> bool:
    """Return whether a browser sends this request for a page of another origin."""
    headers = Headers(scope=scope)
    if headers.get("sec-fetch-site") in _OTHER_SITES:
        return True
    origin = headers.get("origin")
    try:
        return origin is not None and urlsplit(origin).netloc != headers.get("host")
    except ValueError:
        return True


def is_link(scope: Scope) -> bool:
    """Return whether a person follows a link of any page to a page of this server."""
    headers = Headers(scope=scope)
    is_page = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return is_page and scope.get("method") in ("GET", "HEAD") and "origin" not in headers
