"""An engine as a LangChain chat model, so a trained role can be used wherever a chat model can.

    agent = Agent(policy=EngineChatModel(engine=engine), library=library, environment=environment)
    agent = Agent(policy=EngineChatModel.load("runs/coin/export/policy"), ...)

The tokenizer's chat template turns messages into a prompt, and the role's newest weights answer. An
answer can be limited to a list, token by token: with structured output whose schema is an enum, as
`ChatPolicy` uses it, or with vLLM's `structured_outputs` and a `choice`. Tool calls are not supported.
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
from .rendering import render_messages
from .trie import Trie

_ROLES = {"human": "user", "ai": "assistant", "system": "system"}
"""Chat-template role by LangChain message type."""


class EngineChatModel(BaseChatModel):
    """One role of an engine as a chat model. All its requests run in one event loop of its own."""

    engine: Any
    """An `Engine` with a tokenizer that has a chat template."""
    role: str = "policy"
    max_tokens: int = 256
    """Length limit of one answer, in tokens."""
    temperature: float = 1.0
    seed: int | None = None
    """Seed of the sampling. With a seed, the same messages get the same answer; None samples freely."""

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu", **fields: Any) -> "EngineChatModel":
        """Load an exported role into this process: an adapter with its base, or a whole model.

        Args:
            folder: Folder that `hardwon train --export` wrote.
            device: Device of the model.
            **fields: Fields of the chat model, such as `temperature`.

        Returns:
            The chat model.

        Raises:
            ConfigError: The folder cannot be loaded.
        """
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
                f"{folder} cannot be loaded: {error} Pass a folder that hardwon train --export wrote."
            ) from error
        return cls(engine=LocalEngine(model.to(device).eval(), tokenizer, roles=[role]), **fields)

    @property
    def version(self) -> int:
        """Return the version of the weights that answer from now on.

        The version that gave an answer is in its `response_metadata`.
        """
        return int(self.engine.versions()[self.role])

    @property
    def model_name(self) -> str:
        """Return the name of the role."""
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
        # a local engine works in one event loop only, and the caller may be in another or in none
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

    async def _answer(self, messages: Sequence[BaseMessage], stop: Sequence[str] | None, options: Any) -> ChatResult:
        """Answer the messages, within the list of answers if the request has one."""
        prompt = self._build_prompt(messages)
        # with the end token, no answer is a prefix of another, as a trie requires
        texts = {self._encode(text) + self._get_end(): text for text in options.get("only") or _read_choice(options)}
        request = Request(
            prompt,
            self.role,
            Trie(texts) if texts else None,
            max_tokens=options.get("max_tokens", self.max_tokens),
            temperature=options.get("temperature", self.temperature),
            stop=self._get_end(),
            chance=None if self.seed is None else random.Random(f"{self.seed}:{prompt}"),
        )
        completion = await self.engine.generate(request)
        return self._to_result(request, completion, texts.get(completion.tokens), stop or ())

    def _to_result(self, request: Request, completion: Completion, text: str | None, stop: Sequence[str]) -> ChatResult:
        """Convert a completion to a message. `text` is the answer if it was chosen from a list."""
        ended = bool(completion.tokens) and completion.tokens[-1] in request.stop
        if text is None:
            text = str(self.engine.tokenizer.decode(list(completion.tokens[:-1] if ended else completion.tokens)))
        # engines stop at tokens only, so stop words are cut off afterward
        for word in stop:
            text, separator, _ = text.partition(word)
            ended = ended or bool(separator)
        output_tokens = len(completion.tokens)
        input_tokens = len(request.prompt)
        message = AIMessage(
            text,
            usage_metadata={
                "input_tokens": input_tokens,
                "output_tokens": output_tokens,
                "total_tokens": input_tokens + output_tokens,
            },
            response_metadata={
                "model_name": self.role,
                "version": completion.version,
                "finish_reason": "stop" if ended else "length",
            },
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    # -- tokens -------------------------------------------------------------------------------------

    def _build_prompt(self, messages: Sequence[BaseMessage]) -> Ids:
        """Apply the tokenizer's chat template to the messages."""
        tokenizer = self.engine.tokenizer
        if not tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer of role {self.role!r} has no chat template, so messages cannot become a prompt. "
                "Set tokenizer.chat_template, or use hardwon.trainers.TokenPolicy."
            )
        conversation = [
            {"role": _ROLES.get(message.type, "user"), "content": str(message.text)} for message in messages
        ]
        return render_messages(tokenizer, conversation, add_generation_prompt=True)

    def _encode(self, text: str) -> Ids:
        """Return the token ids of a text."""
        return tuple(self.engine.tokenizer(text, add_special_tokens=False).input_ids)

    def _get_end(self) -> Ids:
        """Return the end-of-sequence token, if the tokenizer has one."""
        end = self.engine.tokenizer.eos_token_id
        return () if end is None else (int(end),)

    # -- answers out of a list ----------------------------------------------------------------------

    def with_structured_output(
        self, schema: dict[str, Any] | type, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[Any, Any]:
        """Limit answers to the values that the schema allows, as JSON.

        Args:
            schema: JSON schema of an object with one property, which is an `enum`.
            include_raw: Return the message, the parsed value and the error, as LangChain does.
            **kwargs: Ignored.

        Returns:
            A runnable from messages to parsed values.

        Raises:
            NotImplementedError: The schema is any other.
        """
        bound = self.bind(only=_list_instances(schema))
        read: Runnable[Any, Any] = RunnableLambda(_parse_message)
        if not include_raw:
            return bound | read
        parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | read, parsing_error=lambda _: None)
        return RunnableMap(raw=bound) | parsed


def _parse_message(message: AIMessage) -> Any:
    """Parse the JSON of a message."""
    return json.loads(message.text)


def _read_choice(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the possible answers of a request in vLLM's format."""
    return tuple(((options.get("extra_body") or {}).get("structured_outputs") or {}).get("choice", ()))


def _list_instances(schema: Any) -> tuple[str, ...]:
    """Return all JSON texts that a schema allows."""
    properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
    if len(properties) == 1:
        ((name, values),) = properties.items()
        if values.get("enum"):
            return tuple(json.dumps({name: value}, ensure_ascii=False) for value in values["enum"])
    raise NotImplementedError("structured output supports only schemas of one property with an enum.")
