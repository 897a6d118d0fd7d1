"""Chat models with a script, and the policies and contexts of their tests."""

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from hardwon.memory import Recollection, State
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.interfaces.working_memory import WorkingMemory
from hardwon.runtime.policies.chat import ChatPolicy

pytest.importorskip("langchain_core", reason="needs the chat extra")
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from pydantic import Field

ACTIONS = ("eat apple", "go north", "go south", "open the blue door")


class Scripted(BaseChatModel):
    """Answers with the next reply: a text, a message, an exception to raise, or a function to call."""

    replies: list[Any]
    seen: list[Any] = Field(default_factory=list)
    options: list[Any] = Field(default_factory=list)

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        self.seen.append(messages)
        self.options.append(options)
        reply = self.replies.pop(0)
        reply = reply() if callable(reply) else reply
        if isinstance(reply, BaseException):
            raise reply
        message = reply if isinstance(reply, AIMessage) else AIMessage(reply)
        return ChatResult(generations=[ChatGeneration(message=message)])

    _llm_type = "scripted"


class Awaiting(Scripted):
    """The same for a model that awaits by itself."""

    async def _agenerate(self, messages, stop=None, run_manager=None, **options):
        if self.replies[0] == "hang":
            await asyncio.sleep(60)
        return self._generate(messages)


class Structured(Scripted):
    """Has structured output, which answers with `structured`."""

    structured: list[Any]
    schemas: list[Any] = Field(default_factory=list)

    def with_structured_output(self, schema, *, include_raw=False, **options):
        self.schemas.append(schema)
        constrained = Scripted(replies=[self.structured.pop(0)])
        return constrained | RunnableLambda(lambda raw: {"raw": raw, "parsed": None} if include_raw else None)


class Refused(Exception):
    """An error of a provider, with its HTTP status."""

    def __init__(self, status_code: int, headers: dict[str, str] | None = None):
        super().__init__(f"status {status_code}")
        self.status_code = status_code
        self.response = type("Response", (), {"headers": headers or {}})


def context(**changes) -> Context:
    state = State("You are in a kitchen.", task="find the map")
    made = Context(state, ACTIONS, Recollection(), None, {}, (), WorkingMemory(), random.Random(0))
    return replace(made, **changes)


def policy(*replies, model=Scripted, **options) -> ChatPolicy:
    return ChatPolicy(model(replies=list(replies)), sleep=options.pop("sleep", lambda seconds: None), **options)


def asked(chat: ChatPolicy, n: int = -1) -> str:
    return str(chat._model.seen[n][-1].content)


def action_of(reply, **changes) -> str:
    return policy(reply, max_retries=0).decide(context(**changes)).action
