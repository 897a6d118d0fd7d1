"""The policy as a server of the OpenAI API, for programs on this machine, while their episodes run.

Every episode has an API key of its own, so requests need nothing else to find their episode, also through a proxy that
forwards the key. Tokens are read from the engine and never from text. A key is refused once its episode has ended.
"""

import asyncio
import json
import random
import socket
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from hardwon.memory.errors import ConfigError, HardwonError
from hardwon.runtime.integrations.tool_episode import normalize_message
from hardwon.trainers.engines.base import Completion, Constraint, Engine, Request as EngineRequest
from hardwon.trainers.engines.grammar import Grammar, ToolCalls
from hardwon.trainers.prompting.chat_record import ChatRecord, Message, Tool

from .calls import split_calls
from .prompts import ProgramPrompts
from .run import PolicyCall, ProgramRun

OUTCOME = "x-hardwon-outcome"
"""Header of a request that reports the outcome of the episode."""
HOST = "127.0.0.1"


class RequestRefused(HardwonError, ValueError):
    """A request that the policy does not answer."""

    def __init__(self, text: str, code: str = "invalid_request", status: int = 400) -> None:
        super().__init__(text)
        self.code, self.status = code, status

    def respond(self) -> Response:
        """Return the response, in OpenAI's form."""
        kind = "authentication_error" if self.status == 401 else "invalid_request_error"
        error = {"message": str(self), "type": kind, "param": None, "code": self.code}
        return JSONResponse({"error": error}, self.status)


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: signals belong to the run."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signal handlers as they are."""
        yield


class Gateway:
    """Answers the model calls of the episodes that are open."""

    def __init__(
        self, engine: Engine, prompts: ProgramPrompts, *, max_tokens: int, context: int | None, port: int = 0
    ) -> None:
        """Create a gateway; `serve` makes it listen."""
        self._engine, self._prompts = engine, prompts
        self._max_tokens, self._context, self._port = max_tokens, context, port
        self._runs: dict[str, ProgramRun] = {}
        """The open episodes by key."""
        self._ended: set[str] = set()
        """Keys of the episodes that have ended."""
        self.url = ""
        """Base URL for clients, with its /v1, while the gateway listens."""
        routes = [
            Route("/v1/chat/completions", self.complete, methods=["POST"]),
            Route("/v1/outcome", self.take_outcome, methods=["POST"]),
            Route("/v1/models", self.list_models, methods=["GET"]),
        ]
        self.app = Starlette(routes=routes, exception_handlers={RequestRefused: _respond})

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Listen in the running event loop until the block ends."""
        with socket.socket() as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listening.bind((HOST, self._port))
            except OSError as error:
                raise ConfigError(
                    f"program.port is {self._port}, which cannot be listened on ({error.strerror}); choose another."
                ) from error
            self.url = f"http://{HOST}:{listening.getsockname()[1]}/v1"
            config = uvicorn.Config(
                self.app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
            )
            server = _Server(config)
            task = asyncio.create_task(server.serve([listening]))
            try:
                while not server.started and not task.done():
                    await asyncio.sleep(0.005)
                yield
            finally:
                server.should_exit = True
                await task

    def open(self, run: ProgramRun) -> None:
        """Answer the requests of an episode from now on."""
        self._runs[run.key] = run

    async def close(self, run: ProgramRun) -> None:
        """Refuse further requests of an episode, and drop what the engine keeps of it."""
        run.is_open = False
        self._runs.pop(run.key, None)  # its messages and tokens are not needed here any more
        self._ended.add(run.key)
        async with run.lock:
            await self._engine.end(run.spec.session)

    def open_record(self) -> ChatRecord:
        """Return an empty record of conversations for a new episode."""
        return ChatRecord(self._prompts)

    # -- routes -------------------------------------------------------------------------------------

    async def list_models(self, request: Request) -> Response:
        """Return the only model."""
        self._find(request)
        return JSONResponse({"object": "list", "data": [{"id": "policy", "object": "model", "owned_by": "hardwon"}]})

    async def take_outcome(self, request: Request) -> Response:
        """Take the outcome of an episode: `{"outcome": 0.5}`."""
        run = self._find(request)
        body = await _read_body(request)
        _report(run, body.get("outcome"))
        return JSONResponse({"outcome": run.reported})

    async def complete(self, request: Request) -> Response:
        """Answer a chat completion with the policy, and keep its tokens."""
        run = self._find(request)
        if OUTCOME in request.headers:
            _report(run, request.headers[OUTCOME])
        body = await _read_body(request)
        messages, tools = _read_conversation(body)
        async with run.lock:
            call, reason = await self._answer(run, body, messages, tools)
            # An answer that nobody waits for is no decision of the episode: its client asks again, or has ended.
            if await request.is_disconnected() or not run.is_open:
                raise _refuse_ended()
            run.keep(call, tools)
        value = _build_completion(body, call, reason)
        if body.get("stream"):
            return StreamingResponse(_stream(body, value), media_type="text/event-stream")
        return JSONResponse(value)

    def _find(self, request: Request) -> ProgramRun:
        key = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if key in self._ended:
            raise _refuse_ended()
        run = self._runs.get(key)
        if run is None:
            text = "this API key names no episode; use OPENAI_API_KEY of the program's environment."
            raise RequestRefused(text, "invalid_api_key", 401)
        return run

    async def _answer(
        self, run: ProgramRun, body: Mapping[str, Any], messages: Sequence[Message], tools: Sequence[Tool]
    ) -> tuple[PolicyCall, str]:
        """Return the policy's answer, and why it ended."""
        if len(run.calls) >= run.max_calls:
            run.was_limited = True
            text = f"the episode had its {run.max_calls} model calls; raise environment.max_steps for more."
            raise RequestRefused(text, "step_limit", 403)
        try:
            prompt = run.record.open(messages, tools)
        except ConfigError as error:
            raise RequestRefused(str(error)) from error
        wanted = body.get("max_completion_tokens") or body.get("max_tokens") or self._max_tokens
        if not isinstance(wanted, int) or wanted < 1:
            raise RequestRefused(f"max_tokens is {wanted!r}; give a whole number above 0.")
        room = wanted if self._context is None else min(wanted, self._context - len(prompt))
        if room < 1:
            run.was_outgrown = True
            text = f"the prompt has {len(prompt)} tokens, and the model reads {self._context}."
            raise RequestRefused(text, "context_length_exceeded")
        run.requests += 1
        session = run.spec.session
        completion = await self._engine.generate(
            EngineRequest(
                prompt,
                allowed=self._bind(body, tools, room),
                max_tokens=room,
                temperature=run.temperature,
                stop=(self._prompts.end,),
                session=session,
                chance=random.Random(f"{session}:{run.requests}"),
            )
        )
        return self._read(messages, tools, prompt, completion, _read_stop(body))

    def _bind(self, body: Mapping[str, Any], tools: Sequence[Tool], room: int) -> Constraint | None:
        """Return the grammar that a request demands: of its tools, or of a JSON schema."""
        choice, form = body.get("tool_choice"), body.get("response_format") or {}
        functions = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
        if isinstance(choice, Mapping):
            name = str((choice.get("function") or {}).get("name") or "")
            functions = {name: functions[name]} if name in functions else {}
        try:
            if functions and (choice == "required" or isinstance(choice, Mapping)):
                return ToolCalls(self._prompts.template.tokenizer, functions, end=self._prompts.end).open_grammar(room)
            if form.get("type") in ("json_schema", "json_object"):
                schema = (form.get("json_schema") or {}).get("schema") or {"type": "object"}
                lark = f"start: %json {json.dumps(schema)}"
                return Grammar(self._prompts.template.tokenizer, lark, max_tokens=room, end=self._prompts.end)
        except ConfigError as error:
            raise RequestRefused(str(error)) from error
        return None

    def _read(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        prompt: tuple[int, ...],
        completion: Completion,
        stop: Sequence[str],
    ) -> tuple[PolicyCall, str]:
        """Return a completion as an answer, and why it ended."""
        text, completion, has_stopped = self._cut(completion, stop)
        is_whole = has_stopped or completion.tokens[-1:] == (self._prompts.end,)
        text, calls = split_calls(text) if tools else (text, [])
        answer = normalize_message({"role": "assistant", "content": text, "tool_calls": calls})
        reason = "length" if not is_whole else "tool_calls" if calls else "stop"
        return PolicyCall.of(messages, answer, prompt, completion, is_whole=is_whole), reason

    def _cut(self, completion: Completion, stop: Sequence[str]) -> tuple[str, Completion, bool]:
        """Return the text up to a stop word, and the completion up to the token that completes that word.

        Engines stop at tokens only. The rest of a cut sample is exact: a token depends on those before it alone.
        """
        text = self._prompts.read(completion.tokens)
        first = min((at for word in stop if (at := text.find(word)) >= 0), default=None)
        if first is None:
            return text, completion, False
        count = next(
            n
            for n in range(1, len(completion.tokens) + 1)
            if any(word in self._prompts.read(completion.tokens[:n]) for word in stop)
        )
        cut = Completion(
            completion.tokens[:count], completion.logprobs[:count], completion.mask[:count],
            completion.allowed[:count], completion.version,
        )  # fmt: skip
        return text[:first], cut, True


# -- requests and responses -------------------------------------------------------------------------


async def _respond(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRefused)
    return error.respond()


def _refuse_ended() -> RequestRefused:
    return RequestRefused("the episode of this API key has ended.", "episode_ended", 410)


def _report(run: ProgramRun, outcome: Any) -> None:
    try:
        run.report(outcome)
    except ValueError as error:
        raise RequestRefused(str(error)) from error


async def _read_body(request: Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise RequestRefused("the body is no JSON object.")
    return body


def _read_conversation(body: Mapping[str, Any]) -> tuple[list[Message], list[Tool]]:
    """Return the messages in the plain form, and the tools."""
    messages, tools = body.get("messages"), body.get("tools") or []
    if not isinstance(messages, list) or not messages:
        raise RequestRefused("messages is no list of messages.")
    if body.get("n") not in (None, 1):
        raise RequestRefused(f"n is {body['n']!r}; the policy gives one answer to a request.")
    if body.get("tool_choice") == "none":
        tools = []
    is_tools = isinstance(tools, list) and all(
        isinstance(tool, dict) and isinstance((tool.get("function") or {}).get("name"), str) for tool in tools
    )
    if not is_tools:
        raise RequestRefused("tools is no list of functions in the form of the chat completions API.")
    try:
        return [normalize_message(message) for message in messages], tools
    except (ValueError, AttributeError, TypeError) as error:
        raise RequestRefused(f"messages has an unknown form: {error}") from error


def _read_stop(body: Mapping[str, Any]) -> list[str]:
    stop = body.get("stop") or []
    return [word for word in ([stop] if isinstance(stop, str) else stop) if isinstance(word, str) and word]


def _build_completion(body: Mapping[str, Any], call: PolicyCall, reason: str) -> dict[str, Any]:
    """Return a response of the chat completions API, with the tokens in vLLM's form if they are wanted."""
    calls = [
        {
            "id": called["id"],
            "type": "function",
            "function": {"name": called["name"], "arguments": json.dumps(called["arguments"], ensure_ascii=False)},
        }
        for called in call.answer["calls"]
    ]
    message = {"role": "assistant", "content": call.answer["text"] or (None if calls else "")}
    choice: dict[str, Any] = {
        "index": 0, "message": {**message, **({"tool_calls": calls} if calls else {})}, "finish_reason": reason,
        "logprobs": None,
    }  # fmt: skip
    value: dict[str, Any] = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": str(body.get("model") or "policy"),
        "choices": [choice],
        "usage": {
            "prompt_tokens": len(call.prompt),
            "completion_tokens": len(call.tokens),
            "total_tokens": len(call.prompt) + len(call.tokens),
        },
    }
    if body.get("logprobs"):
        entries = zip(call.tokens, call.logprobs, strict=True)
        choice["logprobs"] = {
            "content": [
                {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
                for token, logprob in entries
            ]
        }
    if body.get("return_token_ids"):
        choice["token_ids"] = list(call.tokens)
        value["prompt_token_ids"] = list(call.prompt)
    return value


async def _stream(body: Mapping[str, Any], value: Mapping[str, Any]) -> AsyncIterator[bytes]:
    """Yield a response as server-sent events: the answer in one chunk, and the end."""
    (choice,) = value["choices"]
    delta = {**choice["message"]}
    if "tool_calls" in delta:
        delta["tool_calls"] = [{**call, "index": n} for n, call in enumerate(delta["tool_calls"])]
    extra = {name: choice[name] for name in ("logprobs", "token_ids") if choice.get(name) is not None}
    kept = {name: value[name] for name in ("id", "created", "model")}
    first = {name: value[name] for name in ("prompt_token_ids",) if name in value}
    last: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None, **extra}], **first},
        {"choices": [last]},
    ]
    if (body.get("stream_options") or {}).get("include_usage"):
        chunks.append({"choices": [], "usage": value["usage"]})
    for chunk in chunks:
        yield b"data: " + json.dumps({**kept, "object": "chat.completion.chunk", **chunk}).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"
