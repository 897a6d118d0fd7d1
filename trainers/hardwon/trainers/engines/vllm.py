"""The engine over vLLM in this process: no server to start, the same choices and the same versions.

    engine = VllmEngine("Qwen/Qwen3-0.6B", roles=("policy", "extractor"), gpu_memory_utilization=0.4)

vLLM starts a process of its own for the model: a script that makes an engine needs its
`if __name__ == "__main__":`. vLLM is imported when the first engine is made.
"""

import itertools
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from hardwon.memory.errors import AdapterRefused, ConfigError, EngineFailure, MissingExtra
from hardwon.runtime.llm.chat_model import in_own_loop
from hardwon.trainers.algorithms.samples import Ids

from .base import Request
from .remote import RemoteEngine, Serving


class VllmEngine(RemoteEngine):
    """Serves several roles from a model in this process; see the module's docstring."""

    def __init__(
        self,
        model: str | Path,
        tokenizer: Any = None,
        roles: Sequence[str] = ("policy",),
        *,
        max_rank: int = 16,
        folder: str | Path | None = None,
        **settings: Any,
    ) -> None:
        """model: a folder or the hub's name. tokenizer: None takes the model's, as the trainer does.

        max_rank: the largest rank of an adapter; vLLM knows 1, 8, 16, 32, 64, 128, 256, 320, 512.
        folder: where adapters that come as tensors are written; None: a temporary one.
        settings: vLLM's engine arguments, such as dtype, max_model_len, gpu_memory_utilization.
        """
        vllm = _vllm()
        from .base_models import load_tokenizer

        super().__init__(load_tokenizer(model) if tokenizer is None else tokenizer, roles, folder)
        given = {
            "model": str(model),
            "enable_lora": True,
            "max_lora_rank": max_rank,
            "max_loras": len(roles) + 1,  # while a role's weights are swapped, both are in use
            "logprobs_mode": "processed_logprobs",  # at the temperature that was sampled at, and under the mask
            "structured_outputs_config": {"backend": "guidance"},  # the automaton that is also ours
            **settings,
        }
        self._engine: Any = in_own_loop(_start(vllm, given)).result()
        self._vllm = vllm
        self._ids, self._adapters = itertools.count(1), dict[str, Any]()
        self._requests = itertools.count()

    async def _sample(
        self, serving: Serving, request: Request, seed: int, grammar: str | None = None
    ) -> tuple[Sequence[int], Sequence[float]]:
        bound = {} if grammar is None else {"structured_outputs": self._structured(grammar)}
        said = await self._ask(
            serving,
            request.prompt,
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            seed=seed,
            stop_token_ids=list(request.stop),
            ignore_eos=True,  # the end is among stop_token_ids
            logprobs=0,
            **bound,
        )
        tokens: Sequence[int] = said.outputs[0].token_ids
        return tokens, _of(said.outputs[0].logprobs, tokens)

    async def _score(self, serving: Serving, prompt: Ids, ids: Ids) -> list[float]:
        said = await self._ask(serving, prompt, max_tokens=1, temperature=0.0, logprob_token_ids=list(ids))
        (told,) = said.outputs[0].logprobs
        return [told[token].logprob for token in ids]

    async def _read(self, serving: Serving, tokens: Ids) -> list[float]:
        said = await self._ask(serving, tokens, max_tokens=1, temperature=0.0, prompt_logprobs=0)
        return _of(said.prompt_logprobs[1:], tokens[1:])

    def _structured(self, grammar: str) -> Any:
        return self._vllm.sampling_params.StructuredOutputsParams(grammar=grammar)

    async def _ask(self, serving: Serving, prompt: Ids, **asked: Any) -> Any:
        """vLLM's last word on a request."""
        final = self._vllm.sampling_params.RequestOutputKind.FINAL_ONLY
        wanted = self._vllm.SamplingParams(detokenize=False, output_kind=final, **asked)
        answers = self._engine.generate(
            {"prompt_token_ids": list(prompt)},
            wanted,
            f"hardwon-{next(self._requests)}",
            lora_request=self._adapters.get(serving.name),
        )
        try:
            return [said async for said in answers][-1]
        except Exception as error:  # vLLM's own kinds: a prompt that is too long, a process that died
            raise EngineFailure(
                f"vLLM did not answer a request of {len(prompt)} tokens: {error} Look also at what its process printed."
            ) from error

    async def _install(self, serving: Serving) -> None:
        number = next(self._ids)
        adapter = self._vllm.lora.request.LoRARequest(serving.name, number, serving.folder)
        try:
            await self._engine.add_lora(adapter)
        except Exception as error:  # whatever the model's process raised
            raise AdapterRefused(
                f"vLLM does not take the adapter {serving.folder} as {serving.name}: {error} "
                "Look at its rank (max_rank) and whether it was trained on this base."
            ) from error
        self._adapters[serving.name] = adapter

    async def _remove(self, serving: Serving) -> None:
        await self._engine.remove_lora(self._adapters.pop(serving.name).lora_int_id)

    async def _close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is None:
            return
        if (reading := getattr(engine, "output_handler", None)) is not None:
            reading.cancel()  # else it takes the end for a failure, and says so
        engine.shutdown()


async def _start(vllm: Any, given: Mapping[str, Any]) -> Any:
    """The engine, made in the loop that it will run in."""
    try:
        return vllm.v1.engine.async_llm.AsyncLLM.from_engine_args(vllm.AsyncEngineArgs(**given))
    except (TypeError, ValueError, OSError) as error:
        raise ConfigError(f"vLLM cannot serve {given['model']}: {error}") from error


def _vllm() -> Any:
    """The package, with the modules of it that are used here."""
    try:
        for name in ("lora.request", "sampling_params", "v1.engine.async_llm"):
            import_module(f"vllm.{name}")
        return import_module("vllm")
    except ImportError as missing:
        raise MissingExtra.of("vllm", "vllm") from missing


def _of(told: Sequence[Mapping[int, Any]], tokens: Sequence[int]) -> list[float]:
    """The log-probability of each of these tokens."""
    return [place[token].logprob for place, token in zip(told, tokens, strict=True)]
