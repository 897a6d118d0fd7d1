"""Repeat the answer to a write whose client did not get it, instead of writing twice.

A client sends the same `Idempotency-Key` with every attempt of a write. The answers of this process are kept in memory.
"""

import asyncio
import hashlib
from collections import OrderedDict

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_ANSWERS = 1_000
"""Answers that are kept, newest first."""
MOST_BYTES = 100_000
"""Size of an answer that is kept."""


class Replays:
    """Middleware that keeps the answers to requests with a key."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._answers: OrderedDict[bytes, asyncio.Future[list[Message]]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the kept answer, or handle the request and keep its answer."""
        key = compute_key(scope) if scope["type"] == "http" and scope["method"] != "GET" else None
        if key is None:
            await self._app(scope, receive, send)
            return
        # also while the first attempt still runs
        while (answer := self._answers.get(key)) is not None:
            if messages := await asyncio.shield(answer):
                for message in messages:
                    await send(message)
                return
        await self._handle(key, scope, receive, send)

    async def _handle(self, key: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        messages: list[Message] = []
        answer = self._answers[key] = asyncio.get_running_loop().create_future()

        async def keep(message: Message) -> None:
            messages.append(message)
            await send(message)

        is_kept = False
        try:
            await self._app(scope, receive, keep)
            size = sum(len(message.get("body", b"")) for message in messages)
            # an error wrote nothing, so the request may be tried again
            is_kept = bool(messages) and messages[0]["status"] < 400 and size <= MOST_BYTES
        finally:
            if not is_kept:
                self._answers.pop(key, None)
            answer.set_result(messages if is_kept else [])
            while len(self._answers) > MOST_ANSWERS:
                self._answers.popitem(last=False)


def compute_key(scope: Scope) -> bytes | None:
    """Return a hash of the key, the caller and the request; None if there is no key."""
    headers = dict(scope["headers"])
    if not (key := headers.get(b"idempotency-key")):
        return None
    parts = (key, headers.get(b"authorization", b""), scope["method"].encode(), scope["path"].encode())
    return hashlib.sha256(b"\0".join((*parts, scope["query_string"]))).digest()
