"""One chat completion: the request with experience, and the response on its way to the client.

In `block` mode the parts of tool calls in a stream wait until the guardrails have ruled on them; text goes on at once.
If a call is refused, the model is called again with the refusal, within the same response to the client.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import httpx

from hardwon.runtime.integrations.tool_episode import normalize_call
from hardwon.runtime.loop.enforcement import Ruling

from .conversations import ModelCall, add_to_request
from .responses import CompletionBuilder, drop_role, format_event, has_calls, iter_events

if TYPE_CHECKING:
    from .app import Proxy

logger = logging.getLogger("hardwon.proxy")

MOST_RETRIES = 8
"""Most model calls that refusals can cause within one completion."""
_HOP = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
    "upgrade", "host", "content-length", "accept-encoding", "content-encoding",
})  # fmt: skip
"""Headers of one connection or of one encoding, which the other side must not see."""
_REJECTED = (400, 413, 422)
"""Statuses of servers that do not accept a request, perhaps because of what the proxy added."""


class ResponseFailed(Exception):
    """The upstream server rejected a request that repeats a call after a refusal."""


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
    """One chat completion."""

    def __init__(
        self, proxy: "Proxy", url: str, headers: Mapping[str, str], body: dict[str, Any], turn: ModelCall | None
    ) -> None:
        self._proxy, self._url, self._headers, self._turn = proxy, url, headers, turn
        self._plain = body
        self._body = body if turn is None else add_to_request(body, turn, proxy.settings.place)
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
            value = _parse_completion(data) if response.is_success else None
            if self._turn is None or value is None:
                self.cancel()
                return response.status_code, data
            message = value["choices"][0]["message"]
            rulings = await self._rule_on(message) if attempt < MOST_RETRIES else []
            if ending := find_ending(rulings):
                value["choices"][0] |= {"message": {"role": "assistant", "content": ending}, "finish_reason": "stop"}
            elif not all(ruling.runs for ruling in rulings):
                response = await self._repeat(message, rulings)
                continue
            await self._note(value)
            self._end(value)
            return response.status_code, json.dumps(value).encode() if ending else data
        raise AssertionError("the last attempt returns")

    async def stream(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Yield the response of a streamed completion, event by event."""
        finished = False
        try:
            for attempt in range(MOST_RETRIES + 1):
                builder, held = CompletionBuilder(), list[bytes]()
                async for event, chunk in iter_events(response.aiter_bytes()):
                    builder.add(chunk)
                    if attempt:
                        event = drop_role(event, chunk)
                    if self._holds and (held or has_calls(chunk)):
                        held.append(event)
                        continue
                    if builder.finish_reason is not None and not held:
                        await self._note(builder.build())
                    yield event
                await response.aclose()
                completion = builder.build()
                message = completion["choices"][0]["message"]
                rulings = await self._rule_on(message) if attempt < MOST_RETRIES else []
                if ending := find_ending(rulings):
                    completion["choices"][0] |= {"message": {"role": "assistant", "content": ending}}
                    held = [format_event(_make_chunk(completion, ending)), b"data: [DONE]\n\n"]
                elif held and not all(ruling.runs for ruling in rulings):
                    response = await self._repeat(message, rulings)
                    continue
                finished = builder.has_choice and builder.finish_reason is not None
                if finished:
                    await self._note(completion)
                for event in held:
                    yield event
                if finished:
                    self._end(completion)
                return
        except (httpx.HTTPError, ResponseFailed) as error:
            logger.warning("the upstream server broke off a stream: %s: %s", type(error).__name__, error)
            finished = False
            yield format_event(error_body(f"the upstream server broke off its answer ({error!r:.200})", "broken"))
        finally:
            if not finished:
                self.cancel()
            # A client that went away cancels this generator, and the connection must still be given back.
            await asyncio.shield(response.aclose())

    def cancel(self) -> None:
        """Let the conversation continue from before this request."""
        if self._turn is not None and not self._noted:
            self._proxy.log.cancel_turn(self._turn)

    async def _rule_on(self, message: Mapping[str, Any]) -> list[Ruling]:
        if self._turn is None or self._proxy.settings.mode is None or not message.get("tool_calls"):
            return []
        log, worker = self._proxy.log, self._proxy.worker
        return await worker.try_call("a guardrail check", log.rule_on, self._turn, read_calls(message)) or []

    async def _repeat(self, message: Mapping[str, Any], rulings: Sequence[Ruling]) -> httpx.Response:
        """Call the model again, with the answers to its refused calls."""
        assert self._turn is not None
        answers = await asyncio.to_thread(self._proxy.log.refuse, self._turn, read_calls(message), rulings)
        self._body = {**self._body, "messages": [*self._body["messages"], dict(message), *answers]}
        response = await self._post(self._body)
        if not response.is_success:
            data = await response.aread()
            await response.aclose()
            raise ResponseFailed(f"status {response.status_code}: {data[:200].decode(errors='replace')}")
        return response

    async def _note(self, completion: Mapping[str, Any]) -> None:
        """Note the response before the client knows it."""
        if self._turn is None or self._noted:
            return
        message = completion["choices"][0]["message"]
        self._noted = True
        worker, log = self._proxy.worker, self._proxy.log
        if not message.get("tool_calls"):
            return
        if self._proxy.settings.mode == "warn":
            await self._rule_on(message)
        await worker.try_call("noting a response", log.continue_run, self._turn, message)

    def _end(self, completion: Mapping[str, Any]) -> None:
        """Record what the response completes, behind the response."""
        if self._turn is None:
            return
        choice, worker, log = completion["choices"][0], self._proxy.worker, self._proxy.log
        if not choice["message"].get("tool_calls"):
            worker.submit("recording a conversation", log.end_run, self._turn, choice.get("finish_reason"))
        worker.submit("recording abandoned conversations", log.end_abandoned)
        if self._proxy.tokens is not None:
            episode = self._turn.conversation.episode
            worker.submit("recording tokens", self._proxy.tokens.add, episode, self._body, completion)


def read_calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the calls of a message with id, name and args."""
    calls = [normalize_call(call) for call in message.get("tool_calls") or ()]
    return [{"id": call["id"], "name": call["name"], "args": call["arguments"]} for call in calls]


def find_ending(rulings: Sequence[Ruling]) -> str:
    """Return the last message of a run whose model insists on forbidden calls; empty if the run goes on."""
    over = next((ruling for ruling in rulings if ruling.over), None)
    if over is None or any(ruling.runs for ruling in rulings):
        return ""
    return f"This run ends here: {over.verdict.cause or 'a guardrail'} forbids every call that the model insists on."


def _make_chunk(completion: Mapping[str, Any], text: str) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    kept = {name: completion[name] for name in ("id", "model") if name in completion}
    return {"object": "chat.completion.chunk", "created": 0, **kept, "choices": [choice]}


def _parse_completion(data: bytes) -> dict[str, Any] | None:
    """Return a completion with a message, or None if the body has another form."""
    try:
        value = json.loads(data)
        message = value["choices"][0]["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return value if isinstance(message, dict) else None
