"""What a vLLM server is asked, as token ids: completions, log-probabilities, and the adapters that it serves.

No text is sent, so nothing is tokenized twice. All requests run in one private event loop, so an engine works from any
loop and any thread.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import httpx
from pydantic import Field, NonNegativeInt, TypeAdapter

from hardwon.memory.errors import AdapterRefused, ConfigError, EngineFailure, EngineUnreachable, UnknownName
from hardwon.memory.wire import PLAIN_ANSWERS, HttpAnswer, add_chunk
from hardwon.trainers.algorithms.samples import Ids

from .base import Request

MAX_SCORED = 128
"""Largest number of tokens whose log-probabilities vLLM returns in one request."""
MOST_BYTES = 2**30
"""Largest answer in bytes; those with log probabilities of whole prompts are long."""
ATTEMPTS = 5
"""Largest number of attempts to reach a server that is down or busy."""
PAUSE_S = 0.5
"""Pause before the second attempt in seconds. It doubles with each attempt."""
CONNECTIONS = 256
"""Largest number of requests at once."""
BUSY = frozenset({429, 502, 503, 504})
"""Status codes that ask the client to retry later."""
PLAIN = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "skip_special_tokens": False,
}
"""Options that leave the distribution unchanged, whatever the defaults of the server or model are."""


Logprob = Annotated[float, Field(le=1e-3)]
"""NaN is at most nothing, and rounding may leave a little above 0."""


@dataclass(frozen=True)
class _Logprobs:
    token_logprobs: list[Logprob]
    top_logprobs: list[dict[str, Logprob] | None] | None = None


@dataclass(frozen=True)
class _Choice:
    token_ids: list[NonNegativeInt]
    logprobs: _Logprobs | None = None
    prompt_logprobs: list[dict[str, dict[str, Any]] | None] | None = None


_CHOICE: TypeAdapter[Any] = TypeAdapter(_Choice)


class VllmClient:
    """The connection to one vLLM server, which is contacted with the first request."""

    def __init__(self, base_url: str, api_key: str | None, model: str | None, timeout_s: float) -> None:
        self.base_url = base_url.rstrip("/")
        self.headers = ({"Authorization": f"Bearer {api_key}"} if api_key else {}) | PLAIN_ANSWERS
        self._model = model
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None
        # all episodes send at once, and may wait for a connection as long as it takes
        self._turns = asyncio.Semaphore(CONNECTIONS)
        self._tempered: bool | None = None

    # -- completions ------------------------------------------------------------------------------

    async def sample(
        self, adapter: str, request: Request, seed: int, grammar: str | None = None
    ) -> tuple[Sequence[int], Sequence[float]]:
        """Sample a completion, free or by a grammar.

        Return tokens and log-probabilities at the temperature (0: at 1).
        """
        if request.temperature not in (0.0, 1.0) and not await self._has_processed_logprobs(adapter, request.prompt):
            raise ConfigError(
                f"{self.base_url} returns log-probabilities at temperature 1, not {request.temperature}. "
                "Start it with --logprobs-mode processed_logprobs, or sample at temperature 1."
            )
        choice = await self._choice(
            adapter,
            prompt=request.prompt,
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            seed=seed,
            stop_token_ids=request.stop,
            ignore_eos=True,  # the end token is in stop_token_ids
            logprobs=0,
            **({} if grammar is None else {"structured_outputs": {"grammar": grammar}}),
        )
        with self._reading():
            tokens, logprobs = choice.token_ids, choice.logprobs.token_logprobs
            return [token for token, _ in zip(tokens, logprobs, strict=True)], logprobs

    async def score(self, adapter: str, prompt: Ids, ids: Ids) -> list[float]:
        """Return log-probabilities of these next tokens at temperature 1, up to a constant; at most MAX_SCORED."""
        choice = await self._choice(
            adapter, prompt=prompt, max_tokens=1, temperature=0.0, logprobs=len(ids), logprob_token_ids=ids
        )
        with self._reading():
            logprobs = choice.logprobs.top_logprobs[0]
        try:
            # keyed by id, because several tokens can decode to the same text
            return [logprobs[f"token_id:{token}"] for token in ids]
        except KeyError as missing:
            raise EngineFailure(
                f"{self.base_url} did not return the log-probability of token {missing.args[0]}. "
                "It may not support logprob_token_ids: use vLLM 0.32 or newer."
            ) from None

    async def read(self, adapter: str, tokens: Ids) -> list[float]:
        """Return the log-probability of every token but the first, given those before it."""
        choice = await self._choice(adapter, prompt=tokens, max_tokens=1, temperature=0.0, prompt_logprobs=0)
        with self._reading():
            logprobs = choice.prompt_logprobs[1:]
            return [(place or {})[str(token)]["logprob"] for place, token in zip(logprobs, tokens[1:], strict=True)]

    async def _has_processed_logprobs(self, adapter: str, prompt: Ids) -> bool:
        """Return whether the server applies temperature and masks to log-probabilities: a forced token then has 0."""
        if self._tempered is None:
            choice = await self._choice(
                adapter, prompt=prompt, max_tokens=1, temperature=1.0, logprobs=0, allowed_token_ids=prompt[-1:]
            )
            with self._reading():
                self._tempered = bool(choice.logprobs.token_logprobs == [0.0])
        return self._tempered

    async def _choice(self, adapter: str, **options: Any) -> Any:
        """Return the single choice of a completion request."""
        name = adapter or await self._base()
        answer = await self._post("completions", {**PLAIN, **options, "model": name})
        with self._reading():
            return _CHOICE.validate_python(answer["choices"][0])

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Convert errors about fields of an answer to one that names the server."""
        try:
            yield
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise EngineFailure(
                f"{self.base_url} answered in another form than vLLM ({type(error).__name__}: {error!s:.160}). Is "
                "base_url a vLLM server's, with /v1?"
            ) from error

    # -- adapters -----------------------------------------------------------------------------------

    async def install(self, adapter: str, folder: str) -> None:
        """Load an adapter.

        Raises:
            AdapterRefused: The server does not accept it.
        """
        payload = {"lora_name": adapter, "lora_path": folder}
        try:
            await self._post("load_lora_adapter", payload)
        # a subclass of EngineFailure: a server that is down has not rejected the adapter
        except EngineUnreachable:
            raise
        except (EngineFailure, UnknownName) as refused:
            if "already been loaded" in str(refused):  # by an earlier run, or by an attempt whose response was lost
                return
            raise AdapterRefused(
                f"{self.base_url} rejected the adapter {folder} as {adapter}: {refused} "
                "It must see that folder. Start it with --enable-lora, --max-lora-rank at or above the adapter's, "
                "and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True."
            ) from refused

    async def remove(self, adapter: str) -> None:
        """Unload an adapter."""
        await self._post("unload_lora_adapter", {"lora_name": adapter})

    async def _base(self) -> str:
        if self._model is None:
            names = await self._names()
            with self._reading():
                self._model = names[0]
        return self._model

    async def _names(self) -> list[str]:
        """Return the names of the server's models, bases first."""
        answer = await self._send("GET", "models")
        with self._reading():
            models = sorted(answer["data"], key=lambda model: bool(dict(model).get("parent")))
            return [str(model["id"]) for model in models]

    # -- the wire -----------------------------------------------------------------------------------

    async def _post(self, path: str, payload: Mapping[str, Any]) -> Any:
        return await self._send("POST", path, payload)

    async def _send(self, method: str, path: str, payload: Mapping[str, Any] | None = None) -> Any:
        """Send a request. Retry while the server cannot be reached or is busy."""
        reason, attempts = "", 0
        while attempts < ATTEMPTS:
            if attempts:
                await asyncio.sleep(PAUSE_S * 2.0 ** (attempts - 1))
            attempts += 1
            try:
                answer = await self._exchange(method, path, payload)
            except (httpx.TimeoutException, TimeoutError) as error:
                reason = f"did not answer within {self._timeout_s:g} s"
                # only a failed connection is safe and useful to repeat: a slow request would be slow again
                if not isinstance(error, httpx.ConnectTimeout):
                    break
            except httpx.TransportError as error:
                reason = f"cannot be reached ({type(error).__name__}: {error})"
            except httpx.HTTPError as error:
                raise EngineFailure(f"{self.base_url}/{path}: {error}. Is base_url a vLLM server's?") from error
            else:
                if answer.status not in BUSY:
                    return await self._read_answer(path, payload, answer)
                reason = f"is busy (status {answer.status})"
        raise EngineUnreachable(
            f"{self.base_url} {reason}, in {attempts} of at most {ATTEMPTS} attempts. "
            "Check that the vLLM server is running there, and its log."
        )

    async def _exchange(self, method: str, path: str, payload: Mapping[str, Any] | None) -> HttpAnswer:
        """Send a request once, and return the answer. The time-outs of httpx begin anew with each byte."""
        async with self._turns, asyncio.timeout(self._timeout_s):
            async with self._http().stream(method, f"{self.base_url}/{path}", json=payload) as response:
                content = bytearray()
                async for chunk in response.aiter_raw():
                    add_chunk(content, chunk, MOST_BYTES)
            return HttpAnswer.of(response, content)

    async def _read_answer(self, path: str, payload: Mapping[str, Any] | None, answer: HttpAnswer) -> Any:
        """Return the body of an answer, or raise the error that it stands for."""
        if 200 <= answer.status < 300:
            is_done = answer.content.startswith(b"Success")
            values = ({} if is_done else None) if path.endswith("_adapter") else answer.parse()
            if values is None:
                raise EngineFailure(
                    f"{self.base_url}/{path} answered {answer.content[:80]!r}. Is base_url a vLLM server's, with /v1?"
                )
            return values
        status, message = answer.status, _format_failure(answer)
        if status in (401, 403):
            raise ConfigError(f"{self.base_url} rejected the API key ({message}). Pass the server's key as api_key=...")
        if status == 404 and path == "completions" and "does not exist" in message:
            assert payload is not None
            raise UnknownName.of(f"model of {self.base_url}", payload["model"], await self._names())
        # vLLM without runtime LoRA updating has no load_lora_adapter; `install` explains that case
        hint = " Is base_url a vLLM server's, with /v1?" if status == 404 and path != "load_lora_adapter" else ""
        raise EngineFailure(f"{self.base_url}/{path} refused with status {status}: {message}{hint}")

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
            timeout = httpx.Timeout(self._timeout_s, connect=10.0)
            self._client = httpx.AsyncClient(headers=self.headers, limits=limits, timeout=timeout)
        return self._client

    async def close(self) -> None:
        """Disconnect from the server."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None


def _format_failure(answer: HttpAnswer) -> str:
    """Return the error message of an answer."""
    if (body := answer.parse()) is None:
        return answer.content[:200].decode(errors="replace")
    error = body.get("error", body.get("detail", body))
    return str(error["message"] if isinstance(error, dict) and "message" in error else error)[:500]
