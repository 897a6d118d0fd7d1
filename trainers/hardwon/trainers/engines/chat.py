"""An engine as a chat model: what was trained acts where any LangChain chat model does.

    agent = Agent(policy=EngineChatModel(engine=engine), library=library, environment=environment)
    agent = Agent(policy=EngineChatModel.load("runs/coin/export/policy"), ...)

The tokenizer's chat template turns messages into a prompt; the role's newest weights answer. An
answer may be bound to a list, token by token: by structured output whose schema is one, as
`ChatPolicy` asks for it, or by vLLM's `structured_outputs` with a `choice`. It calls no tools.
"""

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda, RunnableMap, RunnablePassthrough

from hardwon.memory.errors import ConfigError
from hardwon.runtime.llm.chat_model import in_own_loop
from hardwon.trainers.algorithms.samples import Ids

from .base import Completion, Request
from .trie import Trie

_ROLES = {"human": "user", "ai": "assistant", "system": "system"}
"""What chat templates call who speaks."""


class EngineChatModel(BaseChatModel):
    """One role of an engine, as a chat model. All its requests run in one event loop of our own."""

    engine: Any
    """An `Engine` with its tokenizer, which has a chat template."""
    role: str = "policy"
    max_tokens: int = 256
    """Of one answer."""
    temperature: float = 1.0
    seed: int | None = None
    """With one, the same messages get the same answer."""

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu", **fields: Any) -> "EngineChatModel":
        """What was exported to a folder, an adapter with its base or a whole model, in this process."""
        from transformers import AutoModelForCausalLM

        from .base_models import load_tokenizer
        from .local import LocalEngine

        role = fields.setdefault("role", "policy")
        loader: Any = AutoModelForCausalLM
        try:
            shape = Path(folder) / "adapter_config.json"
            base = json.loads(shape.read_text(encoding="utf-8"))["base_model_name_or_path"] if shape.is_file() else None
            model = loader.from_pretrained(str(base or folder))
            if base:
                from peft import PeftModel

                model = PeftModel.from_pretrained(model, str(folder), adapter_name=role)
            tokenizer = load_tokenizer(folder)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{folder} cannot be loaded: {error} Give a folder that hardwon train --export wrote."
            ) from error
        return cls(engine=LocalEngine(model.to(device).eval(), tokenizer, roles=[role]), **fields)

    @property
    def version(self) -> int:
        """Of the weights that answer from now on; an answer's own is in its `response_metadata`."""
        return int(self.engine.versions()[self.role])

    @property
    def model_name(self) -> str:
        """The role."""
        return self.role

    @property
    def _llm_type(self) -> str:
        return "hardwon-engine"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"role": self.role, "temperature": self.temperature, "max_tokens": self.max_tokens, "seed": self.seed}

    # -- answering ----------------------------------------------------------------------------------

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        result: ChatResult = in_own_loop(self._answer(messages, stop, kwargs)).result()
        return result

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return await asyncio.wrap_future(in_own_loop(self._answer(messages, stop, kwargs)))

    async def _answer(self, messages: Sequence[BaseMessage], stop: Sequence[str] | None, asked: Any) -> ChatResult:
        prompt = self._prompt(messages)
        texts = {self._ids(text) + self._end(): text for text in asked.get("only") or _choice(asked)}
        request = Request(
            prompt,
            self.role,
            Trie(texts) if texts else None,
            max_tokens=asked.get("max_tokens", self.max_tokens),
            temperature=asked.get("temperature", self.temperature),
            stop=self._end(),
            chance=None if self.seed is None else random.Random(f"{self.seed}:{prompt}"),
        )
        completion = await self.engine.generate(request)
        return self._result(request, completion, texts.get(completion.tokens), stop or ())

    def _result(self, request: Request, completion: Completion, text: str | None, stop: Sequence[str]) -> ChatResult:
        """A completion as a message; `text` is what it says where it was bound to a list."""
        ended = bool(completion.tokens) and completion.tokens[-1] in request.stop
        if text is None:
            text = str(self.engine.tokenizer.decode(list(completion.tokens[:-1] if ended else completion.tokens)))
        for word in stop:
            text, found, _ = text.partition(word)
            ended = ended or bool(found)
        said = len(completion.tokens)
        read = len(request.prompt)
        message = AIMessage(
            text,
            usage_metadata={"input_tokens": read, "output_tokens": said, "total_tokens": read + said},
            response_metadata={
                "model_name": self.role,
                "version": completion.version,
                "finish_reason": "stop" if ended else "length",
            },
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    # -- tokens -------------------------------------------------------------------------------------

    def _prompt(self, messages: Sequence[BaseMessage]) -> Ids:
        tokenizer = self.engine.tokenizer
        if not tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer of role {self.role!r} has no chat template, so messages cannot become a prompt. "
                "Give it one (tokenizer.chat_template), or act through hardwon.trainers.TokenPolicy."
            )
        spoken = [{"role": _ROLES.get(message.type, "user"), "content": str(message.text)} for message in messages]
        return tuple(
            tokenizer.apply_chat_template(
                spoken,
                add_generation_prompt=True,
                return_dict=False,
                sanitize_control_tokens=True,  # no text ends its own message; older transformers pass it by
            )
        )

    def _ids(self, text: str) -> Ids:
        return tuple(self.engine.tokenizer(text, add_special_tokens=False).input_ids)

    def _end(self) -> Ids:
        end = self.engine.tokenizer.eos_token_id
        return () if end is None else (int(end),)

    # -- answers out of a list ----------------------------------------------------------------------

    def with_structured_output(
        self, schema: dict[str, Any] | type, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[Any, Any]:
        """Answers that a schema of one property with an `enum` allows, as JSON.

        Raises: NotImplementedError for any other schema.
        """
        said = self.bind(only=_instances(schema))
        read: Runnable[Any, Any] = RunnableLambda(_parsed)
        if not include_raw:
            return said | read
        parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | read, parsing_error=lambda _: None)
        return RunnableMap(raw=said) | parsed


def _parsed(message: AIMessage) -> Any:
    return json.loads(message.text)


def _choice(asked: Mapping[str, Any]) -> tuple[str, ...]:
    """The answers that a request is bound to in vLLM's way."""
    return tuple(((asked.get("extra_body") or {}).get("structured_outputs") or {}).get("choice", ()))


def _instances(schema: Any) -> tuple[str, ...]:
    """Everything that a schema allows, as JSON texts."""
    properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
    if len(properties) == 1:
        ((name, values),) = properties.items()
        if values.get("enum"):
            return tuple(json.dumps({name: value}, ensure_ascii=False) for value in values["enum"])
    raise NotImplementedError("only a schema of one property with an enum can be answered token by token.")
