"""An engine as a LangChain chat model, so a trained role can be used wherever a chat model can.

    agent = Agent(policy=EngineChatModel(engine=engine), library=library, environment=environment)
    agent = Agent(policy=EngineChatModel.load("runs/coin/export/policy"), ...)

The tokenizer's chat template turns messages into a prompt, and the role's newest weights answer. Messages that
continue an answer of this model continue its ids: what was sampled is not encoded again, and only what follows is
rendered. An answer can be limited to a list, token by token: with structured output whose schema is an enum, as
`ChatPolicy` uses it, or with vLLM's `structured_outputs` and a `choice`. If the template has a form of tools that a
grammar can bind, the model takes tools: an answer is then a call of one of them.
"""

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_openai_tool

from hardwon.memory.errors import ConfigError
from hardwon.runtime.llm.chat_model import in_own_loop
from hardwon.trainers.algorithms.samples import Ids
from hardwon.trainers.engines.base import Completion, Request
from hardwon.trainers.engines.grammar import ToolCalls
from hardwon.trainers.engines.rendering import encode_text
from hardwon.trainers.engines.tool_form import ToolForm
from hardwon.trainers.engines.trie import Trie

from .chat_messages import ChatMessages, list_readings, to_plain
from .chat_record import ChatRecord, Tool


class EngineChatModel(BaseChatModel):
    """One role of an engine as a chat model. All its requests run in one event loop of its own."""

    engine: Any
    """An `Engine` with a tokenizer that has a chat template."""
    role: str = "policy"
    max_tokens: int = 256
    """Length limit of one answer, in tokens."""
    temperature: float = 1.0
    seed: int | None = None
    """Seed of the sampling. With a seed, the same prompt gets the same answer; None samples freely."""

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

        from hardwon.trainers.engines.base_models import load_tokenizer
        from hardwon.trainers.engines.local import LocalEngine

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
        """Answer the messages, within the list of answers or with a call of a tool if the request has them."""
        tools = options.get("tools") or ()
        prompt = self._build_prompt(messages, tools)
        if tools and options.get("tool_choice") != "none":
            answer, tokens = await self._call_tool(prompt, tools, options)
        else:
            answer, tokens = await self._say(prompt, stop or (), options)
        self._keep(messages, tools, answer, (*prompt, *tokens))
        return ChatResult(generations=[ChatGeneration(message=answer)])

    async def _say(self, prompt: Ids, stop: Sequence[str], options: Any) -> tuple[AIMessage, Ids]:
        """Answer within the list of answers, or freely up to a stop word; return the answer and its tokens."""
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
        tokens = completion.tokens
        ends = (n for n in range(1, len(tokens)) if any(word in self._decode(tokens[:n]) for word in stop))
        text = texts.get(tokens)
        return self._to_message(request, completion, text, stop), tokens[: next(ends, None) if stop else None]

    async def _call_tool(self, prompt: Ids, tools: Sequence[Tool], options: Any) -> tuple[AIMessage, Ids]:
        """Answer with a call of a tool, which the grammar of their schemas binds; return the answer and its tokens."""
        form = self._require_form().call
        schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
        (end,) = self._get_end()
        request = Request(
            prompt,
            self.role,
            ToolCalls(self.engine.tokenizer, schemas, end=end, form=form).open_grammar(
                options.get("max_tokens", self.max_tokens)
            ),
            temperature=options.get("temperature", self.temperature),
            stop=(end,),
            chance=None if self.seed is None else random.Random(f"{self.seed}:{prompt}"),
        )
        completion = await self.engine.generate(request)
        controls = self.engine.tokenizer.added_tokens_decoder
        text = self._decode([token for token in completion.tokens if token not in controls])
        return self._to_message(request, completion, text, (), form.read(text)), completion.tokens

    def _to_message(
        self,
        request: Request,
        completion: Completion,
        text: str | None,
        stop: Sequence[str],
        call: tuple[str, dict[str, Any]] | None = None,
    ) -> AIMessage:
        """Convert a completion to a message."""
        ended = bool(completion.tokens) and completion.tokens[-1] in request.stop
        if text is None:
            text = self._decode(completion.tokens[:-1] if ended else completion.tokens)
        # engines stop at tokens only, so stop words are cut off afterward
        for word in stop:
            text, separator, _ = text.partition(word)
            ended = ended or bool(separator)
        output_tokens = len(completion.tokens)
        input_tokens = len(request.prompt)
        return AIMessage(
            text if call is None else "",
            tool_calls=[] if call is None else [{"name": call[0], "args": call[1], "id": f"call{input_tokens:05d}"}],
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

    # -- tokens -------------------------------------------------------------------------------------

    def _build_prompt(self, messages: Sequence[BaseMessage], tools: Sequence[Tool] = ()) -> Ids:
        """Return the ids of messages: those of the conversation that they continue, or else all of them rendered."""
        self._require_template()
        if tools:
            self._require_form()
        return self._record.open(to_plain(messages, has_tools=bool(tools)), tools)

    def _keep(self, messages: Sequence[BaseMessage], tools: Sequence[Tool], answer: AIMessage, tokens: Ids) -> None:
        """Keep the ids of a conversation up to and including an answer."""
        # All requests run in one event loop, so the record needs no lock.
        has_tools = bool(tools)
        plain = to_plain(messages, has_tools=has_tools)
        for reading in list_readings(answer, has_tools=has_tools):
            *_, last = to_plain([*messages, reading], has_tools=has_tools)
            self._record.keep(plain, tools, last, tokens)

    @cached_property
    def _chats(self) -> ChatMessages:
        """Renders the messages."""
        return ChatMessages(self.engine.tokenizer)

    @cached_property
    def _record(self) -> ChatRecord:
        """The ids of the most recent conversations."""
        return ChatRecord(self._chats)

    def _require_template(self) -> None:
        """Check that there is a chat template."""
        if not self.engine.tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer of role {self.role!r} has no chat template, so messages cannot become a prompt. "
                "Set tokenizer.chat_template, or use hardwon.trainers.TokenPolicy."
            )

    def _decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return str(self.engine.tokenizer.decode(list(tokens)))

    def _encode(self, text: str) -> Ids:
        """Return the token ids of a text, in which control tokens are ordinary characters."""
        return encode_text(self.engine.tokenizer, text)

    def _get_end(self) -> Ids:
        """Return the token that ends an answer, if there is one."""
        end = self._chats.end
        return () if end < 0 else (end,)

    # -- tools --------------------------------------------------------------------------------------

    @property
    def has_tool_form(self) -> bool:
        """Return whether the chat template has a form of tools that a grammar can bind."""
        return self._find_form() is not None

    def _find_form(self) -> ToolForm | None:
        """Return the template's form of tools."""
        template = self._chats.template if self.engine.tokenizer.chat_template else None
        return None if template is None else template.tools

    def _require_form(self) -> ToolForm:
        """Return the template's form of tools."""
        form = self._find_form()
        if form is None:
            raise ConfigError(
                f"the chat template of role {self.role!r} has no form of tools that a grammar can bind. Write "
                "the tools into the messages, as ChatPolicy does."
            )
        return form

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: str | None = None, **kwargs: Any) -> Runnable[Any, Any]:
        """Answer with a call of one of the tools from now on.

        Args:
            tools: Tools of LangChain, functions, or dictionaries in OpenAI's form.
            tool_choice: "none" shows the tools and lets the model answer freely.
            **kwargs: Further options of a request.
        """
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], tool_choice=tool_choice, **kwargs)

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
