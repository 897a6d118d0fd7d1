"""The engine over a vLLM server, here or elsewhere: token ids out, token ids and log-probabilities in.

    engine = ServerEngine("http://127.0.0.1:8000/v1", tokenizer, roles=("policy", "extractor"))
    engine.load_adapter("policy", 3, "runs/coin/export/policy")

The server is started by whoever owns it; where adapters are to be swapped with `--enable-lora`,
`--max-loras` of one more than there are roles, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, and it must
see their folders under the same path. A version is served under a name of its own,
`policy-v3-1f0a77c2`, until its last request is done. Text never travels: nothing is tokenised twice.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from hardwon.memory.errors import AdapterRefused, ConfigError, EngineFailure, EngineUnreachable, UnknownName
from hardwon.trainers.algorithms.samples import Ids

from .base import Request
from .remote import RemoteEngine, Serving

ATTEMPTS = 5
"""To get a request through to a server that cannot be reached or is busy."""
PAUSE_S = 0.5
"""Before the second of them; doubled for each."""
BUSY = frozenset({429, 502, 503, 504})
"""Status codes that say: later."""
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
"""Nothing bends the distribution, whatever the server or the model has as its default."""


class ServerEngine(RemoteEngine):
    """Serves several roles from one server; see the module's docstring."""

    def __init__(
        self,
        base_url: str,
        tokenizer: Any,
        roles: Sequence[str] = ("policy",),
        api_key: str | None = None,
        *,
        model: str | None = None,
        folder: str | Path | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        """base_url: with its /v1. model: the name of the base; None: the first that the server has.

        folder: where adapters that come as tensors are written for the server to read; None: a
        temporary one, which serves where it runs on this machine.
        timeout_s: for one request, its wait at the server included.
        """
        super().__init__(tokenizer, roles, folder)
        self.base_url = base_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._model = model
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None
        self._tempered: bool | None = None

    # -- what is asked ------------------------------------------------------------------------------

    async def _sample(
        self, serving: Serving, request: Request, seed: int, grammar: str | None = None
    ) -> tuple[Sequence[int], Sequence[float]]:
        if request.temperature not in (0.0, 1.0) and not await self._tells_tempered(serving, request.prompt):
            raise ConfigError(
                f"{self.base_url} tells log-probabilities at temperature 1 and {request.temperature} was asked for. "
                "Start it with --logprobs-mode processed_logprobs, or sample at temperature 1."
            )
        choice = await self._choice(
            serving,
            prompt=request.prompt,
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            seed=seed,
            stop_token_ids=request.stop,
            ignore_eos=True,  # the end is among stop_token_ids
            logprobs=0,
            **({} if grammar is None else {"structured_outputs": {"grammar": grammar}}),
        )
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]

    async def _score(self, serving: Serving, prompt: Ids, ids: Ids) -> list[float]:
        choice = await self._choice(
            serving, prompt=prompt, max_tokens=1, temperature=0.0, logprobs=len(ids), logprob_token_ids=ids
        )
        told: Mapping[str, float] = choice["logprobs"]["top_logprobs"][0]
        try:
            return [told[f"token_id:{token}"] for token in ids]
        except KeyError as missing:
            raise EngineFailure(
                f"{self.base_url} does not tell the log-probability of {missing.args[0]}, which was asked for. "
                "It may be too old to know logprob_token_ids: use vLLM 0.32 or newer."
            ) from None

    async def _read(self, serving: Serving, tokens: Ids) -> list[float]:
        choice = await self._choice(serving, prompt=tokens, max_tokens=1, temperature=0.0, prompt_logprobs=0)
        told = choice["prompt_logprobs"][1:]
        return [place[str(token)]["logprob"] for place, token in zip(told, tokens[1:], strict=True)]

    async def _tells_tempered(self, serving: Serving, prompt: Ids) -> bool:
        """Whether log-probabilities are those after temperature and masks: a sole possible token has 0 then."""
        if self._tempered is None:
            choice = await self._choice(
                serving, prompt=prompt, max_tokens=1, temperature=1.0, logprobs=0, allowed_token_ids=prompt[-1:]
            )
            self._tempered = bool(choice["logprobs"]["token_logprobs"] == [0.0])
        return self._tempered

    async def _choice(self, serving: Serving, **asked: Any) -> Any:
        """The one completion of a request, as the server words it."""
        name = serving.name or await self._base()
        answer = await self._post("completions", {**PLAIN, **asked, "model": name})
        return answer["choices"][0]

    # -- adapters -----------------------------------------------------------------------------------

    async def _install(self, serving: Serving) -> None:
        asked = {"lora_name": serving.name, "lora_path": serving.folder}
        try:
            await self._post("load_lora_adapter", asked)
        except EngineUnreachable:
            raise
        except (EngineFailure, UnknownName) as refused:
            if "already been loaded" in str(refused):  # by a run before, or by an attempt whose answer was lost
                return
            raise AdapterRefused(
                f"{self.base_url} does not take the adapter {serving.folder} as {serving.name}: {refused} "
                "It must see that folder, and have been started with --enable-lora, a --max-lora-rank that is not "
                "below the adapter's, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True."
            ) from refused

    async def _remove(self, serving: Serving) -> None:
        await self._post("unload_lora_adapter", {"lora_name": serving.name})

    async def _base(self) -> str:
        if self._model is None:
            self._model = str((await self._names())[0])
        return self._model

    async def _names(self) -> list[str]:
        """The models of the server, bases first."""
        models = (await self._send("GET", "models"))["data"]
        return [model["id"] for model in sorted(models, key=lambda model: bool(model.get("parent")))]

    # -- the wire -----------------------------------------------------------------------------------

    async def _post(self, path: str, asked: Mapping[str, Any]) -> Any:
        return await self._send("POST", path, asked)

    async def _send(self, method: str, path: str, asked: Mapping[str, Any] | None = None) -> Any:
        """The answer, asked for again where the server cannot be reached or is busy."""
        seen, attempts = "", 0
        while attempts < ATTEMPTS:
            if attempts:
                await asyncio.sleep(PAUSE_S * 2.0 ** (attempts - 1))
            attempts += 1
            try:
                response = await self._http().request(method, f"{self.base_url}/{path}", json=asked)
            except httpx.TimeoutException as error:
                seen = f"gave no answer within {self._timeout_s:g} s"
                if not isinstance(error, httpx.ConnectTimeout):
                    break
            except httpx.TransportError as error:
                seen = f"cannot be reached ({type(error).__name__}: {error})"
            else:
                if response.status_code not in BUSY:
                    return await self._answer(path, asked, response)
                seen = f"is busy (status {response.status_code})"
        raise EngineUnreachable(
            f"{self.base_url} {seen}, in {attempts} of at most {ATTEMPTS} attempts. "
            "Look whether the vLLM server runs there, and at its log."
        )

    async def _answer(self, path: str, asked: Mapping[str, Any] | None, response: httpx.Response) -> Any:
        if response.is_success:
            try:
                return response.json() if path in ("completions", "models") else response.text
            except json.JSONDecodeError as error:
                raise EngineFailure(
                    f"{self.base_url}/{path} answered {response.text[:80]!r}. Is base_url a vLLM server's, with /v1?"
                ) from error
        status, told = response.status_code, _told(response)
        if status in (401, 403):
            raise ConfigError(f"{self.base_url} refuses the API key ({told}). Pass the server's as api_key=...")
        if status == 404 and path == "completions" and "does not exist" in told:
            assert asked is not None
            raise UnknownName.of(f"model of {self.base_url}", asked["model"], await self._names())
        hint = " Is base_url a vLLM server's, with /v1?" if status == 404 and path != "load_lora_adapter" else ""
        raise EngineFailure(f"{self.base_url}/{path} refused with status {status}: {told}{hint}")

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            limits = httpx.Limits(max_connections=256, max_keepalive_connections=256)
            timeout = httpx.Timeout(self._timeout_s, connect=10.0, pool=None)
            self._client = httpx.AsyncClient(headers=self._headers, limits=limits, timeout=timeout)
        return self._client

    async def _close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None


def _told(response: httpx.Response) -> str:
    """The server's own words."""
    try:
        body = response.json()
        told = body.get("error", body.get("detail", body))
        return str(told["message"] if isinstance(told, dict) and "message" in told else told)[:500]
    except (ValueError, AttributeError):
        return response.text[:200]
