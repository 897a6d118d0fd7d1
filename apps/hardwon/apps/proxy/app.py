"""The proxy's ASGI application: chat completions and responses with experience, everything else passed on unchanged.

The client's headers, its key among them, go to the upstream server and are neither stored nor logged. If the library
fails or is slow, the call passes through without experience, and a line is logged.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from hardwon.apps.http.access.browsers import is_for_loopback, is_foreign
from hardwon.runtime.integrations.tool_episode import BEFORE_CALL_S

from .address import PathRefused, join_path, name_route
from .backend import Backend
from .chat import ChatCompletions
from .conversations import ConversationLog, ModelCall, ProxySettings
from .dialect import Dialect
from .exchange import Exchange, ResponseFailed, Unreadable, error_body
from .forwarding import ClientGone, Relay, await_client, forward_headers, relay, return_headers
from .json_text import JsonObject
from .library_access import LibraryAccess
from .responses import Responses

logger = logging.getLogger("hardwon.proxy")

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"]


def create_proxy(
    access: LibraryAccess,
    upstream: str,
    *,
    settings: ProxySettings | None = None,
    timeout_s: float = 600.0,
    patience_s: float = BEFORE_CALL_S,
) -> Starlette:
    """Create the proxy."""
    backend = Backend(access, settings or ProxySettings(), timeout_s, patience_s)
    proxy = Proxy(backend)

    @asynccontextmanager
    async def live(app: Starlette) -> AsyncIterator[None]:
        async with backend.client:
            yield
        await asyncio.to_thread(backend.close)

    routes = [
        Route("/healthz", proxy.show_health),
        Route("/v1/chat/completions", proxy.complete_chat, methods=["POST"]),
        Route("/chat/completions", proxy.complete_chat, methods=["POST"]),
        Route("/v1/responses", proxy.respond, methods=["POST"]),
        Route("/responses", proxy.respond, methods=["POST"]),
        Route("/{path:path}", proxy.pass_through, methods=METHODS),
    ]
    app = Starlette(routes=routes, lifespan=live)
    app.add_middleware(LocalOnly, upstream=httpx.URL(upstream))
    return app


class LocalOnly:
    """Rejects requests of web pages and of other host names: a page must not use the library of its reader.

    It also rejects targets that are no paths below the upstream server's address, and WebSockets with status 426, after
    which clients such as Codex go on over HTTP at once.
    """

    def __init__(self, app: ASGIApp, upstream: httpx.URL) -> None:
        self._app, self._upstream = app, upstream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its URL at the upstream server, or reject it."""
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(_refuse_upgrade())
        elif scope["type"] == "http" and (refusal := self._reject(scope)):
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _reject(self, scope: Scope) -> Response | None:
        if not is_for_loopback(scope) or is_foreign(scope):
            text = "this proxy accepts only programs on this machine; call it at 127.0.0.1"
            return JSONResponse(error_body(text, "forbidden"), 403)
        if Request(scope).headers.get("upgrade", "").lower() == "websocket":  # no library for WebSockets is installed
            return _refuse_upgrade()
        try:
            url = join_path(self._upstream, scope["raw_path"], scope["query_string"])
        except PathRefused as error:
            return JSONResponse(error_body(str(error), "path_refused"), 400)
        scope.setdefault("state", {})["url"] = url
        return None


def _refuse_upgrade() -> Response:
    return JSONResponse(error_body("this proxy has no WebSockets; call it over HTTP", "upgrade_required"), 426)


class Proxy:
    """Handlers of the proxy."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._chat, self._responses = ChatCompletions(), Responses()

    async def show_health(self, request: Request) -> Response:
        """Return whether the library can be used; the proxy itself works in either case."""
        why = await self._backend.worker.try_call("the health check", self._backend.access.explain_outage)
        if why is None:
            why = f"the library does not answer in {self._backend.worker.patience_s:g} s; another program may hold it"
        if not why:
            return JSONResponse({"status": "ok", "library": "ok", "recall": "on"})
        return JSONResponse({"status": "ok", "library": "unavailable", "recall": "off", "why": why})

    async def complete_chat(self, request: Request) -> Response:
        """Answer a chat completion, with experience where the request allows it."""
        return await self._answer(request, self._chat)

    async def respond(self, request: Request) -> Response:
        """Answer a request of the Responses API, with experience where the request allows it."""
        return await self._answer(request, self._responses)

    async def _answer(self, request: Request, dialect: Dialect) -> Response:
        data = await request.body()
        try:
            read = JsonObject(data.decode("utf-8", "surrogatepass"))
        except ValueError:
            read = None
        is_block = self._backend.settings.mode == "block"
        if read is None:
            return refuse_unread("it is no JSON object in UTF-8") if is_block else await self._forward(request, data)
        body, turn = dialect.prepare(read.value), None
        if dialect.is_conversation(body):
            begin = partial(_begin_turn, self._backend.log, dialect)
            begun = await self._backend.worker.try_call(
                "recall", begin, body, undo=partial(_cancel_turn, self._backend.log)
            )
            if isinstance(begun, str):
                logger.warning("a request is not understood: %s", begun)
                if is_block:
                    return refuse_unread(begun)
            else:
                turn = begun
        elif is_block and dialect.can_call(body):
            return refuse_unread("it asks for several answers, for `functions` or for an answer in the background")
        headers = forward_headers(request.headers.raw, is_read=True)
        exchange = Exchange(self._backend, dialect, request.state.url, headers, read, body, turn)
        try:
            return await await_client(request, exchange.answer())
        except ClientGone:
            exchange.cancel()
            return Response(status_code=499)
        except (httpx.HTTPError, ResponseFailed) as error:
            exchange.cancel()
            return explain_failure(error)

    async def pass_through(self, request: Request) -> Response:
        """Forward any other request unchanged. Another spelling of a route with experience is that route."""
        dialects: dict[str, Dialect] = {"chat/completions": self._chat, "responses": self._responses}
        dialect = dialects.get(name_route(request.url.path))
        if request.method == "POST" and dialect is not None:
            return await self._answer(request, dialect)
        return await self._forward(request, await request.body())

    async def _forward(self, request: Request, data: bytes) -> Response:
        headers = forward_headers(request.headers.raw, is_read=False)
        try:
            sent = self._backend.send(request.method, request.state.url, headers, data)
            response = await await_client(request, sent)
        except ClientGone:
            return Response(status_code=499)
        except httpx.HTTPError as error:
            return explain_failure(error)
        return Relay(relay(response), response.status_code, return_headers(response, is_whole=True))


def _begin_turn(log: ConversationLog, dialect: Dialect, body: Mapping[str, Any]) -> ModelCall | str:
    """Return the call of the model, or why its request is not understood."""
    try:
        request = dialect.read_request(body)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return log.begin_turn(request)


def _cancel_turn(log: ConversationLog, turn: ModelCall | str) -> None:
    if not isinstance(turn, str):
        log.cancel_turn(turn)


def refuse_unread(why: str) -> Response:
    """Return the response to a request whose answer no guardrail could rule on."""
    text = f"--guardrails block cannot follow this request: {why}; send it in another form, or use --guardrails warn"
    return JSONResponse(error_body(text, "unreadable_request"), 400)


def explain_failure(error: Exception) -> Response:
    """Return the response for an upstream server that does not answer, in OpenAI's form."""
    if isinstance(error, Unreadable):
        logger.warning("%s", error)
        return JSONResponse(error_body(str(error), "unreadable_call"), 502)
    late = isinstance(error, httpx.TimeoutException)
    logger.warning("the upstream server failed: %s: %s", type(error).__name__, error)
    where = f" at {error.request.url.netloc.decode()}" if isinstance(error, httpx.RequestError) else ""
    text = f"the upstream server{where} {'did not answer in time' if late else 'cannot be reached'} ({error!r:.200})"
    return JSONResponse(error_body(text, "upstream_timeout" if late else "upstream_error"), 504 if late else 502)
