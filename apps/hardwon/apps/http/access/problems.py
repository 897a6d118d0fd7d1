"""Errors as problem JSON (RFC 9457): the status by the class of the error, the detail from its message.

`error` names the class, so that `RemoteLibrary` can raise the same one.
"""

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from hardwon.apps.shared.argument_errors import SHOWN, sentence
from hardwon.memory.errors import (
    HardwonError,
    LibraryDamaged,
    LibraryMissing,
    LibraryReadOnly,
    LibraryUnwritable,
    NotALibrary,
    TooMuchFeedback,
)

MEDIA_TYPE = "application/problem+json"
_STATUS: tuple[tuple[type[BaseException], int], ...] = (
    (TooMuchFeedback, 429),
    (PermissionError, 403),
    (LibraryReadOnly, 403),
    (LibraryUnwritable, 503),
    (LibraryMissing, 503),
    (NotALibrary, 503),
    (LibraryDamaged, 500),
    (ConnectionError, 503),
    (LookupError, 404),
    (ValueError, 422),
    (ImportError, 501),
)
"""The first match counts. Any other HardwonError is 500."""


_LONG = re.compile(rf"\S{{{2 * SHOWN},}}")

logger = logging.getLogger("hardwon.http")


class RequestProblem(BaseModel, title="Problem"):
    """The reason of a failed request."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    error: str = ""
    """Class of the error in `hardwon.memory.errors`."""
    request_id: str = ""


RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "The request was rejected; `detail` has the reason.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    },
    "5XX": {
        "description": "The server failed or the library is unavailable; `detail` has the reason.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    },
}
"""Error responses of every route, for the OpenAPI description."""
_TITLES = {
    400: "Bad request", 401: "Unauthorized", 403: "Forbidden", 404: "Not found", 405: "Method not allowed",
    413: "Too large", 415: "Unsupported media type", 421: "Misdirected request", 422: "Cannot be processed",
    429: "Too many requests", 500: "Failed", 501: "Not installed", 503: "Unavailable",
}  # fmt: skip


def status_of(error: HardwonError) -> int:
    """Return the HTTP status of an error, by its standard-library parent."""
    cause = error.__cause__.__cause__ if isinstance(error.__cause__, HardwonError) else error.__cause__
    if isinstance(cause, OverflowError):  # a number in the request is too large for SQLite
        return 422
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def hide_folders(text: str, *files: Path) -> str:
    """Return a message for clients, without the folders of these files of the server."""
    for file in files:
        text = text.replace(str(file), file.name)  # of a relative path, the folder alone may be any word
        for folder in (file.absolute().parent, Path(os.path.realpath(file)).parent):  # `resolve` refuses circular links
            if folder.name:
                text = text.replace(f"{folder}{os.sep}", "").replace(str(folder), ".")
    return text


def problem(
    status: int, detail: str, error: str = "", request_id: str = "", headers: dict[str, str] | None = None
) -> JSONResponse:
    """Build a problem response. Very long values in the detail are shortened."""
    words = _LONG.sub(lambda match: f"{match[0][:SHOWN]}...", detail)
    words = words if len(words) <= 1500 else f"{words[:1500]}..."
    body = RequestProblem(
        title=_TITLES.get(status, "Failed"), status=status, detail=words, error=error, request_id=request_id
    )
    return JSONResponse(body.model_dump(), status, media_type=MEDIA_TYPE, headers=headers)


def install(app: FastAPI) -> None:
    """Register handlers that answer every error with a problem."""

    @app.exception_handler(HardwonError)
    async def _refused(request: Request, error: HardwonError) -> JSONResponse:
        status = status_of(error)
        if status >= 500:
            logger.error("failed", exc_info=error)
        return problem(status, str(error), type(error).__name__, _id(request))

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        words = (sentence(each, _read_schema(request, each["loc"][0])) for each in error.errors()[:5])
        return problem(422, " ".join(words), "ConfigError", _id(request))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        return problem(error.status_code, str(error.detail), "", _id(request), dict(error.headers or {}))


def _read_schema(request: Request, place: str = "body") -> Mapping[str, Any]:
    """Return the JSON schema of the body that a request should have, or of the parameters in its address."""
    described = request.app.openapi()
    operation = described["paths"].get(request.scope["route"].path, {}).get(request.method.lower(), {})
    if place == "query":
        return {"properties": {each["name"]: {} for each in operation.get("parameters", ()) if each["in"] == place}}
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    return {**content.get("schema", {}), "$defs": described.get("components", {}).get("schemas", {})}


def _id(request: Request) -> str:
    return str(getattr(request.state, "request_id", ""))
