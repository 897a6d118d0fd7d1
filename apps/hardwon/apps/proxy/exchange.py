"""One call of a model: the request with experience, and the response on its way to the client.

The client gets the bytes of the server, and the bookkeeping reads a copy, so that nothing odd in them costs the client
its answer; a connection that breaks is broken for the client too. Only in `block` mode the parts of tool calls wait
until the guardrails have ruled on them. If a call is refused, the model is called again with the refusal, within the
same response to the client.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import httpx
from starlette.responses import Response

from hardwon.runtime.loop.enforcement import Ruling

from .backend import Backend
from .conversations import ModelCall
from .dialect import Dialect, UpstreamAnswer
from .events import format_event
from .forwarding import Headers, Relay, decode_body, is_encoded, relay, return_headers
from .json_text import JsonObject, load
from .streams.stream_copy import BodyCopy, StreamCopy, try_read

logger = logging.getLogger("hardwon.proxy")

MOST_RETRIES = 8
"""Most model calls that refusals can cause within one response."""
_REJECTED = (400, 413, 422)
"""Statuses of servers that do not accept a request, perhaps because of what the proxy added."""


class ResponseFailed(Exception):
    """The upstream server rejected a request that repeats a call after a refusal, or sent a part of an answer."""


class Unreadable(ResponseFailed):
    """A part of an answer may be a call, and the guardrails cannot rule on it."""

    def __init__(self) -> None:
        super().__init__("the answer has a part that may be a call of a tool, and the guardrails cannot read it")


def error_body(message: str, code: str) -> dict[str, Any]:
    """Return an error in OpenAI's form."""
    return {"error": {"message": message, "type": "hardwon_proxy", "param": None, "code": code}}


class Exchange:
    """One call of a model."""

    def __init__(
        self,
        backend: Backend,
        dialect: Dialect,
        url: httpx.URL,
        headers: Headers,
        request: JsonObject,
        body: dict[str, Any],
        turn: ModelCall | None,
    ) -> None:
        self._backend, self._dialect, self._url, self._headers, self._turn = backend, dialect, url, headers, turn
        self._request, self._plain = request, body
        self._body = body if turn is None else self._add_experience(body, turn)
        self._holds = turn is not None and backend.settings.mode == "block"
        self._noted = False

    def _add_experience(self, body: dict[str, Any], turn: ModelCall) -> dict[str, Any]:
        try:
            return self._dialect.add_experience(body, turn, self._backend.settings.place)
        except Exception as error:
            logger.warning("a request has no place for experience: %s: %s", type(error).__name__, error)
            return body

    async def send(self) -> httpx.Response:
        """Send the request and return the response, whose body is not read yet.

        If the server rejects the request with what was added to it, it is sent again as the client wrote it.
        """
        response = await self._post(self._body)
        if response.status_code in _REJECTED and self._body != self._plain:
            await response.aclose()
            logger.warning("the upstream server rejected a request with experience; it is sent again without")
            self._body = self._plain
            response = await self._post(self._body)
        return response

    async def _post(self, body: dict[str, Any]) -> httpx.Response:
        return await self._backend.send("POST", self._url, self._headers, self._request.encode(body))

    async def answer(self) -> Response:
        """Return the response for the client."""
        response = await self.send()
        kind = response.headers.get("content-type", "").lower()
        if self._turn is None or not response.is_success:
            self.cancel()
            source = relay(response)
        elif not self._holds:
            source = self._follow(response, self._open_copy(response, kind))
        elif "text/event-stream" not in kind:
            return await self._read(response)
        else:
            headers = [*return_headers(response, is_whole=False), *self._name_episode()]
            return Relay(self._rule(response), response.status_code, headers)
        headers = [*return_headers(response, is_whole=True), *self._name_episode()]
        return Relay(source, response.status_code, headers)

    def _open_copy(self, response: httpx.Response, kind: str) -> StreamCopy | BodyCopy:
        if "text/event-stream" in kind and not is_encoded(response):
            return StreamCopy(self._dialect.open_reader())
        return BodyCopy(response, self._dialect.parse)

    def _name_episode(self) -> Headers:
        if self._turn is None:
            return []
        return [(b"x-hardwon-episode", self._turn.conversation.episode.encode())]

    async def _read(self, response: httpx.Response) -> Response:
        """Return a response that is not a stream, in `block` mode."""
        raw = b""
        for attempt in range(MOST_RETRIES + 1):
            try:
                raw = b"".join([part async for part in response.aiter_raw()])
            finally:
                await response.aclose()
            data = decode_body(response, raw)
            answer = try_read(self._dialect.parse, data)
            if answer is None:
                if may_call(data):
                    raise Unreadable
                self.cancel()
                break
            rulings = await self._rule_on(answer, attempt)
            if ending := find_ending(rulings, attempt):
                answer = self._dialect.end(answer, ending)
                raw = json.dumps(answer.value).encode()
                response.headers.pop("content-encoding", None)
            elif not all(ruling.runs for ruling in rulings):
                response = await self._repeat(answer, rulings)
                continue
            await self._note(answer)
            self._end(answer)
            break
        headers = [
            (name, value) for name, value in return_headers(response, is_whole=True) if name != b"content-length"
        ]
        final = Response(raw, response.status_code)
        final.raw_headers = [*headers, (b"content-length", str(len(raw)).encode()), *self._name_episode()]
        return final

    async def _follow(self, response: httpx.Response, copy: StreamCopy | BodyCopy) -> AsyncGenerator[bytes]:
        """Yield a response byte for byte, and read a copy."""
        waiting, is_sized = b"", "content-length" in response.headers
        try:
            async for data in response.aiter_raw():
                copy.add(data)
                if copy.is_over and not self._noted:
                    await self._note(copy.read_answer())
                # A client that knows the length may send its next request before the answer is noted below.
                passed, waiting = (waiting, data) if is_sized else (data, b"")
                if passed:
                    yield passed
            copy.finish()
            if copy.is_over:
                await self._note(copy.read_answer())
        except httpx.HTTPError:
            if waiting:
                yield waiting
            raise
        finally:
            self._settle(copy)
            await response.aclose()
        if waiting:
            yield waiting

    async def _rule(self, response: httpx.Response) -> AsyncGenerator[bytes]:
        """Yield a stream event by event, without the calls that the guardrails refuse."""
        reader = self._dialect.open_reader()
        copy = StreamCopy(reader, holds=True)
        try:
            for attempt in range(MOST_RETRIES + 1):
                async for data in response.aiter_bytes():
                    for passed in copy.add(data):
                        yield passed
                for passed in copy.finish():
                    yield passed
                await response.aclose()
                if copy.is_cut:
                    raise ResponseFailed("the stream ended before the answer did")
                answer = copy.read_response() if copy.is_over or reader.held else None
                if copy.has_failed or (reader.held and answer is None):
                    raise Unreadable
                rulings = await self._rule_on(answer, attempt) if answer else []
                if ending := find_ending(rulings, attempt):
                    held = reader.end(ending)
                elif answer and not all(ruling.runs for ruling in rulings):
                    response = await self._repeat(answer, rulings)
                    copy = StreamCopy(reader, holds=True)
                    continue
                else:
                    held = reader.release()
                await self._note(copy.read_answer() if answer else None)
                for event in held:
                    yield event
                return
        except (httpx.HTTPError, ResponseFailed) as error:
            yield copy.close() + explain_break(error)
        finally:
            self._settle(copy)
            await response.aclose()

    def _settle(self, copy: StreamCopy | BodyCopy) -> None:
        """End the run after the last answer, also if the client left with the last event, else let it continue."""
        answer = copy.read_answer() if copy.is_over else None
        if answer is not None and (self._noted or not (answer.calls or copy.has_failed)):
            self._end(answer)
        else:
            self.cancel()

    def cancel(self) -> None:
        """Let the conversation continue from before this request."""
        if self._turn is not None and not self._noted:
            self._backend.log.cancel_turn(self._turn)

    async def _rule_on(self, answer: UpstreamAnswer, attempt: int = 0) -> list[Ruling]:
        if self._turn is None or self._backend.settings.mode is None or not answer.calls:
            return []
        if self._holds and attempt == MOST_RETRIES and any(call["unreadable"] for call in answer.calls):
            raise Unreadable
        log, worker = self._backend.log, self._backend.worker
        return await worker.try_call("a guardrail check", log.rule_on, self._turn, answer.calls) or []

    async def _repeat(self, answer: UpstreamAnswer, rulings: Sequence[Ruling]) -> httpx.Response:
        """Call the model again, with the answers to its refused calls."""
        assert self._turn is not None
        texts = await asyncio.to_thread(self._backend.log.refuse, self._turn, answer.calls, rulings)
        self._body = self._dialect.add_refusals(self._body, answer, texts)
        response = await self._post(self._body)
        if not response.is_success:
            data = await response.aread()
            await response.aclose()
            raise ResponseFailed(f"status {response.status_code}: {data[:200].decode(errors='replace')}")
        return response

    async def _note(self, answer: UpstreamAnswer | None) -> None:
        """Note the response before the client knows it."""
        if self._turn is None or answer is None or self._noted:
            return
        self._noted = True
        worker, log = self._backend.worker, self._backend.log
        if self._backend.settings.mode == "warn":
            await self._rule_on(answer)
        is_last = not answer.calls
        await worker.try_call(
            "noting a response", log.note_response, self._turn, answer.messages, is_last, answer.kept_as
        )

    def _end(self, answer: UpstreamAnswer) -> None:
        """Record what the response completes, behind the response."""
        if self._turn is None:
            return
        worker, log = self._backend.worker, self._backend.log
        if not answer.calls:
            worker.submit("recording a conversation", log.end_run, self._turn, answer.messages, answer.finish)
        worker.submit("recording abandoned conversations", log.end_abandoned)


def explain_break(error: Exception) -> bytes:
    """Return the event that tells a client of a stream that has no end."""
    logger.warning("a stream was broken off: %s: %s", type(error).__name__, error)
    if isinstance(error, Unreadable):
        return format_event(error_body(str(error), "unreadable_call"))
    return format_event(error_body(f"the upstream server broke off its answer ({error!r:.200})", "broken"))


def may_call(data: bytes) -> bool:
    """Return whether an answer that has an unknown format mentions calls."""
    try:
        return b"_call" in data or "_call" in json.dumps(load(data))
    except (ValueError, RecursionError):
        return True


def find_ending(rulings: Sequence[Ruling], attempt: int) -> str:
    """Return the last message of a run whose model insists on forbidden calls; empty if the run goes on."""
    refused = [ruling for ruling in rulings if not ruling.runs]
    over = next((ruling for ruling in refused if ruling.over), None)
    if over is None and attempt == MOST_RETRIES and refused:
        over = refused[0]
    elif len(refused) < len(rulings):
        over = None
    if over is None:
        return ""
    return f"This run ends here: {over.verdict.cause or 'a guardrail'} forbids every call that the model insists on."
