"""Unknown paths and parameters: answered with a problem that names the nearest existing ones, instead of HTML."""

import difflib
from collections.abc import Iterable

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .access.problems import problem

NEAREST = 3
"""Largest number of suggested paths."""
API = "/v1"


def refuse_parameters(request: Request) -> None:
    """Refuse a request with a parameter in its address that its route does not have: it would have no effect."""
    accepted = list_parameters(request.scope["route"].dependant) if request.query_params else []
    if unknown := [name for name in request.query_params if name not in accepted]:
        raise RequestValidationError(
            [{"type": "extra_forbidden", "loc": ("query", name), "msg": ""} for name in unknown]
        )


def list_parameters(dependant: Dependant) -> list[str]:
    """Return the names of the parameters that a route and its dependencies read from the address."""
    own = [field.alias for field in dependant.query_params]
    return own + [name for each in dependant.dependencies for name in list_parameters(each)]


class Unknown:
    """Answers for API paths without a route, and for other missing pages if the caller does not accept HTML."""

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._routes = [route for route in routes if isinstance(route, APIRoute)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        of_api = path == API or path.startswith(f"{API}/")
        for_people = not of_api and any(b"text/html" in value for name, value in scope["headers"] if name == b"accept")
        if of_api and not any(route.matches(scope)[0] is Match.FULL for route in self._routes):
            await self._refuse(scope, receive, send)
            return
        replaced = False

        async def watched(message: Message) -> None:
            nonlocal replaced
            if message["type"] == "http.response.start" and message["status"] == 404 and not for_people:
                kinds = [value for name, value in message["headers"] if name.lower() == b"content-type"]
                replaced = any(kind.startswith(b"text/html") for kind in kinds)
            # The body of a replaced page must not follow either.
            if not replaced:
                await send(message)

        await self._app(scope, receive, watched)
        if replaced:
            await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, request_id = scope["path"], scope["state"].get("request_id", "")
        # Starlette reports PARTIAL if the path matches but the method does not.
        of_path = [route for route in self._routes if route.matches(scope)[0] is Match.PARTIAL]
        allowed = sorted({method for route in of_path for method in route.methods or ()})
        if allowed:
            words = f"{scope['method']} is not a method of {path}; use {', '.join(allowed)}."
            answer = problem(405, words, "", request_id, {"Allow": ", ".join(allowed)})
        else:
            answer = problem(404, f"there is no path {path!r}. {self._suggest(path)}", "UnknownName", request_id)
        await answer(scope, receive, send)

    def _suggest(self, path: str) -> str:
        paths = {route.path for route in self._routes if route.include_in_schema}
        wanted = path if path.startswith(API) else API + path
        nearest = difflib.get_close_matches(wanted[:200], paths, n=NEAREST, cutoff=0.55)
        nearest += [candidate for candidate in sorted(paths) if candidate.startswith(wanted.rstrip("/") + "/")][
            : NEAREST - len(nearest)
        ]
        return (f"Did you mean {' or '.join(nearest)}? " if nearest else "") + "/openapi.json lists all paths."
