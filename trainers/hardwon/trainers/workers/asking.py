"""Whom the agents of a worker ask for tokens: the learner's process, or the server that generates.

Every worker sends its own requests to a server, so that no token passes through the learner's process. The local engine
and vLLM in the learner's process are asked through it, in the rounds that all workers share.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from hardwon.memory.errors import EngineFailure
from hardwon.trainers.engines.base import Completion, Request
from hardwon.trainers.engines.grammar import Grammar
from hardwon.trainers.engines.server import ServerEngine

from .messages import GrammarText, Inquiry, Reply, SceneState, WorkerEvent


class LearnerEngine:
    """The engine as the agents of a worker see it: every request waits for an answer of the learner."""

    def __init__(self, scene: Callable[[], SceneState], events: "asyncio.Queue[WorkerEvent]") -> None:
        """Send requests as events."""
        self._scene, self._events = scene, events
        self._numbers: dict[str, int] = {}
        self._waiting: dict[tuple[str, int], asyncio.Future[Reply]] = {}

    async def generate(self, request: Request) -> Completion:
        """Send a request to the learner, and return its completion."""
        number = self._numbers.get(request.session, 0)
        self._numbers[request.session] = number + 1
        answer = asyncio.get_running_loop().create_future()
        self._waiting[request.session, number] = answer
        self._events.put_nowait(_pack(request, number))
        reply: Reply = await answer
        if reply.error is not None:
            raise reply.error
        if reply.completion is None:
            raise EngineFailure(f"the learner sent an empty answer to {request.session}; see its log.")
        if request.chance is not None:
            request.chance.setstate(reply.chance)  # the episode goes on with the same random numbers
        return reply.completion

    @property
    def waiting(self) -> int:
        """Return the number of requests without an answer."""
        return len(self._waiting)

    def deliver(self, answer: Reply) -> None:
        """Give a request its answer."""
        waiting = self._waiting.pop((answer.session, answer.number), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def take_tokens_read(self) -> int:
        """Return 0: the learner's engine counts its tokens itself."""
        return 0

    def versions(self) -> Mapping[str, int]:
        """Return the versions of the weights at the beginning of the scene."""
        return self._scene().versions

    async def begin(self, session: str) -> None:
        """Count the requests of an episode from 0; the learner has registered it already."""
        self._numbers[session] = 0

    async def end(self, session: str) -> None:
        """Forget the count; the learner unregisters the episode when it has its rollout."""
        self._numbers.pop(session, None)


class SharedServer:
    """The engine as the agents of a worker see it, if a server generates: it is asked with the weights of the scene."""

    def __init__(self, scene: Callable[[], SceneState], server: ServerEngine) -> None:
        """Ask a server."""
        self._scene, self._server = scene, server
        self._waiting = 0

    async def generate(self, request: Request) -> Completion:
        """Ask the server for a completion."""
        self._waiting += 1
        try:
            return await self._server.generate(request, self._scene().served[request.role])
        finally:
            self._waiting -= 1

    @property
    def waiting(self) -> int:
        """Return the number of requests without an answer."""
        return self._waiting

    def deliver(self, answer: Reply) -> None:
        """Do nothing: the learner is asked for nothing."""

    def versions(self) -> Mapping[str, int]:
        """Return the versions of the weights at the beginning of the scene."""
        return self._scene().versions

    async def begin(self, session: str) -> None:
        """Do nothing: the server batches requests as they come."""

    async def end(self, session: str) -> None:
        """Do nothing: the server evicts its cache by itself."""

    def take_tokens_read(self) -> int:
        """Return the number of tokens that the server has read and generated since the last call."""
        tokens, self._server.tokens_read = self._server.tokens_read, 0
        return tokens

    def close(self) -> None:
        """Close the connections."""
        self._server.close()


def _pack(request: Request, number: int) -> Inquiry:
    """Return a request as it is sent: the learner builds a grammar again, because automata cannot be pickled."""
    if not isinstance(request.allowed, Grammar):
        return Inquiry(request.session, number, request)
    grammar = GrammarText(request.allowed.lark, request.allowed.max_tokens, request.allowed.end)
    return Inquiry(request.session, number, replace(request, allowed=None), grammar)
