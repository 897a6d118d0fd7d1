"""A policy that uses a chat model: any LangChain chat model, or a name such as "openai:gpt-5".

    ChatPolicy("openai:gpt-5", price_usd_per_million=(1.25, 10.0))
    ChatPolicy("openai:tiny", base_url="http://localhost:8000/v1", api_key="none", structured="choice")

One answer is one action. After an unusable answer the model gets it back with a numbered list, and its output is
constrained to that list if the model supports it. Timeouts, errors and refusals are retried. After `max_retries` a
`PolicyFailure` summarizes what happened.

`_conversation` contains all of this logic without calling a model: it yields requests, which `decide` answers in a
thread and `adecide` awaits. Prompts and the parsing of answers are in `llm.prompts`. LangChain is imported when the
first policy is created.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from hardwon.memory import Reasons
from hardwon.memory.errors import ConfigError, PolicyFailure
from hardwon.memory.upkeep.argument_types import check_types
from hardwon.runtime.interfaces.types import Context, Decision
from hardwon.runtime.interfaces.usage import ModelUsage
from hardwon.runtime.llm import prompts
from hardwon.runtime.llm.action_lists import Listing
from hardwon.runtime.llm.chat_model import (
    PERMANENT,
    awaits,
    in_own_loop,
    in_thread,
    is_transient,
    name_of,
    open_model,
    pause_s,
    status_of,
    usage_of,
)
from hardwon.runtime.llm.context_builders import AllTurns, ContextBuilder
from hardwon.runtime.llm.conversation import Conversation, Conversations, PromptBuilder
from hardwon.runtime.llm.speech import split_speech
from hardwon.runtime.llm.tool_messages import build_messages, list_tools

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import BaseMessage

Structured = Literal["auto", "choice", "never"]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request to the model."""

    messages: tuple[Any, ...]
    """Pairs of role and text; with tools, messages in OpenAI's form."""
    only: tuple[str, ...] = ()
    """The allowed answers, if the model's output can be constrained; empty for no constraint."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Tools in OpenAI's form, for a model with a form of its own for them."""
    calls: bool = False
    """Whether the answer must be a call of one of the tools."""

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return the roles and texts of the messages."""
        if not self.tools:
            return self.messages
        return tuple((message["role"], str(message["content"])) for message in self.messages)


@dataclass(frozen=True, slots=True)
class Pause:
    """A wait before the next request."""

    seconds: float


ModelReply = Any
"""A message, an exception in its place, or None after a pause."""
ChatExchange = Generator[ChatRequest | Pause, ModelReply, Decision]


class ChatPolicy:
    """Asks a chat model for every action."""

    reads: Literal["values", "text"] = "text"

    @check_types
    def __init__(
        self,
        model: "BaseChatModel | str",
        *,
        temperature: float | None = None,
        max_retries: int = 2,
        timeout_s: float = 60.0,
        history: int = 20,
        price_usd_per_million: tuple[float, float] | None = None,
        instructions: str = "",
        structured: Structured = "auto",
        speech: Literal["none", "free"] = "none",
        speech_tokens: int = 48,
        context: str | ContextBuilder = "all",
        actions: Listing = "full",
        sleep: Callable[[float], None] | None = None,
        **settings: Any,
    ) -> None:
        """Create a policy.

        Args:
            model: A LangChain chat model, or a name for `init_chat_model`, which also gets `settings`.
            temperature: The sampling temperature; None keeps the model's own.
            max_retries: The number of requests per decision after the first one, including repairs.
            timeout_s: Seconds for one request, enforced even if the model ignores it.
            history: The number of past turns in the messages.
            price_usd_per_million: Prices of a million prompt tokens and of a million completion tokens.
            instructions: Text that is appended to the system prompt.
            structured: How a repair is constrained: `"auto"` uses the model's structured output if it has one,
                `"choice"` uses vLLM's `structured_outputs`, and `"never"` uses instructions only.
            speech: "free" lets the model think in one line before each action, in the words with which the trainer
                trains it (`roles.policy.settings.speech`). "none" asks for the action alone.
            speech_tokens: The length of such a thought, which the model is told in words.
            context: In which form past turns are sent: `"all"` in full, `"actions"` without their observations,
                `"report"` as a short list of actions, `"omit"` without the observations that the model names, or a
                `ContextBuilder`.
            actions: `"full"` lists the admissible actions in every message, numbered. `"changes"` lists what is new and
                what is gone, as the trainer does with `roles.policy.settings.actions`; the answer is then in words.
            sleep: Replaces the pauses after a provider's error.
            settings: Further settings of `init_chat_model`, for a model given by name.

        Raises:
            ConfigError: A setting is out of range, or the model cannot be created.
            MissingExtra: A package that the model needs is not installed.
        """
        _check_settings(max_retries, timeout_s, history, price_usd_per_million, structured)
        if speech not in ("none", "free") or speech_tokens < 1:
            raise ConfigError(f"speech is {speech!r} with {speech_tokens} tokens; use none, or free with 1 or more.")
        self._speaks = speech == "free"
        self._model = open_model(model, temperature, timeout_s, settings)
        self._max_retries, self._timeout_s = max_retries, timeout_s
        thought = speech_tokens if self._speaks else 0
        self._conversations = Conversations(
            PromptBuilder(instructions=instructions, history=history, speech=thought, context=context, actions=actions)
        )
        self._price = price_usd_per_million or (0.0, 0.0)
        self._structured: Structured = structured
        self._sleep = sleep
        self._jitter = random.Random()  # not the episode's generator: a slow provider must not change the episode
        self._by_name = isinstance(model, str)
        self._has_form = bool(getattr(self._model, "has_tool_form", False))
        self.name = model if isinstance(model, str) else name_of(model)

    def decide(self, context: Context) -> Decision:
        """Return the action that the model chooses.

        Raises:
            PolicyFailure: The model gave no usable action. The error's `usage` has the cost.
        """
        conversation = self._conversation(context)
        request = _advance(conversation, None)
        while not isinstance(request, Decision):
            request = _advance(conversation, self._serve(request))
        return request

    async def adecide(self, context: Context) -> Decision:
        """Return the action that the model chooses, awaiting it; see `decide`."""
        conversation = self._conversation(context)
        request = _advance(conversation, None)
        while not isinstance(request, Decision):
            request = _advance(conversation, await self._aserve(request))
        return request

    # ---- one decision, independent of how requests are answered

    def _conversation(self, context: Context) -> ChatExchange:
        only, tally, last = prompts.choices(context), _Tally(self._price), ""
        chat = self._conversations.advance(context)
        ask = first = self._open_request(chat)
        constrain = only
        while tally.attempts <= self._max_retries:
            tally.attempts += 1
            # Counted before the reply, so that a request that fails or times out counts too.
            tally.usage += ModelUsage(calls=1)
            reply = yield ask
            if isinstance(reply, Exception):
                if self._is_unsupported(reply, ask):
                    tally.add_problem(type(reply).__name__, str(reply))
                    constrain, ask = (), replace(ask, only=())
                elif not (yield from self._wait(reply, tally)):
                    break
                continue
            answer = tally.count(ask, reply)
            thought, choice = split_speech(answer) if self._speaks else ("", answer)
            # The list after an unusable answer has numbers in every form.
            numbered = tally.repairing or not self._conversations.builder.lists_changes
            action, problem = _parse_answer(reply, choice, context, only, numbered)
            if action is None and thought and context.actions:
                # A model may write on after its action; a list tells which line is one.
                action, problem = _parse_answer(reply, answer, context, only, numbered)
            if action is not None:
                # The conversation keeps a call, and the thought before it, in the form that the messages ask for.
                text = prompts.find_call(answer) if context.tools and not context.actions else None
                text = text or self._conversations.builder.keep(choice, action)
                text = f"{thought}\n{text or action}" if thought else text
                self._conversations.answer(chat, action, text=text)
                return self._build_decision(action, answer, tally)
            tally.add_problem(problem, answer)
            last, tally.repairing = answer or last, True
            # The unusable answer is part of this request only; the conversation goes on without it.
            repeated = ("assistant", prompts.clean(answer, 2_000).strip() or "(empty)")
            repair = ("user", prompts.repair_prompt(context, problem, has_form=bool(first.tools)))
            added = [
                {"role": role, "content": text} if first.tools else (role, text) for role, text in (repeated, repair)
            ]
            ask = replace(first, messages=(*first.messages, *added), only=constrain)
        if (action := self._find_nearest(last, context, only)) is not None:
            self._conversations.answer(chat, action)
            return self._build_decision(action, last, tally, nearest=True)
        raise self._build_failure(tally)

    def _open_request(self, chat: Conversation) -> ChatRequest:
        """Return the request for the open turn, in the model's own form of tools if it has one."""
        # other builders than that of all turns write texts
        if not (self._has_form and chat.tools and isinstance(chat.builder, AllTurns)):
            return ChatRequest(chat.messages())
        # a thought stands before a call, so the answer is then free
        calls = chat.turns[-1].calls and not self._speaks
        return ChatRequest(tuple(build_messages(chat)), tools=tuple(list_tools(chat)), calls=calls)

    def _is_unsupported(self, error: Exception, ask: ChatRequest) -> bool:
        """Return whether the provider may have rejected the output constraint.

        The request is then repeated without it.
        """
        if not ask.only or is_transient(error):
            return False
        # Other errors may have another cause, so only these turn constraints off for good.
        if status_of(error) in PERMANENT or isinstance(error, (NotImplementedError, TypeError)):
            self._structured = "never"
        return True

    def _wait(self, error: Exception, tally: "_Tally") -> Generator[Pause, ModelReply, bool]:
        """Record an error and pause; return False if a retry is useless."""
        if isinstance(error, TimeoutError):
            tally.add_problem(f"no answer within {self._timeout_s:g} s", "")
            return True
        tally.add_problem(type(error).__name__, str(error))
        if status_of(error) in PERMANENT:
            return False
        if tally.attempts <= self._max_retries:
            tally.errors += 1
            yield Pause(pause_s(error, tally.errors, self._jitter))
        return True

    def _find_nearest(self, answer: str, context: Context, only: tuple[str, ...]) -> str | None:
        if prompts.find_refused(answer, context.forbidden) is not None:
            return None
        return prompts.find_nearest(answer, only, context.forbidden)

    def _build_decision(self, action: str, answer: str, tally: "_Tally", *, nearest: bool = False) -> Decision:
        # the words of the model are of no use to the library, so they have no fields of their own
        why: dict[str, Any] = {"answer": answer[:500], "repaired": tally.repairing, "attempts": tally.attempts}
        why |= {"nearest": True} if nearest else {}
        why |= {"tokens_estimated": True} if tally.estimated else {}
        return Decision(action, Reasons(extra=why), tally.usage)

    def _build_failure(self, tally: "_Tally") -> PolicyFailure:
        failure = PolicyFailure(
            f"{self.name} gave no usable action in {tally.attempts} of at most {self._max_retries + 1} requests: "
            f"{tally.summary()}. Check the model and its API key, or increase max_retries or timeout_s."
        )
        failure.usage = tally.usage  # type: ignore[attr-defined]  # pickle keeps it, because it is in __dict__
        return failure

    # ---- answering a request

    def _serve(self, request: ChatRequest | Pause) -> ModelReply:
        if isinstance(request, Pause):
            (self._sleep or time.sleep)(request.seconds)
            return None
        try:
            model = self._constrain(request)
            return _get_message(in_thread(lambda: model.invoke(list(request.messages))).result(self._timeout_s))
        except Exception as error:  # the conversation decides whether to retry
            return error

    async def _aserve(self, request: ChatRequest | Pause) -> ModelReply:
        if isinstance(request, Pause):
            await asyncio.sleep(0 if self._sleep else request.seconds)
            return self._sleep(request.seconds) if self._sleep else None
        messages = list(request.messages)
        try:
            model = self._constrain(request)
            if not awaits(self._model):  # LangChain's fallback thread could not be abandoned after a timeout
                waiting: Any = asyncio.wrap_future(in_thread(lambda: model.invoke(messages)))
            elif self._by_name:  # a client of our own, whose connections belong to our own loop
                waiting = asyncio.wrap_future(in_own_loop(model.ainvoke(messages)))
            else:
                waiting = model.ainvoke(messages)
            return _get_message(await asyncio.wait_for(waiting, self._timeout_s))
        except Exception as error:  # the conversation decides whether to retry
            return error

    def _constrain(self, request: ChatRequest) -> Any:
        if request.tools:
            return self._model.bind(tools=[*request.tools], tool_choice="required" if request.calls else "none")
        only = request.only
        if not only or self._structured == "never":
            return self._model
        try:
            if self._structured == "choice":
                extra = dict(getattr(self._model, "extra_body", None) or {})
                return self._model.bind(extra_body=extra | {"structured_outputs": {"choice": list(only)}})
            return self._model.with_structured_output(_build_schema(only), include_raw=True)
        except (NotImplementedError, AttributeError):
            self._structured = "never"
            return self._model


@dataclass(slots=True)
class _Tally:
    """Cost and problems of one decision so far."""

    price: tuple[float, float]
    attempts: int = 0
    errors: int = 0
    repairing: bool = False
    estimated: bool = False
    usage: ModelUsage = field(default_factory=ModelUsage)
    problems: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def count(self, ask: ChatRequest, message: "BaseMessage") -> str:
        """Return the text of an answer and add its tokens to the usage.

        If the provider reports no counts, four characters are taken as one token.
        """
        answer = _extract_text(message)[:20_000]
        used, estimated = usage_of(message, ask.pairs, answer, self.price)
        self.usage += used
        self.estimated = self.estimated or estimated
        return answer

    def add_problem(self, problem: str, example: str) -> None:
        """Record a request that gave no action."""
        self.problems[problem] += 1
        self.examples[problem] = prompts.clean(example, 200).strip()

    def summary(self) -> str:
        """Return a summary such as `2 × empty answer, 1 × not one of the admissible actions ('blah')`."""
        parts = (
            f"{n} × {problem}" + (f" ({self.examples[problem]!r})" if self.examples[problem] else "")
            for problem, n in self.problems.items()
        )
        return ", ".join(parts)


# ---- reading a message

_CHOICE = "choose_action"
_DECLINED = {"content_filter", "refusal", "safety"}


def _parse_answer(
    message: "BaseMessage", answer: str, context: Context, only: tuple[str, ...], numbered: bool
) -> tuple[str | None, str]:
    """Return the action in an answer, or None and the problem with it."""
    if _has_declined(message):
        return None, "the model declined to answer"
    if not answer.strip():
        return None, "the answer was empty"
    if context.actions:
        action = prompts.choose(answer, only, numbered=numbered)
        refused = None if action is not None else prompts.find_refused(answer, context.forbidden)
    else:
        action = answer if getattr(message, "tool_calls", None) else prompts.free_action(answer)
        refused = action if action in context.forbidden else None
    if refused is not None:
        return None, "the action was refused in this step"
    if prompts.is_refusal(answer) and (action is None or not context.actions):
        return None, "the model declined to answer"
    return action, "" if action is not None else "it is not one action" + " of the list" * bool(context.actions)


def _extract_text(message: "BaseMessage") -> str:
    """Return the first tool call of a message as text, or else its text."""
    text = str(message.text)
    for call in getattr(message, "tool_calls", None) or ():
        arguments = call["args"]
        text = json.dumps(arguments) if call["name"] == _CHOICE else prompts.call_text(call["name"], arguments)
        break
    return text.encode("utf-8", "ignore").decode()  # a lone surrogate can be neither stored nor sent


def _has_declined(message: "BaseMessage") -> bool:
    metadata = message.response_metadata
    reasons = {str(metadata.get(key, "")).lower() for key in ("finish_reason", "stop_reason")}
    blocks = message.content if isinstance(message.content, list) else []
    return bool(
        message.additional_kwargs.get("refusal")
        or reasons & _DECLINED
        or any(isinstance(block, dict) and block.get("type") == "refusal" for block in blocks)
    )


def _get_message(reply: Any) -> Any:
    return reply["raw"] if isinstance(reply, dict) else reply  # structured output also returns a parsed form


def _build_schema(actions: tuple[str, ...]) -> dict[str, Any]:
    return {
        "title": _CHOICE,
        "description": "The one action to take.",
        "type": "object",
        "properties": {"action": {"type": "string", "enum": list(actions)}},
        "required": ["action"],
        "additionalProperties": False,
    }


# ---- helpers


def _advance(conversation: ChatExchange, reply: ModelReply) -> ChatRequest | Pause | Decision:
    """Return the next request, or the decision that ends the conversation."""
    try:
        return conversation.send(reply)
    except StopIteration as end:
        decision: Decision = end.value
        return decision


def _check_settings(
    max_retries: int, timeout_s: float, history: int, price: tuple[float, float] | None, structured: str
) -> None:
    if max_retries < 0 or history < 0:
        raise ConfigError(f"max_retries is {max_retries} and history is {history}; use 0 or more for both.")
    if not timeout_s > 0:
        raise ConfigError(f"timeout_s is {timeout_s}; use a number of seconds above 0.")
    if price is not None and (len(price) != 2 or min(price) < 0):
        raise ConfigError(
            f"price_usd_per_million is {price}; give two prices, for prompt tokens and for completion tokens."
        )
    if structured not in ("auto", "choice", "never"):
        raise ConfigError(f"structured is {structured!r}; use 'auto', 'choice' or 'never'.")
