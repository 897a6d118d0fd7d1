"""One call of a model: the request with experience, and the response on its way to the client.

In `block` mode the parts of tool calls in a stream wait until the guardrails have ruled on them; text goes on at once.
If a call is refused, the model is called again with the refusal, within the same response to the client.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import httpx

from hardwon.runtime.loop.enforcement import Ruling

from .conversations import ModelCall
from .dialect import Answer, Dialect
from .events import format_event, is_end_mark, iter_events

if TYPE_CHECKING:
    from .app import Proxy

logger = logging.getLogger("hardwon.proxy")

MOST_RETRIES = 8
"""Most model calls that refusals can cause within one response."""
_HOP = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
    "upgrade", "host", "content-length", "accept-encoding", "content-encoding",
})  # fmt: skip
"""Headers of one connection or of one encoding, which the other side must not see."""
_REJECTED = (400, 413, 422)
"""Statuses of servers that do not accept a request, perhaps because of what the proxy added."""


class ResponseFailed(Exception):
    """The upstream server rejected a request that repeats a call after a refusal, or sent a part of an answer."""


def error_body(message: str, code: str) -> dict[str, Any]:
    """Return an error in OpenAI's form."""
    return {"error": {"message": message, "type": "hardwon_proxy", "param": None, "code": code}}


def forward_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return a client's headers for the upstream server."""
    kept = {name: value for name, value in headers.items() if name.lower() not in _HOP}
    return {**kept, "accept-encoding": "identity"}


def return_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the upstream server's headers for the client."""
    return {name: value for name, value in headers.items() if name.lower() not in _HOP}


class Exchange:
    """One call of a model."""

    def __init__(
        self,
        proxy: "Proxy",
        dialect: Dialect,
        url: httpx.URL,
        headers: Mapping[str, str],
        body: dict[str, Any],
        turn: ModelCall | None,
    ) -> None:
        self._proxy, self._dialect, self._url, self._headers, self._turn = proxy, dialect, url, headers, turn
        self._plain = body
        self._body = body if turn is None else dialect.add_experience(body, turn, proxy.settings.place)
        self._holds = turn is not None and proxy.settings.mode == "block"
        self._noted = False

    async def send(self) -> httpx.Response:
        """Send the request and return the response, whose body is not read yet.

        If the server rejects the request with what was added to it, it is sent again as the client wrote it.
        """
        response = await self._post(self._body)
        if response.status_code in _REJECTED and self._body is not self._plain and self._body != self._plain:
            await response.aclose()
            logger.warning("the upstream server rejected a request with experience; it is sent again without")
            self._body = self._plain
            response = await self._post(self._body)
        return response

    async def _post(self, body: Mapping[str, Any]) -> httpx.Response:
        client = self._proxy.client
        return await client.send(client.build_request("POST", self._url, headers=self._headers, json=body), stream=True)

    async def read(self, response: httpx.Response) -> tuple[int, bytes]:
        """Return status and body of a response that is not a stream.

        Raises:
            ResponseFailed: The server rejected a repeated call.
        """
        for attempt in range(MOST_RETRIES + 1):
            try:
                data = await response.aread()
            finally:
                await response.aclose()
            answer = self._dialect.parse(data) if response.is_success else None
            if self._turn is None or answer is None:
                self.cancel()
                return response.status_code, data
            rulings = await self._rule_on(answer) if attempt < MOST_RETRIES else []
            if ending := find_ending(rulings):
                answer = self._dialect.end(answer, ending)
                data = json.dumps(answer.value).encode()
            elif not all(ruling.runs for ruling in rulings):
                response = await self._repeat(answer, rulings)
                continue
            await self._note(answer)
            self._end(answer)
            return response.status_code, data
        raise AssertionError("the last attempt returns")

    async def stream(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Yield a streamed response, event by event."""
        reader, is_whole = self._dialect.open_reader(), False
        try:
            for attempt in range(MOST_RETRIES + 1):
                reader.begin()
                is_empty = True
                async for event, chunk in iter_events(response.aiter_bytes()):
                    is_empty = is_empty and chunk is None and not is_end_mark(event)
                    events = reader.add(event, chunk, holds=self._holds)
                    if reader.is_over and not reader.held:
                        await self._note(reader.read_answer())
                    for passed in events:
                        yield passed
                await response.aclose()
                if is_empty or reader.is_cut:
                    raise ResponseFailed("the stream ended before the answer did")
                current, held = reader.read_response() if reader.is_over else None, reader.held
                rulings = await self._rule_on(current) if current and attempt < MOST_RETRIES else []
                if ending := find_ending(rulings):
                    held = reader.end(ending)
                elif current and held and not all(ruling.runs for ruling in rulings):
                    response = await self._repeat(current, rulings)
                    continue
                answer = reader.read_answer() if current else None
                is_whole = answer is not None
                await self._note(answer)
                for event in held:
                    yield event
                if answer is not None:
                    self._end(answer)
                return
        except (httpx.HTTPError, ResponseFailed) as error:
            logger.warning("the upstream server broke off a stream: %s: %s", type(error).__name__, error)
            is_whole = False
            yield format_event(error_body(f"the upstream server broke off its answer ({error!r:.200})", "broken"))
        finally:
            if not is_whole:
                self.cancel()
            # A client that went away cancels this generator, and the connection must still be given back.
            await asyncio.shield(response.aclose())

    def cancel(self) -> None:
        """Let the conversation continue from before this request."""
        if self._turn is not None and not self._noted:
            self._proxy.log.cancel_turn(self._turn)

    async def _rule_on(self, answer: Answer) -> list[Ruling]:
        if self._turn is None or self._proxy.settings.mode is None or not answer.calls:
            return []
        log, worker = self._proxy.log, self._proxy.worker
        return await worker.try_call("a guardrail check", log.rule_on, self._turn, answer.calls) or []

    async def _repeat(self, answer: Answer, rulings: Sequence[Ruling]) -> httpx.Response:
        """Call the model again, with the answers to its refused calls."""
        assert self._turn is not None
        texts = await asyncio.to_thread(self._proxy.log.refuse, self._turn, answer.calls, rulings)
        self._body = self._dialect.add_refusals(self._body, answer, texts)
        response = await self._post(self._body)
        if not response.is_success:
            data = await response.aread()
            await response.aclose()
            raise ResponseFailed(f"status {response.status_code}: {data[:200].decode(errors='replace')}")
        return response

    async def _note(self, answer: Answer | None) -> None:
        """Note the response before the client knows it."""
        if self._turn is None or answer is None or self._noted:
            return
        self._noted = True
        worker, log = self._proxy.worker, self._proxy.log
        if self._proxy.settings.mode == "warn":
            await self._rule_on(answer)
        is_last = not answer.calls
        await worker.try_call(
            "noting a response", log.note_response, self._turn, answer.messages, is_last, answer.kept_as
        )

    def _end(self, answer: Answer) -> None:
        """Record what the response completes, behind the response."""
        if self._turn is None:
            return
        worker, log = self._proxy.worker, self._proxy.log
        if not answer.calls:
            worker.submit("recording a conversation", log.end_run, self._turn, answer.messages, answer.finish)
        worker.submit("recording abandoned conversations", log.end_abandoned)
        if self._proxy.tokens is not None and "choices" in answer.value:
            episode = self._turn.conversation.episode
            worker.submit("recording tokens", self._proxy.tokens.add, episode, self._body, answer.value)


def find_ending(rulings: Sequence[Ruling]) -> str:
    """Return the last message of a run whose model insists on forbidden calls; empty if the run goes on."""
    over = next((ruling for ruling in rulings if ruling.over), None)
    if over is None or any(ruling.runs for ruling in rulings):
        return ""
    return f"This run ends here: {over.verdict.cause or 'a guardrail'} forbids every call that the model insists on."
