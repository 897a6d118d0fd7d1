"""Monitoring of the server: one line of JSON per request, and metrics for Prometheus.

A line contains the caller, the path and the result, but never a body or a token.
"""

import json
import logging
import re
import time
import uuid
from collections import deque
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Receive, Scope, Send

from .shelf import Shelf

_GOOD_ID = re.compile(r"[\w.-]{1,64}")
_METHODS = frozenset({"GET", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS", "PUT"})
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)

logger = logging.getLogger("hardwon.http")


class Measures:
    """The metrics of one server."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "hardwon_http_requests", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "hardwon_http_request_seconds", "Time to answer.", ["route"], registry=self.registry, buckets=_BUCKETS
        )
        self.running = Gauge("hardwon_http_requests_running", "Requests being answered.", registry=self.registry)
        self._recall = Histogram(
            "hardwon_recall_seconds", "Time of recall in the library.", registry=self.registry, buckets=_BUCKETS
        )
        self._episodes = Gauge("hardwon_episodes", "Episodes recorded.", ["namespace"], registry=self.registry)
        self.extracted = Counter(
            "hardwon_extractor_episodes", "Recorded episodes, by what the extractor did.", ["result"],
            registry=self.registry,
        )  # fmt: skip
        self._bytes = Gauge("hardwon_library_bytes", "Size of the library's file.", registry=self.registry)
        self.recalls: deque[float] = deque(maxlen=1000)
        """Times of the newest recalls, in seconds."""

    @contextmanager
    def recall(self) -> Iterator[None]:
        """Time a recall."""
        began = time.perf_counter()
        yield
        took = time.perf_counter() - began
        self._recall.observe(took)
        self.recalls.append(took)

    def text(self) -> bytes:
        """Return all metrics in Prometheus text format."""
        for namespace in self._shelf.names():
            with self._shelf.reading(namespace) as library:
                self._episodes.labels(namespace).set(library.episodes.count())
        self._bytes.set(self._shelf.size())
        return generate_latest(self.registry)


class Watch:
    """Assigns an id to every request, times it, counts it, and logs a line."""

    def __init__(self, app: ASGIApp, measures: Measures) -> None:
        self._app = app
        self._measures = measures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        requested_id = next(
            (value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), ""
        )
        # Other ids could inject text into the log and the response headers.
        request_id = requested_id if _GOOD_ID.fullmatch(requested_id) else uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        # 500 stands if the application raises an error before it responds.
        status, began = 500, time.perf_counter()

        async def named(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", []).append((b"x-request-id", request_id.encode()))
            await send(message)

        self._measures.running.inc()
        try:
            await self._app(scope, receive, named)
        finally:
            took = time.perf_counter() - began
            self._measures.running.dec()
            route = _route(scope)
            # Every new label value creates a time series, so values that a caller invents are merged.
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._measures.requests.labels(method, route, str(status)).inc()
            self._measures.seconds.labels(route).observe(took)
            logger.info("request", extra={"told": _describe_request(scope, request_id, status, took)})


def _route(scope: Scope) -> str:
    """Return the path template of the route, so that ids in paths create no new time series."""
    path = getattr(scope.get("route"), "path", "")
    return path if (path and path in ("/healthz", "/metrics", "/login")) or path.startswith("/v1") else "other"


def _describe_request(scope: Scope, request_id: str, status: int, took_s: float) -> dict[str, Any]:
    caller = scope["state"].get("caller")
    return {
        "request": request_id,
        "caller": caller.name if caller else None,
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "ms": round(took_s * 1000, 2),
    }


class JsonLines(logging.Formatter):
    """Formats a log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "what": record.getMessage(),
            **getattr(record, "told", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
