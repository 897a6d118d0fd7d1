"""The FastAPI application: routes behind the gate, over one library.

    app = create_app(Path("experience.db"), tokens=Tokens.beside(Path("experience.db")))

`local` states whether the server can only be reached from this machine; see `gate`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from fastapi import Depends, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from prometheus_client import CONTENT_TYPE_LATEST

from hardwon.apps.shared.feedback import Feedback
from hardwon.memory.learning.extraction import Extractor
from hardwon.memory.records import Trust
from hardwon.memory.retrieval.embedders import Embedder
from hardwon.runtime.guidance.base import Guidance
from hardwon.runtime.teams.sharing_policy import SharingPolicy

from .access import problems
from .access.auth import Tokens
from .access.gate import AccessGate
from .access.headers import SecureHeaders
from .access.limits import MAX_BODY_BYTES, RATE, BodyLimit, Rates
from .routes import agent, bank, episodes, events, items
from .routes.models import Health
from .routes.place import StepQueue
from .state.reader import BackgroundReader
from .state.shelf import Shelf
from .state.watch import Measures, Watch
from .unknown import Unknown, refuse_parameters

ABOUT = """
Record the experience of agents, and recall what they learned. Every call concerns one `namespace` of one library. If
the library has tokens, send one as `Authorization: Bearer TOKEN`. Errors are problem JSON (RFC 9457).
"""
_ROUTERS = tuple(part.router for part in (agent, items, episodes, bank, events))


def create_app(
    path: Path | str,
    *,
    tokens: Tokens | None = None,
    runs: Path = Path("runs"),
    read_only: bool = False,
    embedder: Embedder | None = None,
    local: bool = True,
    max_body_bytes: int = MAX_BODY_BYTES,
    rate: float = RATE,
    trust: Trust = "untrusted",
    guidance: Guidance | None = None,
    extractor: Extractor | None = None,
    admission: SharingPolicy | None = None,
) -> FastAPI:
    """Create the API over a library."""
    shelf = Shelf(path, read_only=read_only, embedder=embedder)
    # docs_url and redoc_url would load scripts from another host, which the content policy forbids
    app = FastAPI(
        title="hardwon", description=ABOUT, version=version("hardwon"), docs_url=None, redoc_url=None, lifespan=_live,
        openapi_url="/openapi.json", responses=problems.RESPONSES,
        separate_input_output_schemas=False,  # client generators reject two schemas with one title
    )  # fmt: skip
    app.state.shelf, app.state.measures, app.state.runs, app.state.trust = shelf, Measures(shelf), runs, trust
    app.state.tokens = tokens or Tokens.of(path)
    app.state.tokens.remember()
    app.state.feedback, app.state.guidance, app.state.admission = Feedback(), guidance, admission
    app.state.reader = None if extractor is None else BackgroundReader(shelf, extractor, app.state.measures)
    app.state.stopping = asyncio.Event()
    for router in _ROUTERS:
        app.include_router(router, dependencies=[Depends(refuse_parameters)])
    _add_own_routes(app)
    problems.install(app)
    _describe(app)
    _guard(app, max_body_bytes=max_body_bytes, rate=rate, local=local)
    return app


@asynccontextmanager
async def _live(app: FastAPI) -> AsyncIterator[None]:
    """Set up what belongs to the running event loop, and close the library at the end."""
    # Worker threads, besides the one of agents' steps. A library serves one call at a time, so more would only wait.
    anyio.to_thread.current_default_thread_limiter().total_tokens = 4
    app.state.turn = StepQueue()
    yield
    # Before closing the shelf, which open event streams read until this is set.
    app.state.stopping.set()
    if app.state.reader is not None:
        await run_in_threadpool(app.state.reader.close)
    await run_in_threadpool(app.state.shelf.close)


def _guard(app: FastAPI, *, max_body_bytes: int, rate: float, local: bool) -> None:
    """Add the middleware. The last one added runs first: headers, log, gate, body limit, unknown."""
    app.add_middleware(Unknown, routes=[route for router in _ROUTERS for route in router.routes])
    app.add_middleware(BodyLimit, limit=max_body_bytes)
    app.add_middleware(AccessGate, tokens=app.state.tokens, rates=Rates(rate), local=local)
    app.add_middleware(Watch, measures=app.state.measures)
    app.add_middleware(SecureHeaders)


def _add_own_routes(app: FastAPI) -> None:
    """Add the routes that concern the server instead of a namespace."""

    @app.get("/healthz", response_model=Health, tags=["server"])
    def healthz() -> Health:
        """Return whether the server answers and the library can be read."""
        app.state.shelf.names()
        return Health(status="ok", version=app.version)

    @app.get(
        "/metrics",
        tags=["server"],
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Metrics."}},
    )
    def metrics(request: Request) -> Response:
        """Return metrics for Prometheus. They cover all namespaces, so the token must too."""
        request.state.caller.must(None, "read")
        return Response(app.state.measures.text(), media_type=CONTENT_TYPE_LATEST)


def _describe(app: FastAPI) -> None:
    """Add authentication and problems to the OpenAPI description."""
    generated = app.openapi

    def described() -> dict[str, Any]:
        # FastAPI caches the schema, so it is extended only when it is new.
        fresh = app.openapi_schema is None
        schema = generated()
        if fresh:
            parts = schema.setdefault("components", {})
            parts.setdefault("schemas", {})["Problem"] = problems.RequestProblem.model_json_schema()
            parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"token": []}, {}]
        return schema

    app.openapi = described  # type: ignore[method-assign]
