"""A chat model that answers with a JSON object of a schema; an unusable answer is requested once more.

    answer = StructuredModel("openai:gpt-5").ask(schema, system, user, read)
    answer.value, answer.usage, answer.problem

The model's structured output is used if it has one, and instructions in the prompt otherwise. The caller's `read`
converts the object or raises ValueError with the problem. Errors of the model or its provider are not raised: the
answer then has no value, and `problem` names the reason.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hardwon.runtime.interfaces.usage import ModelUsage

from . import prompts
from .chat_model import PERMANENT, in_thread, name_of, open_model, status_of, usage_of

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

MAX_ANSWER = 50_000
"""Number of characters of an answer that are parsed."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StructuredAnswer(Generic[T]):
    """The result of a request."""

    value: T | None
    usage: ModelUsage
    problem: str = ""
    """Why there is no value; empty if there is one."""


class StructuredModel:
    """A chat model, or the name of one, that answers with objects."""

    def __init__(
        self,
        model: "BaseChatModel | str",
        *,
        timeout_s: float = 120.0,
        price_usd_per_million: tuple[float, float] | None = None,
        **settings: Any,
    ) -> None:
        """Create the client of a model."""
        self._model = open_model(model, None, timeout_s, settings)
        self._timeout_s = timeout_s
        self._price = price_usd_per_million or (0.0, 0.0)
        self._by_words = False
        self.name = model if isinstance(model, str) else name_of(model)

    def ask(
        self, schema: Mapping[str, Any], system: str, user: str, read: Callable[[Mapping[str, Any]], T]
    ) -> StructuredAnswer[T]:
        """Return the value that `read` makes of the answer, or the reason why there is none."""
        usage, problem, question = ModelUsage(), "", user
        # the first request and one repair
        for _ in range(2):
            messages = [("system", system), ("user", question)]
            reply = self._request(schema, messages)
            usage += ModelUsage(calls=1)
            if isinstance(reply, Exception):
                problem = _format_error(reply, self._timeout_s)
                # Without a schema that the provider could have rejected, another request cannot help.
                if status_of(reply) in PERMANENT and self._by_words:
                    break
                # The provider may reject the schema, so the repair describes it in words.
                self._by_words = self._by_words or status_of(reply) in PERMANENT
                continue
            parsed, message = reply
            answer = _extract_text(message)
            usage += usage_of(message, messages, answer, self._price)[0]
            problem = "it is not an object of the form that was asked for"
            for value in _find_objects(parsed, message, answer, schema["required"]):
                try:
                    return StructuredAnswer(read(value), usage)
                except ValueError as error:
                    problem = str(error)
            question = f"{user}\n\n{_build_repair(schema, answer, problem)}"
        return StructuredAnswer(None, usage, problem)

    def _request(self, schema: Mapping[str, Any], messages: list[tuple[str, str]]) -> Any:
        """Return (parsed object or None, message), or the exception of the request."""
        try:
            model = self._constrain(schema)
            if model is None:
                system, user = messages
                model, messages = self._model, [system, (user[0], f"{user[1]}\n\n{_describe_form(schema)}")]
            reply = in_thread(lambda: model.invoke(messages)).result(self._timeout_s)
        except Exception as error:
            return error
        return (reply.get("parsed"), reply["raw"]) if isinstance(reply, dict) else (None, reply)

    def _constrain(self, schema: Mapping[str, Any]) -> Any:
        if not self._by_words:
            try:
                return self._model.with_structured_output(dict(schema), include_raw=True)
            except (NotImplementedError, AttributeError):
                self._by_words = True
        return None


def _describe_form(schema: Mapping[str, Any]) -> str:
    return f"Answer with one JSON object of this schema and nothing else:\n{json.dumps(schema)}"


def _build_repair(schema: Mapping[str, Any], answer: str, problem: str) -> str:
    block = prompts.block("answer", answer or "(empty)", 2_000)
    request = f"It cannot be used: {prompts.clean(problem, 300)}.\n\n{_describe_form(schema)}"
    return f"Your last answer was:\n{block}\n\n{request}"


def _find_objects(parsed: Any, message: Any, answer: str, required: list[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the objects with all required keys: the parsed one, those of tool calls, and those in the text."""
    candidates = [
        parsed,
        *(call["args"] for call in getattr(message, "tool_calls", None) or ()),
        *prompts.find_objects(answer, in_calls=True),
    ]
    for value in candidates:
        if isinstance(value, Mapping) and all(name in value for name in required):
            yield value


def _extract_text(message: Any) -> str:
    text = prompts.strip_reasoning(str(message.text))[:MAX_ANSWER]
    for call in getattr(message, "tool_calls", None) or ():
        text = text or json.dumps(call["args"], default=str)[:MAX_ANSWER]
    return text.encode("utf-8", "ignore").decode()


def _format_error(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    return f"{type(error).__name__}: {prompts.clean(str(error), 300).rstrip('.')}"
