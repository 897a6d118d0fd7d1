"""The application: routes behind the gate, one library, one set of figures.

    app = create_app(Path("experience.db"), tokens=Tokens.beside(Path("experience.db")))

Whether it may be reached from other machines is told by `local`; see `gate`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from prometheus_client import CONTENT_TYPE_LATEST

from hardwon.apps.shared.feedback import Feedback
from hardwon.memory.records import Trust
from hardwon.memory.retrieval.embedders import Embedder

from .access import problems
from .access.auth import Tokens
from .access.gate import Gate
from .access.headers import SecureHeaders
from .access.limits import MAX_BODY_BYTES, RATE, BodyLimit, Rates
from .routes import agent, bank, episodes, events, items
from .routes.models import Health
from .routes.place import Turn
from .state.shelf import Shelf
from .state.watch import Measures, Watch
from .unknown import Unknown

THREADS = 4
"""Calls worked on at once, beside one of an agent's step. A library answers one at a time, so more would only wait."""
ABOUT = """
What the agent did before, and what it learnt from it. Every call is of one `namespace` of one library. Where the
library has tokens, send one as `Authorization: Bearer TOKEN`. Errors are problem JSON (RFC 9457).
"""


def create_app(
    path: Path,
    *,
    tokens: Tokens | None = None,
    runs: Path = Path("runs"),
    read_only: bool = False,
    embedder: Embedder | None = None,
    local: bool = True,
    max_body_bytes: int = MAX_BODY_BYTES,
    rate: float = RATE,
    trust: Trust = "untrusted",
) -> FastAPI:
    """The API over the library at `path`, which is made where it does not exist.

    `embedder`: one that is open already, in place of the library's own by its name.
    `trust`: whether to believe the episodes of programs without a token, while the library never had tokens.

    Raises: what opening a library raises.
    """
    shelf = Shelf(path, read_only=read_only, embedder=embedder)
    measures = Measures(shelf)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        app.state.turn = Turn()
        yield
        app.state.stopping.set()
        await run_in_threadpool(shelf.close)

    # docs_url and redoc_url would load their pages' scripts from another host
    app = FastAPI(
        title="hardwon", description=ABOUT, version=version("hardwon"), docs_url=None, redoc_url=None, lifespan=life,
        openapi_url="/openapi.json", responses=problems.RESPONSES,
        separate_input_output_schemas=False,  # generators refuse two schemas with one title
    )  # fmt: skip
    app.state.shelf, app.state.measures, app.state.runs, app.state.trust = shelf, measures, runs, trust
    app.state.tokens = tokens or Tokens.beside(path)
    app.state.tokens.remember()
    app.state.feedback = Feedback()
    app.state.stopping = asyncio.Event()
    routers = [part.router for part in (agent, items, episodes, bank, events)]
    for router in routers:
        app.include_router(router)
    _add_own_routes(app)
    problems.install(app)
    _describe(app)
    app.add_middleware(Unknown, routes=[route for router in routers for route in router.routes])
    app.add_middleware(BodyLimit, limit=max_body_bytes)
    app.add_middleware(Gate, tokens=app.state.tokens, rates=Rates(rate), local=local)
    app.add_middleware(Watch, measures=measures)
    app.add_middleware(SecureHeaders)
    return app


def _add_own_routes(app: FastAPI) -> None:
    """What is about the server and not about a namespace."""

    @app.get("/healthz", response_model=Health, tags=["server"])
    def healthz() -> Health:
        """Whether the server answers and the library can be read."""
        app.state.shelf.names()
        return Health(status="ok", version=app.version)

    @app.get(
        "/metrics",
        tags=["server"],
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Figures."}},
    )
    def metrics(request: Request) -> Response:
        """Figures for Prometheus; they are of all namespaces, so the token must be too."""
        request.state.caller.must(None, "read")
        return Response(app.state.measures.text(), media_type=CONTENT_TYPE_LATEST)


def _describe(app: FastAPI) -> None:
    """The OpenAPI description, with the token and the problems that FastAPI knows nothing of."""
    generated = app.openapi

    def described() -> dict[str, Any]:
        fresh = app.openapi_schema is None
        told = generated()
        if fresh:
            parts = told.setdefault("components", {})
            parts.setdefault("schemas", {})["Problem"] = problems.Problem.model_json_schema()
            parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            told["security"] = [{"token": []}, {}]
        return told

    app.openapi = described  # type: ignore[method-assign]
