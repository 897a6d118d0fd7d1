"""An engine over vLLM in this process, with the same sampling and versions as `ServerEngine`.

    engine = VllmEngine("Qwen/Qwen3-0.6B", roles=("policy", "extractor"), gpu_memory_utilization=0.4)

vLLM starts a child process for the model, so a script that creates an engine needs
`if __name__ == "__main__":`. vLLM is imported when the first engine is created.
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
    """Serves several roles from a vLLM model. See the module's docstring."""

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
        """Start vLLM with a model.

        Args:
            model: Folder or hub name of the model.
            tokenizer: Tokenizer; None for the model's, as in the trainer.
            roles: Names of the roles.
            max_rank: Largest rank of an adapter: 1, 8, 16, 32, 64, 128, 256, 320 or 512.
            folder: Folder for adapters that come as tensors; None for a temporary one.
            **settings: vLLM's engine arguments, such as dtype, max_model_len, gpu_memory_utilization.

        Raises:
            ConfigError: vLLM cannot serve the model.
            MissingExtra: vLLM is not installed.
        """
        vllm = _import_vllm()
        from .base_models import load_tokenizer

        super().__init__(load_tokenizer(model) if tokenizer is None else tokenizer, roles, folder)
        arguments = {
            "model": str(model),
            "enable_lora": True,
            "max_lora_rank": max_rank,
            "max_loras": len(roles) + 1,  # during a swap, the old and the new weights of a role are loaded
            "logprobs_mode": "processed_logprobs",  # at the sampling temperature and under the mask
            "structured_outputs_config": {
                "backend": "guidance"
            },  # the same automaton as in `grammar`, so the masks agree
            **settings,
        }
        self._engine: Any = in_own_loop(_start(vllm, arguments)).result()
        self._vllm = vllm
        # vLLM caches adapters by number, which must be above 0 and is never reused
        self._ids, self._adapters = itertools.count(1), dict[str, Any]()
        self._requests = itertools.count()

    async def _sample(
        self, serving: Serving, request: Request, seed: int, grammar: str | None = None
    ) -> tuple[Sequence[int], Sequence[float]]:
        bound = {} if grammar is None else {"structured_outputs": self._structured(grammar)}
        output = await self._ask(
            serving,
            request.prompt,
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            seed=seed,
            stop_token_ids=list(request.stop),
            ignore_eos=True,  # the end token is in stop_token_ids
            logprobs=0,
            **bound,
        )
        tokens: Sequence[int] = output.outputs[0].token_ids
        return tokens, _select(output.outputs[0].logprobs, tokens)

    async def _score(self, serving: Serving, prompt: Ids, ids: Ids) -> list[float]:
        output = await self._ask(serving, prompt, max_tokens=1, temperature=0.0, logprob_token_ids=list(ids))
        (logprobs,) = output.outputs[0].logprobs
        return [logprobs[token].logprob for token in ids]

    async def _read(self, serving: Serving, tokens: Ids) -> list[float]:
        output = await self._ask(serving, tokens, max_tokens=1, temperature=0.0, prompt_logprobs=0)
        return _select(output.prompt_logprobs[1:], tokens[1:])

    def _structured(self, grammar: str) -> Any:
        """Return vLLM's parameters for a grammar."""
        return self._vllm.sampling_params.StructuredOutputsParams(grammar=grammar)

    async def _ask(self, serving: Serving, prompt: Ids, **options: Any) -> Any:
        """Return vLLM's final output of a request."""
        final = self._vllm.sampling_params.RequestOutputKind.FINAL_ONLY
        wanted = self._vllm.SamplingParams(detokenize=False, output_kind=final, **options)
        answers = self._engine.generate(
            {"prompt_token_ids": list(prompt)},
            wanted,
            f"hardwon-{next(self._requests)}",
            lora_request=self._adapters.get(serving.name),
        )
        try:
            return [output async for output in answers][-1]
        except Exception as error:  # vLLM has its own error classes: a prompt that is too long, a dead process
            raise EngineFailure(
                f"vLLM did not answer a request of {len(prompt)} tokens: {error} See also the output of its process."
            ) from error

    async def _install(self, serving: Serving) -> None:
        number = next(self._ids)
        adapter = self._vllm.lora.request.LoRARequest(serving.name, number, serving.folder)
        try:
            await self._engine.add_lora(adapter)
        except Exception as error:  # any error of the child process
            raise AdapterRefused(
                f"vLLM rejected the adapter {serving.folder} as {serving.name}: {error} "
                "Check its rank (max_rank), and that it was trained on this base."
            ) from error
        self._adapters[serving.name] = adapter

    async def _remove(self, serving: Serving) -> None:
        await self._engine.remove_lora(self._adapters.pop(serving.name).lora_int_id)

    async def _close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is None:
            return
        if (reading := getattr(engine, "output_handler", None)) is not None:
            reading.cancel()  # otherwise it logs the shutdown as a failure
        engine.shutdown()


async def _start(vllm: Any, arguments: Mapping[str, Any]) -> Any:
    """Create the engine in the event loop in which it will run."""
    try:
        return vllm.v1.engine.async_llm.AsyncLLM.from_engine_args(vllm.AsyncEngineArgs(**arguments))
    except (TypeError, ValueError, OSError) as error:
        raise ConfigError(f"vLLM cannot serve {arguments['model']}: {error}") from error


def _import_vllm() -> Any:
    """Import vLLM with the modules that are used here."""
    try:
        for name in ("lora.request", "sampling_params", "v1.engine.async_llm"):
            import_module(f"vllm.{name}")
        return import_module("vllm")
    except ImportError as missing:
        raise MissingExtra.of("vllm", "vllm") from missing


def _select(logprobs: Sequence[Mapping[int, Any]], tokens: Sequence[int]) -> list[float]:
    """Return the log-probability of each of these tokens."""
    return [place[token].logprob for place, token in zip(logprobs, tokens, strict=True)]
