"""The policy that asks a chat model: any LangChain chat model, or a name such as "openai:gpt-5".

    ChatPolicy("openai:gpt-5", price_usd_per_million=(1.25, 10.0))
    ChatPolicy("openai:tiny", base_url="http://localhost:8000/v1", api_key="none", structured="choice")

One answer is one action. An answer that is none is shown to the model again with a numbered list,
constrained to that list where the model can be; what hangs, fails or declines is asked again, and
after `max_retries` a `PolicyFailure` says what was seen. `_conversation` holds all of that and asks
nobody: it yields requests, which `decide` answers in a thread and `adecide` awaits. What is said
and how answers are read is in `prompts`. LangChain is imported when the first policy is made.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from hardwon.memory.errors import ConfigError, PolicyFailure
from hardwon.runtime.interfaces.types import Context, Decision, Usage
from hardwon.runtime.llm import prompts
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

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import BaseMessage

Structured = Literal["auto", "choice", "never"]

MAX_ANSWER = 20_000
"""Characters of an answer that are read."""
MAX_WHY = 500
"""Characters of an answer that are kept with the decision."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to the model; `only` are the answers allowed, where the model can be constrained."""

    messages: tuple[tuple[str, str], ...]
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the next request."""

    seconds: float


Reply = Any
"""A message, the exception that came instead, or None after a pause."""
Conversation = Generator[Ask | Pause, Reply, Decision]


class ChatPolicy:
    """Asks a chat model for every action."""

    reads: Literal["values", "text"] = "text"

    def __init__(
        self,
        model: "BaseChatModel | str",
        *,
        temperature: float | None = None,
        max_retries: int = 2,
        timeout_s: float = 60.0,
        history: int = 6,
        price_usd_per_million: tuple[float, float] | None = None,
        instructions: str = "",
        structured: Structured = "auto",
        sleep: Callable[[float], None] | None = None,
        **settings: Any,
    ) -> None:
        """`model` is a chat model, or a name for `init_chat_model`, which also gets `settings`.

        temperature: None keeps the model's own.
        max_retries: requests of one decision after the first, repairs included.
        timeout_s: for one request, enforced even when the model ignores it.
        history: how many of the last steps are told.
        price_usd_per_million: of prompt tokens and of completion tokens.
        structured: how a repair is constrained: "auto" by the model's structured output, where it
            has one; "choice" by vLLM's `structured_outputs`; "never" by words only.
        sleep: replaces the pauses after a provider's error.
        """
        _check(max_retries, timeout_s, history, price_usd_per_million, structured)
        self._model = open_model(model, temperature, timeout_s, settings)
        self._max_retries, self._timeout_s, self._history = max_retries, timeout_s, history
        self._price, self._instructions = price_usd_per_million or (0.0, 0.0), instructions
        self._structured: Structured = structured
        self._sleep = sleep
        self._jitter = random.Random()  # not the episode's: a slow provider must not change it
        self._by_name = isinstance(model, str)
        self.name = model if isinstance(model, str) else name_of(model)

    def decide(self, context: Context) -> Decision:
        """The action the model chose; `PolicyFailure`, with `usage`, when it gave none."""
        conversation = self._conversation(context)
        request = _advance(conversation, None)
        while not isinstance(request, Decision):
            request = _advance(conversation, self._serve(request))
        return request

    async def adecide(self, context: Context) -> Decision:
        """The same, awaited."""
        conversation = self._conversation(context)
        request = _advance(conversation, None)
        while not isinstance(request, Decision):
            request = _advance(conversation, await self._aserve(request))
        return request

    # ---- one decision, whoever answers

    def _conversation(self, context: Context) -> Conversation:
        only, tally = prompts.choices(context), _Tally(self._price)
        ask, last = self._ask(context, prompts.turn_prompt(context, history=self._history)), ""
        constrain = only
        while tally.attempts <= self._max_retries:
            tally.attempts += 1
            tally.usage += Usage(calls=1)
            reply = yield ask
            if isinstance(reply, Exception):
                if self._unsupported(reply, ask):
                    tally.saw(type(reply).__name__, str(reply))
                    constrain, ask = (), replace(ask, only=())
                elif not (yield from self._wait(reply, tally)):
                    break
                continue
            answer = tally.count(ask, reply)
            action, problem = _read(reply, answer, context, only)
            if action is not None:
                return self._decision(action, answer, tally)
            tally.saw(problem, answer)
            last, tally.repairing = answer or last, True
            ask = replace(self._ask(context, prompts.repair_prompt(context, answer, problem)), only=constrain)
        if (action := self._last_resort(last, context, only)) is not None:
            return self._decision(action, last, tally, nearest=True)
        raise self._failure(tally)

    def _ask(self, context: Context, text: str) -> Ask:
        system = prompts.system_prompt(context.state.task, self._instructions, context.manual)
        return Ask((("system", system), ("user", text)))

    def _unsupported(self, error: Exception, ask: Ask) -> bool:
        """Whether it is the constraint that the provider does not take; then it is asked without."""
        if not ask.only or is_transient(error):
            return False
        if status_of(error) in PERMANENT or isinstance(error, (NotImplementedError, TypeError)):
            self._structured = "never"
        return True

    def _wait(self, error: Exception, tally: "_Tally") -> Generator[Pause, Reply, bool]:
        """Note the error and pause; False when asking again is no use."""
        if isinstance(error, TimeoutError):
            tally.saw(f"no answer within {self._timeout_s:g} s", "")
            return True
        tally.saw(type(error).__name__, str(error))
        if status_of(error) in PERMANENT:
            return False
        if tally.attempts <= self._max_retries:
            tally.errors += 1
            yield Pause(pause_s(error, tally.errors, self._jitter))
        return True

    def _last_resort(self, answer: str, context: Context, only: tuple[str, ...]) -> str | None:
        if prompts.refused(answer, context.forbidden) is not None:
            return None
        return prompts.nearest(answer, only, context.forbidden)

    def _decision(self, action: str, answer: str, tally: "_Tally", *, nearest: bool = False) -> Decision:
        why = {"answer": answer[:MAX_WHY], "repaired": tally.repairing, "attempts": tally.attempts}
        why |= {"nearest": True} if nearest else {}
        why |= {"tokens_estimated": True} if tally.estimated else {}
        return Decision(action, why, tally.usage)

    def _failure(self, tally: "_Tally") -> PolicyFailure:
        failure = PolicyFailure(
            f"{self.name} gave no usable action in {tally.attempts} of at most {self._max_retries + 1} requests: "
            f"{tally.summary()}. Look at the model and its key, or raise max_retries or timeout_s."
        )
        failure.usage = tally.usage  # type: ignore[attr-defined]  # kept by pickle: it is in __dict__
        return failure

    # ---- answering a request

    def _serve(self, request: Ask | Pause) -> Reply:
        if isinstance(request, Pause):
            (self._sleep or time.sleep)(request.seconds)
            return None
        try:
            model = self._constrained(request.only)
            return _message(in_thread(lambda: model.invoke(list(request.messages))).result(self._timeout_s))
        except Exception as error:
            return error

    async def _aserve(self, request: Ask | Pause) -> Reply:
        if isinstance(request, Pause):
            await asyncio.sleep(0 if self._sleep else request.seconds)
            return self._sleep(request.seconds) if self._sleep else None
        messages = list(request.messages)
        try:
            model = self._constrained(request.only)
            if not awaits(self._model):
                waiting: Any = asyncio.wrap_future(in_thread(lambda: model.invoke(messages)))
            elif self._by_name:
                waiting = asyncio.wrap_future(in_own_loop(model.ainvoke(messages)))
            else:
                waiting = model.ainvoke(messages)
            return _message(await asyncio.wait_for(waiting, self._timeout_s))
        except Exception as error:
            return error

    def _constrained(self, only: tuple[str, ...]) -> Any:
        if not only or self._structured == "never":
            return self._model
        try:
            if self._structured == "choice":
                extra = dict(getattr(self._model, "extra_body", None) or {})
                return self._model.bind(extra_body=extra | {"structured_outputs": {"choice": list(only)}})
            return self._model.with_structured_output(_schema(only), include_raw=True)
        except (NotImplementedError, AttributeError):
            self._structured = "never"
            return self._model


@dataclass(slots=True)
class _Tally:
    """What one decision has cost and seen so far."""

    price: tuple[float, float]
    attempts: int = 0
    errors: int = 0
    repairing: bool = False
    estimated: bool = False
    usage: Usage = field(default_factory=Usage)
    seen: Counter[str] = field(default_factory=Counter)
    example: dict[str, str] = field(default_factory=dict)

    def count(self, ask: Ask, message: "BaseMessage") -> str:
        """The text of the answer, its tokens counted; estimated at four characters each when not told."""
        answer = _text(message)[:MAX_ANSWER]
        used, estimated = usage_of(message, ask.messages, answer, self.price)
        self.usage += used
        self.estimated = self.estimated or estimated
        return answer

    def saw(self, what: str, example: str) -> None:
        """One more request that gave no action."""
        self.seen[what] += 1
        self.example[what] = prompts.clean(example, 200).strip()

    def summary(self) -> str:
        """`2 × empty answer, 1 × not one of the admissible actions ('blah')`."""
        shown = (
            f"{n} × {what}" + (f" ({self.example[what]!r})" if self.example[what] else "")
            for what, n in self.seen.items()
        )
        return ", ".join(shown)


# ---- reading a message

_CHOICE = "choose_action"
_DECLINED = {"content_filter", "refusal", "safety"}


def _read(message: "BaseMessage", answer: str, context: Context, only: tuple[str, ...]) -> tuple[str | None, str]:
    """The action in the answer; or None and what is wrong with it."""
    if _declined(message):
        return None, "the model declined to answer"
    if not answer.strip():
        return None, "the answer was empty"
    if context.actions:
        action = prompts.choose(answer, only)
        taken = None if action is not None else prompts.refused(answer, context.forbidden)
    else:
        action = answer if getattr(message, "tool_calls", None) else prompts.free_action(answer)
        taken = action if action in context.forbidden else None
    if taken is not None:
        return None, "the action was refused in this step"
    if prompts.is_refusal(answer) and (action is None or not context.actions):
        return None, "the model declined to answer"
    return action, "" if action is not None else "it is not one action" + " of the list" * bool(context.actions)


def _text(message: "BaseMessage") -> str:
    """What was answered: the first tool call, else the text."""
    text = str(message.text)
    for call in getattr(message, "tool_calls", None) or ():
        arguments = call["args"]
        text = json.dumps(arguments) if call["name"] == _CHOICE else prompts.call_text(call["name"], arguments)
        break
    return text.encode("utf-8", "ignore").decode()  # a lone surrogate could be neither stored nor sent


def _declined(message: "BaseMessage") -> bool:
    told = message.response_metadata
    reasons = {str(told.get(key, "")).lower() for key in ("finish_reason", "stop_reason")}
    blocks = message.content if isinstance(message.content, list) else []
    return bool(
        message.additional_kwargs.get("refusal")
        or reasons & _DECLINED
        or any(isinstance(block, dict) and block.get("type") == "refusal" for block in blocks)
    )


def _message(reply: Any) -> Any:
    return reply["raw"] if isinstance(reply, dict) else reply  # structured output gives raw and parsed


def _schema(actions: tuple[str, ...]) -> dict[str, Any]:
    return {
        "title": _CHOICE,
        "description": "The one action to take.",
        "type": "object",
        "properties": {"action": {"type": "string", "enum": list(actions)}},
        "required": ["action"],
        "additionalProperties": False,
    }


# ---- small things


def _advance(conversation: Conversation, reply: Reply) -> Ask | Pause | Decision:
    """The next request, or the decision that ends the conversation."""
    try:
        return conversation.send(reply)
    except StopIteration as end:
        decision: Decision = end.value
        return decision


def _check(
    max_retries: int, timeout_s: float, history: int, price: tuple[float, float] | None, structured: str
) -> None:
    if max_retries < 0 or history < 0:
        raise ConfigError(f"max_retries is {max_retries}, history is {history}; both are 0 or more.")
    if not timeout_s > 0:
        raise ConfigError(f"timeout_s is {timeout_s}; it is a number of seconds above 0.")
    if price is not None and (len(price) != 2 or min(price) < 0):
        raise ConfigError(f"price_usd_per_million is {price}; give two prices: of prompt and of completion tokens.")
    if structured not in ("auto", "choice", "never"):
        raise ConfigError(f"structured is {structured!r}; use 'auto', 'choice' or 'never'.")
