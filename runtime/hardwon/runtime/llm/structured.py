"""A chat model asked for an object of a given form, once, and once more where the answer has another form.

    answer = StructuredModel("openai:gpt-5").ask(schema, system, user, read)
    answer.value, answer.usage, answer.problem

By the model's structured output where it has one, by words where it has none. What the object means
is the caller's: `read` makes a value of it or raises ValueError with what is wrong. Nothing that a
model or its provider does raises here: then there is no value, and `problem` says why.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hardwon.runtime.interfaces.types import Usage

from . import prompts
from .chat_model import PERMANENT, in_thread, name_of, open_model, status_of, usage_of

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

REQUESTS = 2
"""The first, and one repair."""
MAX_ANSWER = 50_000
"""Characters of an answer that are read."""
_MAX_OBJECTS = 50
_THOUGHT = re.compile(r"^.*</think(?:ing)?>|<think(?:ing)?>.*\Z", re.S | re.I)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What came of asking."""

    value: T | None
    usage: Usage
    problem: str = ""
    """Why there is no value."""


class StructuredModel:
    """A chat model, or the name of one, that is asked for objects."""

    def __init__(
        self,
        model: "BaseChatModel | str",
        *,
        timeout_s: float = 120.0,
        price_usd_per_million: tuple[float, float] | None = None,
        **settings: Any,
    ) -> None:
        """`timeout_s` is for one request; `settings` go to `init_chat_model` with a name."""
        self._model = open_model(model, None, timeout_s, settings)
        self._timeout_s = timeout_s
        self._price = price_usd_per_million or (0.0, 0.0)
        self._by_words = False
        self.name = model if isinstance(model, str) else name_of(model)

    def ask(
        self, schema: Mapping[str, Any], system: str, user: str, read: Callable[[Mapping[str, Any]], T]
    ) -> Answer[T]:
        """The value that `read` made of the answer, or why there is none."""
        usage, problem, asked = Usage(), "", user
        for _ in range(REQUESTS):
            messages = [("system", system), ("user", asked)]
            reply = self._request(schema, messages)
            usage += Usage(calls=1)
            if isinstance(reply, Exception):
                problem = _told(reply, self._timeout_s)
                if status_of(reply) in PERMANENT and self._by_words:
                    break
                self._by_words = self._by_words or status_of(reply) in PERMANENT
                continue
            parsed, message = reply
            answer = _text(message)
            usage += usage_of(message, messages, answer, self._price)[0]
            problem = "it is not an object of the form that was asked for"
            for found in _objects(parsed, message, answer, schema["required"]):
                try:
                    return Answer(read(found), usage)
                except ValueError as error:
                    problem = str(error)
            asked = f"{user}\n\n{_repair(schema, answer, problem)}"
        return Answer(None, usage, problem)

    def _request(self, schema: Mapping[str, Any], messages: list[tuple[str, str]]) -> Any:
        """(parsed object or None, message), or the exception that came instead."""
        try:
            model = self._constrained(schema)
            if model is None:
                system, user = messages
                model, messages = self._model, [system, (user[0], f"{user[1]}\n\n{_form(schema)}")]
            reply = in_thread(lambda: model.invoke(messages)).result(self._timeout_s)
        except Exception as error:
            return error
        return (reply.get("parsed"), reply["raw"]) if isinstance(reply, dict) else (None, reply)

    def _constrained(self, schema: Mapping[str, Any]) -> Any:
        if not self._by_words:
            try:
                return self._model.with_structured_output(dict(schema), include_raw=True)
            except (NotImplementedError, AttributeError):
                self._by_words = True
        return None


def _form(schema: Mapping[str, Any]) -> str:
    return f"Answer with one JSON object of this schema and nothing else:\n{json.dumps(schema)}"


def _repair(schema: Mapping[str, Any], answer: str, problem: str) -> str:
    said = prompts.block("answer", answer or "(empty)", 2_000)
    return f"Your last answer was:\n{said}\n\nIt cannot be used: {prompts.clean(problem, 300)}.\n\n{_form(schema)}"


def _objects(parsed: Any, message: Any, answer: str, required: list[str]) -> Iterator[Mapping[str, Any]]:
    """The objects in an answer that have what is required: parsed, a tool call's, in the text."""
    found = [parsed, *(call["args"] for call in getattr(message, "tool_calls", None) or ()), *_in_text(answer)]
    yield from (one for one in found if isinstance(one, Mapping) and all(name in one for name in required))


def _in_text(text: str) -> Iterator[Any]:
    decoder, at = json.JSONDecoder(), text.find("{")
    for _ in range(_MAX_OBJECTS):
        if at < 0:
            return
        end = at + 1
        try:
            value, end = decoder.raw_decode(text, at)
            yield value
        except (ValueError, RecursionError):
            pass
        at = text.find("{", end)


def _text(message: Any) -> str:
    text = _THOUGHT.sub("", str(message.text))[:MAX_ANSWER]
    for call in getattr(message, "tool_calls", None) or ():
        text = text or json.dumps(call["args"], default=str)[:MAX_ANSWER]
    return text.encode("utf-8", "ignore").decode()


def _told(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    return f"{type(error).__name__}: {prompts.clean(str(error), 300)}"
